//! Sorts of kinds.

use integration::audit::Record;
use integration::{Filter, users};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

#[test]
fn a_namespaced_custom_kind_travels_both_ways() {
    run(async {
        let section = Place::shared("travels", databases()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "10Gi"}})).await;
        section.in_step().await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready", "endpoint": "orders:5432"})).await;
        section.in_step().await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "20Gi"}})).await;
        section.in_step().await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.data["status"], json!({"phase": "Ready", "endpoint": "orders:5432"}));
        section.quiet().await;
        assert_eq!(section.events("a", "orders").await, counts([]), "what goes well makes no Events");
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
        section.in_step().await;
    });
}

#[test]
fn a_cluster_scoped_kind_travels_without_namespaces_and_never_asks_for_them() {
    run(async {
        // A user of its own, of whom everything counts.
        let (world, user) = (world().await, users::OTHER_CONTROLLER);
        let since = mark_of(&world.edge).await;
        let config = format!(
            "[clusters.hub]\nkubeconfig = {:?}\n[clusters.edge]\nkubeconfig = {:?}\n{}",
            world.hub.kubeconfig(user).unwrap(),
            world.edge.kubeconfig(user).unwrap(),
            sync("regions", &regions(), "")
        );
        let section = Section::start_config("regions", regions(), &config, |_| {}).await;
        let (hub, edge) =
            (Api::all_with(section.hub.clone(), &section.kind), Api::all_with(section.edge.clone(), &section.kind));
        let region =
            section.object("north", &json!({"spec": {"location": "63N", "capacity": 9_007_199_254_740_993_i64}}));
        hub.create(&PostParams::default(), &region).await.unwrap();
        section.in_step().await;
        let status = kube::api::Patch::Merge(json!({"status": {"phase": "Open", "used": 1}}));
        edge.patch_status("north", &kube::api::PatchParams::default(), &status).await.unwrap();
        section.in_step().await;
        let local = object_that(&edge, "the region on the edge", "north", |_| true).await;
        assert_eq!(local.data["spec"]["capacity"], json!(9_007_199_254_740_993_i64));
        let remote = object_that(&hub, "the region on the hub", "north", |_| true).await;
        assert_eq!(remote.data["status"], json!({"phase": "Open", "used": 1}));
        hub.delete("north", &DeleteParams::default()).await.unwrap();
        gone(&hub, "the region on the hub", "north").await;
        assert!(edge.get_opt("north").await.unwrap().is_none(), "the local one went first");
        let filter = Filter::since(since).user(user).with_watches();
        let all = world.edge.audit().unwrap().records(&filter).await.unwrap();
        assert!(all.iter().any(|record| record.resource == "regions"), "the daemon is heard: {all:#?}");
        // But for the one that says which cluster it is.
        let is_asked_for = |record: &&Record| record.resource == "namespaces" && record.name != "kube-system";
        let namespaces: Vec<_> = all.iter().filter(is_asked_for).collect();
        assert!(namespaces.is_empty(), "{namespaces:#?}");
    });
}

#[test]
fn a_kind_without_spec_and_status_travels_whole() {
    run(async {
        let section = Place::shared("configs", config_maps()).await;
        section.make_remote_namespace("a").await;
        let content = json!({"data": {"colour": "blue", "size": "1"}, "binaryData": {"raw": "AAEC"}});
        section.make_remote("a", "settings", &content).await;
        section.local_has("a", "settings", |local| local.data.get("binaryData") == Some(&content["binaryData"])).await;
        section
            .patch_remote("a", "settings", &json!({"data": {"colour": null, "shape": "round"}, "binaryData": null}))
            .await;
        let local = section.local_has("a", "settings", |local| local.data["data"].get("shape").is_some()).await;
        assert_eq!(local.data["data"], json!({"size": "1", "shape": "round"}));
        assert_eq!(local.data.get("binaryData"), None);
        // Immutable is a top-level field of its own.
        section.patch_remote("a", "settings", &json!({"immutable": true})).await;
        section.local_has("a", "settings", |local| local.data.get("immutable") == Some(&json!(true))).await;
        let since = section.mark().await;
        let remote = section.remote_has("a", "settings", |_| true).await;
        assert!(remote.finalizers().contains(&FINALIZER.to_owned()));
        section.delete_remote("a", "settings").await;
        section.remote_gone("a", "settings").await;
        let expected = (counts([("patch configmaps", 1)]), counts([("delete namespaces", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_status_without_a_subresource_travels_up_and_the_spec_down() {
    run(async {
        let section = Place::shared("queues", queues()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "jobs", &json!({"spec": {"partitions": 3}, "status": {"phase": "FromTheHub"}})).await;
        section.local_has("a", "jobs", |local| local.data["spec"] == json!({"partitions": 3})).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        section.patch_local("a", "jobs", &json!({"status": {"phase": "Ready", "depth": 7}})).await;
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch queues", 2)]), counts([]));
        assert_eq!(section.counted("a", since).await, expected, "status and generation are written by themselves");
        let both = (json!({"spec": {"partitions": 4}}), json!({"status": {"depth": 8}}));
        tokio::join!(section.patch_remote("a", "jobs", &both.0), section.patch_local("a", "jobs", &both.1));
        section.in_step().await;
        let remote = section.remote_has("a", "jobs", |_| true).await;
        assert_eq!(remote.data["status"], json!({"phase": "Ready", "depth": 8}));
        assert_eq!(remote.data["spec"], json!({"partitions": 4}));
    });
}

#[test]
fn every_value_keeps_its_exact_form() {
    run(async {
        let section = Place::shared("values", documents()).await;
        section.make_remote_namespace("a").await;
        let spec = json!({
            "integer": 42, "negative": -7, "zero": 0, "large": 9_007_199_254_740_993_i64, "largest": i64::MAX,
            "smallest": i64::MIN, "float": 0.1, "precise": 1.234_567_890_123_456_7, "tiny": 5e-324, "huge": 1.797e308,
            "whole": 3.0, "nothing": null, "empty": [], "emptier": {}, "text": "", "true": true, "false": false,
            "unicode": "Größe 漢字 🚢 \u{0} \u{2028} \"quoted\" \\ /", "ключ": "значение", "a/b~c": {"~1": null},
            "list": [null, [], {}, [null, {"deep": null}], 1.5, "x"],
            "nested": {"a": {"b": {"c": [], "d": null}}},
        });
        section.make_remote("a", "everything", &json!({"spec": spec})).await;
        section.in_step().await;
        let local = section.local_has("a", "everything", |_| true).await;
        let remote = section.remote_has("a", "everything", |_| true).await;
        assert_eq!(local.data["spec"], remote.data["spec"]);
        assert_eq!(local.data["spec"]["nothing"], json!(null));
        assert_eq!(local.data["spec"]["largest"], json!(i64::MAX));
        assert_eq!(local.data["spec"]["list"], spec["list"]);
        let status = json!({"seen": spec, "nothing": null});
        section.patch_local_status("a", "everything", &json!({"seen": {"list": [null, {}], "n": i64::MAX - 1}})).await;
        section.in_step().await;
        let whole = section.object("everything", &json!({"status": status, "metadata": {"resourceVersion": null}}));
        let mut whole = serde_json::to_value(whole).unwrap();
        let held = section.local_has("a", "everything", |_| true).await;
        whole["metadata"] = serde_json::to_value(&held.metadata).unwrap();
        whole["spec"] = held.data["spec"].clone();
        let bytes = serde_json::to_vec(&whole).unwrap();
        section
            .local("a")
            .replace_status("everything", &PostParams::default(), &serde_json::from_slice(&bytes).unwrap())
            .await
            .unwrap();
        section.in_step().await;
        let remote = section.remote_has("a", "everything", |_| true).await;
        assert_eq!(remote.data["status"]["seen"]["list"], spec["list"]);
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])), "it has settled");
    });
}

#[test]
fn an_object_of_a_megabyte_travels_both_ways() {
    run(async {
        let section = Place::shared("large", documents()).await;
        section.make_remote_namespace("a").await;
        let text = |letter: &str| letter.repeat(1_000_000);
        section.make_remote("a", "book", &json!({"spec": {"text": text("a")}})).await;
        section.local_has("a", "book", |local| local.data["spec"]["text"] == text("a")).await;
        section.patch_remote("a", "book", &json!({"spec": {"text": "short"}})).await;
        section.in_step().await;
        section.patch_local_status("a", "book", &json!({"text": text("b")})).await;
        section.remote_has("a", "book", |remote| remote.data["status"]["text"] == text("b")).await;
        section.in_step().await;
        // Nobody shall list it again.
        section.delete_remote("a", "book").await;
        section.remote_gone("a", "book").await;
    });
}
