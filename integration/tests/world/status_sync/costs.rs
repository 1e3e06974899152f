//! What rest costs: no request, and a number of statements that does not depend on the number of objects.

use integration::leaf_hubs::{self, Counts};
use integration::postgres::READER;
use integration::{Filter, Towline, eventually, users};
use serde_json::json;
use tokio_postgres::types::Type;

use crate::status_sync::world::{LIMIT, Stage, run};

/// Hub objects with their rows: `policies` of them with a row for each of `clusters`, and of the other kinds `others`.
async fn fill(stage: &Stage, policies: usize, clusters: usize, others: usize) {
    let counts = Counts { policies, clusters, others };
    leaf_hubs::fill(&stage.world.client, &stage.sql, &stage.name, counts).await.expect("objects and rows");
}

/// Statements of the daemon since the last reset, with their calls.
async fn statements(stage: &Stage) -> Vec<(String, i64)> {
    let sql = "SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
               JOIN pg_database d ON d.oid = s.dbid WHERE r.rolname = $1::text AND d.datname = current_database()";
    let rows = stage.sql.query(sql, &[&READER]).await.expect("statistics");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The families with their tables.
const FAMILIES: [(&str, &str); 6] = [
    ("policies", "status.compliance"),
    ("placementrules", "status.placementrules"),
    ("placements", "status.placements"),
    ("placementdecisions", "status.placementdecisions"),
    ("subscription_statuses", "status.subscription_statuses"),
    ("subscription_reports", "status.subscription_reports"),
];

/// Whole passes of a family and the calls of its statements in them: while the next pass is held at its table. At any other
/// moment a pass may have had its statement and not its end.
async fn whole_passes(stage: &Stage, towline: &Towline, family: &str, table: &str) -> (i64, i64) {
    stage.sql.batch_execute(&format!("BEGIN; LOCK TABLE {table}")).await.expect("a lock");
    let waits = "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted";
    eventually(format!("a pass of {family} to wait for its table"), LIMIT, async || {
        let waiting = stage.sql.query_typed_one(waits, &[(&table, Type::TEXT)]).await;
        let waiting: i64 = waiting.map_err(|error| error.to_string())?.get(0);
        if waiting == 1 { Ok(()) } else { Err(format!("{waiting} statements wait")) }
    })
    .await
    .unwrap();
    let report = stage.family(towline, family, "anything", |_| true).await;
    // The end of a name is the end of a table's, or what follows it.
    let reads = |text: &str| {
        text.split(|letter: char| !letter.is_alphanumeric() && !"._".contains(letter)).any(|word| word == table)
    };
    let all = statements(stage).await;
    let calls = all.iter().filter(|(text, _)| reads(text)).map(|(_, calls)| *calls).sum();
    stage.sql.batch_execute("COMMIT").await.expect("the lock ends");
    (report["passes"].as_i64().expect("a number"), calls)
}

async fn rests(name: &str, policies: usize, clusters: usize, others: usize) {
    let stage = Stage::new(name).await;
    fill(&stage, policies, clusters, others).await;
    let towline = stage.start_with("interval = \"1s\"").await;
    for (family, _) in FAMILIES {
        let report = stage
            .family(&towline, family, "that nothing is left to write", |report| {
                report["oldest_unwritten_seconds"].is_null() && report["passes"].as_u64() >= Some(2)
            })
            .await;
        let objects = if family == "policies" { policies } else { others };
        assert_eq!(report["written"], json!(objects), "{family}");
    }
    let since = stage.mark().await;
    stage.forget_statements().await;
    let mut before = Vec::new();
    for (family, table) in FAMILIES {
        before.push(whole_passes(&stage, &towline, family, table).await);
    }
    for ((family, table), before) in FAMILIES.into_iter().zip(before) {
        stage.passes(&towline, family, 3).await;
        let after = whole_passes(&stage, &towline, family, table).await;
        let (passes, calls) = (after.0 - before.0, after.1 - before.1);
        assert!(passes >= 3 && calls == passes, "{family}: {calls} statements in {passes} passes");
    }
    let found = statements(&stage).await;
    assert_eq!(found.len(), FAMILIES.len(), "one statement a family: {found:#?}");
    assert_eq!(stage.requests(since).await, [].into(), "requests of passes that change nothing");
}

#[test]
fn rest_costs_no_request_and_one_statement_a_family() {
    run(rests("hundred", 100, 3, 10));
}

#[test]
fn families_take_turns_with_the_permits() {
    run(async {
        let stage = Stage::new("turns").await;
        fill(&stage, 100, 1, 3).await;
        let since = stage.mark().await;
        let families = "families = [\"policies\", \"placements\"]";
        let towline = stage.start_by(&stage.one_at_a_time(&format!("interval = \"1h\"\n{families}"))).await;
        for (family, objects) in [("policies", 100), ("placements", 3)] {
            stage.family(&towline, family, "all writes", |report| report["written"] == json!(objects)).await;
        }
        let audit = stage.world.hub.audit().expect("an audit log");
        let records = audit.records(&Filter::since(since).user(users::TOWLINE).verb("patch")).await.expect("records");
        let order: Vec<&str> = records
            .iter()
            .filter(|record| record.namespace == stage.name)
            .map(|record| record.resource.as_str())
            .collect();
        assert_eq!(order.len(), 103);
        // Whoever had thirty times as much to write did not keep the other waiting for all of it.
        let last = order.iter().rposition(|resource| *resource == "placements").expect("the placements");
        assert!(last < 50, "the last placement was write {last} of 103");
    });
}
