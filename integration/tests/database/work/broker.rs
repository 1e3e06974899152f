//! Work over a message broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use integration::{RabbitMq, eventually};
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use towline::amqp::AmqpSource;
use towline::documents::{Broker, BusObserver, Finished, Purpose, Standing};

use crate::work::intake::Waiting;
use crate::work::world::{LIMIT, Process, Running, Stage, broker, clusters, run};

pub(crate) const WORK: &str = "towline.work.clusters";
pub(crate) const URGENT: &str = "towline.work.clusters.urgent";
pub(crate) const DEAD: &str = "towline.dead.work";
/// Sessions of workers that listen to the database.
pub(crate) const LISTENERS: &str = "select count(*) from pg_stat_activity where datname = current_database() and application_name like '%work' \
     and query like '%LISTEN%'";

/// A database, a broker, and a process that announces and asks.
pub(crate) struct World {
    pub(crate) stage: Stage,
    pub(crate) server: RabbitMq,
    pub(crate) process: Process,
    /// What the announcer knows of the broker.
    pub(crate) announcer: Broker,
    /// How often it has looked for dead letters, and for what was lost.
    letters: Arc<AtomicUsize>,
    _announces: Running,
}

/// Counts looks.
struct Looks(Arc<AtomicUsize>);

impl BusObserver for Looks {
    fn published(&self, _: &'static str, _: u64) {}

    fn lag(&self, _: Duration) {}

    fn rejected(&self) {}

    fn dead_letters(&self, _: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn stands(&self, _: Purpose, _: Option<&Standing>) {}
}

impl World {
    pub(crate) async fn new(name: &str) -> Self {
        let of_broker = format!("work-{name}");
        let (stage, server) = tokio::join!(Stage::new(name), RabbitMq::start(&of_broker));
        let server = server.expect("a broker");
        let process = stage.process();
        let letters = Arc::new(AtomicUsize::new(0));
        let url = server.url().parse().unwrap_or_else(|error| panic!("{error}"));
        let announcer = Broker::new(AmqpSource::Url(Box::new(url)), Arc::new(Looks(Arc::clone(&letters))));
        let running = process.announces(&announcer);
        Self { stage, server, process, announcer, letters, _announces: running }
    }

    /// A worker that the broker delivers work to.
    pub(crate) async fn worker(&self, permits: usize) -> (Process, Waiting) {
        let (process, broker) = (self.stage.process(), broker(&self.server.url()));
        let waiting = Waiting::start_over(&process, permits, Some(broker.clone()));
        stands(&broker, Purpose::Worker, "ready", "").await;
        (process, waiting)
    }

    /// Waits until the announcer has looked twice for what was lost.
    pub(crate) async fn looks_twice(&self) {
        let before = self.letters.load(Ordering::Relaxed);
        eventually("two looks", LIMIT, async || match self.letters.load(Ordering::Relaxed) {
            more if more >= before + 2 => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
    }

    /// A connection of a stranger.
    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let connection =
            Connection::connect(&self.server.url(), ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// Waits until so many messages of a queue are ready and unacknowledged.
    pub(crate) async fn holds(&self, what: &str, queue: &str, expected: (u64, u64)) {
        holds(&self.server, what, queue, expected).await;
    }
}

/// Ready and unacknowledged messages of a queue.
pub(crate) async fn messages(server: &RabbitMq, queue: &str) -> (u64, u64) {
    let listed = server.control(&["-q", "list_queues", "name", "messages_ready", "messages_unacknowledged"]).await;
    let listed = listed.expect("the queues");
    let line = listed.lines().find(|line| line.split_whitespace().next() == Some(queue));
    let mut numbers = line.unwrap_or_default().split_whitespace().skip(1).map(|text| text.parse().expect("a number"));
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Waits until so many messages of a queue are ready and unacknowledged.
pub(crate) async fn holds(server: &RabbitMq, what: &str, queue: &str, expected: (u64, u64)) {
    eventually(what, LIMIT, async || match messages(server, queue).await {
        found if found == expected => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

/// Waits until a connection stands so, for a reason that contains a text.
pub(crate) async fn stands(broker: &Broker, purpose: Purpose, state: &str, reason: &str) {
    eventually(format!("{} to be {state}", purpose.as_str()), LIMIT, async || match broker.standings().get(&purpose) {
        Some(standing) if standing.as_str() == state && standing.to_string().contains(reason) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

/// What is asked for is delivered, and nobody listens to the database for it. What is asked for during a pass is delivered
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

/// A worker without a free permit takes no message, so that others get it.
#[test]
fn no_message_waits_at_a_busy_worker() {
    run(async {
        let world = World::new("busy").await;
        let (_busy, mut waiting) = world.worker(1).await;
        world.process.ask(&[1], false).await;
        let first = waiting.next().await;
        world.process.ask(&[2, 3], false).await;
        world.holds("the messages to wait at the broker", WORK, (2, 0)).await;
        let (_idle, mut other) = world.worker(2).await;
        let (second, third) = (other.next().await, other.next().await);
        assert!(waiting.delivered.try_recv().is_err());
        drop((first, second, third));
    });
}

/// What is no cluster is a dead letter with its reason, and work goes on.
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
        world.holds("both to be dead letters", DEAD, (2, 0)).await;
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

/// A queue that was emptied costs seconds. No worker is there that would find the rows overdue.
#[test]
fn lost_messages_are_announced_again() {
    run(async {
        let world = World::new("purged").await;
        world.process.ask(&[1, 2], false).await;
        world.holds("both to be announced", WORK, (2, 0)).await;
        world.server.control(&["purge_queue", WORK]).await.expect("it is purged");
        world.holds("both to be announced again", WORK, (2, 0)).await;
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
        // The broker takes one message before it blocks a connection. The row of the next one is found when it is overdue.
        stands(&world.announcer, Purpose::Announcer, "blocked", "memory or disk").await;
        let mut cluster = 3;
        for number in 0..4 {
            world.process.ask(&[cluster], true).await;
            let (work, _permit) = waiting.next().await;
            cluster += 1;
            // From then on the worker does not wait for messages.
            assert!(number == 0 || work.waited < Duration::from_secs(5), "{number}: {:?}", work.waited);
            assert_eq!(worker.done(work).await, Finished::Settled);
        }
        world.server.alarm(false).await.expect("no alarm");
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        world.process.ask(&[cluster], true).await;
        let last = waiting.next().await;
        drop((second, last));
    });
}

/// Without a broker, and where a queue exists with other arguments, workers ask the database until it can be used.
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
        let mut waiting = Waiting::start_over(&process, 8, Some(broker.clone()));
        let _announces = process.announces(&broker);
        process.ask(&[1], false).await;
        let first = waiting.next().await;
        let stands = async |state: &str| stands(&broker, Purpose::Worker, state, "").await;
        stands("refused").await;
        stage.becomes("the worker to listen to the database", LISTENERS, 1).await;
        channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("it is deleted");
        stands("ready").await;
        stage.becomes("the worker to listen no more", LISTENERS, 0).await;
        // RabbitMQ 3.10 may leave a quorum queue without a leader for good that is killed before it has carried anything.
        process.ask(&[2], false).await;
        process.ask(&[5], true).await;
        let second = (waiting.next().await, waiting.next().await);
        for queue in [WORK, URGENT] {
            holds(&server, "the messages to be acknowledged", queue, (0, 0)).await;
        }
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

/// While the bus is switched on or off, replica by replica, workers of both kinds share the work.
#[test]
fn workers_with_and_without_the_broker_share_the_work() {
    run(async {
        const CLUSTERS: u64 = 40;
        let world = World::new("mixed").await;
        let (over, mut over_broker) = world.worker(1).await;
        let without = world.stage.process();
        let mut by_database = Waiting::start(&without, 1);
        world.process.ask(&(0..CLUSTERS).collect::<Vec<_>>(), false).await;
        let mut worked = Vec::new();
        // Each has one that is not at its end when the other one gets its first.
        let mut first = vec![(by_database.next().await, &without), (over_broker.next().await, &over)];
        for _ in 0..CLUSTERS {
            let ((work, permit), process) = if let Some(found) = first.pop() {
                found
            } else {
                tokio::select! {
                    work = over_broker.next() => (work, &over),
                    work = by_database.next() => (work, &without),
                }
            };
            assert_eq!(work.token, 1, "nobody else has had it");
            worked.extend(clusters(std::slice::from_ref(&work)));
            assert_eq!(process.done(work).await, Finished::Settled);
            drop(permit);
        }
        worked.sort_unstable();
        assert_eq!(worked, (0..CLUSTERS).collect::<Vec<_>>());
        // The last one is switched over: what comes now is delivered by the broker.
        by_database.running.drained().await;
        world.process.ask(&[1], false).await;
        let (work, _permit) = over_broker.next().await;
        assert_eq!((clusters(std::slice::from_ref(&work)), work.token), (vec![1], 2));
        assert!(work.waited < Duration::from_secs(5), "before it was overdue: {:?}", work.waited);
        assert_eq!(over.done(work).await, Finished::Settled);
        world.holds("no message to be left", WORK, (0, 0)).await;
    });
}
