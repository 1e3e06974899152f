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

#[test]
fn of_rows_with_one_name_the_one_with_the_live_uid_counts_and_deleted_ones_never() {
    run(async {
        let stage = Stage::new("duplicates").await;
        let old = "0b81d5a4-8e0f-4c38-9d7a-0000000000aa";
        let uid = stage.wanted("policies", "duplicate").await;
        stage.spec("policies", old, "duplicate").await;
        stage.comply(old, "hub", "old", "non_compliant").await;
        stage.comply(&uid, "hub", "new", "compliant").await;
        let others = ["0b81d5a4-8e0f-4c38-9d7a-0000000000bb", "0b81d5a4-8e0f-4c38-9d7a-0000000000cc"];
        stage.make("policies", "nobodys", &json!({})).await;
        for other in others {
            stage.spec("policies", other, "nobodys").await;
            stage.comply(other, "hub", "c", "compliant").await;
        }
        // A row that comes before its object.
        let late = "0b81d5a4-8e0f-4c38-9d7a-0123456789ab";
        stage.spec("policies", late, "late").await;
        stage.comply(late, "hub", "c", "compliant").await;
        let towline = stage.start().await;
        stage.family(&towline, "policies", "a waiting row", |report| report["waiting"]["absent"] == 1).await;
        stage.make("policies", "late", &json!({})).await;
        stage.shows("policies", "late", "/status/compliant", &json!("Compliant")).await;
        stage.shows("policies", "duplicate", "/status/status/0/clustername", &json!("new")).await;
        stage.family(&towline, "policies", "two ambiguous rows", |report| report["waiting"]["ambiguous"] == 2).await;
        assert!(stage.has("policies", "nobodys", |_| true).await.data.get("status").is_none());
        // With one of them deleted, the other is the only row of its name.
        stage.execute("UPDATE spec.policies SET deleted = true WHERE id = $1::text::uuid", &[others[0]]).await;
        stage.shows("policies", "nobodys", "/status/compliant", &json!("Compliant")).await;
        // A row that is deleted says nothing any more.
        stage.execute("UPDATE spec.policies SET deleted = true", &[]).await;
        stage.execute("DELETE FROM status.compliance", &[]).await;
        stage.passes(&towline, "policies", 3).await;
        stage.shows("policies", "duplicate", "/status/compliant", &json!("Compliant")).await;
    });
}
