//! A request is never lost, whenever it comes.

use std::time::Duration;

use integration::soak::Random;
use towline::test_api::documents::{RowEnd, WorkQueue};

use crate::work::world::{LIMIT, Process, Stage, clusters, ids, run};

/// Stands for the documents: how often each cluster was changed.
const TABLE: &str = "create table changes (cluster uuid primary key, number bigint not null default 0)";

/// The steps of a pass.
const STEPS: [&str; 3] = ["claim", "read", "done"];

async fn read(stage: &Stage) -> i64 {
    stage.number("select number from changes").await
}

/// Test 2 of the specification: a change whose transaction begins before any step of a pass and commits before any later one.
#[test]
fn a_change_at_any_statement_of_a_pass_causes_a_pass_that_reads_it() {
    run(async {
        let stage = Stage::new("any_statement").await;
        stage.run(&format!("{TABLE}; grant all on changes to public")).await;
        let process = stage.process();
        for begin in 0..=STEPS.len() {
            for end in begin..=STEPS.len() {
                stage.run("delete from towline_work; delete from changes; insert into changes select '00000000-0000-4000-8000-000000000001'").await;
                process.ask(&[1], false).await;
                let seen = pass_with_a_change(&stage, &process, begin, end).await;
                let place = format!("begun before step {begin}, committed before step {end}");
                let mut last = seen;
                // Works on every row that is ready.
                for work in process.claim(9).await {
                    last = Some(read(&stage).await);
                    assert_eq!(process.done(work).await, RowEnd::Settled, "{place}");
                }
                assert_eq!(last, Some(1), "{place}: no pass has read the change");
                assert_eq!(process.claim(9).await.len(), 0, "{place}: one pass too many");
            }
        }
    });
}

/// A pass while a change is under way, and what it has read; none if it could not begin.
async fn pass_with_a_change(stage: &Stage, process: &Process, begin: usize, end: usize) -> Option<i64> {
    let database = stage.database();
    let (mut open, mut work, mut seen) = (None, None, None);
    for step in 0..=STEPS.len() {
        if step == begin {
            let mut transaction = database.begin("change", LIMIT).await.expect("a transaction");
            transaction.run("change", "update changes set number = number + 1").await.expect("it is changed");
            WorkQueue::ask_within(&mut transaction, &ids(&[1]), true).await.expect("it is asked for");
            open = Some(transaction);
        }
        if step == end
            && let Some(transaction) = open.take()
        {
            transaction.commit().await.expect("it is committed");
        }
        match STEPS.get(step) {
            // A row that the change has locked is left for later.
            Some(&"claim") => work = process.claim(9).await.pop(),
            Some(&"read") if work.is_some() => seen = Some(read(stage).await),
            Some(&"done") => {
                let Some(work) = work.take() else { continue };
                match open.take() {
                    None => drop(process.done(work).await),
                    Some(transaction) => {
                        // It waits for the change, and sees it then.
                        let commit = async {
                            stage.waits_for_a_lock("update towline_work").await;
                            transaction.commit().await.expect("it is committed");
                        };
                        let (finished, ()) = tokio::join!(process.done(work), commit);
                        assert_eq!(finished, RowEnd::Ready);
                    }
                }
            }
            _ => {}
        }
    }
    seen
}

/// Requests in whatever order their callers name the clusters, renewals, claims and ends at once.
#[test]
fn requests_and_renewals_in_parallel_never_deadlock() {
    run(async {
        let stage = Stage::new("parallel").await;
        let clusters_of_all: Vec<u64> = (0..400).collect();
        let asker = stage.process();
        asker.ask(&clusters_of_all, false).await;
        let mut holders = Vec::new();
        for _ in 0..8 {
            // The renewals wait for locks, so they have some time.
            let process = stage.process_lasting(Duration::from_secs(10));
            let held = process.claim(50).await;
            assert_eq!(held.len(), 50);
            holders.push((process, held));
        }
        let renewed = "select count(*) from towline_work where until > now() and wanted > 1";
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let ask = async |seed: u64| {
            let mut random = Random::new(seed);
            let mut times = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let mut some = clusters_of_all.clone();
                for index in (1..some.len()).rev() {
                    some.swap(index, random.index(index + 1));
                }
                some.truncate(200);
                asker.ask(&some, random.below(2) == 0).await;
                times += 1;
            }
            times
        };
        let watch = async {
            let ends = "select (extract(epoch from min(until)) * 1000)::bigint from towline_work";
            // Each holder's renewals last past the first ones' end: five rounds.
            let mut last = stage.number(ends).await;
            for _ in 0..5 {
                last = stage.exceeds("all holders to renew", ends, last).await;
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        let (one, two, three, ()) = tokio::join!(ask(1), ask(2), ask(3), watch);
        assert!(one > 10 && two > 10 && three > 10, "{one} {two} {three}");
        let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
        assert_eq!(stage.number(deadlocks).await, 0);
        assert_eq!(stage.number(renewed).await, 400);
        for (process, held) in holders {
            assert!(held.iter().all(|work| work.check().is_ok()), "a claim was lost");
            let mut ended = Vec::new();
            for work in held {
                ended.push(process.done(work).await);
            }
            assert!(ended.iter().all(|finished| *finished == RowEnd::Ready));
        }
        assert_eq!(clusters(&asker.claim(1000).await).len(), 400, "each was asked for during its pass");
    });
}
