//! Thousands of clusters, each with a simulated API server of its own: the design size.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use integration::hub::Request;
use integration::simulated::{ApiServers, Behavior};
use integration::{Error, eventually};
use serde_json::{Value, json};

use super::claims::Claims;
use super::documents;
use super::measured::{Measured, Phase};
use super::meter::Meter;
use super::phases::{cluster_path, full_pass, idle, register};
use super::world::{World, is_mortal};
use crate::measure::Latency;
use crate::options::{Death, SyncsetOptions};

/// The first apply of all may take that long.
const LONGEST: Duration = Duration::from_hours(2);
/// Clients that write documents at once.
const CLIENTS: usize = 16;

/// Every phase.
pub(super) async fn all(world: &mut World, options: &SyncsetOptions) -> Result<Vec<Measured>, Error> {
    let (clusters, objects) = (options.clusters, options.syncsets * options.each);
    let mut all = vec![register(world).await?.told()];
    world.execute("vacuum", "VACUUM (ANALYZE)").await?;
    // One more to look up the kinds, each time that a pass goes on with a new client.
    #[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
    let requests = (2 * objects + 2 + objects / 250) as f64;
    all.push(first_apply(world, options).await?.most(requests).told());
    world.execute("vacuum", "VACUUM (ANALYZE)").await?;
    all.push(start(world).await?.most(0.0).told());
    all.push(idle(world, options).await?.most(0.0).told());
    all.push(relabelled(world).await?.most(0.0).told());
    all.push(changed(world, options, "one object changed in all", clusters).await?.most(2.0).told());
    all.push(full_pass(world, "full pass of all").await?.most(3.0).told());
    all.push(labels(world, options, "one label of one cluster").await?.told());
    let dead = die(world, options).await?;
    let mortals = (0..clusters).filter(|number| is_mortal(*number));
    let claims = Claims::watch(world, mortals.clone()).await?;
    let measured = changed(world, options, "one changed, as a tenth dies", clusters - dead).await?;
    all.push(Measured { longest_claim: Some(claims.longest()), ..measured }.told());
    let measured = labels(world, options, "one label, as a tenth dies").await?;
    world.silent(dead).await?;
    all.push(Measured { longest_claim: Some(claims.longest()), ..measured }.told());
    let claims = Claims::watch(world, mortals).await?;
    let measured = changed(world, options, "one changed, a tenth is dead", clusters - dead).await?;
    all.push(Measured { longest_claim: Some(claims.longest()), ..measured }.told());
    all.push(labels(world, options, "one label, a tenth is dead").await?.told());
    Ok(all)
}

async fn last_of(servers: &ApiServers, objects: usize) -> Result<Instant, Error> {
    eventually(format!("{objects} objects to arrive"), LONGEST, async || match servers.arrived() {
        (seen, Some(last)) if seen >= objects => Ok(last),
        (seen, _) => Err(format!("{seen} objects")),
    })
    .await
}

async fn first_apply(world: &World, options: &SyncsetOptions) -> Result<Measured, Error> {
    let (servers, objects) = (world.simulated()?, options.syncsets * options.each * options.clusters);
    servers.expect("1");
    let phase = Phase::begin(world, "first apply").await?;
    for number in 0..options.syncsets {
        let document = documents::broad(number, options.each, "1");
        world.send(&Request::post("/v1/selectorsyncsets", &document)).await?;
    }
    let last = last_of(servers, objects).await?;
    phase.ended(Some(last), objects).await
}

/// A replica starts among clusters that are all in step.
async fn start(world: &mut World) -> Result<Measured, Error> {
    world.workers(0).await?;
    let (meter, began) = (Meter::begin(world).await?, Instant::now());
    world.workers(1).await?;
    world.at_rest().await?;
    let ended = Instant::now();
    Phase { world, meter, began, what: "start with all in step" }.ended(Some(ended), 0).await
}

/// Every cluster gets another label, on which nothing depends.
async fn relabelled(world: &World) -> Result<Measured, Error> {
    let phase = Phase::begin(world, "all clusters relabelled").await?;
    let one = async |share: usize| {
        let mut client = world.client()?;
        for number in (share..world.clusters).step_by(CLIENTS) {
            let labels = json!({"labels": {"wave": "1"}});
            client.send(&Request::merge_patch(&cluster_path(number), &labels)).await?.success()?;
        }
        Ok::<_, Error>(())
    };
    try_join_all((0..CLIENTS).map(one)).await?;
    world.dispatched().await?;
    world.at_rest().await?;
    phase.ended(Some(Instant::now()), 0).await
}

/// One object of one syncset changes on so many clusters.
async fn changed(
    world: &World,
    options: &SyncsetOptions,
    what: &'static str,
    clusters: usize,
) -> Result<Measured, Error> {
    let servers = world.simulated()?;
    servers.expect(what);
    let phase = Phase { world, meter: Meter::begin(world).await?, began: Instant::now(), what };
    let document = documents::broad(0, options.each, what);
    let spec = json!({"spec": {"resources": document.pointer("/spec/resources")}});
    world.send(&Request::merge_patch("/v1/selectorsyncsets/s000", &spec)).await?;
    let last = last_of(servers, clusters).await?;
    phase.ended(Some(last), clusters).await
}

/// A label of a cluster that lives changes again and again, on which an object depends.
async fn labels(world: &World, options: &SyncsetOptions, what: &'static str) -> Result<Measured, Error> {
    const CLUSTER: usize = 1;
    let servers = world.simulated()?;
    let existed = world.number("SELECT count(*) FROM towline_documents WHERE kind = 'syncsets'").await? > 0;
    if !existed {
        world.send(&Request::post("/v1/syncsets", &documents::single(CLUSTER, None))).await?;
    }
    let phase = Phase { world, meter: Meter::begin(world).await?, began: Instant::now(), what };
    let mut taken = Vec::new();
    for round in 0..options.singles {
        let value = format!("{what} {round}").replace([' ', ','], "-");
        servers.expect(&value);
        let labels: Value = json!({"labels": {"round": value}});
        let began = Instant::now();
        world.send(&Request::merge_patch(&cluster_path(CLUSTER), &labels)).await?;
        taken.push(last_of(servers, 1).await?.saturating_duration_since(began));
    }
    phase.of_singles(Latency::taken(taken), options.singles).await
}

/// A tenth of the clusters dies at once. Returns how many these are.
async fn die(world: &mut World, options: &SyncsetOptions) -> Result<usize, Error> {
    let mut dead = 0;
    for number in (0..options.clusters).filter(|number| is_mortal(*number)) {
        dead += 1;
        match world.death(number) {
            Some(Death::Stops) => world.simulated()?.set_behavior(number, Behavior::StopsHalfWay),
            Some(Death::Slow) => world.simulated()?.set_behavior(number, Behavior::IsSlow),
            _ => {}
        }
    }
    world.cut_links().await?;
    Ok(dead)
}
