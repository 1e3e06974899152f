//! The daemon killed at random moments, and absent while things happen.

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

use crate::faults::world::{FINALIZER, LIMIT, Lane, delete, edit, run};

const OBJECTS: u64 = 200;
const NAMESPACES: u64 = 10;
/// Kills in `make test`.
const KILLS: u64 = 6;
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

#[test]
fn what_was_deleted_while_the_daemon_was_down_is_deleted_when_it_is_back() {
    run(async {
        let lane = Lane::shared("away", "databases").await;
        for namespace in ["all", "some"] {
            lane.make_namespace(namespace).await;
            lane.order_many(namespace, 15).await;
        }
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;
        towline.kill9().await.unwrap();

        for number in 0..15 {
            delete(&lane.on_hub("all"), &format!("o{number}")).await;
        }
        for number in 0..3 {
            delete(&lane.on_hub("some"), &format!("o{number}")).await;
        }
        // Deleted and ordered anew by the same name, without anybody having let go properly.
        edit(&lane.on_hub("some"), "o3", json!({"metadata": {"finalizers": []}})).await;
        delete(&lane.on_hub("some"), "o3").await;
        lane.order("some", "o3", "33Gi").await;
        towline.start_again().await.unwrap();

        let after = lane.in_step("with what was deleted meanwhile").await;
        assert_eq!(after.len(), 12);
        for (key, uid) in after {
            assert_eq!(before.get(&key), Some(&uid), "{key} was not deleted on the hub, or its successor was adopted");
        }
        assert_eq!(lane.remote_uids().await.len(), 12, "every finalizer of a deleted object is released");
    });
}

#[test]
fn a_finalizer_that_is_stripped_comes_back_and_one_stripped_for_good_costs_one_look() {
    run(async {
        let lane = Lane::shared("stripped", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 5).await;
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;

        let stripped = edit(&lane.on_hub("team"), "o1", json!({"metadata": {"finalizers": []}})).await;
        assert!(stripped.metadata.finalizers.unwrap_or_default().is_empty());
        assert_eq!(lane.in_step("with the finalizer back").await, before);
        let held = lane.on_hub("team").get("o1").await.unwrap().metadata.finalizers.unwrap();
        assert_eq!(held, [FINALIZER]);

        // With the daemon away nobody puts it back, and the object goes without having been seen terminating.
        towline.kill9().await.unwrap();
        edit(&lane.on_hub("team"), "o2", json!({"metadata": {"finalizers": []}})).await;
        delete(&lane.on_hub("team"), "o2").await;
        let (hub, edge) = (lane.hub.audit().unwrap(), lane.edge.audit().unwrap());
        let (hub_mark, edge_mark) = (hub.mark().await.unwrap(), edge.mark().await.unwrap());
        towline.start_again().await.unwrap();
        let after = lane.in_step("without the object").await;
        assert_eq!(after.len(), 4);
        let about = async |audit: &Audit, since: Mark| {
            let all = audit.records(&Filter::since(since).user(users::TOWLINE).resource("databases")).await.unwrap();
            let ours = all.into_iter().filter(|record| record.namespace == lane.namespace("team"));
            ours.map(|record| format!("{} {} {}", record.verb, record.name, record.status)).collect::<Vec<_>>()
        };
        assert_eq!(about(hub, hub_mark).await, ["get o2 404"]);
        assert_eq!(about(edge, edge_mark).await, ["delete o2 200"]);
    });
}
