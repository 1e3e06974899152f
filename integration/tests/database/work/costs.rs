//! What the queue costs: statements, counted by the server.

use std::collections::BTreeMap;

use integration::postgres::HUB;
use towline::test_api::documents::{ClaimLimits, ClaimMix};

use crate::work::consumer::Waiting;
use crate::work::hints::World;
use crate::work::world::{SHORT, Stage, clusters, run};

/// The statements of the hub's account since the last count, by their beginnings.
async fn count(stage: &Stage) -> Vec<(String, i64)> {
    let text = format!(
        "select left(s.query, 40), s.calls from statistics.pg_stat_statements s join pg_roles r on r.oid = s.userid \
         where r.rolname = '{HUB}' and s.dbid = (select oid from pg_database where datname = current_database()) order by 1"
    );
    let rows = stage.sql.query(&text, &[]).await.expect("the statements");
    stage
        .run(
            "select statistics.pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()",
        )
        .await;
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

const CLAIM: &str = "with urgent as materialized ( select clu";
/// The same while a namespace has its share of the slots: for clusters of others.
const CLAIM_OF_OTHERS: &str = "with recursive names as ( (select namesp";
const RENEW: &str = "with mine as materialized (select w.clus";

async fn seconds(stage: &Stage) -> f64 {
    let now = "select extract(epoch from clock_timestamp())::float8";
    stage.sql.query_one(now, &[]).await.expect("the time").get(0)
}

fn calls(statement: &str) -> String {
    format!(
        "select coalesce(sum(calls), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
         where d.datname = current_database() and query like '{statement}%'"
    )
}

/// *Costs*: an idle worker looks once a second, and sends nothing else.
#[test]
fn an_idle_worker_sends_a_statement_a_second() {
    run(async {
        let stage = Stage::new("idle").await;
        let process = stage.process();
        let _waiting = Waiting::start(&process, 4);
        stage.exceeds("a look", &calls(CLAIM), 1).await;
        count(&stage).await;
        let begun = seconds(&stage).await;
        let looks = stage.exceeds("five looks", &calls(CLAIM), 4).await;
        let passed = seconds(&stage).await - begun;
        // The first one may come at once.
        assert!(passed >= f64::from(u32::try_from(looks - 1).expect("few")) * 0.95, "{looks} looks in {passed} s");
        let statements: Vec<_> = count(&stage).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!(statements, [CLAIM], "nothing else");
    });
}

/// *Costs*: the same over a broker, at which nothing waits.
#[test]
fn an_idle_worker_over_the_broker_sends_a_statement_a_second_and_no_message() {
    run(async {
        let world = World::new("idle_over").await;
        let stage = &world.stage;
        let _worker = world.worker(4).await;
        stage.exceeds("a look", &calls(CLAIM), 1).await;
        count(stage).await;
        let begun = seconds(stage).await;
        let looks = stage.exceeds("five looks", &calls(CLAIM), 4).await;
        let passed = seconds(stage).await - begun;
        // The first one may come at once.
        assert!(passed >= f64::from(u32::try_from(looks - 1).expect("few")) * 0.95, "{looks} looks in {passed} s");
        let statements: Vec<_> = count(stage).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!(statements, [CLAIM], "nothing else");
        assert_eq!(world.queue().await, (0, 1), "one consumer, and no message");
    });
}

/// *Costs*: a claim for each round, one statement each fifth of a claim for all that is held, one for the end of a pass, and a look each
/// second for clusters of other namespaces.
#[test]
fn each_step_of_work_costs_the_statements_that_are_promised() {
    run(async {
        let stage = Stage::new("costs").await;
        let process = stage.process_lasting(SHORT);
        let mut waiting = Waiting::start(&process, 3);
        stage.exceeds("a look", &calls(CLAIM), 0).await;
        process.ask(&[1, 2, 3, 4], false).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(waiting.next().await);
        }
        // The first renewal makes its connection.
        stage.exceeds("a renewal", &calls(RENEW), 0).await;
        count(&stage).await;
        let begun = seconds(&stage).await;
        let renewals = stage.exceeds("three renewals", &calls(RENEW), 2).await;
        let passed = seconds(&stage).await - begun;
        assert!(passed >= 3.3, "{renewals} renewals of three claims in {passed} s");
        let found = count(&stage).await;
        let looks: i64 = found.iter().filter(|(text, _)| text == CLAIM_OF_OTHERS).map(|(_, calls)| *calls).sum();
        assert!(f64::from(u32::try_from(looks).expect("few")) <= passed + 1.5, "{looks} looks in {passed} s");
        let found: Vec<_> = found.into_iter().filter(|(text, _)| text != CLAIM_OF_OTHERS).collect();
        assert_eq!(found, [(RENEW.to_owned(), 3)], "nothing else is sent");
        let is_step = |text: &str| text != RENEW && text != CLAIM_OF_OTHERS;
        let (work, slot) = held.remove(0);
        process.done(work).await;
        drop(slot);
        held.push(waiting.next().await);
        let found: Vec<_> = count(&stage).await.into_iter().filter(|(text, _)| is_step(text)).collect();
        let found_done =
            found.iter().find(|(text, _)| text.starts_with("update towline_work")).map(|(_, calls)| *calls);
        assert_eq!((found.len(), found_done), (2, Some(1)), "{found:?}");
        assert!(found.contains(&(CLAIM.to_owned(), 1)), "{found:?}");
        process.ask(&[7, 8, 9], true).await;
        let asked: Vec<_> = count(&stage).await.into_iter().filter(|(text, _)| is_step(text)).collect();
        assert_eq!(asked.iter().map(|(_, calls)| *calls).collect::<Vec<_>>(), [1], "{asked:?}");
    });
}

/// *Costs*: the ready clusters of a namespace that is left out are not read, however many there are, and whatever the statistics say.
#[test]
fn a_claim_of_others_reads_as_little_as_if_nothing_else_were_ready() {
    const SLOW: u64 = 10_000;
    run(async {
        let stage = Stage::new("left_out").await;
        let process = stage.process();
        stage.documents("slow", 1, SLOW).await;
        process.ask(&(1..=SLOW).collect::<Vec<_>>(), true).await;
        // Before the other namespace is known.
        stage.run("vacuum analyze towline_work").await;
        stage.run("vacuum analyze towline_documents").await;
        stage.documents("other", SLOW + 1, SLOW + 3).await;
        process.ask(&[SLOW + 1], true).await;
        process.ask(&[SLOW + 2, SLOW + 3], false).await;
        count(&stage).await;
        let claim = async || {
            let mix = ClaimMix { urgent_first: 3, oldest: 1 };
            let limits = ClaimLimits { of: BTreeMap::from([("slow".into(), 0)]), of_others: 4 };
            process.queue.claim(mix, &limits).await.expect("an answer").work
        };
        let mut found = clusters(&claim().await);
        found.sort_unstable();
        assert_eq!(found, [SLOW + 1, SLOW + 2, SLOW + 3]);
        for _ in 0..9 {
            assert!(claim().await.is_empty());
        }
        let read = "select (shared_blks_hit + shared_blks_read) / calls from statistics.pg_stat_statements s \
             join pg_database d on d.oid = s.dbid where d.datname = current_database() and query like '%for update skip locked%' and calls = 10";
        let blocks = stage.number(read).await;
        assert!(blocks < 300, "{blocks} blocks for each claim");
    });
}
