//! What is measured, in its order.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use integration::arrivals::{Arrivals, Change};
use integration::hub::Request;
use integration::{Error, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::discovery::ApiResource;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::documents::{self, MAPS, NAMESPACE};
use super::meter::{Cost, Meter};
use super::world::{LONGEST_STEP, World};
use crate::measure::Latency;
use crate::options::SyncsetOptions;

/// One in ten clusters dies.
const DEAD: usize = 10;
/// An address that refuses connections.
const REFUSING: &str = "https://127.0.0.1:1";

/// What a phase has shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) what: &'static str,
    /// Until the last object had arrived.
    pub(crate) seconds: Option<f64>,
    /// Of single changes, one after the other.
    pub(crate) latency_ms: Option<Latency>,
    /// Objects that arrived.
    pub(crate) objects: usize,
    pub(crate) cost: Cost,
}

/// What a phase waits for.
struct Phase<'w> {
    world: &'w World,
    meter: Meter,
    began: Instant,
    what: &'static str,
}

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

impl<'w> Phase<'w> {
    async fn begin(world: &'w World, what: &'static str) -> Result<Self, Error> {
        world.at_rest().await?;
        Ok(Self { world, meter: Meter::begin(world).await?, began: Instant::now(), what })
    }

    /// Waits until so many objects have arrived.
    async fn arrived(self, arrivals: &[Arrivals], objects: usize) -> Result<Measured, Error> {
        let last = last_of(arrivals, objects).await?;
        let seconds = Some(last.saturating_duration_since(self.began).as_secs_f64());
        let cost = self.meter.end(self.world).await?;
        Ok(told(Measured { what: self.what, seconds, latency_ms: None, objects, cost }))
    }
}

/// When the last of so many marks was seen.
async fn last_of(arrivals: &[Arrivals], objects: usize) -> Result<Instant, Error> {
    eventually(format!("{objects} objects to arrive"), LONGEST_STEP, async || {
        let all: HashMap<String, Instant> = arrivals
            .iter()
            .enumerate()
            .flat_map(|(edge, arrivals)| {
                arrivals.all().into_iter().map(move |(at, when)| (format!("{edge} {at}"), when))
            })
            .collect();
        match all.values().max() {
            Some(last) if all.len() >= objects => Ok(*last),
            _ => Err(format!("{} objects", all.len())),
        }
    })
    .await
}

fn told(measured: Measured) -> Measured {
    eprintln!("{}", measured.line());
    measured
}

impl Measured {
    pub(crate) fn line(&self) -> String {
        let time = match (self.seconds, self.latency_ms) {
            (Some(seconds), _) => format!("{seconds:>7.2} s"),
            (None, Some(ms)) => format!("p50 {:.0} p99 {:.0} ms", ms.p50, ms.p99),
            (None, None) => String::new(),
        };
        let cost = &self.cost;
        format!(
            "  {:<34} {time}, {} objects, {} requests, {} statements; CPU s: towline {:.2}, database {:.2}, API servers {:.2}, load \
             {:.2}; {:.1} MiB",
            self.what,
            self.objects,
            cost.requests,
            cost.statements,
            cost.towline_cpu_seconds,
            cost.database_cpu_seconds,
            cost.api_servers_cpu_seconds,
            cost.load_cpu_seconds,
            cost.towline_peak_mib
        )
    }
}

/// Every phase.
pub(crate) async fn all(world: &mut World, options: &SyncsetOptions) -> Result<Vec<Measured>, Error> {
    let mut all = vec![register(world).await?];
    world.execute("vacuum", "VACUUM (ANALYZE)").await?;
    all.push(first_apply(world).await?);
    all.push(one_changed(world, "one of eleven objects changed", "2").await?);
    all.push(full_pass(world).await?);
    all.push(secret_changed(world).await?);
    all.push(single_changes(world, options).await?);
    all.push(label_changes(world, options).await?);
    all.push(idle(world, options).await?);
    all.push(removed(world).await?);
    all.push(beside_dead(world).await?);
    for workers in [2, 3] {
        world.workers(workers).await?;
        let what = if workers == 2 { "one changed, by 2 workers" } else { "one changed, by 3 workers" };
        all.push(one_changed(world, what, &format!("w{workers}")).await?);
    }
    Ok(all)
}

/// The clusters are registered and found out.
async fn register(world: &World) -> Result<Measured, Error> {
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
    let seconds = Some(phase.began.elapsed().as_secs_f64());
    let cost = phase.meter.end(world).await?;
    Ok(told(Measured { what: phase.what, seconds, latency_ms: None, objects: 0, cost }))
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
    phase.arrived(&maps, MAPS * world.clusters).await
}

async fn one_changed(world: &World, what: &'static str, value: &str) -> Result<Measured, Error> {
    let maps = world.watch(&config_maps(), mark(value.to_owned())).await?;
    let phase = Phase::begin(world, what).await?;
    let path = "/v1/selectorsyncsets/base";
    let spec = resources(&documents::base(&values(value)));
    world.send(&Request::merge_patch(path, &spec)).await?;
    phase.arrived(&maps, world.clusters).await
}

async fn full_pass(world: &World) -> Result<Measured, Error> {
    let phase = Phase::begin(world, "full pass of all").await?;
    world
        .execute(
            "demand full passes",
            "CREATE TEMP TABLE IF NOT EXISTS demanded (at timestamptz); INSERT INTO demanded VALUES (now()); \
             UPDATE towline_pace SET next_full = NULL, resyncs = resyncs + 1; \
             UPDATE towline_work SET wanted = wanted + 1, ready_at = now(), urgent = true, attempts = 0; NOTIFY towline_work",
        )
        .await?;
    let done = "SELECT count(*) FROM towline_pace WHERE last_full > (SELECT max(at) FROM demanded)";
    while usize::try_from(world.number(done).await?).is_ok_and(|done| done < world.clusters) {
        sleep(Duration::from_millis(20)).await;
    }
    let seconds = Some(phase.began.elapsed().as_secs_f64());
    let cost = phase.meter.end(world).await?;
    Ok(told(Measured { what: phase.what, seconds, latency_ms: None, objects: 0, cost }))
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
    phase.arrived(&secrets, world.edges.len()).await
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
    let cost = phase.meter.end(world).await?;
    let latency_ms = Latency::taken(taken);
    Ok(told(Measured { what: phase.what, seconds: None, latency_ms, objects: options.singles, cost }))
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
        let path = format!("/v1/clusters/{NAMESPACE}/{}", documents::name(0));
        taken.push(one_by_one(world, &maps, &path, &labels, round + 1).await?);
    }
    let cost = phase.meter.end(world).await?;
    let latency_ms = Latency::taken(taken);
    Ok(told(Measured { what: phase.what, seconds: None, latency_ms, objects: options.singles, cost }))
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

async fn idle(world: &World, options: &SyncsetOptions) -> Result<Measured, Error> {
    let phase = Phase::begin(world, "idle").await?;
    sleep(options.idle).await;
    let seconds = Some(phase.began.elapsed().as_secs_f64());
    let cost = phase.meter.end(world).await?;
    Ok(told(Measured { what: phase.what, seconds, latency_ms: None, objects: 0, cost }))
}

/// The last config map leaves the `SelectorSyncSet`.
async fn removed(world: &World) -> Result<Measured, Error> {
    let gone = world.watch(&config_maps(), deleted).await?;
    let phase = Phase::begin(world, "one object removed").await?;
    let spec = resources(&documents::base(&fewer("2")));
    world.send(&Request::merge_patch("/v1/selectorsyncsets/base", &spec)).await?;
    phase.arrived(&gone, world.clusters).await
}

/// One in ten clusters refuses connections from now on, and a change is applied to the others.
async fn beside_dead(world: &World) -> Result<Measured, Error> {
    let dead = world.clusters / DEAD;
    for number in 0..dead {
        let kubeconfig = world.kubeconfig(number)?;
        let address = format!("https://{}", world.edge(number)?.address());
        let kubeconfig = json!({"kubeconfig": kubeconfig.replace(&address, REFUSING)});
        let path = format!("/v1/clusters/{NAMESPACE}/{}", documents::name(number));
        world.send(&Request::merge_patch(&path, &kubeconfig)).await?;
    }
    let maps = world.watch(&config_maps(), mark("beside".to_owned())).await?;
    let meter = Meter::begin(world).await?;
    let phase = Phase { world, meter, began: Instant::now(), what: "one changed, a tenth of clusters dead" };
    let spec = resources(&documents::base(&fewer("beside")));
    world.send(&Request::merge_patch("/v1/selectorsyncsets/base", &spec)).await?;
    let measured = phase.arrived(&maps, world.clusters - dead).await?;
    for number in 0..dead {
        let kubeconfig = json!({"kubeconfig": world.kubeconfig(number)?});
        let path = format!("/v1/clusters/{NAMESPACE}/{}", documents::name(number));
        world.send(&Request::merge_patch(&path, &kubeconfig)).await?;
    }
    last_of(&maps, world.clusters).await?;
    Ok(measured)
}
