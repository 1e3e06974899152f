//! The daemon killed at random moments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use integration::audit::Mark;
use integration::compare::Mapping;
use integration::soak::{self, Random};
use integration::{Audit, Filter, eventually, users};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::faults::world::{LIMIT, Lane, run};

const OBJECTS: u64 = 60;
const NAMESPACES: u64 = 6;
/// Kills in `make test`.
const KILLS: u64 = 4;
/// Changes per second: what two busy cores take beside six API servers and a daemon in debug mode.
const RATE: u64 = 50;

/// Random changes on both sides until it is told to stop; what is refused (gone, being deleted) does not matter.
async fn churn(lane: Arc<Lane>, mut random: Random, stop: Arc<AtomicBool>) {
    let mut ticks = interval(Duration::from_millis(1000 / RATE));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let number = random.below(OBJECTS);
        let (namespace, name) = (format!("n{}", number % NAMESPACES), format!("o{number}"));
        let (hub, edge) = (lane.on_hub(&namespace), lane.on_edge(&namespace));
        let merge = PatchParams::default();
        let value = random.below(1_000_000);
        match random.below(10) {
            0 => drop(hub.delete(&name, &DeleteParams::default()).await),
            1 | 2 => {
                let object = serde_json::from_value(lane.object(&name, "1Gi")).unwrap();
                drop::<Result<DynamicObject, _>>(hub.create(&PostParams::default(), &object).await);
            }
            3 => {
                let patch = json!({"metadata": {"labels": {"changed": value.to_string()}}});
                drop(hub.patch(&name, &merge, &Patch::Merge(patch)).await);
            }
            4..=6 => {
                let patch = json!({"spec": {"storage": format!("{value}Gi")}});
                drop(hub.patch(&name, &merge, &Patch::Merge(patch)).await);
            }
            7 => {
                let patch = json!({"spec": {"replicas": value % 100}});
                drop(edge.patch(&name, &merge, &Patch::Merge(patch)).await);
            }
            _ => {
                let patch = json!({"status": {"phase": "Ready", "endpoint": format!("e{value}")}});
                drop(edge.patch_status(&name, &merge, &Patch::Merge(patch)).await);
            }
        }
    }
}

/// Successful deletions of the kind by a user, by `namespace/name`.
async fn deletions(audit: &Audit, user: &str, since: Mark, lane: &Lane) -> BTreeMap<String, usize> {
    let filter = Filter::since(since).user(user).verb("delete").resource(&lane.plural);
    let mut counts = BTreeMap::new();
    for record in audit.records(&filter).await.unwrap() {
        if record.status < 300 && record.namespace.starts_with(&lane.prefix) {
            *counts.entry(format!("{}/{}", record.namespace, record.name)).or_insert(0) += 1;
        }
    }
    counts
}

#[test]
fn kills_under_churn_lose_nothing_and_delete_nothing_else() {
    run(async {
        let mut random = Random::new(soak::seed());
        let lane = Arc::new(Lane::shared("churn", "databases").await);
        let (hub_audit, edge_audit) = (lane.hub.audit().unwrap(), lane.edge.audit().unwrap());
        let (hub_mark, edge_mark) = (hub_audit.mark().await.unwrap(), edge_audit.mark().await.unwrap());
        for number in 0..NAMESPACES {
            lane.make_namespace(&format!("n{number}")).await;
        }
        // Somebody else's, in the middle of it all, in a namespace that was there before.
        crate::faults::world::make_namespace(&lane.edge_client, &lane.namespace("n0")).await;
        let foreign = serde_json::from_value(lane.object("foreign", "7Gi")).unwrap();
        let foreign = lane.on_edge("n0").create(&PostParams::default(), &foreign).await.unwrap();
        for number in 0..OBJECTS {
            lane.order(&format!("n{}", number % NAMESPACES), &format!("o{number}"), "1Gi").await;
        }

        let mut towline = lane.towline().await;
        let stop = Arc::new(AtomicBool::new(false));
        let churning = tokio::spawn(churn(Arc::clone(&lane), random.split(), Arc::clone(&stop)));
        for _ in 0..soak::rounds(KILLS) {
            // The one place where time itself is meant: a moment that nothing chooses.
            sleep(Duration::from_millis(50 + random.below(2000))).await;
            towline.kill9().await.unwrap();
            towline.start_again().await.unwrap();
        }
        // Few rounds on a busy machine may be over before anything was deleted.
        eventually("the churn to delete something", LIMIT, async || {
            let done = deletions(edge_audit, users::TOWLINE, edge_mark, &lane).await;
            if done.is_empty() { Err("nothing".to_owned()) } else { Ok(()) }
        })
        .await
        .unwrap();
        stop.store(true, Ordering::Relaxed);
        churning.await.unwrap();

        let mapping = Mapping {
            unclaimed: [format!("{}/foreign", lane.namespace("n0"))].into_iter().collect(),
            ..lane.mapping()
        };
        let uids = lane.in_step_by(&mapping, "after all kills").await;
        assert_eq!(uids.get(&format!("{}/foreign", lane.namespace("n0"))), foreign.metadata.uid.as_ref());
        let ordered = deletions(hub_audit, users::HUB_USER, hub_mark, &lane).await;
        let done = deletions(edge_audit, users::TOWLINE, edge_mark, &lane).await;
        for (key, count) in done {
            let ordered = ordered.get(&key).copied().unwrap_or_default();
            assert!(count <= ordered, "{key} was deleted {count} times on the edge and {ordered} times on the hub");
        }
    });
}
