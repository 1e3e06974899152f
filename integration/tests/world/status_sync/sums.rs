//! Reports of subscriptions.

use serde_json::{Value, json};

use crate::status_sync::world::{Stage, run};

#[test]
fn summaries_are_summed_results_gathered_and_the_first_row_tells_the_rest() {
    run(async {
        let stage = Stage::new("sums").await;
        let cases = [
            ("both", vec!["1", "2"], "3"),
            ("empty", vec!["", "4"], "4"),
            ("letters", vec!["x", "5"], "5"),
            ("single", vec!["7"], "7"),
        ];
        for (name, rows, _) in &cases {
            stage.wanted("subscriptions", name).await;
            for (index, deployed) in rows.iter().enumerate() {
                let report = json!({
                    "reportType": if index == 0 { "Application" } else { "Cluster" },
                    "resources": [{"of": index}],
                    "results": [{"source": format!("s{index}"), "result": "failed"}],
                    "summary": {"deployed": deployed, "inProgress": "10", "failed": "20", "propagationFailed": "30", "clusters": "40"},
                });
                stage.report("subscription_reports", &format!("hub-{index}"), name, &report).await;
            }
        }
        let towline = stage.start().await;
        for (name, rows, sum) in &cases {
            let times = |number: usize| (number * rows.len()).to_string();
            let expected = json!({"deployed": sum, "inProgress": times(10), "failed": times(20),
                "propagationFailed": times(30), "clusters": times(40)});
            let made = stage.shows("subscriptionreports", name, "/summary", &expected).await;
            assert_eq!(made.data["reportType"], "Application", "{name}");
            assert_eq!(made.data["resources"], json!([{"of": 0}]), "{name}");
            let results: Vec<Value> =
                (0..rows.len()).map(|index| json!({"source": format!("s{index}"), "result": "failed"})).collect();
            assert_eq!(made.data["results"], json!(results), "{name}");
        }
        let report =
            stage.family(&towline, "subscription_reports", "what is no number", |report| report["bad_rows"] == 1).await;
        assert!(
            report["bad_row_examples"][0].as_str().unwrap_or_default().contains("summary.deployed is no number"),
            "{report}"
        );
    });
}
