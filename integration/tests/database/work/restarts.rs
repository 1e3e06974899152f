//! The database is restarted while messages are on their way.

use integration::postgres::{ADMIN, HUB, Transport};
use integration::{Postgres, RabbitMq, eventually};

use crate::work::broker::{DEAD, URGENT, WORK, holds, messages};
use crate::work::oracle::Oracle;
use crate::work::worker::Worker;
use crate::work::world::{LIMIT, Stage, broker, ids, run};

const CLUSTERS: u64 = 300;
const PERMITS: usize = 8;
/// What is to be done, or is under way.
const LEFT: &str = "select count(*) from towline_work where ready_at <= now() or until is not null";

/// Q1 and Q2 over the broker: with the database killed in the middle of passes and announcements, twice, each cluster gets a pass that has
/// read what was written before the request, no two at once, and nothing is left of the messages.
#[test]
fn no_request_is_lost_when_the_database_is_restarted_while_messages_are_on_their_way() {
    run(async {
        let (database, server) =
            tokio::join!(Postgres::start("work-restarts", Transport::Plain), RabbitMq::start("work-restarts"));
        let (database, server) = (database.expect("a server"), server.expect("a broker"));
        let mut stage = Stage::on(&database, "restarts").await;
        let all = format!(
            "create table changes (cluster uuid primary key, number bigint not null); grant all on changes to public; \
             insert into changes select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 0 from generate_series(1, {CLUSTERS}) n"
        );
        stage.run(&all).await;
        let process = stage.process();
        let _announces = process.announces(&broker(&server.url()));
        let mut oracle = Oracle::start().await;
        let (url, at) = (stage.place.url(HUB), server.url());
        let start = |number| Worker::start_over(&format!("worker-{number}"), &url, &oracle.address, PERMITS, Some(&at));
        let _workers: Vec<Worker> = (0..3).map(start).collect();
        let clusters: Vec<u64> = (1..=CLUSTERS).collect();
        for (round, queue) in [(1, WORK), (2, URGENT)] {
            let before = oracle.sights.borrow().all_ended();
            stage.run("update changes set number = number + 1").await;
            process.queue.ask(&ids(&clusters), queue == URGENT).await.expect("they are asked for");
            oracle.until("the first passes of a round", |seen| seen.all_ended() >= before + 30).await;
            database.kill().await.expect("it is killed");
            // Nobody can claim what they are about. A quorum queue counts every few seconds.
            eventually(format!("messages to be on their way in round {round}"), LIMIT, async || {
                match messages(&server, queue).await {
                    (0, 0) => Err("there is none".to_owned()),
                    _ => Ok(()),
                }
            })
            .await
            .unwrap();
            database.start_again().await.expect("it starts");
            stage.sql = stage.place.client(ADMIN).await.expect("a connection");
            // Passes whose end the database did not learn of return when their claims end.
            oracle
                .until("a pass of each cluster that has read the change", |seen| {
                    let read = seen.clusters.values().filter(|cluster| cluster.number == round);
                    read.count() == clusters.len()
                })
                .await;
            stage.becomes("nothing to be left to do", LEFT, 0).await;
        }
        for queue in [WORK, URGENT, DEAD] {
            holds(&server, "no message to be left", queue, (0, 0)).await;
        }
        assert_eq!(oracle.sights.borrow().violations, [""; 0]);
    });
}
