//! New credentials, which may lead to another cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Harness, OBJECTS, local, pair, remote};
use crate::actor::Outcome;
use crate::cluster::Cluster;

fn theirs() -> serde_json::Value {
    json!({"metadata": {"name": "team", "uid": "theirs", "resourceVersion": "1"}})
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_from_a_cache_of_earlier_credentials() {
    let mut changed = remote("a", 8);
    (changed["spec"], changed["metadata"]["generation"]) = (json!({"size": 2}), json!(2));
    for is_hub in [true, false] {
        let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
        let mut harness = Harness::between("databases", &hub, &edge, "");
        harness.begin(&[Arc::clone(&harness.section)]);
        harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
        harness.watches().remote.show(&changed).await;
        let (cluster, script) = if is_hub { &hub } else { &edge };
        cluster.new_session(script);
        assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(wait) if wait < Duration::from_secs(5)));
        assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty());
        harness.list(&[changed.clone()], &[local("a", 7)], &[theirs()]).await;
        harness.reconcile("a").await;
        assert_eq!(harness.edge.asked(), [format!("PATCH {OBJECTS}/a")]);
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_that_change_between_two_steps_stop_the_second() {
    let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
    let mut harness = Harness::between("databases", &hub, &edge, "");
    harness.begin(&[Arc::clone(&harness.section)]);
    let mut new = remote("a", 5);
    new["metadata"]["finalizers"] = json!([]);
    harness.list(&[new.clone()], &[], &[theirs()]).await;
    let (cluster, script) = edge.clone();
    harness.hub.answer(move |_| {
        cluster.new_session(&script);
        (200, new.clone())
    });
    harness.reconcile("a").await;
    assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/a")], "our finalizer");
    assert!(harness.edge.asked().is_empty());
}

/// The brake does not count a write that is not sent.
#[tokio::test(start_paused = true)]
async fn credentials_that_change_while_it_is_asked_who_undoes_a_write_stop_it_and_it_counts_as_no_rewrite() {
    let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
    let mut harness = Harness::between("databases", &hub, &edge, "");
    harness.begin(&[Arc::clone(&harness.section)]);
    let mut ours = remote("a", 5);
    ours["metadata"]["labels"] = json!({"app": "ours"});
    let undone = |version: u64| {
        let mut theirs = local("a", version);
        theirs["metadata"]["labels"] = json!({"app": "theirs"});
        theirs
    };
    harness.list(&[ours.clone()], &[undone(10)], &[theirs()]).await;
    let (mut version, mut questions) = (10, 0);
    let (cluster, script) = edge.clone();
    harness.edge.answer(move |line| {
        if line.starts_with("GET") {
            questions += 1;
            if questions == 1 {
                cluster.new_session(&script);
            }
            let managers = json!([{"manager": "stubborn", "operation": "Update"}]);
            return (200, json!({"metadata": {"resourceVersion": "1", "managedFields": managers}}));
        }
        version += 10;
        (200, json!({"metadata": {"uid": "local-a", "resourceVersion": (version - 5).to_string(), "generation": 1}}))
    });
    let (get, patch) = (format!("GET {OBJECTS}/a"), format!("PATCH {OBJECTS}/a"));
    for round in 1..=3 {
        assert!(matches!(harness.reconcile("a").await, Outcome::Done));
        assert_eq!(harness.edge.asked(), std::slice::from_ref(&patch), "write {round}");
        harness.watches().local.show(&undone(10 + 10 * round)).await;
    }
    let cause = || {
        harness.section.index(|index| {
            let now = tokio::time::Instant::now();
            index.table.conflicts.cause(&pair("a"), now)
        })
    };
    assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)));
    assert_eq!((harness.edge.asked(), cause()), (vec![get.clone()], None), "only the question");
    harness.list(&[ours], &[undone(50)], &[theirs()]).await;
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert_eq!(harness.edge.asked(), [get, patch], "at once");
    assert_eq!(cause().as_deref(), Some("field manager stubborn on cluster edge keeps changing label app"));
}
