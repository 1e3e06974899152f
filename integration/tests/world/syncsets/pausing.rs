//! A paused cluster is left alone.

use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, condition, run};

#[test]
fn a_paused_cluster_gets_no_request_and_says_why() {
    run(async {
        let stage = Stage::new("paused").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let path = stage.path("clusters", "west-1");
        let cases = [
            ("paused", json!({"paused": true}), json!({"paused": false})),
            annotation("hive.openshift.io/syncset-pause", "true"),
            annotation("hive.openshift.io/reconcile-pause", "T"),
            annotation("hive.openshift.io/relocate", "elsewhere/in"),
            annotation("towline.dev/pause-until", "2999-01-01T00:00:00Z"),
            annotation("towline.dev/pause-until", "whenever"),
        ];
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"round": "none"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        for (round, (by, pause, resume)) in cases.into_iter().enumerate() {
            stage.change(&path, &pause).await;
            let is_paused = |status: &Value| condition(status, "Paused").is_some();
            let status = stage.status("west-1", "the condition", is_paused).await;
            let paused = condition(&status, "Paused").unwrap();
            assert_eq!(paused["status"], "True", "{paused}");
            assert!(paused["message"].as_str().unwrap().starts_with(&format!("paused by {by}")), "{paused}");
            let mut requests = Requests::from_now(&stage, plane).await;
            let data = json!({"round": round.to_string()});
            stage.wants("base", &[stage.config_map("site", &data)]).await;
            stage.at_rest().await;
            stage.full_pass().await;
            assert_eq!(requests.paths().await, Vec::<String>::new(), "{by}");
            stage.change(&path, &resume).await;
            stage.has(plane, &[("site", data)]).await;
            stage.status("west-1", "no condition", |status| !is_paused(status)).await;
        }
        // Values that are not true pause nothing.
        let (_, pause, _) = annotation("hive.openshift.io/syncset-pause", "yes");
        stage.change(&path, &pause).await;
        stage.wants("base", &[stage.config_map("site", &json!({"round": "last"}))]).await;
        stage.has(plane, &[("site", json!({"round": "last"}))]).await;
    });
}

fn annotation(name: &'static str, value: &str) -> (&'static str, Value, Value) {
    (name, json!({"annotations": {name: value}}), json!({"annotations": {name: null}}))
}

#[test]
fn a_pause_with_an_end_ends_by_itself() {
    run(async {
        let stage = Stage::new("until").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let pause = async |until: &str| {
            let annotations = json!({"annotations": {"towline.dev/pause-until": until}});
            stage.change(&stage.path("clusters", "west-1"), &annotations).await;
        };
        // However slow the machine is, the pause is seen before its end, which is when the cluster is looked at again.
        pause("2999-01-01T00:00:00Z").await;
        stage.status("west-1", "the condition", |status| condition(status, "Paused").is_some()).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({}))]).await;
        stage.at_rest().await;
        let end = "select ready_at = '2999-01-01T00:00:00Z' from towline_work";
        assert!(stage.sql.query_one(end, &[]).await.unwrap().get::<_, bool>(0));
        let text = "select to_char(now() at time zone 'UTC' + interval '4 s', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
        let until: String = stage.sql.query_one(text, &[]).await.unwrap().get(0);
        pause(&until).await;
        stage.has(plane, &[("site", Value::Null)]).await;
        let is_over = stage.sql.query_one("select now() >= $1::text::timestamptz", &[&until]).await.unwrap();
        assert!(is_over.get::<_, bool>(0), "not before");
        stage.status("west-1", "no condition", |status| condition(status, "Paused").is_none()).await;
    });
}
