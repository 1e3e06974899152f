//! Steps in which something breaks, or there is much of it.

use std::time::Instant;

use integration::arrivals::{Arrivals, Change};
use integration::load::{Write, burst};
use integration::{Error as FixtureError, eventually};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::travel::pair;
use super::{CARTS, ORDERS, SHOP, Told};
use crate::cluster::{Cluster, LIMIT, database, databases, storage};
use crate::error::Error;
use crate::stage::Stage;

/// A database on the other edge.
const REPORTS: (&str, &str) = ("east-shop", "reports");
/// Where the burst goes: half of it each.
const BURST: [&str; 2] = ["west-load", "east-load"];
/// Objects in the burst.
const COUNT: usize = 100;
/// Towline is killed once so many copies are there.
const KILL_AFTER: usize = 30;
const AT_ONCE: usize = 8;

/// One edge does not answer; the other goes on.
pub(super) async fn edge_down(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the copy on east while west is down");
    stage.west.plane.kill_api_server().await?;
    stage.west.is_up = false;
    stage.hub.change(SHOP, ORDERS, json!({"spec": {"storage": "80Gi"}})).await?;
    stage.hub.create(SHOP, CARTS, database(SHOP, CARTS, "5Gi")).await?;
    let (namespace, name) = REPORTS;
    stage.hub.make_namespace(namespace).await?;
    let copied = stage.east.look_out(REPORTS, |change, _| change == Change::Added).await?;
    let ordered = stage.hub.create(namespace, name, database(namespace, name, "200Gi")).await?;
    let latency = copied.moment().await?.saturating_duration_since(ordered);
    let [orders, carts] = [stage.hub.get(SHOP, ORDERS).await?, stage.hub.get(SHOP, CARTS).await?];
    let [ordered, east] = [stage.hub.get(namespace, name).await?, stage.east.get(namespace, name).await?];
    let [orders, carts, ordered, east] = [&orders, &carts, &ordered, &east].map(|database| storage(&database.data));
    let text = format!(
        "west: API server killed; hub: {ORDERS} {orders}, {CARTS} {carts} is new; east goes on, hub: {namespace}/{name}, \
         {ordered} → east: {east}"
    );
    Ok(Told { text, latency })
}

/// It answers again, and gets what it has missed.
pub(super) async fn edge_back(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("west's API server to be back and to have caught up");
    let began = Instant::now();
    let caught_up = async {
        // As soon as the API server answers at all, whether it calls itself ready or not.
        let mut answered = None;
        eventually("west to catch up", LIMIT, async || {
            let orders = stage.west.databases(SHOP).get(ORDERS).await.map_err(|error| error.to_string())?;
            let answer = *answered.get_or_insert_with(Instant::now);
            let carts = stage.west.databases(SHOP).get(CARTS).await.map_err(|error| error.to_string())?;
            let (orders, carts) = (storage(&orders.data), storage(&carts.data));
            if (orders, carts) == ("80Gi", "5Gi") { Ok((answer, Instant::now())) } else { Err(orders.to_owned()) }
        })
        .await
    };
    let ((), (answered, done)) = tokio::try_join!(stage.west.plane.start_api_server(), caught_up)?;
    stage.west.is_up = true;
    // What comes next is not to wait for them.
    stage.waits_for("west's own controllers to act again");
    stage.west.controllers_act().await?;
    let (_, orders) = pair(stage).await?;
    let carts = stage.west.get(SHOP, CARTS).await?;
    let text = format!(
        "west: API server answers again after {:.1} s → west: {ORDERS} {}, {CARTS} {}",
        answered.saturating_duration_since(began).as_secs_f64(),
        storage(&orders.data),
        storage(&carts.data),
    );
    Ok(Told { text, latency: done.saturating_duration_since(answered) })
}

/// SIGKILL in the middle of a burst.
pub(super) async fn killed(stage: &mut Stage) -> Result<Told, Error> {
    for namespace in BURST {
        stage.hub.make_namespace(namespace).await?;
    }
    let is_new = |change: Change| change == Change::Added;
    let copied = (stage.west.look_out_in(BURST[0], is_new).await?, stage.east.look_out_in(BURST[1], is_new).await?);
    stage.waits_for(format!("{KILL_AFTER} of {COUNT} copies, and then the kill"));
    let ordering = async { burst(&stage.hub.user, writes(), AT_ONCE).await };
    let killing = async {
        let enough = format!("{KILL_AFTER} copies");
        eventually(enough, LIMIT, async || {
            let seen = seen(&copied);
            if seen >= KILL_AFTER { Ok(()) } else { Err(format!("{seen} copies")) }
        })
        .await?;
        stage.towline.kill9().await?;
        Ok::<_, FixtureError>(seen(&copied))
    };
    let (_, at_kill) = tokio::try_join!(ordering, killing)?;
    let began = Instant::now();
    stage.towline.start_again().await?;
    stage.towline.wait_ready(LIMIT).await?;
    stage.waits_for(format!("all {COUNT} copies with their status on the hub"));
    eventually(format!("{COUNT} databases that are ready on the hub"), LIMIT, async || {
        let ready = list(&stage.hub).await?.iter().filter(|database| is_ready(database)).count();
        if ready == COUNT { Ok(()) } else { Err(format!("{ready} of {COUNT} are ready")) }
    })
    .await?;
    stage.rest().await?;
    let latency = began.elapsed();
    let mut lost = stage.differences(&stage.west).await?;
    lost.extend(stage.differences(&stage.east).await?);
    if let Some(first) = lost.first() {
        return Err(Error::wrong("the edges after the kill", format!("{} differences: {first}", lost.len())));
    }
    let text = format!(
        "hub: {COUNT} new at once; towline: killed (SIGKILL) at {at_kill} copies, started again → edges: {} copies, \
         compared with the hub one by one, nothing lost",
        seen(&copied)
    );
    Ok(Told { text, latency })
}

/// The burst goes again, and with it the namespaces that towline has made for it.
pub(super) async fn cleared(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for(format!("{COUNT} databases to be gone, and their namespaces on the edges"));
    let is_gone = |change: Change| change == Change::Deleted;
    let gone = (stage.hub.look_out_in(BURST[0], is_gone).await?, stage.hub.look_out_in(BURST[1], is_gone).await?);
    let deletions = keys().map(|(namespace, name)| Write::delete(&databases(), Some(namespace), &name)).collect();
    let began = Instant::now();
    burst(&stage.hub.user, deletions, AT_ONCE).await?;
    for gone in [&gone.0, &gone.1] {
        gone.wait_for(COUNT / 2, LIMIT).await?;
    }
    for (edge, namespace) in [&stage.west, &stage.east].into_iter().zip(BURST) {
        eventually(format!("namespace {namespace} to be gone from {}", edge.name), LIMIT, async || {
            let namespaces: Api<Namespace> = Api::all(edge.admin.clone());
            match namespaces.get_opt(namespace).await {
                Ok(None) => Ok(()),
                Ok(Some(found)) => Err(format!("{:?}", found.status)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
    }
    let [west, east] = BURST;
    let text = format!(
        "hub: the {COUNT} deleted → gone everywhere; on the edges with the namespaces that towline had made, {west} and \
         {east}"
    );
    Ok(Told { text, latency: began.elapsed() })
}

/// The burst's objects, in turns for the one edge and the other.
fn keys() -> impl Iterator<Item = (&'static str, String)> {
    BURST.into_iter().cycle().take(COUNT).enumerate().map(|(number, namespace)| (namespace, format!("db-{number:03}")))
}

fn writes() -> Vec<Write> {
    let write = |(namespace, name): (&str, String)| {
        Write::create(&databases(), Some(namespace), &name, &database(namespace, &name, "1Gi"))
    };
    keys().map(write).collect()
}

fn seen(copied: &(Arrivals, Arrivals)) -> usize {
    copied.0.seen() + copied.1.seen()
}

/// The burst's objects in a cluster.
async fn list(cluster: &Cluster) -> Result<Vec<DynamicObject>, String> {
    let mut all = Vec::new();
    for namespace in BURST {
        let list = cluster.databases(namespace).list(&ListParams::default()).await;
        all.extend(list.map_err(|error| error.to_string())?.items);
    }
    Ok(all)
}

fn is_ready(database: &DynamicObject) -> bool {
    database.data.pointer("/status/phase").and_then(Value::as_str) == Some("Ready")
}
