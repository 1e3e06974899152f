//! `resourcesToDelete` after real passes.

use integration::hub::Request;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::syncsets::world::{Stage, run};

#[test]
fn a_cluster_sync_names_what_its_syncsets_would_delete() {
    run(async {
        let stage = Stage::new("to-delete").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let adopted = serde_json::from_value(json!({"metadata": {"name": "adopted"}})).unwrap();
        stage.maps(plane).await.create(&PostParams::default(), &adopted).await.unwrap();
        let map = |name: &str| stage.config_map(name, &json!({"a": "1"}));
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "to-delete", "namespace": "ignored"}, "rules": []});
        stage.syncset("kept", "Upsert", &[map("kept")]).await;
        stage.syncset("owned", "Sync", &[map("b"), map("a"), map("adopted"), role]).await;
        for name in ["kept", "owned"] {
            stage.succeeds("west-1", name, 1).await;
        }
        let named =
            |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": stage.namespace, "name": name});
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "to-delete"});
        let path = stage.path("clustersyncs", "west-1");
        let read = stage.get(&path).await;
        let of = |status: &Value| {
            let entries = status["syncSets"].as_array().unwrap();
            entries.iter().map(|entry| entry["resourcesToDelete"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&read["status"]), [Value::Null, json!([named("a"), named("b"), role])]);
        // Sent back, it changes nothing.
        let reply = stage.send(&Request::put(&format!("/v1/{path}/status"), &read)).await.success().unwrap();
        assert_eq!(reply.json().unwrap()["resourceVersion"], read["resourceVersion"]);
        // A switch forgets all, and the syncset's end deletes what is left.
        stage.change(&stage.path("syncsets", "owned"), &json!({"spec": {"resources": [map("a")]}})).await;
        stage.succeeds("west-1", "owned", 2).await;
        assert_eq!(of(&stage.get(&path).await["status"])[1], json!([named("a")]));
        stage.change(&stage.path("syncsets", "owned"), &json!({"spec": {"resourceApplyMode": "Upsert"}})).await;
        stage.succeeds("west-1", "owned", 3).await;
        assert_eq!(of(&stage.get(&path).await["status"]), [Value::Null, Value::Null]);
    });
}
