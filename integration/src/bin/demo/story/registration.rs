//! Clusters are registered with the hub server, where no Kubernetes is involved.

use std::time::{Duration, Instant};

use integration::hub::{Event, Request, Watch};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Told;
use crate::cluster::LIMIT;
use crate::error::Error;
use crate::stage::Stage;

const NAMESPACE: &str = "europe";
const CLUSTERS: [&str; 3] = ["paris", "rome", "oslo"];

/// Three clusters are registered at one replica, and a watch at the other one shows them; then one of them gets another label, and
/// leaves the watch.
pub(super) async fn registered(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the watch to show the clusters");
    let mut client = stage.hub_server.first();
    let selected = "/v1/clusters?watch=true&labelSelector=env%3Dprod";
    let mut watch = stage.hub_server.second().watch(selected).await?;
    // The end of what is there already, which is nothing.
    expect(&next(&mut watch).await?, "BOOKMARK")?;

    let mut slowest = Duration::ZERO;
    for name in CLUSTERS {
        let cluster =
            json!({"namespace": NAMESPACE, "name": name, "kubeconfig": "apiVersion: v1", "labels": {"env": "prod"}});
        let sent = Instant::now();
        client.send(&Request::post("/v1/clusters", &cluster)).await?.success()?;
        let event = change(&mut watch).await?;
        slowest = slowest.max(sent.elapsed());
        expect(&event, "ADDED")?;
        if event.object.get("name") != Some(&json!(name)) || event.object.get("kubeconfig").is_some() {
            return Err(Error::wrong("the watch shows another document, or a kubeconfig", event.object.to_string()));
        }
    }
    let sent = Instant::now();
    let moved = Request::merge_patch(&format!("/v1/clusters/{NAMESPACE}/oslo"), &json!({"labels": {"env": "test"}}));
    client.send(&moved).await?.success()?;
    let event = change(&mut watch).await?;
    slowest = slowest.max(sent.elapsed());
    expect(&event, "DELETED")?;

    let list = client.send(&Request::get("/v1/clusters?labelSelector=env%3Dprod")).await?.success()?.json()?;
    let left = list.pointer("/items").and_then(Value::as_array).map_or(0, Vec::len);
    if left != CLUSTERS.len() - 1 {
        return Err(Error::wrong("the list after the change of a label", list.to_string()));
    }
    let text = format!(
        "REST API of `towline hub`: POST {} → a watch of env=prod at its second replica: {} ADDED; PATCH oslo env=test → \
         DELETED; the database is all they share",
        CLUSTERS.join(", "),
        CLUSTERS.len(),
    );
    Ok(Told { text, latency: slowest })
}

/// The next event.
async fn next(watch: &mut Watch) -> Result<Event, Error> {
    let ended = || Error::wrong("the watch", "it has ended");
    timeout(LIMIT, watch.next()).await.map_err(|_| Error::wrong("the watch", "it shows nothing"))??.ok_or_else(ended)
}

/// The next event that is a change.
async fn change(watch: &mut Watch) -> Result<Event, Error> {
    loop {
        let event = next(watch).await?;
        if event.kind != "BOOKMARK" {
            return Ok(event);
        }
    }
}

fn expect(event: &Event, kind: &str) -> Result<(), Error> {
    if event.kind == kind { Ok(()) } else { Err(Error::wrong("the watch", format!("{} {}", event.kind, event.object))) }
}
