//! What the remote says is on the local object.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::rules_world::*;

#[test]
fn drift_of_the_local_spec_is_mended_in_one_write() {
    run(async {
        let section = Place::shared("drift", documents()).await;
        section.make_namespaces("a").await;
        // An object for each: three rewrites of one within a minute would be a fight.
        for (name, drift) in [
            ("changed", json!({"spec": {"title": "other"}})),
            ("added", json!({"spec": {"foreign": {"added": true}}})),
            ("both", json!({"spec": {"tags": ["x"], "title": null}})),
        ] {
            let spec = json!({"spec": {"title": "one", "tags": [], "author": null}});
            let spec = section.make_remote("a", name, &spec).await.data["spec"].clone();
            section.in_step().await;
            section.quiet().await;
            let since = section.mark().await;
            let drifted = section.patch_local("a", name, &drift).await;
            section.local_has("a", name, |local| local.metadata.generation > drifted.metadata.generation).await;
            section.in_step().await;
            section.quiet().await;
            let expected = (counts([("patch documents", 1)]), counts([("patch documents", 1)]));
            assert_eq!(section.counted("a", since).await, expected, "{drift}");
            let local = section.local_has("a", name, |_| true).await;
            assert_eq!(local.data["spec"], spec);
        }
    });
}

#[test]
fn a_field_that_the_remote_drops_goes_and_nulls_and_empty_lists_stay() {
    run(async {
        let section = Place::shared("drops", documents()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "page", &json!({"spec": {"a": 1, "b": {"c": 2, "d": 3}, "e": [1, 2]}})).await;
        section.in_step().await;
        let mut whole = section.remote_has("a", "page", |_| true).await;
        whole.data["spec"] = json!({"b": {"d": null}, "e": []});
        section.replace_remote("a", "page", whole).await;
        section.in_step().await;
        let local = section.local_has("a", "page", |_| true).await;
        assert_eq!(local.data["spec"], json!({"b": {"d": null}, "e": []}));
    });
}

#[test]
fn local_fields_are_set_once_and_then_left_alone() {
    run(async {
        let settings = "local_fields = [\"/spec/replicas\", \"/spec/limits/memory\"]";
        let section = Section::start_with("local-fields", documents(), settings, |mapping| {
            mapping.local_fields = vec!["/spec/replicas".to_owned(), "/spec/limits/memory".to_owned()];
        })
        .await;
        section.make_namespaces("a").await;
        let spec = json!({"spec": {"replicas": 2, "limits": {"memory": "1Gi", "cpu": 1}, "name": "x"}});
        let remote = section.make_remote("a", "web", &spec).await;
        section.local_has("a", "web", |local| local.data["spec"] == remote.data["spec"]).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        section.patch_local("a", "web", &json!({"spec": {"replicas": 9, "limits": {"memory": "2Gi"}}})).await;
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch documents", 1)]), counts([]));
        assert_eq!(section.counted("a", since).await, expected, "only the local generation is noted");
        // A generation that is copied is the count that the remote object notes.
        section.patch_local_status("a", "web", &json!({"observedGeneration": 2})).await;
        let remote = section.remote_has("a", "web", |remote| remote.data["status"]["observedGeneration"] == 2).await;
        let noted = remote.annotations().get(&mark("sync-local-generation")).map(String::as_str);
        assert_eq!((noted, remote.metadata.generation), (Some("2"), Some(1)));
        section.patch_remote("a", "web", &json!({"spec": {"replicas": 3, "limits": {"cpu": 2}}})).await;
        section.in_step().await;
        let local = section.local_has("a", "web", |_| true).await;
        assert_eq!(local.data["spec"], json!({"replicas": 9, "limits": {"memory": "2Gi", "cpu": 2}, "name": "x"}));
    });
}

#[test]
fn a_local_object_deleted_while_the_remote_lives_is_made_anew_when_it_is_gone() {
    run(async {
        let section = Place::shared("anew", databases()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let first =
            section.patch_local("a", "orders", &json!({"metadata": {"finalizers": ["example.org/held"]}})).await;
        section.local("a").delete("orders", &DeleteParams::background()).await.unwrap();
        // The status goes up while it is being deleted, the spec does not go down.
        let since = section.mark().await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "5Gi"}})).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Deleting"})).await;
        section.remote_has("a", "orders", |remote| remote.data["status"]["phase"] == "Deleting").await;
        section.quiet().await;
        let expected = (counts([("patch databases/status", 1)]), counts([]));
        assert_eq!(section.counted("a", since).await, expected);
        section.patch_local("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
        let second = section.local_has("a", "orders", |local| local.uid() != first.uid()).await;
        assert_eq!(second.data["spec"]["storage"], json!("5Gi"));
        section.in_step().await;
    });
}

#[test]
fn the_generations_on_the_remote_are_those_that_belong_together() {
    run(async {
        let section = Place::shared("generations", databases()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        for storage in ["1Gi", "2Gi"] {
            section.patch_remote("a", "orders", &json!({"spec": {"storage": storage}})).await;
            section.in_step().await;
        }
        let (remote, local) =
            (section.remote_has("a", "orders", |_| true).await, section.local_has("a", "orders", |_| true).await);
        assert_eq!(remote.annotations().get(&mark("sync-remote-generation")).unwrap(), "3");
        assert_eq!(remote.annotations().get(&mark("sync-local-generation")).unwrap(), "3");
        assert_eq!((remote.metadata.generation, local.metadata.generation), (Some(3), Some(3)));
        assert_eq!(local.annotations().get(&mark("sync-remote-uid")), remote.metadata.uid.as_ref());
        assert!(!local.annotations().keys().any(|key| key.contains("generation")), "{:?}", local.annotations());
        // Somebody's own value is put right.
        let patch = json!({"metadata": {"annotations": {mark("sync-local-generation"): "99"}}});
        section.patch_remote("a", "orders", &patch).await;
        section.in_step().await;
    });
}

#[test]
fn status_finalizers_and_owners_of_the_local_object_are_left_alone() {
    run(async {
        let section = Place::shared("untouched", databases()).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let owner = section.make_local("a", "owner", &json!({"spec": {"engine": "owner-1"}})).await;
        let mut reference = controller(&owner);
        reference["controller"] = json!(false);
        let patch = json!({"metadata": {"finalizers": ["example.org/held"], "ownerReferences": [reference]}});
        let changed = section.patch_local("a", "orders", &patch).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "3Gi"}})).await;
        let local = section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "3Gi").await;
        assert_eq!(local.finalizers(), changed.finalizers());
        assert_eq!(local.owner_references(), changed.owner_references());
        assert_eq!(local.data["status"], json!({"phase": "Ready"}));
        section.patch_local("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
    });
}
