//! Rule 2: nothing at all is done for a pair of which either side is paused, deletion included.

use kube::ResourceExt;
use kube::api::DeleteParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::rules_world::*;

fn paused(value: &Value) -> Value {
    json!({"metadata": {"annotations": {mark("paused"): value}}})
}

async fn pair_in_step(name: &str) -> Section {
    let section = Section::start(name, databases(), "").await;
    section.make_remote_namespace("a").await;
    section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
    section.in_step().await;
    section.quiet().await;
    section
}

/// Changes both sides, deletes the remote, and sees that the daemon does nothing.
async fn nothing_is_done(section: &Section) {
    section.report_has("a paused pair", |report| report["objects"]["paused"] == json!(1)).await;
    let since = section.mark().await;
    section.patch_remote("a", "orders", &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"storage": "2Gi"}})).await;
    section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
    section.patch_local("a", "orders", &json!({"spec": {"storage": "drift"}})).await;
    section.quiet().await;
    section.delete_remote("a", "orders").await;
    section.quiet().await;
    assert_eq!(section.counted("a", since).await, (counts([]), counts([])));
    let remote = section.remote_has("a", "orders", |_| true).await;
    assert_eq!(remote.finalizers(), [FINALIZER]);
    assert!(section.local("a").get("orders").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[test]
fn a_paused_remote_stops_everything_until_it_is_resumed() {
    run(async {
        let section = pair_in_step("paused-remote").await;
        section.patch_remote("a", "orders", &paused(&json!("true"))).await;
        section.event("a", "orders", "Paused").await;
        nothing_is_done(&section).await;
        section.patch_remote("a", "orders", &paused(&Value::Null)).await;
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    });
}

#[test]
fn a_paused_local_object_stops_everything_until_it_is_resumed() {
    run(async {
        let section = pair_in_step("paused-local").await;
        section.patch_local("a", "orders", &paused(&json!("true"))).await;
        section.event("a", "orders", "Paused").await;
        nothing_is_done(&section).await;
        section.patch_local("a", "orders", &paused(&json!("false"))).await;
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    });
}

#[test]
fn what_changed_during_a_pause_is_made_up_for() {
    run(async {
        let section = pair_in_step("resumed").await;
        section.patch_remote("a", "orders", &paused(&json!("true"))).await;
        section.report_has("a paused pair", |report| report["objects"]["paused"] == json!(1)).await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.patch_remote("a", "orders", &paused(&Value::Null)).await;
        section.in_step().await;
        let local = section.local_has("a", "orders", |_| true).await;
        assert_eq!(local.data["spec"]["storage"], json!("2Gi"));
        assert!(!local.annotations().contains_key(&mark("paused")), "the pause is not taken down");
    });
}

#[test]
fn a_new_remote_that_is_paused_is_not_even_given_a_finalizer() {
    run(async {
        let section = pair_in_step("paused-new").await;
        let mut content = paused(&json!("true"));
        content["spec"] = json!({"engine": "postgres-17"});
        section.make_remote("a", "bills", &content).await;
        section.quiet().await;
        let remote = section.remote_has("a", "bills", |_| true).await;
        assert!(remote.finalizers().is_empty());
        assert!(section.local("a").get_opt("bills").await.unwrap().is_none());
        section.remote("a").delete("bills", &DeleteParams::default()).await.unwrap();
        section.remote_gone("a", "bills").await;
        let only_true =
            |object: &DynamicObject| object.annotations().get(&mark("paused")).map(String::as_str) == Some("yes");
        let mut content = paused(&json!("yes"));
        content["spec"] = json!({"engine": "postgres-17"});
        section.make_remote("a", "notes", &content).await;
        assert!(only_true(&section.remote_has("a", "notes", |remote| remote.finalizers() == [FINALIZER]).await));
        section.local_has("a", "notes", |_| true).await;
    });
}
