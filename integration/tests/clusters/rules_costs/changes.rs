use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::rules_costs::ALONE;
use crate::rules_costs::rules_world::*;

/// A section of databases with one pair in step, in a namespace that is there on both sides.
async fn in_step(name: &str, settings: &str) -> Section {
    let section = Section::start(name, databases(), settings).await;
    section.make_namespaces("a").await;
    section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "10Gi"}})).await;
    section.quiet().await;
    section
}

#[test]
fn a_new_object_costs_three_writes_and_one_more_with_its_namespace() {
    run(async {
        let _together = ALONE.read().await;
        let section = Section::start("new", databases(), "").await;
        section.make_namespaces("there").await;
        section.make_remote_namespace("missing").await;
        section.quiet().await;
        let since = section.mark().await;
        let content = json!({"metadata": {"labels": {"team": "a"}}, "spec": {"engine": "postgres-17"}});
        section.make_remote("there", "orders", &content).await;
        section.make_remote("missing", "orders", &content).await;
        section.in_step().await;
        section.quiet().await;
        let hub = counts([("patch databases", 2)]);
        let (there, missing) = (section.counted("there", since).await, section.counted("missing", since).await);
        assert_eq!(there, (hub.clone(), counts([("create databases", 1)])));
        assert_eq!(missing, (hub, counts([("create databases", 1), ("create namespaces", 1)])));
    });
}

#[test]
fn a_new_local_object_with_a_status_of_its_own_costs_one_more_write() {
    run(async {
        let _together = ALONE.read().await;
        let section = Section::start("new-status", widgets(), "").await;
        section.make_namespaces("a").await;
        let since = section.mark().await;
        // The remote has a status that the new local object does not have. Paused meanwhile, so that nobody conflicts.
        let paused = |value| json!({"metadata": {"annotations": {mark("paused"): value}}, "spec": {"size": 1}});
        section.make_remote("a", "gear", &paused(json!("true"))).await;
        let status = Patch::Merge(json!({"status": {"phase": "Old"}}));
        section.remote("a").patch_status("gear", &PatchParams::default(), &status).await.unwrap();
        section.patch_remote("a", "gear", &paused(json!(null))).await;
        section.local_has("a", "gear", |_| true).await;
        section
            .remote_has("a", "gear", |remote| {
                remote.data.get("status").is_none_or(|status| status.get("phase").is_none())
            })
            .await;
        section
            .remote_has("a", "gear", |remote| {
                remote
                    .metadata
                    .annotations
                    .as_ref()
                    .is_some_and(|held| held.contains_key(&mark("sync-local-generation")))
            })
            .await;
        let (hub, edge) = section.counted("a", since).await;
        assert_eq!(edge, counts([("create widgets", 1)]));
        assert_eq!(hub, counts([("patch widgets", 2), ("patch widgets/status", 1)]));
    });
}

#[test]
fn a_change_of_the_remote_spec_costs_two_writes() {
    run(async {
        let _together = ALONE.read().await;
        let section = in_step("spec", "").await;
        let since = section.mark().await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "20Gi"}})).await;
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch databases", 1)]), counts([("patch databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_change_of_the_local_status_costs_one_write() {
    run(async {
        let _together = ALONE.read().await;
        let section = in_step("status", "").await;
        let since = section.mark().await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready", "endpoint": "orders:5432"})).await;
        section.in_step().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([("patch databases/status", 1)]), counts([])));
    });
}

#[test]
fn a_label_and_an_annotation_cost_one_write_each() {
    run(async {
        let _together = ALONE.read().await;
        let section = in_step("metadata", "").await;
        for change in [
            json!({"metadata": {"labels": {"team": "a"}}}),
            json!({"metadata": {"annotations": {"example.org/note": "b"}}}),
            json!({"metadata": {"labels": {"team": "c"}}}),
            json!({"metadata": {"labels": {"team": null}}}),
            json!({"metadata": {"annotations": {"example.org/note": null}}}),
        ] {
            let since = section.mark().await;
            section.patch_remote("a", "orders", &change).await;
            section.in_step().await;
            section.quiet().await;
            let expected = (counts([]), counts([("patch databases", 1)]));
            assert_eq!(section.counted("a", since).await, expected, "{change}");
        }
        let local = section.local_has("a", "orders", |_| true).await;
        let left = (local.metadata.labels.is_none(), local.metadata.annotations.unwrap_or_default());
        assert!(left.0 && left.1.len() == 3, "what the remote drops goes, and the marks are left: {left:?}");
    });
}

#[test]
fn a_deletion_of_the_remote_costs_two_writes() {
    run(async {
        let _together = ALONE.read().await;
        let section = in_step("deleted", "").await;
        let since = section.mark().await;
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
        section.quiet().await;
        let expected = (counts([("patch databases", 1)]), counts([("delete databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn the_last_object_of_an_owned_namespace_costs_the_same_two_writes() {
    run(async {
        let _together = ALONE.read().await;
        let section = Section::start("last", databases(), "").await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
        section.quiet().await;
        let expected = (counts([("patch databases", 1)]), counts([("delete namespaces", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn an_object_that_is_missing_without_having_been_seen_terminating_costs_one_read_and_one_write() {
    run(async {
        let _together = ALONE.read().await;
        let mut section = in_step("missing", "").await;
        section.towline.kill9().await.unwrap();
        section.patch_remote("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
        section.remote("a").delete("orders", &DeleteParams::default()).await.unwrap();
        section.remote_gone("a", "orders").await;
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.local_gone("a", "orders").await;
        section.quiet().await;
        let expected = (counts([("get databases", 1)]), counts([("delete databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_secret_costs_two_writes() {
    run(async {
        let _together = ALONE.read().await;
        let section = in_step("secret", "secret_names = [\"database-credentials\"]").await;
        let database = section.local_has("a", "orders", |_| true).await;
        make_secret(&section.remote_secrets("a"), "database-credentials", &json!({})).await;
        for round in ["one", "two"] {
            let since = section.mark().await;
            let content =
                json!({"stringData": {"password": round}, "metadata": {"ownerReferences": [controller(&database)]}});
            put_secret(&section.local_secrets("a"), "database-credentials", &content).await;
            secret_that(&section.local_secrets("a"), "database-credentials", "its hash noted", |secret| {
                noted_hash(secret).is_some_and(|hash| noted_hash(secret) == Some(hash))
                    && data(secret, "password") == round
            })
            .await;
            secret_that(&section.remote_secrets("a"), "database-credentials", round, |secret| {
                data(secret, "password") == round
            })
            .await;
            section.quiet().await;
            let expected = (counts([("update secrets", 1)]), counts([("patch secrets", 1)]));
            assert_eq!(section.counted("a", since).await, expected, "{round}");
        }
    });
}

#[test]
fn a_status_without_a_subresource_costs_two_writes() {
    run(async {
        let _together = ALONE.read().await;
        let section = Section::start("plain", queues(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "jobs", &json!({"spec": {"partitions": 3}})).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        section.patch_local("a", "jobs", &json!({"status": {"phase": "Ready", "depth": 7}})).await;
        section.in_step().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([("patch queues", 2)]), counts([])));
    });
}

#[test]
fn fifty_deletions_at_once_cost_one_more_than_fifty_on_each_side_at_most() {
    run(async {
        let _together = ALONE.read().await;
        let section = Section::start("fifty", databases(), "").await;
        section.make_remote_namespace("a").await;
        for number in 0..50 {
            section.make_remote("a", &format!("o{number}"), &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        let all = kube::api::ListParams::default();
        section.remote("a").delete_collection(&DeleteParams::background(), &all).await.unwrap();
        for number in 0..50 {
            section.remote_gone("a", &format!("o{number}")).await;
        }
        section.quiet().await;
        let (hub, edge) = section.counted("a", since).await;
        assert_eq!(hub, counts([("patch databases", 50)]), "each finalizer once");
        assert_eq!(edge.get("delete namespaces"), Some(&1), "{edge:?}");
        let locals = edge.get("delete databases").copied().unwrap_or_default();
        assert!(locals <= 50 && edge.len() <= 2, "{edge:?}");
    });
}
