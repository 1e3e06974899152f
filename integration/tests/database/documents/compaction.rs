//! Compaction: what is deleted, what stays, and who may do it.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::postgres::ADMIN;
use towline::test_api::actor::Scope;
use towline::test_api::cluster::Clock;
use towline::test_api::documents::{
    Change, Claims, Compacted, Compaction, Expected, Grant, Holder, Keeps, Role, compact,
};

use crate::documents::claims::Running;
use crate::documents::world::{Stage, cluster, item, put, run};

const KEEPS: Keeps = Keeps { log: Duration::from_hours(1), history: Duration::from_hours(24), records: 1_000_000 };
const BASE: &str = "select base from towline_meta";
const CURSOR: &str = "select cursor from towline_claim where name = 'compaction'";
const ROWS: &str = "select count(*) from towline_log";
/// Makes the whole log older than what is kept of it.
const AGE: &str = "update towline_log set at = at - interval '2 h'";

async fn leader(stage: &Stage) -> (Running, Grant) {
    let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
    let mut leadership = claims.role(Role::Compaction);
    let running = Running::start(claims);
    (running, leadership.granted().await)
}

/// Writes 2,500 versions: changes and deletions of a few documents. The state at each version is returned.
async fn fill(stage: &Stage) -> BTreeMap<i64, BTreeMap<String, i64>> {
    let (writer, mut present, mut history) = (stage.writer(), BTreeMap::new(), BTreeMap::new());
    for number in 0..100_usize {
        let batch = (0..25).map(|step| {
            // Eleven documents, each in its turn; every seventh change of all is a deletion.
            let name = format!("c{}", (number * 25 + step) % 11);
            let deletes = (number * 25 + step) % 7 == 6;
            (name, deletes)
        });
        // Sent in this order, and written by a call or two.
        let answers = batch.map(|(name, deletes)| {
            let change = if deletes { item(vec![Change::delete(&cluster(&name), Expected::Any)]) } else { put(&name) };
            let version = writer.version(change);
            async move { (name, deletes, version.await) }
        });
        for (name, deletes, version) in futures::future::join_all(answers).await {
            // Nothing was there to delete.
            if version == 0 {
                continue;
            }
            if deletes {
                present.remove(&name)
            } else {
                present.insert(name, version)
            };
            history.insert(version, present.clone());
        }
    }
    history
}

/// The same number of versions of one document, of which a test looks at none.
async fn rows(stage: &Stage) {
    let rows = "insert into towline_log select n, now(), gen_random_uuid(), 'clusters', \
         '00000000-0000-4000-8000-000000000000', 'foo', 'c1', '{}', nullif(n - 1, 0), '{}' from generate_series(1, 2500) n; \
         select setval('towline_version', 2500)";
    stage.run(rows).await;
}

/// The state at a version, as further pages of a list read it.
async fn state_at(stage: &Stage, version: i64) -> BTreeMap<String, i64> {
    let text = "select name, version from towline_documents where version <= $1 union all \
         select p.name, p.version from towline_log n join towline_log p on p.version = n.old_version \
         where n.version > $1 and n.old_version <= $1";
    let rows = stage.sql.query(text, &[&version]).await.expect("rows");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn the_log_keeps_what_is_above_the_base_and_the_last_row_of_each_living_document() {
    run(async {
        let stage = Stage::new("compacted").await;
        let states = fill(&stage).await;
        let (_running, grant) = leader(&stage).await;
        let database = stage.database();
        // Everything is younger than what is kept.
        let none = compact(&database, &grant, KEEPS).await.expect("a step");
        assert_eq!((none, stage.number(BASE).await, stage.number(CURSOR).await), (Compacted::default(), 0, 0));
        stage.run(AGE).await;
        let before = stage.number(ROWS).await;
        let step = compact(&database, &grant, KEEPS).await.expect("a step");
        // It stops before the newest 1,000 rows.
        let newest = stage.number("select version from towline_log order by version desc offset 999 limit 1").await;
        assert_eq!((stage.number(BASE).await, stage.number(CURSOR).await), (newest, newest));
        assert_eq!((step.scanned, before - step.removed), (before - 999, stage.number(ROWS).await));
        // Each state from the base on is exact.
        for (version, state) in states.range(newest..).step_by(37) {
            assert_eq!(&state_at(&stage, *version).await, state, "at version {version}");
        }
        let below = format!("select version from towline_log where version <= {newest} order by version");
        let mut living: Vec<i64> = states[&newest].values().copied().collect();
        living.sort_unstable();
        assert_eq!(stage.numbers(&below).await, living, "what is left below the base");
        // Nothing is left to do.
        let again = compact(&database, &grant, KEEPS).await.expect("a step");
        assert_eq!((again, stage.number(BASE).await), (Compacted::default(), newest));
    });
}

/// Compaction stops at the lower of both cursors, and neither a role that has been away for a day nor one that has never
/// read the log is waited for.
#[test]
fn rows_that_relay_or_dispatcher_have_not_read_are_kept_for_a_day() {
    run(async {
        let stage = Stage::new("unhandled").await;
        rows(&stage).await;
        stage.run(AGE).await;
        let away = |role: &str, hours: u32, cursor: i64| {
            format!(
                "update towline_claim set holder = 'gone', token = 1, until = now() - interval '{hours} h', cursor = {cursor} \
                 where name = '{role}'"
            )
        };
        stage.run(&away("relay", 23, 700)).await;
        stage.run(&away("dispatcher", 23, 500)).await;
        let (_running, grant) = leader(&stage).await;
        let database = stage.database();
        let step = async || {
            compact(&database, &grant, KEEPS).await.expect("a step");
            (stage.number(BASE).await, stage.number(CURSOR).await)
        };
        assert_eq!(step().await, (500, 500));
        // The dispatcher has read on.
        stage.run(&away("dispatcher", 0, 900)).await;
        assert_eq!(step().await, (700, 700));
        stage.run(&away("relay", 25, 700)).await;
        assert_eq!(step().await, (900, 900));
        // It has been given its role, and reads the documents first: what the log had before is nothing to it.
        stage.run(&away("dispatcher", 0, 0)).await;
        let newest = stage.number("select version from towline_log order by version desc offset 999 limit 1").await;
        assert_eq!(step().await, (newest, newest));
    });
}

/// Rows that are older than a day are compacted whoever has not read them.
#[test]
fn no_cursor_keeps_a_row_for_longer_than_a_day() {
    run(async {
        let stage = Stage::new("old").await;
        rows(&stage).await;
        stage.run(AGE).await;
        stage.run("update towline_log set at = at - interval '1 day' where version <= 800").await;
        stage.run("update towline_claim set until = now(), cursor = 500 where name = 'dispatcher'").await;
        let (_running, grant) = leader(&stage).await;
        compact(&stage.database(), &grant, KEEPS).await.expect("a step");
        assert_eq!((stage.number(BASE).await, stage.number(CURSOR).await), (800, 800));
    });
}

#[test]
fn a_process_that_has_lost_the_claim_moves_nothing() {
    run(async {
        let stage = Stage::new("frozen").await;
        rows(&stage).await;
        stage.run(AGE).await;
        let (running, grant) = leader(&stage).await;
        drop(running);
        let (database, before) = (stage.database(), stage.number(ROWS).await);
        for change in ["token = token + 1", "token = token - 1, holder = 'other'", "holder = 'other'"] {
            let change =
                format!("update towline_claim set until = now() + interval '1 h', {change} where name = 'compaction'");
            stage.run(&change).await;
            let step = compact(&database, &grant, KEEPS).await.expect("a step");
            assert_eq!((step, stage.number(CURSOR).await), (Compacted::default(), 0), "{change}");
        }
        // Its own claim, but ended.
        let ended =
            format!("update towline_claim set holder = '{}', until = now() where name = 'compaction'", grant.holder);
        stage.run(&ended).await;
        assert_eq!(compact(&database, &grant, KEEPS).await.expect("a step"), Compacted::default());
        assert_eq!((stage.number(BASE).await, stage.number(ROWS).await), (0, before));
        // With time left, it is good.
        stage.run("update towline_claim set until = now() + interval '1 h' where name = 'compaction'").await;
        assert!(compact(&database, &grant, KEEPS).await.expect("a step").removed > 0);
    });
}

#[test]
fn the_base_never_goes_down_after_a_renumbering() {
    run(async {
        let stage = Stage::new("lifted").await;
        rows(&stage).await;
        stage.run(AGE).await;
        let base =
            towline::test_api::documents::renumber(&stage.database(), true).await.expect("an answer").expect("a base");
        // The 30 s in which nothing is granted are over.
        stage.run("update towline_claim set until = now() - interval '1 s'").await;
        let (_running, grant) = leader(&stage).await;
        let step = compact(&stage.database(), &grant, KEEPS).await.expect("a step");
        assert!(step.removed > 0 && stage.number(CURSOR).await > 0, "{step:?}");
        assert_eq!(stage.number(BASE).await, base);
    });
}

/// Both lock claims before the row of `towline_meta`. In opposite orders they would wait for each other.
#[test]
fn a_step_of_compaction_and_a_renumbering_do_not_block_each_other() {
    run(async {
        let stage = Stage::new("ordered").await;
        rows(&stage).await;
        stage.run(AGE).await;
        let (_running, grant) = leader(&stage).await;
        // Compaction has got as far as its claim.
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other
            .batch_execute("begin; select from towline_claim where name = 'compaction' for update")
            .await
            .expect("a lock");
        let database = stage.database();
        let renumbering = tokio::spawn(async move { towline::test_api::documents::renumber(&database, true).await });
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock' and query like '%towline_renumber%'";
        stage.becomes("the renumbering to wait for the claim", waits, 1).await;
        let step = "select scanned from towline_compact($1, $2, interval '1 h')";
        let step = other.query_one(step, &[&grant.holder.as_str(), &grant.token]).await.expect("it waits for nobody");
        assert!(step.get::<_, i64>(0) > 0);
        let raised = other.query_one(BASE, &[]).await.expect("a row").get::<_, i64>(0);
        other.batch_execute("commit").await.expect("it is committed");
        let base = renumbering.await.expect("no panic").expect("no deadlock").expect("a base");
        assert!(raised > 0 && base > raised, "{raised}, {base}");
        assert_eq!(stage.number(BASE).await, base);
    });
}

/// The same with both at full speed: each step of the one meets any of the other.
#[test]
fn compaction_and_renumbering_run_against_each_other_without_a_deadlock() {
    run(async {
        const ROUNDS: usize = 50;
        let stage = Stage::new("against").await;
        rows(&stage).await;
        stage.run(AGE).await;
        let (running, grant) = leader(&stage).await;
        drop(running);
        let (database, other) = (stage.database(), stage.database());
        let sql = stage.place.client(ADMIN).await.expect("a connection");
        let lift = async {
            for _ in 0..ROUNDS {
                towline::test_api::documents::renumber(&other, true).await.expect("no deadlock").expect("a base");
            }
        };
        let step = async {
            let again = format!(
                "update towline_claim set holder = '{}', token = {}, until = now() + interval '1 h', cursor = 0 \
                 where name = 'compaction'",
                grant.holder, grant.token
            );
            let mut scanned = 0;
            for _ in 0..ROUNDS {
                sql.batch_execute(&again).await.expect("no deadlock");
                scanned += compact(&database, &grant, KEEPS).await.expect("no deadlock").scanned;
            }
            scanned
        };
        let ((), scanned) = tokio::join!(lift, step);
        assert!(scanned > 0, "compaction has never been the first");
    });
}

#[test]
fn the_actor_steps_without_a_pause_while_a_whole_step_is_left() {
    run(async {
        let stage = Stage::new("steps").await;
        // 12,000 versions of one document.
        let rows = "insert into towline_log select n, now() - interval '2 h', gen_random_uuid(), 'clusters', \
             '00000000-0000-4000-8000-000000000000', 'foo', 'c1', '{}', nullif(n - 1, 0), '{}' from generate_series(1, 12000) n";
        stage.run(rows).await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let leadership = claims.role(Role::Compaction);
        let _running = Running::start(claims);
        let compaction = Compaction::new(stage.database(), leadership, KEEPS);
        let (scope, drain) = Scope::standalone("compaction");
        let body = tokio::spawn(compaction.run(scope));
        // A step passes 5,000 rows, and the next run is a minute later.
        stage.becomes("three steps", BASE, 11_001).await;
        assert_eq!(stage.number(ROWS).await, 1_000);
        drain.cancel();
        body.await.expect("no panic").expect("it is drained");
    });
}

/// Records of who did what are kept for a time of their own, and only the holder of the role deletes them.
#[test]
fn records_older_than_their_time_are_deleted_in_steps_of_5000_and_younger_ones_stay() {
    run(async {
        const RECORDS: &str = "select count(*) from towline_history where verb <> 'migrate'";
        let stage = Stage::new("records_expire").await;
        let rows = "insert into towline_history (at, actor, address, via, verb, details) \
             select now() - case when n > 12000 then interval '23 h' else interval '25 h' end, '', '', 'api', 'refused', '{}' \
             from generate_series(1, 12010) n";
        stage.run(rows).await;
        let (_running, grant) = leader(&stage).await;
        let database = stage.database();
        assert_eq!(stage.number("select towline_expire('another', 1, interval '1 h')").await, 0);
        for expired in [5000, 5000, 2000, 0] {
            let step = compact(&database, &grant, KEEPS).await.expect("a step");
            assert_eq!(step, Compacted { expired, ..Compacted::default() });
        }
        assert_eq!(stage.number(RECORDS).await, 10);
    });
}
