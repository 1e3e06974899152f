//! Expectations: our own writes, until the caches show them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Harness, OBJECTS, key, local, namespace, pair, remote, terminating};
use crate::actor::Outcome;
use crate::cluster::{ObjectKey, Written};
use crate::resource_sync::run::index::expectations::Side;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::events::PairEvent;

pub(super) fn theirs() -> Value {
    json!({"metadata": {"name": "team", "uid": "theirs", "resourceVersion": "1"}})
}

/// The remote object with a new spec.
fn resized(version: u64, size: u64) -> Value {
    let mut remote = remote("a", version);
    (remote["spec"], remote["metadata"]["generation"]) = (json!({"size": size}), json!(version));
    remote
}

#[tokio::test(start_paused = true)]
async fn the_last_finalizer_is_taken_off_once() {
    let harness = Harness::new("");
    let going = terminating(remote("a", 5), 6);
    harness.list(std::slice::from_ref(&going), &[], &[namespace(8, "b", "others")]).await;
    // An API server answers with the version that the object had before the last finalizer was removed.
    harness.hub.answer({
        let going = going.clone();
        move |_| (200, going.clone())
    });
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)), "it waits for the end");
    assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
    harness.watches().remote.gone(&terminating(remote("a", 5), 9)).await;
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert!(harness.hub.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn where_others_hold_the_object_only_our_write_is_awaited() {
    let harness = Harness::new("");
    let mut going = terminating(remote("a", 5), 6);
    going["metadata"]["finalizers"].as_array_mut().unwrap().push("other/last".into());
    harness.list(std::slice::from_ref(&going), &[], &[namespace(8, "b", "others")]).await;
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)));
    going["metadata"]["finalizers"] = serde_json::json!(["other/last"]);
    going["metadata"]["resourceVersion"] = "1000".into();
    harness.watches().remote.show(&going).await;
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_refused_waits_for_the_change_that_refused_it() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[], &[theirs()]).await;
    harness
        .edge
        .answer(|_| (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "it is there"})));
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("POST {OBJECTS}")]);
    assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)));
    let mut theirs = local("a", 7);
    (theirs["spec"], theirs["metadata"]["generation"]) = (json!({"size": 7}), json!(2));
    harness.watches().local.show(&theirs).await;
    harness.edge.answer(|_| (409, json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed"})));
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("PATCH {OBJECTS}/a")]);
    for _ in 0..3 {
        assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)));
    }
    assert!(harness.edge.asked().is_empty(), "not before the cache shows another version");
    theirs["metadata"]["resourceVersion"] = json!("8");
    harness.watches().local.show(&theirs).await;
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("PATCH {OBJECTS}/a")]);
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_our_write_also_where_the_object_is_gone() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
    harness.watches().remote.show(&resized(8, 2)).await;
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("PATCH {OBJECTS}/a")]);
    harness.watches().local.list(&[]).await;
    let mut noted = resized(1001, 2);
    noted["metadata"]["generation"] = json!(8);
    harness.watches().remote.show(&noted).await;
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("POST {OBJECTS}")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_before_the_answer_leaves_an_unknown_outcome() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
    harness.watches().remote.show(&resized(8, 2)).await;
    harness.edge.answer(|_| (0, Value::Null));
    let run = tokio::time::timeout(Duration::from_secs(1), harness.reconcile("a")).await;
    assert!(run.is_err() && harness.edge.asked() == [format!("PATCH {OBJECTS}/a")]);
    harness.edge.answer(|_| (200, local("a", 9)));
    harness.reconcile("a").await;
    let asked = harness.edge.asked();
    assert_eq!(asked[0], format!("GET {OBJECTS}/a"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_upload_during_the_first_list_of_secrets_is_awaited() {
    let harness = Harness::new("secret_names = [\"one\"]");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
    let written = Written { uid: "one".into(), resource_version: "30".into(), generation: 0 };
    let secrets = &harness.watches().remote_secrets[0];
    let waits = || harness.section.observe(&pair("a")).is_err();
    secrets.begin(&[]).await;
    harness.section.index(|index| {
        let key = ObjectKey::new("team", "one");
        index.expectations.change(&pair("a"), |expected| expected.wrote_secret(0, Side::Remote, key, &written));
    });
    assert!(waits(), "the list may be of before");
    secrets.end().await;
    assert!(waits(), "it was");
    let uploaded = json!({"metadata": {"name": "one", "namespace": "team", "uid": "one", "resourceVersion": "30"}});
    secrets.show(&uploaded).await;
    assert!(!waits());
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_secret_is_due_again_an_hour_after_its_upload() {
    let mut harness = Harness::new("secret_names = [\"one\"]");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
    harness.requested();
    harness.section.index(|index| index.uploaded(&pair("a"), &"one".into(), Instant::now()));
    tokio::time::advance(Duration::from_mins(59)).await;
    harness.section.request_due_secrets().await;
    assert_eq!(harness.requested(), Vec::<String>::new());
    tokio::time::advance(Duration::from_mins(1)).await;
    harness.section.request_due_secrets().await;
    assert_eq!(harness.requested(), [pair("a").to_string()]);
}

#[tokio::test(start_paused = true)]
async fn a_local_cluster_that_is_gone_for_ever_is_not_waited_for() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[theirs()]).await;
    harness.watches().remote.show(&resized(8, 2)).await;
    harness.hub.answer(|_| (500, json!({})));
    harness.reconcile("a").await;
    harness.hub.answer(|_| (200, resized(9, 2)));
    harness.section.set_mode(Mode::DetachingLocalGone);
    harness.hub.asked();
    harness.edge.asked();
    harness.reconcile("a").await;
    let patch = format!("PATCH {OBJECTS}/a");
    assert!(harness.hub.asked().contains(&patch), "our finalizer");
    assert!(harness.edge.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_undoes_our_writes_is_reported_though_no_event_finds_room() {
    let label = |value: &str| json!({"metadata": {"labels": {"app": value}}});
    undone(&label("ours"), &label("theirs"), "field manager stubborn on cluster edge keeps changing label app").await;
    let theirs = json!({"metadata": {"generation": 2}, "spec": {"size": 3}});
    let told = "field manager stubborn, hpa by /scale on cluster edge keeps changing spec.size";
    undone(&json!({"spec": {"size": 2}}), &theirs, told).await;
}

/// The cause that is told when others set back to theirs what the remote object has of ours.
async fn undone(of_ours: &Value, of_theirs: &Value, told: &str) {
    let harness = Harness::new("");
    let mut ours = remote("a", 5);
    json_patch::merge(&mut ours, of_ours);
    let undone = |version: u64| {
        let mut theirs = local("a", version);
        json_patch::merge(&mut theirs, of_theirs);
        theirs
    };
    harness.list(&[ours], &[undone(10)], &[theirs()]).await;
    for _ in 0..100 {
        harness.section.emit_event(PairEvent::paused(&key("a"), None, None));
    }
    let mut version = 10;
    harness.edge.answer(move |line| {
        if line.starts_with("GET") {
            let managers = json!([{"manager": "stubborn", "operation": "Update"}, {"manager": "towline-databases", "operation": "Update"},
                {"manager": "idle", "operation": "Update", "subresource": "status"},
                {"manager": "hpa", "operation": "Update", "subresource": "scale"}]);
            return (200, json!({"metadata": {"resourceVersion": "1", "managedFields": managers}}));
        }
        version += 10;
        (200, json!({"metadata": {"uid": "local-a", "resourceVersion": (version - 5).to_string(), "generation": 1}}))
    });
    let patch = format!("PATCH {OBJECTS}/a");
    for round in 1..=4 {
        assert!(matches!(harness.reconcile("a").await, Outcome::Done));
        let looked_up = (round == 4).then(|| format!("GET {OBJECTS}/a"));
        let expected: Vec<_> = looked_up.into_iter().chain([patch.clone()]).collect();
        assert_eq!(harness.edge.asked(), expected, "write {round}");
        harness.watches().local.show(&undone(10 + 10 * round)).await;
    }
    assert!(matches!(harness.reconcile("a").await, Outcome::RetryAfter(_)));
    assert!(harness.edge.asked().is_empty(), "the fifth write waits");
    let cause = harness.section.index(|index| {
        let now = tokio::time::Instant::now();
        index.table.conflicts.cause(&pair("a"), now)
    });
    assert_eq!(cause.as_deref(), Some(told));
}
