//! Watches: how long a change takes to arrive, at one watch and in a crowd on all replicas.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use integration::hub::{Client, Replica, Request};
use integration::{Error, eventually};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::crowd::{Onlooker, Sight};
use super::meter::{Cost, Meter};
use super::reads::Page;
use super::world::{LONGEST_STEP, World};
use crate::measure::Latency;
use crate::options::HubOptions;
use crate::phases::to_float;

/// Watches that are opened at the same time.
const OPENED_AT_ONCE: usize = 32;

/// What watches have shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Watched {
    pub(crate) watchers: usize,
    pub(crate) replicas: usize,
    pub(crate) changes: usize,
    pub(crate) changes_per_second: f64,
    /// Until all are open.
    pub(crate) open_seconds: f64,
    /// From the change's time in the database, which it is given just before the commit, to its line at each watch.
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) cost: Cost,
}

/// Opens so many watches of all clusters, spread over the replicas, and changes clusters at a steady rate.
pub(crate) async fn measure(world: &World<'_>, options: &HubOptions, watchers: usize) -> Result<Watched, Error> {
    let changes = usize::try_from(options.window.as_secs()).unwrap_or_default() * options.change_rate as usize;
    let mut writers: Vec<Client> = world.all().map(Replica::client).collect();
    let version = newest(world).await?;
    let meter = Meter::begin(world).await?;
    let began = Instant::now();
    let path = format!("/v1/clusters?watch=true&resourceVersion={version}");
    let hubs: Vec<SocketAddr> = world.all().map(Replica::api).collect();
    let opened: Vec<Onlooker> = stream::iter(hubs.iter().cycle().take(watchers))
        .map(|hub| Onlooker::open(*hub, &path))
        .buffer_unordered(OPENED_AT_ONCE)
        .try_collect()
        .await?;
    let open_seconds = began.elapsed().as_secs_f64();
    let sight = Sight::with_room_for(watchers * changes);
    let mut onlookers = JoinSet::new();
    for watch in opened {
        onlookers.spawn(watch.look(Arc::clone(&sight)));
    }
    let mut ticks = interval(Duration::from_secs(1) / options.change_rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let changing = Instant::now();
    let replicas = writers.len();
    for number in 0..changes {
        ticks.tick().await;
        // Never the value of an earlier step: a write that changes nothing is no change.
        let change = json!({"annotations": {"example.org/change": format!("{watchers}-{number}")}});
        let request = Request::merge_patch(&world.fleet.path(number % world.fleet.clusters), &change);
        if let Some(writer) = writers.get_mut(number % replicas) {
            writer.send(&request).await?.success()?;
        }
    }
    let changes_per_second = to_float(changes) / changing.elapsed().as_secs_f64();
    eventually("every change to be at every watch", LONGEST_STEP, async || {
        if let Some(Ok(Err(error))) = onlookers.try_join_next() {
            return Ok(Err(error));
        }
        let arrived = sight.arrived();
        if arrived >= watchers * changes { Ok(Ok(())) } else { Err(format!("{arrived} have arrived")) }
    })
    .await??;
    let cost = meter.end(world).await?;
    let latency_ms = Latency::taken(sight.delays());
    Ok(Watched { watchers, replicas, changes, changes_per_second, open_seconds, latency_ms, cost })
}

/// The newest version.
pub(crate) async fn newest(world: &World<'_>) -> Result<String, Error> {
    let reply = world.first().client().send(&Request::get("/v1/clusters?limit=1")).await?.success()?;
    Ok(Page::of(&reply)?.version)
}

impl Watched {
    pub(crate) fn line(&self) -> String {
        let latency = self.latency_ms.map(|ms| format!("p50 {:.1} p99 {:.1} max {:.0} ms", ms.p50, ms.p99, ms.max));
        format!(
            "  watched  {:>6} changes, {:.1} a second, by {} on {} replicas (open in {:.2} s): {}; {}",
            self.changes,
            self.changes_per_second,
            self.watchers,
            self.replicas,
            self.open_seconds,
            latency.unwrap_or_default(),
            self.cost.line()
        )
    }
}
