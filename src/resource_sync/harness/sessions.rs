//! New credentials, which may lead to another cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Harness, OBJECTS, local, remote};
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
