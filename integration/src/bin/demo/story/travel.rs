//! Steps in which all is well: what goes down to the edge, and what comes back.

use integration::arrivals::Change;
use integration::eventually;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{CARTS, ORDERS, SHOP, Told};
use crate::cluster::{Cluster, LIMIT, database, databases, spec, storage};
use crate::controller::{self, CREDENTIALS, Controller, Duty, WANTS_CREDENTIALS};
use crate::error::Error;
use crate::stage::Stage;

const PAUSED: &str = "cloud.teleport.dev/paused";
const FINALIZER: &str = "cloud.teleport.dev/sync-west";
const UPLOADED: &str = "cloud.teleport.dev/last-uploaded-hash";

pub(super) async fn created(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the copy on west");
    stage.hub.make_namespace(SHOP).await?;
    let copied = stage.west.look_out((SHOP, ORDERS), |change, _| change == Change::Added).await?;
    let mut order = database(SHOP, ORDERS, "10Gi");
    if let Some(metadata) = order.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("labels".to_owned(), json!({WANTS_CREDENTIALS: "true"}));
    }
    let ordered = stage.hub.create(SHOP, ORDERS, order).await?;
    let latency = copied.moment().await?.saturating_duration_since(ordered);
    let (hub, west) = pair(stage).await?;
    Ok(Told { text: format!("hub: {SHOP}/{ORDERS}, {} → west: {}", spec(&hub), spec(&west)), latency })
}

/// The edges' own controllers begin their work.
pub(super) async fn status(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the status on the hub");
    let has_status = |_: Change, object: &Value| object.pointer("/status/endpoint").is_some();
    let told = stage.hub.look_out((SHOP, ORDERS), has_status).await?;
    let [west, east] =
        [&stage.west, &stage.east].map(|edge| Controller::new(Duty::RunDatabases, edge.user.clone(), databases()));
    // There is one database, so one status.
    let sent = west.sent();
    stage.controllers.spawn(west.run());
    stage.controllers.spawn(east.run());
    let latency = told.moment().await?.saturating_duration_since(*sent.borrow());
    let [west, hub] = [&stage.west, &stage.hub].map(|cluster| cluster.get(SHOP, ORDERS));
    let [west, hub] = [west.await?, hub.await?].map(|object| controller::told(object.data.get("status")));
    if west != hub {
        return Err(Error::wrong("the status", format!("{west} on west, {hub} on the hub")));
    }
    Ok(Told { text: format!("west's own controller: {west} → hub: the same"), latency })
}

/// Credentials are made where the database runs, and used where it was ordered.
pub(super) async fn secret(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the credentials on the hub");
    let is_filled = |_: Change, secret: &Value| secret.pointer("/data/username").is_some();
    let is_noted = |_: Change, secret: &Value| annotation(secret, UPLOADED).is_some();
    let noted = stage.west.look_out_for_credentials(SHOP, is_noted).await?;
    let taken = stage.hub.look_out_for_credentials(SHOP, is_filled).await?;
    // Towline updates secrets on the hub and never makes one: whoever wants one there puts an empty one.
    stage.hub.make_empty_credentials(SHOP).await?;
    let issuer = Controller::new(Duty::IssueCredentials, stage.west.user.clone(), databases());
    let sent = issuer.sent();
    stage.controllers.spawn(issuer.run());
    let seen = taken.moment().await?;
    let latency = seen.saturating_duration_since(*sent.borrow());
    noted.moment().await?;
    let (west, hub) = (credentials(&stage.west).await?, credentials(&stage.hub).await?);
    if west != hub {
        return Err(Error::wrong("the credentials", "they differ"));
    }
    let user = hub.get("username").map(|name| String::from_utf8_lossy(&name.0).into_owned()).unwrap_or_default();
    Ok(Told { text: format!("west's own controller: credentials of user {user} → hub: the same"), latency })
}

type Data = std::collections::BTreeMap<String, k8s_openapi::ByteString>;

async fn credentials(cluster: &Cluster) -> Result<Data, Error> {
    let secret = cluster.secrets(SHOP).get(CREDENTIALS).await;
    let action = format!("read {SHOP}/{CREDENTIALS} on {}", cluster.name);
    Ok(secret.map_err(Error::kubernetes(action))?.data.unwrap_or_default())
}

pub(super) async fn changed(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the change on west");
    let before = stage.hub.get(SHOP, ORDERS).await?;
    let arrived = stage.west.look_out((SHOP, ORDERS), |_, object| storage(object) == "20Gi").await?;
    let changed = stage.hub.change(SHOP, ORDERS, json!({"spec": {"storage": "20Gi"}})).await?;
    let latency = arrived.moment().await?.saturating_duration_since(changed);
    let (hub, west) = pair(stage).await?;
    let [before, hub, west] = [&before, &hub, &west].map(|database| storage(&database.data));
    Ok(Told { text: format!("hub: {before} becomes {hub} → west: {west}"), latency })
}

/// Somebody on the edge changes what the hub has decided.
pub(super) async fn drift(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the drift on west to be mended");
    let drifted = std::sync::atomic::AtomicBool::new(false);
    let mended = stage
        .west
        .look_out((SHOP, ORDERS), move |_, object| {
            // The watch begins with what is already right: what counts comes behind the drift.
            let is_drift = storage(object) == "1Gi";
            drifted.fetch_or(is_drift, std::sync::atomic::Ordering::Relaxed) && !is_drift
        })
        .await?;
    let changed = stage.west.change(SHOP, ORDERS, json!({"spec": {"storage": "1Gi"}})).await?;
    let latency = mended.moment().await?.saturating_duration_since(changed);
    let (_, west) = pair(stage).await?;
    Ok(Told { text: format!("west: somebody sets 1Gi → west: {} again", storage(&west.data)), latency })
}

/// Nothing at all is done for a paused pair.
pub(super) async fn paused(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("towline to report the pause");
    let patch = json!({"metadata": {"annotations": {PAUSED: "true"}}, "spec": {"storage": "50Gi"}});
    let paused = stage.hub.change(SHOP, ORDERS, patch).await?;
    let reported = eventually("towline to report the pause", LIMIT, async || {
        let section = stage.towline.admin().section("west").await.map_err(|error| error.chain())?;
        let count = section.pointer("/objects/paused").and_then(Value::as_u64);
        if count == Some(1) { Ok(std::time::Instant::now()) } else { Err(section.to_string()) }
    });
    let latency = reported.await?.saturating_duration_since(paused);
    let [hub, west] = [&stage.hub, &stage.west].map(|cluster| cluster.get(SHOP, ORDERS));
    let (hub, west) = (hub.await?, west.await?);
    let (hub, west) = (storage(&hub.data), storage(&west.data));
    if hub == west {
        return Err(Error::wrong("the paused database on west", format!("{west}, as on the hub")));
    }
    Ok(Told { text: format!("hub: paused, {west} becomes {hub} → west: still {west}"), latency })
}

pub(super) async fn resumed(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the change on west");
    let arrived = stage.west.look_out((SHOP, ORDERS), |_, object| storage(object) == "50Gi").await?;
    let resumed = stage.hub.change(SHOP, ORDERS, json!({"metadata": {"annotations": {PAUSED: null}}})).await?;
    let latency = arrived.moment().await?.saturating_duration_since(resumed);
    let (_, west) = pair(stage).await?;
    Ok(Told { text: format!("hub: no longer paused → west: {}", storage(&west.data)), latency })
}

/// Gone from the edge first, and then from the hub.
pub(super) async fn deleted(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the database to be gone from west, and from the hub");
    let is_held = |_: Change, object: &Value| {
        let holds = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let is_ours = holds.is_some_and(|holds| holds.iter().any(|finalizer| finalizer == FINALIZER));
        is_ours && object.pointer("/metadata/deletionTimestamp").is_some()
    };
    let is_gone = |change: Change, _: &Value| change == Change::Deleted;
    let held = stage.hub.look_out((SHOP, ORDERS), is_held).await?;
    let (local, remote) =
        (stage.west.look_out((SHOP, ORDERS), is_gone).await?, stage.hub.look_out((SHOP, ORDERS), is_gone).await?);
    let deleted = stage.hub.delete(SHOP, ORDERS).await?;
    held.moment().await?;
    let (local, remote) = (local.moment().await?, remote.moment().await?);
    if remote < local {
        return Err(Error::wrong("the deletion", "the hub's object was gone before west's"));
    }
    stage.west.get(SHOP, CARTS).await?;
    let text = format!("hub: {ORDERS} deleted → gone from west, finalizer released, gone from hub");
    Ok(Told { text, latency: remote.saturating_duration_since(deleted) })
}

/// The database on both sides, with the same spec.
pub(super) async fn pair(stage: &Stage) -> Result<(DynamicObject, DynamicObject), Error> {
    let (hub, west) = (stage.hub.get(SHOP, ORDERS).await?, stage.west.get(SHOP, ORDERS).await?);
    if hub.data.get("spec") != west.data.get("spec") {
        return Err(Error::wrong("the database", format!("{} on the hub, {} on west", spec(&hub), spec(&west))));
    }
    Ok((hub, west))
}

fn annotation<'o>(object: &'o Value, name: &str) -> Option<&'o str> {
    object.pointer("/metadata/annotations").and_then(|all| all.get(name)).and_then(Value::as_str)
}
