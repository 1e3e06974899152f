//! Test 1 of the specification: four workers in three processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use integration::Link;
use integration::postgres::HUB;
use integration::soak::Random;
use tokio::time::sleep;
use towline::test_api::documents::WorkQueue;

use crate::work::oracle::{Oracle, Sights};
use crate::work::worker::Worker;
use crate::work::world::{LIMIT, Stage, id, ids, run};

const CLUSTERS: u64 = 12;
/// Longer than a claim lasts in the database, which is [`SHORT`](crate::work::world::SHORT).
const FROZEN_FOR: i64 = 12;

/// One worker is killed, one stopped for longer than its claims last, one cut off from the database, while clusters are
/// changed all the time. A cluster sees requests of one pass at a time, tokens only grow, and the last pass of each has read its last
/// change.
#[test]
fn a_cluster_is_never_worked_on_twice_and_no_change_is_missed() {
    run(async {
        let stage = Stage::new("faults").await;
        stage.run("create table changes (cluster uuid primary key, number bigint not null); grant all on changes to public").await;
        for cluster in 0..CLUSTERS {
            let cluster: String = id(cluster);
            stage.run(&format!("insert into changes values ('{cluster}', 0)")).await;
        }
        let mut oracle = Oracle::start().await;
        let address = oracle.address.clone();
        let link = Link::to(stage.place.address()).await.expect("a link");
        let (near, far) = (stage.place.url(HUB), stage.place.url_by(HUB, &link.address().to_string()));
        let is_over = AtomicBool::new(false);
        let changes = async {
            let (database, mut random) = (stage.database(), Random::new(1));
            while !is_over.load(Ordering::Relaxed) {
                let cluster = random.below(CLUSTERS);
                let text: String = id(cluster);
                let mut transaction = database.begin("change", LIMIT).await.expect("a transaction");
                let change = format!("update changes set number = number + 1 where cluster = '{text}'");
                transaction.run("change", &change).await.expect("it is changed");
                let urgent = random.below(2) == 0;
                WorkQueue::ask_within(&mut transaction, &ids(&[cluster]), urgent).await.expect("it is asked for");
                transaction.commit().await.expect("it is committed");
                sleep(Duration::from_millis(20)).await;
            }
        };
        let faults = async {
            let _cut = Worker::start("cut", &far, &address, 2);
            let killed = Worker::start("killed", &near, &address, 1);
            let frozen = Worker::start("frozen", &near, &address, 1);
            oracle
                .until("passes of all", |seen| {
                    ["cut", "killed", "frozen"].iter().all(|name| seen.ended.get(*name) > Some(&5))
                })
                .await;
            // Killed in the middle of a pass.
            let seen = oracle.until("a pass to kill", |seen| !seen.under_way("killed").is_empty()).await;
            killed.kill().await;
            let orphans = seen.under_way("killed");
            let _again = Worker::start("again", &near, &address, 1);
            // Stopped in the middle of a pass.
            oracle.until("a pass to stop", |seen| !seen.under_way("frozen").is_empty()).await;
            frozen.freeze();
            let now = "select extract(epoch from clock_timestamp())::bigint";
            let end = stage.number(now).await + FROZEN_FOR;
            let stopped = oracle.sights.borrow().under_way("frozen");
            let ended = oracle.sights.borrow().all_ended();
            stage.exceeds("the time of the stop", now, end).await;
            let seen = oracle
                .until("others to go on", |seen| seen.are_replaced(&orphans) && seen.are_replaced(&stopped))
                .await;
            assert!(seen.all_ended() > ended + 20, "{} passes in {FROZEN_FOR} s", seen.all_ended() - ended);
            let before = seen.ended.get("frozen").copied();
            frozen.thaw();
            oracle.until("the stopped one to work again", |seen| seen.ended.get("frozen").copied() > before).await;
            // Cut off in the middle of two passes.
            oracle.until("passes to cut off", |seen| seen.under_way("cut").len() == 2).await;
            link.cut().await.expect("no packet arrives");
            let cut = oracle.sights.borrow().under_way("cut");
            let seen = oracle.until("others to take over", |seen| seen.are_replaced(&cut)).await;
            link.restore().await.expect("packets arrive");
            let before = seen.ended.get("cut").copied();
            oracle
                .until("the one that was cut off to work again", |seen| seen.ended.get("cut").copied() > before)
                .await;
            is_over.store(true, Ordering::Relaxed);
            // All changes are read.
            let rows = stage.sql.query("select cluster::text, number from changes", &[]).await.expect("the changes");
            let last: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let of = |seen: &Sights| {
                last.iter()
                    .all(|(cluster, number)| seen.clusters.get(cluster).is_some_and(|seen| seen.number >= *number))
            };
            let seen = oracle.until("the last changes to be read", of).await;
            assert!(seen.replaced >= 2, "{}: no pass was taken over", seen.replaced);
        };
        tokio::join!(changes, faults);
    });
}
