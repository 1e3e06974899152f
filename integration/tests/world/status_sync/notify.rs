//! `notify = true`: the database tells, and whatever happens to that costs no more than the time to the next pass.

use std::time::Instant;

use integration::postgres::{self, NOTIFIER, READER, Transport};
use integration::{Postgres, Towline, eventually};
use serde_json::{Value, json};

use crate::status_sync::world::{INTERVAL, LIMIT, LISTENING, Stage, run};

/// Triggers of our name in the database, by table.
async fn triggers(stage: &Stage) -> Vec<String> {
    let sql = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'towline_notify' ORDER BY 1";
    stage.sql.query(sql, &[]).await.expect("the catalogue").iter().map(|row| row.get(0)).collect()
}

/// Ends the connection that listens.
async fn hang_up(stage: &Stage) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name = 'towline listener'";
    assert_eq!(stage.execute(sql, &[]).await, 1, "one connection listens");
}

/// The daemon with `notify = true`, by the account that may make triggers, ready.
async fn start_as_notifier(stage: &Stage, more: &str) -> Towline {
    let url = stage.database.url(NOTIFIER);
    let config = stage.config_by(&url, &stage.world.kubeconfig, &format!("{LISTENING}\n{more}"));
    let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
    towline.wait_ready(LIMIT).await.expect("the daemon is ready");
    towline
}

/// Whole passes of a family so far.
async fn passes(stage: &Stage, towline: &Towline, family: &str) -> u64 {
    stage.family(towline, family, "anything", |_| true).await["passes"].as_u64().expect("a number")
}

#[test]
fn a_change_of_any_table_is_written_though_the_next_pass_is_an_hour_away() {
    run(async {
        let stage = Stage::new("telling").await;
        let uid = stage.wanted("policies", "p").await;
        stage.wanted("placementrules", "rule").await;
        stage.wanted("placements", "place").await;
        stage.wanted("subscriptions", "app").await;
        let _towline = stage.start_listening().await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        stage.comply(&uid, "hub", "c", "pending").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        stage.execute("DELETE FROM status.compliance", &[]).await;
        stage.shows("policies", "p", "/status/compliant", &Value::Null).await;
        let rule = json!({"status": {"decisions": [{"clusterName": "c", "clusterNamespace": "n"}]}});
        stage.report("placementrules", "hub", "rule", &rule).await;
        stage.shows("placementrules", "rule", "/status/decisions/0/clusterName", &json!("c")).await;
        stage.execute("TRUNCATE status.placementrules", &[]).await;
        stage.shows("placementrules", "rule", "/status/decisions", &Value::Null).await;
        stage.report("placements", "hub", "place", &json!({"status": {"numberOfSelectedClusters": 4}})).await;
        stage.shows("placements", "place", "/status/numberOfSelectedClusters", &json!(4)).await;
        let decision = json!({"labels": {crate::status_sync::world::PLACEMENT_LABEL: "place"}, "status": {"decisions": [{"clusterName": "d"}]}});
        stage.report("placementdecisions", "hub", "x", &decision).await;
        stage.shows("placementdecisions", "place-decision-1", "/status/decisions/0/clusterName", &json!("d")).await;
        let status = json!({"statuses": {"packages": [{"name": "q"}]}});
        stage.report("subscription_statuses", "hub", "app", &status).await;
        stage.shows("subscriptionstatuses", "app", "/statuses/packages/0/name", &json!("q")).await;
        stage.report("subscription_reports", "hub", "app", &json!({"reportType": "Application"})).await;
        stage.shows("subscriptionreports", "app", "/reportType", &json!("Application")).await;
        // What the hub wants is told too: the rows were here before it.
        let late = stage.make("policies", "late", &json!({})).await.metadata.uid.expect("a UID");
        stage.comply(&late, "hub", "c", "non_compliant").await;
        stage.spec("policies", &late, "late").await;
        stage.shows("policies", "late", "/status/compliant", &json!("NonCompliant")).await;
    });
}

#[test]
fn a_lost_listening_connection_is_made_anew_and_followed_by_one_pass() {
    run(async {
        let stage = Stage::new("hungup").await;
        let uid = stage.wanted("policies", "p").await;
        let towline = stage.start_listening().await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        for (lost, word) in [(1_u64, "non_compliant"), (2, "pending")] {
            let before = passes(&stage, &towline, "placements").await;
            hang_up(&stage).await;
            stage.notify(&towline, "another connection", |report| report["connections"] == lost + 1).await;
            let told = |report: &Value| report["passes"].as_u64() > Some(before);
            stage.family(&towline, "placements", "the pass that follows", told).await;
            // It listens again, and the others are not told of it.
            stage.comply(&uid, "hub", "c", word).await;
            let expected = if word == "pending" { "Pending" } else { "NonCompliant" };
            stage.shows("policies", "p", "/status/compliant", &json!(expected)).await;
        }
        // The first pass, and one after each time that it began to listen: the latter may be one with the former.
        let all = passes(&stage, &towline, "placements").await;
        assert!((3..=4).contains(&all), "{all} passes of a family of which nothing was told");
    });
}

#[test]
fn what_changes_while_nobody_listens_is_found_by_the_pass_that_follows() {
    run(async {
        let mut stage = Stage::new("silence").await;
        let server = Postgres::start("silence", Transport::Plain).await.expect("a server");
        stage.database = server.database("silence").await.expect("a database");
        stage.sql = stage.database.client(postgres::ADMIN).await.expect("a connection");
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let towline = stage.start_listening().await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        server.kill().await.expect("it is killed");
        stage.notify(&towline, "that nobody listens", |report| report["listening"] == false).await;
        server.start_again().await.expect("it is back");
        stage.sql = stage.database.client(postgres::ADMIN).await.expect("a connection");
        stage.comply(&uid, "hub", "c", "non_compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("NonCompliant")).await;
        stage
            .notify(&towline, "that it listens", |report| report["listening"] == true && report["failure"].is_null())
            .await;
    });
}

async fn remove(stage: &Stage, user: &str) -> (Option<i32>, String) {
    let output =
        Towline::command_with(["status-sync", "--remove-triggers"], &[("DATABASE_URL", &stage.database.url(user))])
            .await
            .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn triggers_are_made_once_and_removed_on_demand() {
    run(async {
        let stage = Stage::new("triggers").await;
        let tables = [
            "spec.placementrules",
            "spec.placements",
            "spec.policies",
            "spec.subscriptions",
            "status.compliance",
            "status.placementdecisions",
            "status.placementrules",
            "status.placements",
            "status.subscription_reports",
            "status.subscription_statuses",
        ];
        let mut towline = stage.start_listening().await;
        assert_eq!(triggers(&stage).await, tables);
        let sql = "SELECT array_agg(oid ORDER BY oid)::text FROM pg_trigger WHERE tgname = 'towline_notify'";
        let oids = async || stage.sql.query_one(sql, &[]).await.expect("the catalogue").get::<_, String>(0);
        let before = oids().await;
        towline.start_again().await.expect("it starts again");
        let listens = |report: &Value| report["listening"] == true && report["without_trigger"] == json!({});
        stage.notify(&towline, "that all tables tell", listens).await;
        // A second daemon finds them as well.
        let other = stage.start_listening().await;
        assert_eq!(oids().await, before, "they are the same triggers");
        drop((towline, other));
        // Who may not is told so, and nothing is removed.
        let (code, told) = remove(&stage, READER).await;
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("must be owner of function"), "{told}");
        let (code, told) = remove(&stage, NOTIFIER).await;
        assert_eq!(code, Some(0), "{told}");
        for table in tables {
            assert!(told.contains(&format!("removed trigger towline_notify on {table}\n")), "{told}");
        }
        assert_eq!(triggers(&stage).await, [""; 0]);
        let function = "SELECT count(*) FROM pg_proc WHERE proname = 'towline_notify'";
        assert_eq!(stage.sql.query_one(function, &[]).await.expect("the catalogue").get::<_, i64>(0), 0);
        assert_eq!(remove(&stage, NOTIFIER).await.0, Some(0), "nothing to remove is no fault");
    });
}

#[test]
fn an_account_that_may_not_make_triggers_is_named_and_passes_go_on() {
    run(async {
        let stage = Stage::new("poor").await;
        let uid = stage.wanted("policies", "p").await;
        let settings = format!("interval = \"{INTERVAL}\"\nnotify = true");
        let towline = stage.start_with(&settings).await;
        let report = stage
            .notify(&towline, "ten tables that don't tell", |report| {
                report["listening"] == true && report["without_trigger"].as_object().is_some_and(|map| map.len() == 10)
            })
            .await;
        let reason = report["without_trigger"]["status.compliance"].as_str().unwrap_or_default();
        assert!(
            reason.contains("permission denied for statement make_") && reason.contains("schema status"),
            "{reason}"
        );
        stage.comply(&uid, "hub", "c", "compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        drop(towline);
        // With the function there, each table is named.
        let rich = stage.start_listening().await;
        drop(rich);
        stage.execute("DROP TRIGGER towline_notify ON status.compliance", &[]).await;
        stage.execute("ALTER TABLE status.placements DISABLE TRIGGER towline_notify", &[]).await;
        let towline = stage.start_with(LISTENING).await;
        let without = stage
            .notify(&towline, "two tables that don't tell", |report| {
                report["without_trigger"].as_object().is_some_and(|map| map.len() == 2)
            })
            .await;
        let without = &without["without_trigger"];
        assert!(without["status.placements"].to_string().contains("disabled"), "{without}");
        assert!(
            without["status.compliance"].to_string().contains("permission denied for table compliance"),
            "{without}"
        );
        // The others tell, whoever has made their triggers.
        stage.wanted("placementrules", "rule").await;
        let rule = json!({"status": {"decisions": [{"clusterName": "c", "clusterNamespace": "n"}]}});
        stage.report("placementrules", "hub", "rule", &rule).await;
        stage.shows("placementrules", "rule", "/status/decisions/0/clusterName", &json!("c")).await;
    });
}

#[test]
fn a_statement_of_the_listener_that_gets_no_answer_is_ended_and_tried_again() {
    run(async {
        let stage = Stage::new("stuck").await;
        // Somebody else is at it, and does not come to an end: triggers are made by one after the other.
        let turn = "SELECT pg_advisory_lock(32773656009076325)";
        stage.sql.execute(turn, &[]).await.expect("the lock");
        let towline = start_as_notifier(&stage, "statement_timeout = \"1s\"").await;
        let report = stage
            .notify(&towline, "tables that don't tell", |report| {
                report["listening"] == true && report["without_trigger"].as_object().is_some_and(|map| !map.is_empty())
            })
            .await;
        assert!(report["without_trigger"].to_string().contains("cancelled"), "{report}");
        stage.sql.execute("SELECT pg_advisory_unlock(32773656009076325)", &[]).await.expect("the lock");
        hang_up(&stage).await;
        let all = |report: &Value| report["listening"] == true && report["without_trigger"] == json!({});
        stage.notify(&towline, "all tables to tell", all).await;
    });
}

#[test]
fn a_storm_of_transactions_is_few_passes_of_the_family_concerned() {
    run(async {
        let stage = Stage::new("storm").await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let towline = stage.start_listening().await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        stage.forget_statements().await;
        let begun = Instant::now();
        let storm = "DO $$ BEGIN FOR i IN 1..2000 LOOP \
                     UPDATE status.compliance SET compliance = CASE WHEN i % 2 = 0 THEN 'pending' ELSE 'non_compliant' END \
                     ::status.compliance_type; COMMIT; END LOOP; END $$";
        stage.sql.batch_execute(storm).await.expect("a storm");
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        let took = begun.elapsed();
        let sql = "SELECT coalesce(sum(s.calls), 0)::int8 FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
                   JOIN pg_database d ON d.oid = s.dbid WHERE r.rolname = $1::text AND d.datname = current_database()";
        let statements: i64 = stage.sql.query_one(sql, &[&NOTIFIER]).await.expect("statistics").get(0);
        // Two passes begin at least 25 ms apart, and each has at most two statements.
        let most = 2 * (2 + i64::try_from(took.as_millis()).expect("not an age") / 25);
        assert!(statements <= most, "{statements} statements in {took:?}, at most {most}");
        assert!(statements >= 2, "{statements}");
        // The first one, and the one that follows the beginning of listening.
        let others = passes(&stage, &towline, "placements").await;
        assert!(others <= 2, "{others} passes of a family that nobody told of");
        let told = stage.notify(&towline, "the storm", |report| report["notifications"].as_u64() >= Some(2_000)).await;
        assert_eq!(told["connections"], 1);
        // A statement of a thousand rows is told once, and so are two statements of one transaction.
        let rows = "INSERT INTO status.compliance SELECT $1::text::uuid, 'c' || n, 'other', 'none', 'unknown' \
                    FROM generate_series(1, 1000) n";
        let before = told["notifications"].as_u64().expect("a number");
        stage.execute(rows, &[&uid]).await;
        let both = "BEGIN; UPDATE status.compliance SET error = 'disconnected'; DELETE FROM status.compliance; COMMIT";
        stage.sql.batch_execute(both).await.expect("both");
        stage.shows("policies", "p", "/status/compliant", &Value::Null).await;
        let after = stage.notify(&towline, "both", |report| report["notifications"].as_u64() >= Some(before + 2)).await;
        assert_eq!(after["notifications"].as_u64(), Some(before + 2));
    });
}

#[test]
fn tables_that_come_later_get_their_triggers() {
    run(async {
        let stage = Stage::new("comelater").await;
        stage.wanted("placements", "place").await;
        stage.execute("ALTER TABLE status.placements RENAME TO elsewhere", &[]).await;
        let config = stage.config_by(&stage.database.url(NOTIFIER), &stage.world.kubeconfig, LISTENING);
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        stage
            .notify(&towline, "a table that is not there", |report| {
                report["without_trigger"] == json!({"status.placements": "there is no such table"})
            })
            .await;
        stage.execute("ALTER TABLE status.elsewhere RENAME TO placements", &[]).await;
        hang_up(&stage).await;
        stage
            .notify(&towline, "that all tables tell", |report| {
                report["listening"] == true && report["without_trigger"] == json!({})
            })
            .await;
        stage.report("placements", "hub", "place", &json!({"status": {"numberOfSelectedClusters": 4}})).await;
        eventually("the selected clusters", LIMIT, async || {
            let place = stage.api("placements").get("place").await.map_err(|error| error.to_string())?;
            let found = place.data.pointer("/status/numberOfSelectedClusters").cloned();
            if found == Some(json!(4)) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .unwrap();
    });
}
