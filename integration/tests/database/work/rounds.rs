//! Test 4 of the specification: workers over a broker, while workers and the broker are killed, stopped and wiped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use integration::RabbitMq;
use integration::postgres::HUB;
use integration::soak::{Random, rounds, seed};
use tokio::time::sleep;
use towline::documents::WorkQueue;

use crate::work::broker::holds;
use crate::work::oracle::Oracle;
use crate::work::worker::Worker;
use crate::work::world::{LIMIT, Stage, broker, id, ids, run};

const CLUSTERS: u64 = 1_000;
const PERMITS: usize = 16;
const QUEUES: [&str; 2] = ["towline.work.clusters", "towline.work.clusters.urgent"];

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Fault {
    WorkerKilled,
    /// For longer than its claims last.
    WorkerFrozen,
    BrokerKilled,
    BrokerWiped,
    BrokerFrozen,
    QueuesPurged,
}

const ALL: [Fault; 6] = [
    Fault::WorkerKilled,
    Fault::WorkerFrozen,
    Fault::BrokerKilled,
    Fault::BrokerWiped,
    Fault::BrokerFrozen,
    Fault::QueuesPurged,
];

/// Q1 and Q2 over the broker: no cluster is worked on twice at once, tokens only grow, and the last pass of each has read its last change.
#[test]
fn no_fault_of_workers_or_the_broker_loses_work_or_doubles_it() {
    run(async {
        let (stage, server) = tokio::join!(Stage::new("rounds"), RabbitMq::start("work-rounds"));
        let server = server.expect("a broker");
        let all = format!(
            "create table changes (cluster uuid primary key, number bigint not null); grant all on changes to public; \
             insert into changes select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 0 from generate_series(0, {}) n",
            CLUSTERS - 1
        );
        stage.run(&all).await;
        let process = stage.process();
        let _announces = process.announces(&broker(&server.url()));
        let mut oracle = Oracle::start().await;
        let (address, url, at) = (oracle.address.clone(), stage.place.url(HUB), server.url());
        let start = |name: &str| Worker::start_over(name, &url, &address, PERMITS, Some(&at));
        let seed = seed();
        println!("SEED={seed}");
        let is_over = AtomicBool::new(false);
        let changes = async {
            let (database, mut random) = (stage.database(), Random::new(seed));
            while !is_over.load(Ordering::Relaxed) {
                let cluster = random.below(CLUSTERS);
                let text: String = id(cluster);
                let mut transaction = database.begin("change", LIMIT).await.expect("a transaction");
                let change = format!("update changes set number = number + 1 where cluster = '{text}'");
                transaction.run("change", &change).await.expect("it is changed");
                let urgent = random.below(2) == 0;
                WorkQueue::ask_within(&mut transaction, &ids(&[cluster]), urgent).await.expect("it is asked for");
                transaction.commit().await.expect("it is committed");
                sleep(Duration::from_millis(10)).await;
            }
        };
        let faults = async {
            let mut random = Random::new(seed ^ 1);
            let mut lots = random.split().rounds_of(&ALL);
            let mut workers: Vec<(String, Worker)> = Vec::new();
            for number in 0..3 {
                let name = format!("worker-{number}");
                workers.push((name.clone(), start(&name)));
            }
            process.queue.ask(&ids(&(0..CLUSTERS).collect::<Vec<_>>()), false).await.expect("all are asked for");
            oracle.until("passes of all clusters", |seen| seen.all_ended() >= 1_000).await;
            for round in 0..rounds(6) {
                let victim = usize::try_from(random.below(3)).expect("small");
                let fault = lots.next().expect("there are some");
                println!("round {round}: {fault:?}, worker {victim}");
                match fault {
                    Fault::WorkerKilled => {
                        let name = format!("worker-{victim}-{round}");
                        let killed = std::mem::replace(&mut workers[victim], (name.clone(), start(&name)));
                        killed.1.kill().await;
                    }
                    Fault::WorkerFrozen => {
                        let (name, worker) = &workers[victim];
                        oracle.until("a pass to stop", |seen| !seen.under_way(name).is_empty()).await;
                        worker.freeze();
                        let (stopped, ended) = {
                            let sights = oracle.sights.borrow();
                            (sights.under_way(name), sights.all_ended())
                        };
                        oracle.until("the others to go on", |seen| seen.all_ended() > ended + 50).await;
                        oracle.until("others to take over", |seen| seen.are_replaced(&stopped)).await;
                        worker.thaw();
                    }
                    Fault::BrokerKilled => {
                        server.kill().await.expect("it is killed");
                        let ended = oracle.sights.borrow().all_ended();
                        oracle.until("work without a broker", |seen| seen.all_ended() > ended + 50).await;
                        server.start_again().await.expect("it starts");
                    }
                    Fault::BrokerWiped => server.wipe().await.expect("it is wiped"),
                    Fault::BrokerFrozen => {
                        let frozen = server.freeze().expect("it is stopped");
                        let ended = oracle.sights.borrow().all_ended();
                        oracle.until("work while the broker is stopped", |seen| seen.all_ended() > ended + 50).await;
                        drop(frozen);
                    }
                    Fault::QueuesPurged => {
                        for queue in QUEUES {
                            // It may not be there yet, after the broker was wiped.
                            let _purged = server.control(&["purge_queue", queue]).await;
                        }
                    }
                }
                let ended = oracle.sights.borrow().all_ended();
                oracle.until("work after the fault", |seen| seen.all_ended() > ended + 100).await;
            }
            is_over.store(true, Ordering::Relaxed);
            let rows = stage.sql.query("select cluster::text, number from changes", &[]).await.expect("the changes");
            let last: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let is_read = |seen: &crate::work::oracle::Sights| {
                last.iter()
                    .all(|(cluster, number)| seen.clusters.get(cluster).is_some_and(|seen| seen.number >= *number))
            };
            oracle.until("the last changes to be read", is_read).await;
            // Nobody asks for anything any more, and the workers are idle.
            for queue in QUEUES {
                holds(&server, "no message to be left", queue, (0, 0)).await;
            }
        };
        tokio::join!(changes, faults);
    });
}
