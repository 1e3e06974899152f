//! What is measured, in its order.

use std::time::{Duration, Instant};

use integration::arrivals::{Arrivals, Change};
use integration::hub::Request;
use integration::{Error, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::claims::Claims;
use super::documents::{self, MAPS, NAMESPACE};
use super::measured::{Measured, Phase};
use super::meter::Meter;
use super::outage::Outage;
use super::plain;
use super::world::{LONGEST_STEP, World};
use crate::measure::Latency;
use crate::options::SyncsetOptions;

/// Clients that a replica keeps.
const KEPT: usize = 256;
/// One in ten clusters dies.
const DEAD: usize = 10;

fn config_maps() -> ApiResource {
    ApiResource::erase::<ConfigMap>(&())
}

fn secrets() -> ApiResource {
    ApiResource::erase::<Secret>(&())
}

/// The place of an object and its value.
fn mark(value: String) -> impl Fn(&Change, &Value) -> Option<String> + Clone + Send + Sync + 'static {
    move |change, object| (*change != Change::Deleted && text(object, "/data/value") == value).then(|| place(object))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as a watch calls it")]
fn deleted(change: &Change, object: &Value) -> Option<String> {
    (*change == Change::Deleted).then(|| place(object))
}

/// A text of an object; empty if there is none.
fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn place(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

/// The resources of a syncset, as a change of its document.
fn resources(document: &Value) -> Value {
    json!({"spec": {"resources": document.pointer("/spec/resources")}})
}

/// When the last of so many marks was seen.
async fn last_of(arrivals: &[Arrivals], objects: usize) -> Result<Instant, Error> {
    eventually(format!("{objects} objects to arrive"), LONGEST_STEP, async || {
        // Marks are copied only once they are all there: of thousands that costs more than it takes for them to arrive.
        let seen: usize = arrivals.iter().map(Arrivals::seen).sum();
        let last = arrivals.iter().flat_map(|arrivals| arrivals.all().into_values());
        let last = if seen >= objects { last.max() } else { None };
        last.ok_or_else(|| format!("{seen} objects"))
    })
    .await
}

/// Waits until so many objects have arrived.
async fn arrived(phase: Phase<'_>, arrivals: &[Arrivals], objects: usize) -> Result<Measured, Error> {
    let last = last_of(arrivals, objects).await?;
    phase.ended(Some(last), objects).await
}

/// Every phase.
pub(crate) async fn all(world: &mut World, options: &SyncsetOptions) -> Result<Vec<Measured>, Error> {
    let mut all = Vec::new();
    note(&mut all, register(world).await?);
    world.execute("vacuum", "VACUUM (ANALYZE)").await?;
    let pages = (world.clusters.div_ceil(world.edges.len()) * (MAPS + 1)).div_ceil(500);
    // A client that was not kept looks up the kinds.
    let looks = if world.clusters > KEPT { 1.0 } else { 0.0 };
    note(&mut all, first_apply(world).await?.most(25.0));
    note(&mut all, plain::first_apply(world).await?);
    note(&mut all, one_changed(world, "one of eleven objects changed", &values("2")).await?.most(1.0 + looks));
    // The secret is read alone. As many clusters as share an API server list each other's objects.
    #[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
    note(&mut all, full_pass(world, "full pass of all").await?.most(pages as f64 + 1.0 + looks));
    note(&mut all, secret_changed(world).await?);
    note(&mut all, single_changes(world, options).await?);
    note(&mut all, label_changes(world, options).await?);
    note(&mut all, idle(world, options).await?.most(0.0));
    note(&mut all, removed(world).await?.most(2.0 + looks));
    beside_dead(world, options, &mut all).await?;
    for (workers, changed, full) in [
        (2, "one changed, by 2 workers", "full pass of all, by 2 workers"),
        (3, "one changed, by 3 workers", "full pass of all, by 3 workers"),
    ] {
        world.workers(workers).await?;
        note(&mut all, one_changed(world, changed, &fewer(&format!("w{workers}"))).await?.most(2.0));
        note(&mut all, full_pass(world, full).await?);
    }
    Ok(all)
}

fn note(all: &mut Vec<Measured>, measured: Measured) {
    all.push(measured.told());
}

/// The clusters are registered and found out.
pub(super) async fn register(world: &World) -> Result<Measured, Error> {
    world.send(&Request::post("/v1/secrets", &documents::secret("000"))).await?;
    let phase = Phase::begin(world, "clusters registered").await?;
    world.register().await?;
    eventually("all clusters to be found out", LONGEST_STEP, async || {
        let known = world.number("SELECT count(*) FROM towline_pace WHERE reachable").await;
        match known {
            Ok(known) if usize::try_from(known).is_ok_and(|known| known == world.clusters) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    phase.ended(Some(Instant::now()), 0).await
}

/// Those of one map less.
fn fewer(first: &str) -> Vec<&str> {
    let mut values = values(first);
    values.pop();
    values
}

fn values(first: &str) -> Vec<&str> {
    std::iter::once(first).chain(std::iter::repeat_n("1", MAPS - 1)).collect()
}

async fn first_apply(world: &World) -> Result<Measured, Error> {
    let maps = world.watch(&config_maps(), mark("1".to_owned())).await?;
    let phase = Phase::begin(world, "first apply").await?;
    world.send(&Request::post("/v1/selectorsyncsets", &documents::base(&values("1")))).await?;
    arrived(phase, &maps, MAPS * world.clusters).await
}

/// The first of these values is new.
async fn one_changed(world: &World, what: &'static str, values: &[&str]) -> Result<Measured, Error> {
    let value = values.first().copied().unwrap_or_default();
    let maps = world.watch(&config_maps(), mark(value.to_owned())).await?;
    let phase = Phase::begin(world, what).await?;
    let path = "/v1/selectorsyncsets/base";
    let spec = resources(&documents::base(values));
    world.send(&Request::merge_patch(path, &spec)).await?;
    arrived(phase, &maps, world.clusters).await
}

pub(super) async fn full_pass(world: &World, what: &'static str) -> Result<Measured, Error> {
    let phase = Phase::begin(world, what).await?;
    world
        .execute(
            "demand full passes",
            "CREATE TEMP TABLE IF NOT EXISTS demanded (at timestamptz); INSERT INTO demanded VALUES (now()); \
             UPDATE towline_pace SET next_full = NULL, resyncs = resyncs + 1; \
             UPDATE towline_work SET wanted = wanted + 1, ready_at = now(), urgent = true, attempts = 0; NOTIFY towline_work",
        )
        .await?;
    let done = "SELECT count(*) FROM towline_pace WHERE last_full > (SELECT max(at) FROM demanded)";
    eventually("full passes of all clusters", LONGEST_STEP, async || match world.number(done).await {
        Ok(done) if usize::try_from(done).is_ok_and(|done| done >= world.clusters) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    phase.ended(Some(Instant::now()), 0).await
}

/// The mapped secret has one object on each API server, which the clusters there share.
async fn secret_changed(world: &World) -> Result<Measured, Error> {
    let document = documents::secret("111");
    let found = text(&document, "/data/value").to_owned();
    let secrets = world.watch(&secrets(), mark(found)).await?;
    let phase = Phase::begin(world, "mapped secret changed").await?;
    world
        .send(&Request::merge_patch(&format!("/v1/secrets/{NAMESPACE}/pull"), &json!({"data": document.get("data")})))
        .await?;
    arrived(phase, &secrets, world.edges.len()).await
}

/// A `SyncSet` for one cluster changes again and again.
async fn single_changes(world: &World, options: &SyncsetOptions) -> Result<Measured, Error> {
    let maps = world.watch(&config_maps(), any_single).await?;
    world.send(&Request::post("/v1/syncsets", &documents::single(0, Some("s0")))).await?;
    last_of(&maps, 1).await?;
    let phase = Phase::begin(world, "one object on one cluster").await?;
    let mut taken = Vec::new();
    for round in 1..=options.singles {
        let value = format!("s{round}");
        let spec = resources(&documents::single(0, Some(&value)));
        taken.push(one_by_one(world, &maps, &format!("/v1/syncsets/{NAMESPACE}/single"), &spec, round + 1).await?);
    }
    phase.of_singles(Latency::taken(taken), options.singles).await
}

/// A label of one cluster changes again and again, on which an object depends.
async fn label_changes(world: &World, options: &SyncsetOptions) -> Result<Measured, Error> {
    let maps = world.watch(&config_maps(), any_single).await?;
    let spec = resources(&documents::single(0, None));
    world.send(&Request::merge_patch(&format!("/v1/syncsets/{NAMESPACE}/single"), &spec)).await?;
    last_of(&maps, 1).await?;
    let phase = Phase::begin(world, "one label of one cluster").await?;
    let mut taken = Vec::new();
    for round in 1..=options.singles {
        let labels = json!({"labels": {"round": format!("l{round}")}});
        taken.push(one_by_one(world, &maps, &cluster_path(0), &labels, round + 1).await?);
    }
    phase.of_singles(Latency::taken(taken), options.singles).await
}

/// Each value of the object of the `SyncSet`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as a watch calls it")]
fn any_single(change: &Change, object: &Value) -> Option<String> {
    let is_single = *change != Change::Deleted && text(object, "/metadata/name") == "single";
    is_single.then(|| text(object, "/data/value").to_owned())
}

/// Changes a document and waits until it has arrived as the last of so many changes.
async fn one_by_one(
    world: &World,
    maps: &[Arrivals],
    path: &str,
    fields: &Value,
    changes: usize,
) -> Result<Duration, Error> {
    let began = Instant::now();
    world.send(&Request::merge_patch(path, fields)).await?;
    Ok(last_of(maps, changes).await?.saturating_duration_since(began))
}

pub(super) async fn idle(world: &World, options: &SyncsetOptions) -> Result<Measured, Error> {
    let phase = Phase::begin(world, "idle").await?;
    sleep(options.idle).await;
    phase.ended(Some(Instant::now()), 0).await
}

/// The last config map leaves the `SelectorSyncSet`.
async fn removed(world: &World) -> Result<Measured, Error> {
    let gone = world.watch(&config_maps(), deleted).await?;
    let phase = Phase::begin(world, "one object removed").await?;
    let spec = resources(&documents::base(&fewer("2")));
    world.send(&Request::merge_patch("/v1/selectorsyncsets/base", &spec)).await?;
    arrived(phase, &gone, world.clusters).await
}

/// One in ten clusters dies while a change is applied to the others, and is known to be dead at the next change.
async fn beside_dead(world: &World, options: &SyncsetOptions, all: &mut Vec<Measured>) -> Result<(), Error> {
    let dead = world.clusters / DEAD;
    let outage = Outage::begin(world, dead).await?;
    for number in 0..dead {
        let death = options.dead.get(number % options.dead.len().max(1)).copied();
        let kubeconfig = json!({"kubeconfig": outage.kubeconfig(world, number, death)?});
        world.send(&Request::merge_patch(&cluster_path(number), &kubeconfig)).await?;
    }
    for (what, value) in [("one changed, as a tenth dies", "dying"), ("one changed, a tenth is dead", "dead")] {
        let maps = world.watch(&config_maps(), mark(value.to_owned())).await?;
        let claims = Claims::watch(world, 0..dead).await?;
        let phase = Phase { world, meter: Meter::begin(world).await?, began: Instant::now(), what };
        let spec = resources(&documents::base(&fewer(value)));
        world.send(&Request::merge_patch("/v1/selectorsyncsets/base", &spec)).await?;
        let measured = arrived(phase, &maps, world.clusters - dead).await?;
        world.silent(dead).await?;
        let longest_claim = Some(claims.longest());
        note(all, Measured { longest_claim, ..measured });
    }
    let maps = world.watch(&config_maps(), mark("dead".to_owned())).await?;
    for number in 0..dead {
        let kubeconfig = json!({"kubeconfig": world.kubeconfig(number)?});
        world.send(&Request::merge_patch(&cluster_path(number), &kubeconfig)).await?;
    }
    last_of(&maps, dead).await.map(drop)
}

/// The path of a cluster's document.
pub(super) fn cluster_path(number: usize) -> String {
    format!("/v1/clusters/{NAMESPACE}/{}", documents::name(number))
}
