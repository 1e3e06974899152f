//! A replica takes the sections over from one that dies.

use std::collections::BTreeMap;
use std::time::Instant;

use integration::eventually;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{CARTS, SHOP, Told};
use crate::cluster::{LIMIT, storage};
use crate::error::Error;
use crate::stage::{ELECTION_NAMESPACE, Stage};

/// What the names of the sections' Leases begin with.
const OF_SECTION: &str = "towline-";

/// A second replica stands by; the first one is killed, and the second has everything.
pub(super) async fn taken_over(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the second replica to stand by");
    let first = only_holder(&holders(stage).await?)?;
    let mut second = stage.start_replica().await?;

    stage.waits_for("the second replica to take everything over");
    let arrived = stage.west.look_out((SHOP, CARTS), |_, object| storage(object) == "9Gi").await?;
    std::mem::swap(&mut stage.towline, &mut second);
    second.kill9().await?;
    let killed = Instant::now();
    drop(second);
    stage.hub.change(SHOP, CARTS, json!({"spec": {"storage": "9Gi"}})).await?;
    let sections = eventually("the second replica to hold every section", LIMIT, async || {
        let holders = holders(stage).await.map_err(|error| error.chain())?;
        let is_second = |holder: &String| !holder.is_empty() && *holder != first;
        if holders.values().all(is_second) { Ok(holders.len()) } else { Err(format!("{holders:?}")) }
    })
    .await?;
    let arrived = arrived.moment().await?;
    stage.towline.wait_ready(LIMIT).await?;
    let text = format!(
        "a second replica of towline stands by; the first: killed (SIGKILL) → the second runs all {sections}, hub: {CARTS} becomes \
         9Gi → west: {}",
        storage(&stage.west.get(SHOP, CARTS).await?.data),
    );
    Ok(Told { text, latency: arrived.saturating_duration_since(killed) })
}

/// Who has each section, by the Leases on the hub; empty where nobody has it.
async fn holders(stage: &Stage) -> Result<BTreeMap<String, String>, Error> {
    let leases: Api<Lease> = Api::namespaced(stage.hub.admin.clone(), ELECTION_NAMESPACE);
    let leases = leases.list(&ListParams::default()).await.map_err(Error::kubernetes("list the Leases on hub"))?;
    let section = |lease: Lease| {
        let name = lease.name_any();
        let section = name.strip_prefix(OF_SECTION)?.to_owned();
        Some((section, lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()))
    };
    Ok(leases.items.into_iter().filter_map(section).collect())
}

fn only_holder(holders: &BTreeMap<String, String>) -> Result<String, Error> {
    match holders.values().next() {
        Some(first) if !first.is_empty() && holders.values().all(|holder| holder == first) => Ok(first.clone()),
        _ => Err(Error::wrong("the one replica that runs everything", format!("{holders:?}"))),
    }
}
