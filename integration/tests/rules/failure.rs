//! What fails is told, once, and retried; the rest goes on.

use kube::ResourceExt;
use serde_json::json;

use crate::rules_world::*;

#[test]
fn a_local_schema_s_refusal_is_told_once_and_again_when_it_is_over() {
    run(async {
        let section = Section::start("refused", widgets(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "gear", |_| true).await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 50}})).await;
        let note = section.event("a", "gear", "SyncFailed").await;
        assert!(note.contains("patch_local") && note.contains("spec.size"), "{note}");
        let report = section.report_has("the failure", |report| report["objects"]["failing"] == json!(1)).await;
        let failure = &report["failures"][0];
        assert_eq!(failure["key"], json!(format!("{}/gear", section.namespace("a"))), "{failure}");
        assert_eq!(failure["step"], json!("patch_local"), "{failure}");
        assert!(report["oldest_unsynced_seconds"]["spec"].as_f64().is_some_and(|age| age > 0.0), "{report}");
        // One that can't even be made, and one that is fine.
        section.make_remote("a", "wheel", &json!({"spec": {"size": 99}})).await;
        section.make_remote("a", "axle", &json!({"spec": {"size": 2}})).await;
        section.local_has("a", "axle", |_| true).await;
        section.report_has("two failures", |report| report["objects"]["failing"] == json!(2)).await;
        // The status goes up all the same.
        section.patch_local_status("a", "gear", &json!({"phase": "Ready"})).await;
        section.remote_has("a", "gear", |remote| remote.data["status"]["phase"] == "Ready").await;
        // A change retries at once, whatever the back-off has come to.
        for (name, size) in [("gear", 3), ("wheel", 4)] {
            section.patch_remote("a", name, &json!({"spec": {"size": size}})).await;
            section.local_has("a", name, |local| local.data["spec"]["size"] == size).await;
        }
        section.event("a", "gear", "Synced").await;
        section.report_has("no failure", |report| report["objects"]["failing"] == json!(0)).await;
        assert_eq!(section.events("a", "gear").await, counts([("SyncFailed", 1), ("Synced", 1)]));
        let log = section.towline.log().unwrap();
        let told = log.lines().filter(|line| line.contains("sync failed") && line.contains("/gear")).count();
        assert_eq!(told, 1, "one line for one failure");
        let line = log.lines().find(|line| line.contains("sync failed")).unwrap_or_default();
        for part in ["refused", "edge", "patch_local", "spec.size"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    });
}

#[test]
fn the_healthy_path_makes_no_events() {
    run(async {
        let section = Section::start("healthy", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "1Gi"}})).await;
        section.in_step().await;
        section.quiet().await;
        assert_eq!(section.events("a", "orders").await, counts([]));
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.finalizers(), [FINALIZER]);
    });
}
