//! Compliance → `Policy`.

use serde_json::{Value, json};

use crate::status_sync::world::{Stage, run};

#[test]
fn compliance_is_rolled_up_in_order_and_cleared_when_the_rows_vanish() {
    run(async {
        let stage = Stage::new("compliance").await;
        let uid = stage.wanted("policies", "first").await;
        stage.edit_status("policies", "first", &json!({"placement": [{"placement": "kept"}]})).await;
        for (leaf_hub, cluster, word) in [
            ("hub-b", "c1", "compliant"),
            ("hub-a", "c3", "pending"),
            ("hub-a", "c2", "unknown"),
            ("hub-B", "c9", "compliant"),
        ] {
            stage.comply(&uid, leaf_hub, cluster, word).await;
        }
        let towline = stage.start().await;
        let entry = |cluster: &str, word: Option<&str>| match word {
            Some(word) => json!({"compliant": word, "clustername": cluster, "clusternamespace": cluster}),
            None => json!({"clustername": cluster, "clusternamespace": cluster}),
        };
        let expected = json!([
            entry("c9", Some("Compliant")),
            entry("c2", None),
            entry("c3", Some("Pending")),
            entry("c1", Some("Compliant")),
        ]);
        let shown = stage.shows("policies", "first", "/status/status", &expected).await;
        assert_eq!(shown.data["status"]["compliant"], "Pending");

        stage.comply(&uid, "hub-b", "c1", "non_compliant").await;
        stage.shows("policies", "first", "/status/compliant", &json!("NonCompliant")).await;
        stage.execute("DELETE FROM status.compliance WHERE compliance <> 'unknown'", &[]).await;
        stage.shows("policies", "first", "/status/status", &json!([entry("c2", None)])).await;
        stage.shows("policies", "first", "/status/compliant", &Value::Null).await;
        stage.comply(&uid, "hub-a", "c2", "compliant").await;
        stage.shows("policies", "first", "/status/compliant", &json!("Compliant")).await;

        stage.execute("DELETE FROM status.compliance", &[]).await;
        let cleared = stage.shows("policies", "first", "/status/status", &Value::Null).await;
        assert_eq!(cleared.data["status"], json!({"placement": [{"placement": "kept"}]}));
        drop(towline);
    });
}
