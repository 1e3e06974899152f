//! What rest costs: no request, and a number of statements that does not depend on the number of objects.

use futures::{StreamExt, stream};
use integration::postgres::READER;
use integration::{Filter, Towline, eventually, users};
use serde_json::json;
use tokio_postgres::types::Type;

use crate::world::{LIMIT, Stage, run};

const TABLES: [(&str, &str); 4] = [
    ("placementrules", "placementrules"),
    ("placements", "placements"),
    ("subscriptions", "subscription_statuses"),
    ("policies", "compliance"),
];

/// Hub objects with their rows: `policies` of them with a row for each of `clusters`, and of the other kinds `others`.
async fn fill(stage: &Stage, policies: usize, clusters: usize, others: usize) {
    for (kind, _) in TABLES {
        let count = if kind == "policies" { policies } else { others };
        let made = (0..count).map(|index| async move {
            let name = format!("o{index}");
            stage.make(kind, &name, &json!({})).await.metadata.uid.unwrap_or_default() + "/" + &name
        });
        let made: Vec<String> = stream::iter(made).buffer_unordered(16).collect().await;
        let rows = format!(
            "INSERT INTO spec.{kind} (id, payload) SELECT split_part(made, '/', 1)::uuid, jsonb_build_object('metadata', \
             jsonb_build_object('namespace', $2, 'name', split_part(made, '/', 2))) \
             FROM unnest(string_to_array($1, ',')) made"
        );
        stage.execute(&rows, &[&made.join(","), &stage.name]).await;
    }
    let compliance = format!(
        "INSERT INTO status.compliance SELECT id, 'c' || lpad(c::text, 4, '0'), 'hub' || c % 3, 'none', 'compliant' \
         FROM spec.policies, generate_series(1, {clusters}) c"
    );
    stage.execute(&compliance, &[]).await;
    for (spec, table, part) in [
        (
            "placementrules",
            "placementrules",
            r#"{"status": {"decisions": [{"clusterName": "c", "clusterNamespace": "n"}]}}"#,
        ),
        ("placements", "placements", r#"{"status": {"numberOfSelectedClusters": 7}}"#),
        ("placements", "placementdecisions", r#"{"status": {"decisions": [{"clusterName": "c", "reason": ""}]}}"#),
        ("subscriptions", "subscription_statuses", r#"{"statuses": {"packages": [{"name": "p"}]}}"#),
        ("subscriptions", "subscription_reports", r#"{"reportType": "Application", "summary": {"deployed": "1"}}"#),
    ] {
        let rows = format!(
            "INSERT INTO status.{table} SELECT gen_random_uuid(), 'hub' || h, jsonb_build_object('metadata', \
             (payload -> 'metadata') || jsonb_build_object('labels', jsonb_build_object( \
             'cluster.open-cluster-management.io/placement', payload -> 'metadata' ->> 'name'))) || $1::text::jsonb \
             FROM spec.{spec}, generate_series(1, 3) h"
        );
        stage.execute(&rows, &[part]).await;
    }
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
    run(rests("rest", 500, 200, 200));
}

#[test]
fn a_few_objects_cost_as_many_statements() {
    run(rests("few", 10, 5, 10));
}

#[test]
fn a_thousand_objects_cost_as_many_statements() {
    run(rests("thousand", 1_000, 3, 10));
}

#[test]
fn families_take_turns_with_the_permits() {
    run(async {
        let stage = Stage::new("turns").await;
        fill(&stage, 300, 1, 3).await;
        let since = stage.mark().await;
        let families = "families = [\"policies\", \"placements\"]";
        let towline = stage.start_with(&format!("interval = \"1h\"\nmax_in_flight = 1\n{families}")).await;
        for (family, objects) in [("policies", 300), ("placements", 3)] {
            stage.family(&towline, family, "all writes", |report| report["written"] == json!(objects)).await;
        }
        let audit = stage.world.hub.audit().expect("an audit log");
        let records = audit.records(&Filter::since(since).user(users::TOWLINE).verb("patch")).await.expect("records");
        let order: Vec<&str> = records
            .iter()
            .filter(|record| record.namespace == stage.name)
            .map(|record| record.resource.as_str())
            .collect();
        assert_eq!(order.len(), 303);
        // Whoever had a hundred times as much to write did not keep the other waiting for all of it.
        let last = order.iter().rposition(|resource| *resource == "placements").expect("the placements");
        assert!(last < 150, "the last placement was write {last} of 303");
    });
}
