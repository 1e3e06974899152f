//! `observedGeneration` in a status, for those who compare it with the generation of the remote object.

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::rules_world::*;

fn status(top: i64, ready: i64) -> Value {
    json!({"observedGeneration": top, "conditions": [
        {"type": "Ready", "status": "True", "observedGeneration": ready},
        {"type": "Backup", "status": "True"},
    ]})
}

fn generation(object: &DynamicObject) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

#[test]
fn translated_generations_are_those_of_the_remote_object_and_never_ahead_of_what_the_edge_has_observed() {
    run(async {
        let settings = "observed_generation = \"translate\"\nlocal_fields = [\"/spec/own\"]";
        let section = Section::start("translated", documents(), settings).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "report", &json!({"spec": {"n": 1, "own": 0}})).await;
        section.local_has("a", "report", |_| true).await;
        // The two sides do not count alike.
        for own in 1..4 {
            section.patch_local("a", "report", &json!({"spec": {"own": own}})).await;
        }
        assert_eq!(generation(&section.local_has("a", "report", |_| true).await), 4);
        let shows = async |top: i64, ready: i64| {
            let expected = status(top, ready);
            section.remote_has("a", "report", |remote| remote.data.get("status") == Some(&expected)).await
        };
        section.patch_local_status("a", "report", &status(4, 4)).await;
        assert_eq!(generation(&shows(1, 1).await), 1);
        let remote = section.patch_remote("a", "report", &json!({"spec": {"n": 2}})).await;
        assert_eq!(generation(&remote), 2);
        let local = section.local_has("a", "report", |local| local.data["spec"]["n"] == 2).await;
        assert_eq!(generation(&local), 5);
        section.quiet().await;
        let before = shows(1, 1).await;
        assert_eq!(before.annotations().get(&mark("sync-local-generation")).map(String::as_str), Some("5"));
        section.patch_local_status("a", "report", &status(5, 4)).await;
        shows(2, 1).await;
        section.patch_local_status("a", "report", &status(5, 5)).await;
        shows(2, 2).await;
        // A change of the edge's own is not observed yet, and no news for the hub.
        section.patch_local("a", "report", &json!({"spec": {"own": 9}})).await;
        section.quiet().await;
        shows(2, 2).await;
        section.patch_local_status("a", "report", &status(6, 6)).await;
        section.quiet().await;
        shows(2, 2).await;
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(section.counted_without_events("a", since).await, (counts([]), counts([])));
    });
}

#[test]
fn a_copied_generation_is_the_count_that_the_remote_object_notes() {
    run(async {
        let section = Section::start("copied", documents(), "local_fields = [\"/spec/own\"]").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "report", &json!({"spec": {"n": 1, "own": 0}})).await;
        section.local_has("a", "report", |_| true).await;
        let local = section.patch_local("a", "report", &json!({"spec": {"own": 1}})).await;
        assert_eq!(generation(&local), 2);
        section.patch_local_status("a", "report", &status(2, 2)).await;
        let remote = section.remote_has("a", "report", |remote| {
            remote.data.get("status") == Some(&status(2, 2))
                && remote.annotations().get(&mark("sync-local-generation")).map(String::as_str) == Some("2")
        });
        assert_eq!(generation(&remote.await), 1);
    });
}
