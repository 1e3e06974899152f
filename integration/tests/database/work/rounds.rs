//! Workers over a broker, while workers, the broker and the database are killed, stopped, cut off and wiped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use integration::blackhole::Link;
use integration::postgres::{ADMIN, HUB, Transport};
use integration::soak::{Random, rounds, seed};
use integration::{Postgres, RabbitMq};
use tokio::time::sleep;
use towline::test_api::documents::{Broker, WorkQueue};

use crate::work::oracle::Oracle;
use crate::work::worker::{Worker, work};
use crate::work::world::{LIMIT, Stage, broker, id, ids, run};

const CLUSTERS: u64 = 200;
const SLOTS: usize = 8;
/// Takes all messages out of the queue.
const PURGE: &str = "{ok, Queue} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"towline.work.clusters\">>)), \
     rabbit_amqqueue:purge(Queue).";

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Fault {
    WorkerKilled,
    /// For longer than its claims last.
    WorkerFrozen,
    BrokerKilled,
    BrokerWiped,
    BrokerFrozen,
    /// No packet between the workers and the broker arrives.
    BrokerCutOff,
    QueuePurged,
    DatabaseKilled,
}

const ALL: [Fault; 8] = [
    Fault::WorkerKilled,
    Fault::WorkerFrozen,
    Fault::BrokerKilled,
    Fault::BrokerWiped,
    Fault::BrokerFrozen,
    Fault::BrokerCutOff,
    Fault::QueuePurged,
    Fault::DatabaseKilled,
];

/// Changes a cluster and asks for a pass, in one transaction, and tells workers.
async fn change(database: &towline::test_api::db::Database, broker: &Broker, cluster: u64, urgent: bool) -> Option<()> {
    let text: String = id(cluster);
    let mut transaction = database.begin("change", LIMIT).await.ok()?;
    let change = format!("update changes set number = number + 1 where cluster = '{text}'");
    transaction.run("change", &change).await.ok()?;
    WorkQueue::ask_within(&mut transaction, &ids(&[cluster]), urgent).await.ok()?;
    transaction.commit().await.ok()?;
    if urgent {
        broker.hint(&ids(&[cluster]));
    }
    Some(())
}

/// Waits for further passes.
async fn goes_on(oracle: &mut Oracle, what: &str) {
    let ended = oracle.sights.borrow().all_ended();
    oracle.until(what, |seen| seen.all_ended() > ended + 50).await;
}

/// No cluster is worked on twice at once, tokens only grow, and the last pass of each has read its last change.
#[test]
fn no_fault_of_workers_the_broker_or_the_database_loses_work_or_doubles_it() {
    run(async {
        let (database, server) =
            tokio::join!(Postgres::start("work-rounds", Transport::Plain), RabbitMq::start("work-rounds"));
        let (database, server) = (database.expect("a server"), server.expect("a broker"));
        let stage = Stage::on(&database, "rounds").await;
        let all = format!(
            "create table changes (cluster uuid primary key, number bigint not null); grant all on changes to public; \
             insert into changes select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 0 from generate_series(0, {}) n",
            CLUSTERS - 1
        );
        stage.run(&all).await;
        let link = Link::to(server.address()).await.expect("a link");
        let mut oracle = Oracle::start().await;
        let (address, url, at) = (oracle.address.clone(), stage.place.url(HUB), server.url_by(link.address()));
        let start = |name: &str| Worker::start_over(name, &url, &address, SLOTS, Some(&at));
        // Who asks is a worker, too, which is spared.
        let here = broker(&at);
        let (asker, _works) = work("here", &url, &address, SLOTS, Some(here.clone()));
        let seed = seed();
        let is_over = AtomicBool::new(false);
        let changes = async {
            let (database, mut random) = (stage.database(), Random::new(seed));
            while !is_over.load(Ordering::Relaxed) {
                let (cluster, urgent) = (random.below(CLUSTERS), random.below(2) == 0);
                // While the database is away nothing is changed.
                let _changed = change(&database, &here, cluster, urgent).await;
                sleep(Duration::from_millis(10)).await;
            }
        };
        let faults = async {
            let mut random = Random::new(seed ^ 1);
            let mut lots = random.split().rounds_of(&ALL);
            let mut workers: Vec<(String, Worker)> = Vec::new();
            for number in 0..2 {
                let name = format!("worker-{number}");
                workers.push((name.clone(), start(&name)));
            }
            asker.queue.ask(&ids(&(0..CLUSTERS).collect::<Vec<_>>()), false).await.expect("all are asked for");
            let enough = usize::try_from(CLUSTERS).expect("few");
            oracle.until("passes of all clusters", |seen| seen.all_ended() >= enough).await;
            for round in 0..rounds(2) {
                let victim = random.index(2);
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
                        let stopped = oracle.sights.borrow().under_way(name);
                        oracle.until("others to take over", |seen| seen.are_replaced(&stopped)).await;
                        worker.thaw();
                    }
                    Fault::BrokerKilled => {
                        server.kill().await.expect("it is killed");
                        goes_on(&mut oracle, "work without a broker").await;
                        server.start_again().await.expect("it starts");
                    }
                    Fault::BrokerWiped => server.wipe().await.expect("it is wiped"),
                    Fault::BrokerFrozen => {
                        let frozen = server.freeze().expect("it is stopped");
                        goes_on(&mut oracle, "work while the broker is stopped").await;
                        drop(frozen);
                    }
                    Fault::BrokerCutOff => {
                        link.cut().await.expect("it is cut");
                        goes_on(&mut oracle, "work while nobody reaches the broker").await;
                        link.restore().await.expect("it is restored");
                    }
                    // It may not be there yet, after the broker was wiped.
                    Fault::QueuePurged => drop(server.eval(PURGE).await),
                    Fault::DatabaseKilled => {
                        database.kill().await.expect("it is killed");
                        database.start_again().await.expect("it starts");
                    }
                }
                goes_on(&mut oracle, "work after the fault").await;
            }
            is_over.store(true, Ordering::Relaxed);
            let sql = stage.place.client(ADMIN).await.expect("a connection");
            let rows = sql.query("select cluster::text, number from changes", &[]).await.expect("the changes");
            let last: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let is_read = |seen: &crate::work::oracle::Sights| {
                last.iter()
                    .all(|(cluster, number)| seen.clusters.get(cluster).is_some_and(|seen| seen.number >= *number))
            };
            oracle.until("the last changes to be read", is_read).await;
        };
        tokio::join!(changes, faults);
    });
}
