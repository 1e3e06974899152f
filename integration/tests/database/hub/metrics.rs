//! What the metrics of the hub say follows what happens: each value is compared with the database, or with what the test has done.

use integration::eventually;
use integration::hub::Request;
use integration::postgres::ADMIN;
use serde_json::{Value, json};

use crate::hub::world::{Hub, LIMIT, database, done, run};

/// The value of a series without labels.
async fn value(hub: &Hub, series: &str) -> Result<f64, String> {
    let metrics = hub.towline.admin().metrics().await.map_err(|error| error.to_string())?;
    let sample = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    sample.and_then(|sample| sample.parse().ok()).ok_or_else(|| format!("no {series}"))
}

/// Waits until a series has a value that a query gives.
async fn is_that_of(hub: &Hub, series: &str, sql: &tokio_postgres::Client, query: &str) -> i64 {
    let expected: i64 = sql.query_one(query, &[]).await.expect("a row").get(0);
    becomes(hub, series, expected).await;
    expected
}

#[expect(clippy::cast_precision_loss, reason = "numbers of tests are small")]
async fn becomes(hub: &Hub, series: &str, expected: i64) {
    eventually(format!("{series} to be {expected}"), LIMIT, async || match value(hub, series).await? {
        found if (found - expected as f64).abs() < 0.5 => Ok(()),
        found => Err(found.to_string()),
    })
    .await
    .expect(series);
}

#[test]
fn rows_are_those_of_the_log() {
    run(async {
        let place = database("logmetrics").await;
        let (hub, sql) = (Hub::start(&place, &[]).await, place.client(ADMIN).await.expect("a connection"));
        let rows = "select count(*) from towline_log";
        is_that_of(&hub, "towline_hub_log_rows", &sql, rows).await;
        // Two rows each: the cluster, and its ClusterSync.
        let document = |number: usize| {
            json!({"kind": "Cluster", "namespace": "foo", "name": format!("c{number}"),
            "kubeconfig": "k"})
        };
        let all: Vec<Value> = (0..700).map(document).collect();
        let applied = done(&mut hub.client(), &Request::post("/v1/apply", &json!(all))).await.json().expect("JSON");
        let is_created = |item: &Value| item["result"] == "created";
        assert!(applied["items"].as_array().expect("items").iter().all(is_created), "{applied}");
        sql.batch_execute("analyze towline_log").await.expect("an estimate");
        assert_eq!(is_that_of(&hub, "towline_hub_log_rows", &sql, rows).await, 1400);
    });
}
