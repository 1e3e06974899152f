//! Approvals of an operator, and the guard that follows them.

use serde_json::{Value, json};

use super::absences::not_found;
use super::{Harness, LOCAL_NAME, NAMESPACE, OBJECTS, local, namespace, remote};
use crate::actor::Outcome;
use crate::status::ObjectState;

const SOURCE: &str = "cloud.teleport.dev/sync-remote-cluster";

/// The local object of a pair of another remote cluster, written by a section of the same name.
fn from_elsewhere(name: &str) -> Value {
    let mut local = local(name, 7);
    local["metadata"]["annotations"][SOURCE] = json!(format!("another/remote-{name}"));
    local["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"] =
        json!({format!("f:{LOCAL_NAME}"): {}, format!("f:{SOURCE}"): {}});
    local
}

#[tokio::test(start_paused = true)]
async fn what_an_approval_frees_is_counted_before_any_of_it_goes() {
    for count in [8, 30] {
        let names: Vec<String> = (0..count).map(|number| format!("o{number}")).collect();
        let harness = Harness::new("");
        let locals: Vec<Value> = names.iter().map(|name| from_elsewhere(name)).collect();
        harness
            .list(&[], &locals, &[json!({"metadata": {"name": "team", "uid": "theirs", "resourceVersion": "1"}})])
            .await;
        harness.hub.answer(not_found);
        for name in &names {
            assert!(matches!(harness.reconcile(name).await, Outcome::Done), "{name}");
        }
        assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty(), "nothing is ours");
        assert!(harness.section.held_objects().is_empty());

        let answer = harness.section.approve().await.unwrap();
        assert_eq!((&answer["approved"], &answer["remembered"]), (&json!(count), &json!(true)));
        for _ in 0..2 {
            for name in &names {
                harness.reconcile(name).await;
            }
        }
        assert_eq!(harness.edge.asked(), Vec::<String>::new(), "{count}");
        let held: usize = harness.section.held_objects().values().sum();
        assert_eq!(held, names.len());

        // The guard is asked separately, and lets them go.
        assert_eq!(harness.section.approve().await.unwrap()["approved"], json!(count));
        for name in &names {
            harness.reconcile(name).await;
        }
        let deleted = harness.edge.asked();
        assert!(deleted.len() == names.len() && deleted[0].starts_with(&format!("DELETE {OBJECTS}/")), "{deleted:?}");
        assert!(harness.section.approve().await.is_err(), "nothing is held");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_takes_over_what_is_not_paused_and_each_object_once() {
    let harness = Harness::new("");
    let mut paused = from_elsewhere("b");
    paused["metadata"]["annotations"]["cloud.teleport.dev/paused"] = json!("true");
    let mut namespace = super::namespace(3, "a", "databases");
    namespace["metadata"]["annotations"][SOURCE] = json!("another");
    namespace["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{SOURCE}")] =
        json!({});
    harness.list(&[], &[from_elsewhere("a"), paused], &[namespace]).await;
    assert!(harness.section.owner_in(&harness.watches().namespaces.store().objects()[0]).is_none(), "it is another's");
    let keys: Vec<String> = harness.section.elsewhere().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["team", "team/a"]);
    assert_eq!(harness.section.approve().await.unwrap()["approved"], json!(2));
    assert!(harness.section.owner_in(&harness.watches().namespaces.store().objects()[0]).is_some(), "it is ours now");
}

#[tokio::test(start_paused = true)]
async fn where_namespaces_may_not_be_patched_they_go_without_their_source() {
    let harness = Harness::new("");
    let mut local = from_elsewhere("a");
    local["metadata"]["annotations"][SOURCE] = json!("hub/remote-a");
    harness.list(&[remote("a", 5)], &[local], &[super::namespace(3, "a", "databases")]).await;
    harness.edge.answer(|_| {
        (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "namespaces \"team\" is forbidden"}))
    });
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert_eq!(harness.edge.asked(), [format!("PATCH {NAMESPACE}")]);
    let now = tokio::time::Instant::now();
    let states: Vec<ObjectState> = harness
        .section
        .index(|index| index.table.pairs().map(|(key, pair)| index.table.shown(key, pair, now).0).collect());
    assert_eq!(states, [ObjectState::InStep]);
}

/// Every pair whose object is gone could delete the empty namespace. It is one namespace, and the approval of the objects was one of
/// what was created for them.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_an_approved_deletion_empties_is_not_held_again() {
    for owner in ["o7", "gone-before"] {
        empties(owner).await;
    }
}

async fn empties(owner: &str) {
    let names: Vec<String> = (0..25).map(|number| format!("o{number}")).collect();
    let harness = Harness::new("");
    let locals: Vec<Value> = names.iter().map(|name| local(name, 7)).collect();
    harness.list(&[], &locals, &[namespace(8, owner, "databases")]).await;
    harness.hub.answer(not_found);
    for _ in 0..2 {
        for name in names.iter().map(String::as_str).chain([owner]) {
            harness.reconcile(name).await;
        }
    }
    assert_eq!(harness.section.approve().await.unwrap()["approved"], json!(names.len()));
    for name in &names {
        harness.reconcile(name).await;
    }
    let deleted = harness.edge.asked();
    assert!(deleted.iter().all(|asked| asked.starts_with(&format!("DELETE {OBJECTS}/"))), "{deleted:?}");
    assert_eq!(deleted.len(), names.len());
    for name in &names {
        harness.watches().local.gone(&local(name, 1001)).await;
    }
    for _ in 0..2 {
        for name in names.iter().map(String::as_str).chain([owner]) {
            harness.reconcile(name).await;
        }
    }
    assert!(harness.section.held_objects().is_empty(), "{:?}", harness.section.held_objects());
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
}
