//! The way from Hive and back, as the page describes it: nothing is deleted on it but what is dropped from syncsets.

use std::path::Path;

use integration::ControlPlane;
use integration::users::ADMIN;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::syncsets::commands::{file, has_lines};
use crate::syncsets::requests::Requests;
use crate::syncsets::watching::Watching;
use crate::syncsets::world::{Stage, run};

const HIVE: &str = "hive6-clustersync";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Hive applies as kubectl does without server-side apply.
async fn hive_applies(plane: &ControlPlane, mut maps: Vec<Value>) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("syncsets-of-hive.json");
    for map in &mut maps {
        map["metadata"]["labels"] = json!({"hive.openshift.io/managed": "true"});
    }
    std::fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": maps}).to_string()).unwrap();
    let mut command = plane.kubectl(ADMIN).await.unwrap();
    command.args(["apply", "--server-side=false", "--field-manager", HIVE, "-f"]).arg(&path);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn managers(map: &ConfigMap) -> Vec<&str> {
    let mut managers: Vec<_> = map.managed_fields().iter().filter_map(|entry| entry.manager.as_deref()).collect();
    managers.sort_unstable();
    managers
}

#[test]
fn nothing_is_deleted_on_the_way_from_hive_and_back() {
    run(async {
        let stage = Stage::new("hive").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let maps = stage.maps(plane).await;
        let ours = |name: &str, value: &str| stage.config_map(name, &json!({"a": value}));
        hive_applies(plane, vec![stage.config_map("site", &json!({"a": "1", "former": "1"}))]).await;
        // Hive's syncsets had dropped `left`, and Hive had not deleted it yet.
        hive_applies(plane, ["site", "agent", "left"].map(|name| ours(name, "1")).into()).await;
        let uids = async || {
            let mut found: Vec<_> =
                stage.config_maps(plane).await.iter().map(|map| (map.name_any(), map.uid())).collect();
            found.sort();
            found
        };
        let before = uids().await;
        let watching = Watching::begin(&stage, plane).await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;

        // As `kubectl get --output yaml` prints them. JSON is YAML.
        let syncsets = |site: &str| {
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
                {"apiVersion": "hive.openshift.io/v1", "kind": "SyncSet",
                    "metadata": {"namespace": stage.namespace, "name": "base", "uid": "7", "resourceVersion": "41", "generation": 3,
                        "creationTimestamp": "2026-11-01T00:00:00Z", "managedFields": []},
                    "spec": {"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync",
                        "resources": [ours("site", site)]}},
                {"apiVersion": "hive.openshift.io/v1", "kind": "SelectorSyncSet",
                    "metadata": {"name": "hive-agents", "uid": "8", "resourceVersion": "42", "generation": 1},
                    "spec": {"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "resourceApplyMode": "Sync",
                        "resources": [ours("agent", "1")]}},
            ]})
        };
        let manifests = file("hive-manifests", &syncsets("1")).display().to_string();

        // `diff` shows beforehand that only owners of fields would change.
        let (_, told) = stage.ended(&["diff", "-f", &manifests, "--all"]).await;
        let cluster = format!("{}/west-1", stage.namespace);
        assert!(told.contains(&cluster) && !told.contains("create 1") && !told.contains("delete 1"), "{told}");
        requests.seen().await;

        // Step 1 and 2: while the clusters are paused, nothing is sent.
        stage.command(&["pause", "--all"]).await;
        stage.at_rest().await;
        let told = stage.command(&["apply", "-f", &manifests]).await;
        has_lines(&told, &["SyncSet/hive/base created", "SelectorSyncSet/hive-agents created"]);
        stage.at_rest().await;
        assert!(requests.seen().await.is_empty());

        // Step 4: fields change owners, and what Hive's syncsets no longer had stays.
        stage.command(&["resume", &cluster]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", "hive-agents", 1).await;
        let mut sent = requests.seen().await;
        sent.sort();
        let each = |name: &str| ["get", "patch", "patch"].map(|verb| format!("{verb} configmaps/{name} 200"));
        let mut taken_over = [each("agent"), each("site")].concat();
        taken_over.sort();
        assert_eq!(sent, taken_over);
        for name in ["site", "agent"] {
            let found = maps.get(name).await.unwrap();
            assert_eq!(managers(&found), ["towline"]);
            assert!(
                !found.annotations().contains_key(LAST_APPLIED)
                    && !found.annotations().contains_key("towline.dev/adopted")
            );
        }
        let left = maps.get("left").await.unwrap();
        assert_eq!(managers(&left), [HIVE]);
        assert_eq!(uids().await, before);

        // Syncsets are changed on the hub from now on.
        let changed = file("hive-changed", &syncsets("2")).display().to_string();
        has_lines(
            &stage.command(&["apply", "-f", &changed]).await,
            &["SyncSet/hive/base configured", "SelectorSyncSet/hive-agents unchanged"],
        );
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(json!(maps.get("site").await.unwrap().data), json!({"a": "2"}));

        // Back again: Hive applies everything anew.
        stage.command(&["pause", "--all"]).await;
        stage.at_rest().await;
        hive_applies(plane, ["site", "agent"].map(|name| ours(name, "2")).into()).await;
        for name in ["site", "agent"] {
            let found = maps.get(name).await.unwrap();
            assert!(managers(&found).contains(&HIVE) && found.annotations().contains_key(LAST_APPLIED), "{found:?}");
        }
        requests.seen().await;
        // The hub is cleared, the clusters first.
        stage.remove(&stage.path("clusters", "west-1")).await;
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.remove("selectorsyncsets/hive-agents").await;
        stage.at_rest().await;
        assert!(requests.seen().await.is_empty());
        assert_eq!(uids().await, before);
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());
    });
}
