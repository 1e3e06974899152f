//! From a document to the object on the cluster and back to the status.

use serde_json::json;

use crate::syncsets::world::{Stage, condition, run};

#[test]
fn a_selector_syncset_is_applied_to_the_clusters_that_it_selects() {
    run(async {
        let stage = Stage::new("walk").await;
        let plane = stage.register("west-1", &json!({"env": "prod", "region": "west"}), 0).await;
        stage.status("west-1", "the first pass", |status| status["firstSuccessTime"].is_string()).await;
        let map = stage.config_map("site", &json!({"region": "{{ fromCDLabel \"region\" }}"}));
        let syncset = json!({"name": "walk-monitoring", "spec": {"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}},
            "resourceApplyMode": "Sync", "enableResourceTemplates": true, "resources": [map]}});
        stage.create("selectorsyncsets", &syncset).await;
        stage.has(plane, &[("site", json!({"region": "west"}))]).await;
        let status =
            stage.status("west-1", "the result", |status| status["selectorSyncSets"][0]["result"] == "Success").await;
        assert_eq!(status["selectorSyncSets"][0]["name"], "walk-monitoring");
        assert_eq!(condition(&status, "Failed").unwrap()["status"], "False", "{status}");
        assert_eq!(condition(&status, "Unreachable").unwrap()["status"], "False", "{status}");
        // A label acts at once.
        stage.change("clusters/walk/west-1", &json!({"labels": {"region": "east"}})).await;
        stage.has(plane, &[("site", json!({"region": "east"}))]).await;
    });
}
