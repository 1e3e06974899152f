//! Work over a message broker (M1 to M5).

use std::time::Duration;

use integration::{RabbitMq, eventually};
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use towline::documents::{Finished, Purpose};

use crate::intake::Waiting;
use crate::world::{LIMIT, Process, Running, Stage, broker, clusters, run};

const WORK: &str = "towline.work.clusters";
const DEAD: &str = "towline.dead.work";
/// Sessions of workers that listen to the database.
const LISTENERS: &str = "select count(*) from pg_stat_activity where datname = current_database() and application_name like '%work' \
     and query like 'LISTEN%'";

/// A database, a broker, and a process that announces and asks.
struct World {
    stage: Stage,
    server: RabbitMq,
    process: Process,
    _announces: Running,
}

impl World {
    async fn new(name: &str) -> Self {
        let of_broker = format!("work-{name}");
        let (stage, server) = tokio::join!(Stage::new(name), RabbitMq::start(&of_broker));
        let server = server.expect("a broker");
        let process = stage.process();
        let announces = process.announces(&broker(&server.url()));
        Self { stage, server, process, _announces: announces }
    }

    /// A worker that the broker delivers work to.
    async fn worker(&self, permits: usize) -> (Process, Waiting) {
        let (process, broker) = (self.stage.process(), broker(&self.server.url()));
        let waiting = Waiting::start_over(&process, permits, Some(broker.clone()));
        eventually("the worker to be connected", LIMIT, async || match broker.standings().get(&Purpose::Worker) {
            Some(standing) if standing.as_str() == "ready" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        (process, waiting)
    }

    async fn channel(&self) -> (Connection, Channel) {
        let connection =
            Connection::connect(&self.server.url(), ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// Ready and unacknowledged messages of a queue.
    async fn messages(&self, queue: &str) -> (u64, u64) {
        let listed =
            self.server.control(&["-q", "list_queues", "name", "messages_ready", "messages_unacknowledged"]).await;
        let listed = listed.expect("the queues");
        let line = listed.lines().find(|line| line.split_whitespace().next() == Some(queue));
        let mut numbers =
            line.unwrap_or_default().split_whitespace().skip(1).map(|text| text.parse().expect("a number"));
        (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
    }
}

/// M1 and M2: what is asked for is delivered, and nobody listens to the database for it. What is asked for during a pass is delivered
/// after it.
#[test]
fn the_broker_delivers_what_is_asked_for() {
    run(async {
        let world = World::new("delivers").await;
        let (worker, mut waiting) = world.worker(4).await;
        world.process.ask(&[1, 2, 3], false).await;
        let mut works = vec![waiting.next().await, waiting.next().await, waiting.next().await];
        works.sort_by_key(|(work, _)| work.cluster);
        let found: Vec<u64> = works.iter().flat_map(|(work, _)| clusters(std::slice::from_ref(work))).collect();
        assert_eq!(found, [1, 2, 3]);
        assert!(works.iter().any(|(work, _)| work.waited < Duration::from_secs(5)), "before it was overdue");
        assert_eq!(world.stage.number(LISTENERS).await, 0);
        world.process.ask(&[2], true).await;
        assert_eq!(worker.done(works.remove(1).0).await, Finished::Ready);
        let (again, _permit) = waiting.next().await;
        assert_eq!(
            (clusters(std::slice::from_ref(&again)), again.urgent),
            (vec![2], true),
            "it was asked for during the pass"
        );
        waiting.running.drained().await;
    });
}

/// M2: a worker without a free permit takes no message, so that others get it.
#[test]
fn no_message_waits_at_a_busy_worker() {
    run(async {
        let world = World::new("busy").await;
        let (_busy, mut waiting) = world.worker(1).await;
        world.process.ask(&[1], false).await;
        let first = waiting.next().await;
        world.process.ask(&[2, 3], false).await;
        eventually("the messages to wait at the broker", LIMIT, async || match world.messages(WORK).await {
            (2, 0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        let (_idle, mut other) = world.worker(2).await;
        let (second, third) = (other.next().await, other.next().await);
        assert!(waiting.delivered.try_recv().is_err());
        drop((first, second, third));
    });
}

/// M3: what is no cluster is a dead letter with its reason, and work goes on.
#[test]
fn a_message_that_is_no_cluster_becomes_a_dead_letter() {
    run(async {
        let world = World::new("junk").await;
        let (_worker, mut waiting) = world.worker(2).await;
        let (_connection, channel) = world.channel().await;
        for junk in [b"junk".as_slice(), &[0xff, 0xfe]] {
            let options = BasicPublishOptions::default();
            channel
                .basic_publish("".into(), WORK.into(), options, junk, BasicProperties::default())
                .await
                .expect("sent");
        }
        eventually("both to be dead letters", LIMIT, async || match world.messages(DEAD).await {
            (2, 0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        let letter =
            channel.basic_get(DEAD.into(), BasicGetOptions { no_ack: true }).await.expect("an answer").expect("one");
        let reason = letter
            .properties
            .headers()
            .as_ref()
            .and_then(|headers| headers.inner().get("x-first-death-reason"))
            .cloned();
        assert_eq!(reason, Some(AMQPValue::LongString("rejected".into())));
        world.process.ask(&[7], true).await;
        let (work, _permit) = waiting.next().await;
        assert_eq!(clusters(&[work]), [7]);
    });
}

/// M4: a queue that was emptied costs seconds. No worker is there that would find the rows overdue.
#[test]
fn lost_messages_are_announced_again() {
    run(async {
        let world = World::new("purged").await;
        world.process.ask(&[1, 2], false).await;
        eventually("both to be announced", LIMIT, async || match world.messages(WORK).await {
            (2, 0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        world.server.control(&["purge_queue", WORK]).await.expect("it is purged");
        eventually("both to be announced again", LIMIT, async || match world.messages(WORK).await {
            (2, 0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
    });
}

/// An alarm blocks the announcer, and a worker's connection does not learn of it.
#[test]
fn work_goes_on_while_the_broker_takes_no_messages() {
    run(async {
        let world = World::new("alarmed").await;
        let (worker, mut waiting) = world.worker(2).await;
        world.process.ask(&[1], false).await;
        let first = waiting.next().await;
        world.server.alarm(true).await.expect("an alarm");
        world.process.ask(&[2], true).await;
        let second = waiting.next().await;
        let (first, permit) = first;
        assert_eq!(worker.done(first).await, Finished::Settled);
        drop(permit);
        world.server.alarm(false).await.expect("no alarm");
        world.process.ask(&[3], true).await;
        let third = waiting.next().await;
        drop((second, third));
    });
}

/// M5: without a broker, and where a queue exists with other arguments, workers ask the database until it can be used.
#[test]
fn workers_ask_the_database_while_the_broker_can_not_be_used() {
    run(async {
        let (stage, server) = tokio::join!(Stage::new("away"), RabbitMq::start("work-away"));
        let server = server.expect("a broker");
        let connection =
            Connection::connect(&server.url(), ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(WORK.into(), durable, FieldTable::default()).await.expect("a classic queue");
        let (process, broker) = (stage.process(), broker(&server.url()));
        let mut waiting = Waiting::start_over(&process, 4, Some(broker.clone()));
        let _announces = process.announces(&broker);
        process.ask(&[1], false).await;
        let first = waiting.next().await;
        let stands = async |state: &str| {
            eventually(format!("the worker's connection to be {state}"), LIMIT, async || {
                match broker.standings().get(&Purpose::Worker) {
                    Some(standing) if standing.as_str() == state => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
        };
        stands("refused").await;
        stage.becomes("the worker to listen to the database", LISTENERS, 1).await;
        channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("it is deleted");
        stands("ready").await;
        stage.becomes("the worker to listen no more", LISTENERS, 0).await;
        process.ask(&[2], false).await;
        let second = waiting.next().await;
        server.kill().await.expect("it is killed");
        process.ask(&[3], false).await;
        let third = waiting.next().await;
        server.start_again().await.expect("it starts");
        stands("ready").await;
        process.ask(&[4], false).await;
        let (fourth, _permit) = waiting.next().await;
        assert_eq!(clusters(&[fourth]), [4]);
        drop((first, second, third));
    });
}
