//! Work over a message broker: a hint is work at once, and nothing depends on it.

use integration::eventually;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use towline::test_api::documents::{Broker, Purpose, RowEnd, Work};

use crate::servers;
use crate::work::consumer::Waiting;
use crate::work::world::{LIMIT, Process, SHORT, Stage, broker, clusters, id, run};

const WORK: &str = "towline.work.clusters";
/// Sessions of workers that listen to the database.
const LISTENERS: &str = "select count(*) from pg_stat_activity where datname = current_database() and application_name like '%work' \
     and query like '%LISTEN%'";

/// A database and a virtual host.
pub(crate) struct World {
    pub(crate) stage: Stage,
    vhost: String,
    url: String,
    channel: Channel,
    connection: Connection,
}

impl World {
    pub(crate) async fn new(name: &str) -> Self {
        let (stage, vhost) = tokio::join!(Stage::new(name), servers::vhost());
        let url = servers::broker().await.url_of(&vhost);
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        Self { stage, vhost, url, channel, connection }
    }

    /// A worker over the broker, which is connected.
    pub(crate) async fn worker(&self, slots: usize) -> Worker {
        Worker::start(self.stage.process(), slots, &self.url).await
    }

    /// Ready messages and consumers of the queue.
    pub(crate) async fn queue(&self) -> (u32, u32) {
        // It exists with a worker. A channel ends with a failure.
        let channel = self.connection.create_channel().await.expect("a channel");
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(WORK.into(), passive, FieldTable::default()).await;
        found.map_or((0, 0), |queue| (queue.message_count(), queue.consumer_count()))
    }

    /// Waits until the queue has so many ready messages and consumers.
    async fn queue_has(&self, what: &str, expected: (u32, u32)) {
        eventually(what, LIMIT, async || match self.queue().await {
            found if found == expected => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
    }

    /// Publishes something to the queue, as any client may.
    async fn publish(&self, body: &[u8]) {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let sent = self.channel.basic_publish("".into(), WORK.into(), options, body, properties).await.expect("sent");
        assert!(sent.await.expect("a confirm").is_ack());
    }

    /// Rows that were claimed because of a hint.
    async fn hinted(&self) -> i64 {
        let text = "select coalesce(sum(rows), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
             where d.datname = current_database() and query like 'with next as materialized ( select cluster, ready_at%'";
        self.stage.number(text).await
    }
}

/// A worker over the broker.
pub(crate) struct Worker {
    process: Process,
    broker: Broker,
    waiting: Waiting,
}

impl Worker {
    async fn start(process: Process, slots: usize, url: &str) -> Self {
        let broker = broker(url);
        let process = process.over(&broker);
        let waiting = Waiting::start(&process, slots);
        let worker = Self { process, broker, waiting };
        worker.connects().await;
        worker
    }

    /// Waits until it is connected.
    async fn connects(&self) {
        eventually("the worker to be connected", LIMIT, async || {
            match self.broker.connection_states().get(&Purpose::Worker) {
                Some(found) if found.as_str() == "ready" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }

    /// Works on the next cluster, and returns it with its token.
    async fn works(&mut self) -> (u64, i64) {
        let (work, slot) = self.waiting.next().await;
        let found = (number(&work), work.token);
        assert_eq!(self.process.done(work).await, RowEnd::Settled);
        drop(slot);
        found
    }

    /// The same for so many clusters, in their order.
    async fn works_on(&mut self, count: usize) -> Vec<(u64, i64)> {
        let mut found = Vec::new();
        for _ in 0..count {
            found.push(self.works().await);
        }
        found.sort_unstable();
        found
    }
}

fn number(work: &Work) -> u64 {
    clusters(std::slice::from_ref(work)).remove(0)
}

/// Of what somebody waits for, workers hear at once: some of it is claimed before their next look, which comes once a second. Nobody listens
/// to the database for it.
#[test]
fn what_is_asked_for_is_claimed_by_its_hint() {
    run(async {
        let world = World::new("hinted").await;
        let mut worker = world.worker(4).await;
        for cluster in 1..=20 {
            worker.process.ask(&[cluster], true).await;
            assert_eq!(worker.works().await, (cluster, 1));
        }
        let hinted = world.hinted().await;
        assert!(hinted > 0, "none of 20 was claimed by its hint");
        assert_eq!(world.stage.number(LISTENERS).await, 0);
        world.queue_has("no message to be left", (0, 1)).await;
        worker.waiting.running.drained().await;
    });
}

/// What nobody waits for is not hinted at, and is found all the same.
#[test]
fn what_is_ready_by_the_time_is_found_without_a_hint() {
    run(async {
        let world = World::new("unhinted").await;
        let mut worker = world.worker(4).await;
        worker.process.ask(&[1, 2], false).await;
        assert_eq!(worker.works_on(2).await, [(1, 1), (2, 1)]);
        world.stage.run("update towline_work set ready_at = now()").await;
        assert_eq!(worker.works_on(2).await, [(1, 2), (2, 2)]);
        assert_eq!(world.hinted().await, 0);
    });
}

/// A message that comes twice, comes late, or is of another client causes no pass; one that is no cluster's id is rejected, to where the operator
/// wants it.
#[test]
fn a_message_too_many_causes_no_pass_and_what_is_no_cluster_is_rejected() {
    run(async {
        let world = World::new("strange").await;
        let dead = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (queue, none) =
            (QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() }, FieldTable::default());
        let channel = &world.channel;
        channel.exchange_declare("dead".into(), ExchangeKind::Fanout, dead, none.clone()).await.expect("an exchange");
        channel.queue_declare("dead".into(), queue, none.clone()).await.expect("a queue");
        let binding = QueueBindOptions::default();
        channel.queue_bind("dead".into(), "dead".into(), "".into(), binding, none).await.expect("bound");
        let policy = format!(
            "ok = rabbit_policy:set(<<{:?}>>, <<\"dead\">>, <<{:?}>>, [{{<<\"dead-letter-exchange\">>, <<\"dead\">>}}], 0, \
             <<\"queues\">>, <<\"test\">>).",
            world.vhost, r"^towline\.work\."
        );
        servers::broker().await.eval(&policy).await.expect("a policy");

        let mut worker = world.worker(4).await;
        worker.process.ask(&[1, 2], true).await;
        assert_eq!(worker.works_on(2).await, [(1, 1), (2, 1)]);
        for cluster in [1, 1, 2, 77] {
            world.publish(id::<String>(cluster).as_bytes()).await;
        }
        for junk in [b"junk".as_slice(), &[0xff, 0xfe]] {
            world.publish(junk).await;
        }
        worker.process.ask(&[3], true).await;
        assert_eq!(worker.works().await, (3, 1));
        world.queue_has("all messages to be acknowledged or rejected", (0, 1)).await;
        let mut rejected = Vec::new();
        eventually("what is no cluster to be dead letters", LIMIT, async || {
            let got = channel.basic_get("dead".into(), BasicGetOptions { no_ack: true }).await.expect("an answer");
            rejected.extend(got.map(|letter| letter.delivery.data));
            if rejected.len() == 2 { Ok(()) } else { Err(format!("{rejected:?}")) }
        })
        .await
        .unwrap();
        assert_eq!(rejected, [b"junk".to_vec(), vec![0xff, 0xfe]]);
        assert!(worker.waiting.delivered.try_recv().is_err());
        assert_eq!(world.stage.number("select sum(token)::int8 from towline_work").await, 3, "one pass each");
    });
}

/// A queue that is emptied or deleted delays what was in it until the next look, and serves again.
#[test]
fn a_queue_that_is_purged_or_deleted_loses_no_work() {
    run(async {
        let world = World::new("purged").await;
        let mut worker = world.worker(1).await;
        for deletes in [false, true] {
            // A worker that is busy keeps a few messages, and the others wait.
            worker.process.ask(&[1], true).await;
            let (first, slot) = worker.waiting.next().await;
            worker.process.ask(&(2..=20).collect::<Vec<_>>(), true).await;
            eventually("messages to wait", LIMIT, async || match world.queue().await {
                (waiting, 1) if waiting > 0 => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
            if deletes {
                world.channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("it is deleted");
            } else {
                world.channel.queue_purge(WORK.into(), QueuePurgeOptions::default()).await.expect("it is purged");
            }
            let token = first.token;
            assert_eq!(worker.process.done(first).await, RowEnd::Settled);
            drop(slot);
            let expected: Vec<_> = (2..=20).map(|cluster| (cluster, token)).collect();
            assert_eq!(worker.works_on(19).await, expected);
            world.queue_has("the worker to consume from an empty queue", (0, 1)).await;
        }
        worker.connects().await;
        let before = world.hinted().await;
        eventually("a hint to be of use again", LIMIT, async || {
            worker.process.ask(&[1], true).await;
            worker.works().await;
            if world.hinted().await > before { Ok(()) } else { Err("the look was faster".to_owned()) }
        })
        .await
        .unwrap();
    });
}

/// Messages that wait at a busy worker keep nothing from an idle one.
#[test]
fn what_a_busy_worker_has_received_another_one_works_on() {
    run(async {
        let world = World::new("busy").await;
        let mut busy = world.worker(1).await;
        busy.process.ask(&[1], true).await;
        let first = busy.waiting.next().await;
        busy.process.ask(&[2, 3], true).await;
        world.queue_has("the busy worker to have received the messages", (0, 1)).await;
        let mut idle = world.worker(2).await;
        assert_eq!(idle.works_on(2).await, [(2, 1), (3, 1)]);
        assert_eq!(busy.process.done(first.0).await, RowEnd::Settled);
        drop(first.1);
        busy.process.ask(&[4], false).await;
        // The hints are out of date.
        let (next, _) = tokio::select! { next = busy.works() => next, next = idle.works() => next };
        assert_eq!(next, 4);
        assert!(busy.waiting.delivered.try_recv().is_err() && idle.waiting.delivered.try_recv().is_err());
    });
}

/// However many hints there are, what nobody waits for has the fourth turn.
#[test]
fn hints_leave_the_others_their_turn() {
    run(async {
        let world = World::new("fourth").await;
        let mut worker = world.worker(1).await;
        worker.process.ask(&[100], true).await;
        let (first, slot) = worker.waiting.next().await;
        let hinted: Vec<u64> = (1..=40).collect();
        worker.process.ask(&[200, 201, 202], false).await;
        world.stage.run("update towline_work set ready_at = now() - interval '1 h' where not urgent").await;
        worker.process.ask(&hinted, true).await;
        assert_eq!(worker.process.done(first).await, RowEnd::Settled);
        drop(slot);
        let mut order = Vec::new();
        for _ in 0..12 {
            order.push(worker.works().await.0);
        }
        let others = order.iter().filter(|cluster| **cluster >= 200).count();
        assert_eq!(others, 3, "{order:?}");
    });
}

/// The claim is what counts: who has lost its process keeps its cluster from others until then, whatever is announced.
#[test]
fn what_a_killed_worker_has_claimed_is_worked_on_when_its_claim_ends() {
    run(async {
        let world = World::new("killed").await;
        let mut killed = Worker::start(world.stage.process_lasting(SHORT), 1, &world.url).await;
        killed.process.ask(&[1], true).await;
        let claimed = killed.waiting.next().await;
        let token = claimed.0.token;
        let ends = world.stage.number("select (extract(epoch from until) * 1000)::int8 from towline_work").await;
        // Nothing is handed back.
        drop((killed, claimed));
        let mut other = world.worker(1).await;
        world.publish(id::<String>(1).as_bytes()).await;
        other.process.ask(&[1], true).await;
        assert_eq!(other.works().await, (1, token + 1));
        let now = world.stage.number("select (extract(epoch from clock_timestamp()) * 1000)::int8").await;
        assert!(now > ends, "claimed {} ms before the end of the first claim", ends - now);
    });
}

/// While the bus is switched on or off, replica by replica, workers of both kinds share the work.
#[test]
fn workers_with_and_without_the_broker_share_the_work() {
    run(async {
        const CLUSTERS: u64 = 40;
        let world = World::new("mixed").await;
        let mut over = world.worker(1).await;
        let without = world.stage.process();
        let mut by_database = Waiting::start(&without, 1);
        over.process.ask(&(0..CLUSTERS).collect::<Vec<_>>(), true).await;
        // Each has one that is not at its end when the other one gets its first.
        let mut first = vec![(by_database.next().await, &without), (over.waiting.next().await, &over.process)];
        let mut worked = Vec::new();
        for _ in 0..CLUSTERS {
            let ((work, slot), process) = if let Some(found) = first.pop() {
                found
            } else {
                tokio::select! {
                    work = over.waiting.next() => (work, &over.process),
                    work = by_database.next() => (work, &without),
                }
            };
            assert_eq!(work.token, 1, "nobody else has had it");
            worked.push(number(&work));
            assert_eq!(process.done(work).await, RowEnd::Settled);
            drop(slot);
        }
        worked.sort_unstable();
        assert_eq!(worked, (0..CLUSTERS).collect::<Vec<_>>());
        // What is asked for without the broker, a worker over it finds.
        by_database.running.drained().await;
        without.ask(&[1], true).await;
        assert_eq!(over.works().await, (1, 2));
    });
}
