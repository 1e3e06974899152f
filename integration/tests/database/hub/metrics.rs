//! What the metrics of the hub say follows what happens: each value is compared with the database, or with what the test has done.

use futures::future::join_all;
use integration::eventually;
use integration::hub::Request;
use integration::postgres::ADMIN;
use serde_json::{Value, json};

use crate::hub::world::{CLOSE, GATE, Hub, LIMIT, OPEN, WAITING, database, done, run};

const ALL: &str = "/v1/clusters";

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

fn create(name: &str) -> Request {
    Request::post(ALL, &json!({"name": name, "namespace": "foo", "kubeconfig": "k"}))
}

#[test]
fn the_items_of_the_last_call_are_those_that_waited_for_it() {
    run(async {
        let place = database("batchitems").await;
        let (hub, sql) = (Hub::start(&place, &[]).await, place.client(ADMIN).await.expect("a connection"));
        let series = "towline_hub_batch_items";
        becomes(&hub, series, 0).await;
        sql.batch_execute(GATE).await.expect("a gate");
        for waiting in [5, 64, 2] {
            sql.batch_execute(CLOSE).await.expect("it is closed");
            let create = async |name: String| hub.client().send(&create(&name)).await.expect("an answer").status;
            let first = create(format!("first-{waiting}"));
            let others = async {
                eventually("the first to be under way", LIMIT, async || {
                    match sql.query_one(WAITING, &[]).await.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                        1 => Ok(()),
                        waiting => Err(waiting.to_string()),
                    }
                })
                .await
                .expect("a call");
                becomes(&hub, series, 1).await;
                join_all((0..waiting).map(|number| create(format!("c{number}-{waiting}")))).await
            };
            let release = async {
                becomes(&hub, "towline_mailbox_depth{actor=\"writer\"}", waiting).await;
                sql.batch_execute(OPEN).await.expect("it is opened");
            };
            let (first, others, ()) = tokio::join!(first, others, release);
            assert!(first == 201 && others.iter().all(|status| *status == 201), "{first} {others:?}");
            becomes(&hub, series, waiting).await;
        }
    });
}

#[test]
fn each_change_that_is_handed_to_a_watch_counts_in_its_lag_and_no_state_does() {
    const WATCHES: usize = 3;
    const CHANGES: usize = 4;
    run(async {
        let hub = Hub::start(&database("watchlag").await, &[]).await;
        let (mut client, series) = (hub.client(), "towline_hub_watch_lag_seconds");
        let (count, sum) = (format!("{series}_count"), format!("{series}_sum"));
        let state = done(&mut client, &create("a")).await.json().expect("JSON");
        let from = state["resourceVersion"].as_str().expect("a version");
        let mut watches = Vec::new();
        for _ in 0..WATCHES {
            watches.push(client.watch(&format!("{ALL}?watch=true&resourceVersion={from}")).await.expect("a watch"));
        }
        hub.serves(WATCHES).await;
        let begun = std::time::Instant::now();
        for number in 0..CHANGES {
            done(&mut client, &create(&format!("c{number}"))).await;
        }
        for watch in &mut watches {
            let mut seen = 0;
            while seen < CHANGES {
                let event = watch.next().await.expect("an event").expect("the watch goes on");
                seen += usize::from(event.kind == "ADDED");
            }
        }
        becomes(&hub, &count, i64::try_from(WATCHES * CHANGES).expect("a few")).await;
        let (lag, most) = (value(&hub, &sum).await.expect("a sum"), begun.elapsed().as_secs_f64());
        assert!(lag > 0.0 && lag < most * f64::from(u32::try_from(WATCHES * CHANGES).expect("a few")), "{lag}");
        // The state is no change, and a bookmark neither.
        let mut anew = client.watch(&format!("{ALL}?watch=true")).await.expect("a watch");
        while anew.next().await.expect("an event").expect("the watch goes on").kind != "BOOKMARK" {}
        becomes(&hub, &count, i64::try_from(WATCHES * CHANGES).expect("a few")).await;
    });
}

#[test]
fn base_version_and_rows_are_those_of_the_log() {
    run(async {
        let place = database("logmetrics").await;
        let (hub, sql) = (Hub::start(&place, &[]).await, place.client(ADMIN).await.expect("a connection"));
        let newest = "select greatest((select base from towline_meta), (select max(version) from towline_log))";
        let (base, rows) = ("select base from towline_meta", "select count(*) from towline_log");
        is_that_of(&hub, "towline_hub_version", &sql, newest).await;
        let before = is_that_of(&hub, "towline_hub_base", &sql, base).await;
        is_that_of(&hub, "towline_hub_log_rows", &sql, rows).await;
        // Two rows each: the cluster, and its ClusterSync. Compaction leaves the newest 1,000 rows.
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
        is_that_of(&hub, "towline_hub_version", &sql, newest).await;
        becomes(&hub, "towline_hub_base", before).await;
        let claim = "update towline_claim set holder = 'test', token = token + 1, until = now() + interval '1 day' \
             where name = 'compaction'";
        sql.batch_execute(claim).await.expect("a claim");
        let compact = "select scanned from towline_compact('test', \
             (select token from towline_claim where name = 'compaction'), interval '0')";
        let scanned: i64 = sql.query_one(compact, &[]).await.expect("a step").get(0);
        assert_eq!(scanned, 401, "up to the oldest of the newest 1,000");
        assert!(is_that_of(&hub, "towline_hub_base", &sql, base).await > before);
        is_that_of(&hub, "towline_hub_version", &sql, newest).await;
    });
}
