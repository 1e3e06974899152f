//! Pairs that wait for a permission or a cluster, and what requeues them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;

use super::{Harness, OBJECTS, local, pair, remote};
use crate::actor::{Outcome, Scope};
use crate::cluster::Cluster;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::requeue::run_requeue;

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_given_while_its_denial_arrives_is_not_waited_for() {
    for is_given in [true, false] {
        let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
        let mut harness = Harness::between("databases", &hub, &edge, "");
        harness.begin(&[Arc::clone(&harness.section)]);
        let mut new = remote("a", 5);
        new["metadata"]["finalizers"] = json!([]);
        harness.list(&[new], &[], &[]).await;
        let (cluster, script) = hub.clone();
        harness.hub.answer(move |_| {
            if is_given {
                cluster.new_session(&script);
            }
            (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "denied"}))
        });
        let outcome = harness.reconcile("a").await;
        assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
        assert_eq!(matches!(outcome, Outcome::Retry), is_given, "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::Wait), !is_given, "{outcome:?}");
    }
}

/// Runs the requeue actor until it waits.
async fn attended(harness: &Harness) {
    let (scope, _stop) = Scope::standalone("requeue");
    let attending = run_requeue(Arc::clone(&harness.section), scope);
    assert!(tokio::time::timeout(Duration::from_secs(1), attending).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_cluster_is_not_woken_by_anything_else() {
    let mut harness = Harness::new("");
    let (scope, _stop) = Scope::standalone("requeue");
    let mut attending = std::pin::pin!(run_requeue(Arc::clone(&harness.section), scope));
    assert!(attending.as_mut().now_or_never().is_none());
    harness.section.park(pair("parked"));
    harness.section.index(|index| index.requests.asked.insert(pair("asked")));
    harness.section.requeue_pending_changes();
    assert!(attending.as_mut().now_or_never().is_none());
    assert_eq!(harness.requested(), ["team/asked"]);
}

#[tokio::test(start_paused = true)]
async fn a_requeue_actor_that_is_stopped_while_it_waits_for_room_loses_nothing() {
    let mut harness = Harness::new("");
    for number in 0..100 {
        harness.section.park(pair(&format!("parked{number}")));
        harness.section.index(|index| index.requests.asked.insert(pair(&format!("asked{number}"))));
    }
    let mut requested = std::collections::BTreeSet::new();
    for _ in 0..5 {
        attended(&harness).await;
        requested.extend(harness.requested());
    }
    assert_eq!(requested.len(), 200);
    attended(&harness).await;
    assert!(harness.requested().is_empty(), "once");
}

#[tokio::test(start_paused = true)]
async fn objects_that_left_the_selector_unobserved_are_searched_for_once() {
    for detaching in [false, true] {
        let mut harness = Harness::new("selector = \"place=west\"");
        let (left, bare) = (remote("left", 5), json!({"metadata": {"name": "bare", "namespace": "team"}}));
        let pages = [
            json!({"metadata": {"continue": "more"}, "items": [bare, {"metadata": remote("selected", 6)["metadata"]}]}),
            json!({"metadata": {}, "items": [{"metadata": left["metadata"]}]}),
        ];
        let mut pages = pages.into_iter();
        let mut fails = true;
        harness.hub.answer(move |line| match line {
            "GET /apis/demo.towline.dev/v1/databases" if std::mem::take(&mut fails) => (500, json!({})),
            "GET /apis/demo.towline.dev/v1/databases" => (200, pages.next().expect("two pages")),
            _ => (200, left.clone()),
        });
        harness.list(&[remote("selected", 6)], &[local("selected", 7)], &[]).await;
        harness.requested();
        let (scope, _stop) = Scope::standalone("requeue");
        let attending = run_requeue(Arc::clone(&harness.section), scope);
        assert!(tokio::time::timeout(Duration::from_mins(10), attending).await.is_err());
        assert_eq!(harness.requested(), ["team/left"]);
        assert_eq!(harness.hub.asked().len(), 3, "a failure, two pages");
        if detaching {
            harness.section.set_mode(Mode::Detaching);
        }
        harness.reconcile("left").await;
        assert_eq!(harness.hub.asked(), [format!("GET {OBJECTS}/left"), format!("PATCH {OBJECTS}/left")]);
    }
}
