//! Events that the broker does not take, and a bus that is switched off for a time.

use integration::eventually;
use integration::hub::{Client, Replica, Request};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use towline::test_api::amqp::AmqpUrl;

use crate::bus::consumer::{Mirror, Queue, connect, list};
use crate::bus::world::{LIMIT, World, create, label, metric, ready, run, stands};

const CURSOR: &str = "select cursor from towline_claim where name = 'relay'";
const NEWEST: &str = "select max(version) from towline_log";

/// A queue that takes so many messages and refuses further ones.
fn limited(messages: i32) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(messages));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}

async fn nacked(replica: &Replica) {
    eventually("events to be refused", LIMIT, async || {
        match metric(replica, "towline_bus_published_total{outcome=\"nacked\"}").await {
            some if some > 0.0 => Ok(()),
            none => Err(none.to_string()),
        }
    })
    .await
    .unwrap();
}

async fn without_bus(world: &World) -> Replica {
    let replica = Replica::start(&world.place, &[]).await.expect("it starts");
    ready(&replica).await;
    replica
}

/// Handles messages until nothing is missing.
async fn follows(queue: &mut Queue, mirror: &mut Mirror, api: &mut Client) {
    let (expected, _) = list(api).await;
    while mirror.clusters != expected {
        let received = queue.next().await;
        received.ack().await.expect("it is acknowledged");
        if mirror.handle(&received) {
            mirror.list(api).await;
        }
    }
}

/// A refusal is told, however the relay ends that has seen it: a queue may have taken later rows than it has refused, so that they can
/// not be published again.
#[test]
fn what_was_refused_is_told_by_the_next_relay_if_the_first_one_is_killed() {
    run(async {
        let world = World::new("owed").await;
        let mut replica = world.relaying().await;
        let mut queue = Queue::open(&world.url(), "owed", limited(3)).await.expect("a queue");
        let mut api = replica.client();
        // More than the prefetch and the queue hold.
        let mut newest = 0;
        for number in 0..120 {
            newest = create(&mut api, &format!("c{number}")).await;
        }
        nacked(&replica).await;
        stands(&replica, "relay", "away", "refuses events").await;
        // Not before the demand to list is confirmed.
        let cursor = world.number(CURSOR).await;
        assert!(cursor < newest, "{cursor} of {newest}");
        replica.towline().kill9().await.expect("it is killed");
        // There is room again before anybody can demand a list.
        let mut mirror = Mirror::default();
        queue.purge("owed").await;
        while let Some(received) = queue.next_within(std::time::Duration::from_secs(2)).await {
            received.ack().await.expect("it is acknowledged");
            mirror.handle(&received);
        }
        assert_eq!(mirror.relists, 0);
        world.run("update towline_claim set until = now() where name = 'relay'").await;
        replica.start_again().await.expect("it starts");
        ready(&replica).await;
        let mut api = replica.client();
        follows(&mut queue, &mut mirror, &mut api).await;
        assert!(mirror.relists > 0, "{mirror:?}");
        world.relayed().await;
        stands(&replica, "relay", "ready", "").await;
        // Then events follow.
        label(&mut api, "c7", "later").await;
        let relists = mirror.relists;
        follows(&mut queue, &mut mirror, &mut api).await;
        assert_eq!(mirror.relists, relists);
    });
}

/// Rows that the broker refuses are skipped in the midst of many others, as soon as each was sent alone.
#[test]
fn documents_that_the_broker_does_not_take_are_replaced_by_a_demand_to_list() {
    run(async {
        let world = World::alone("toolarge", "max_message_size = 100000").await;
        let writer = without_bus(&world).await;
        let mut api = writer.client();
        for number in 0..150 {
            create(&mut api, &format!("c{number}")).await;
            if (70..72).contains(&number) {
                let path = format!("/v1/clusters/foo/c{number}/status");
                let status = json!({"status": {"text": "x".repeat(200_000)}});
                api.send(&Request::merge_patch(&path, &status)).await.expect("an answer").success().expect("changed");
            }
        }
        // As if all but the first one had come while the broker was away.
        let broker: AmqpUrl = world.url().parse().expect("a URL");
        let first = format!(
            "update towline_claim set cursor = 1 where name = 'relay'; \
             insert into towline_claim (name, holder) values ('relist', '{}')",
            broker.place()
        );
        world.run(&first).await;
        let replica = world.replica().await;
        eventually("all to be published or skipped", LIMIT, async || {
            let (cursor, newest) = (world.number(CURSOR).await, world.number(NEWEST).await);
            if cursor == newest { Ok(()) } else { Err(format!("{cursor} of {newest}")) }
        })
        .await
        .unwrap();
        let skipped = metric(&replica, "towline_bus_published_total{outcome=\"skipped\"}").await;
        assert!((skipped - 2.0).abs() < 0.5, "{skipped}");
        // The first one, and for each of the two one after many rows were on their way and one after it was alone.
        let connections = world.broker.log().expect("the log").matches("client-provided name: towline relay").count();
        assert!(connections <= 5, "{connections} connections");
        let mut queue = Queue::open(&world.url(), "toolarge", FieldTable::default()).await.expect("a queue");
        let mut mirror = Mirror::default();
        mirror.list(&mut api).await;
        label(&mut api, "c71", "small").await;
        label(&mut api, "c0", "small").await;
        // The first one has the large status still; its place is taken once more.
        let mut demands = 0;
        while demands == 0 {
            let received = queue.next().await;
            received.ack().await.expect("it is acknowledged");
            demands += usize::from(mirror.handle(&received));
        }
        mirror.list(&mut api).await;
        follows(&mut queue, &mut mirror, &mut api).await;
    });
}

/// A demand to list for each kind at the first start, and when the versions have another origin.
#[test]
fn consumers_of_all_kinds_list_at_the_first_start_and_after_a_renumbering() {
    run(async {
        let world = World::new("kinds").await;
        let connection = connect(&world.url()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default();
        channel
            .exchange_declare("towline.events".into(), ExchangeKind::Topic, durable, none.clone())
            .await
            .expect("an exchange");
        let (queue, binding) = (QueueDeclareOptions::default(), QueueBindOptions::default());
        channel.queue_declare("relists".into(), queue, none.clone()).await.expect("a queue");
        channel
            .queue_bind("relists".into(), "towline.events".into(), "*.relist".into(), binding, none)
            .await
            .expect("bound");
        let demanded = async || {
            let mut keys = Vec::new();
            eventually("a demand for each kind", LIMIT, async || {
                let options = lapin::options::BasicGetOptions { no_ack: true };
                while let Some(message) = channel.basic_get("relists".into(), options).await.expect("an answer") {
                    keys.push(message.routing_key.to_string());
                }
                if keys.len() >= 5 { Ok(()) } else { Err(format!("{keys:?}")) }
            })
            .await
            .unwrap();
            keys.sort();
            keys
        };
        let all = ["clusters", "clustersyncs", "secrets", "selectorsyncsets", "syncsets"]
            .map(|kind| format!("{kind}.relist"));
        let replica = world.replica().await;
        create(&mut replica.client(), "c1").await;
        assert_eq!(demanded().await, all);
        world.relayed().await;
        world.run("update towline_meta set origin = 'elsewhere'").await;
        assert_eq!(demanded().await, all);
    });
}

/// Between two times with the bus, events wait in the log.
#[test]
fn a_bus_that_was_switched_off_continues_where_it_was() {
    run(async {
        let world = World::new("switched").await;
        let mut on = world.relaying().await;
        let mut queue = Queue::open(&world.url(), "switched", FieldTable::default()).await.expect("a queue");
        let mut mirror = Mirror::default();
        mirror.list(&mut on.client()).await;
        create(&mut on.client(), "on").await;
        world.relayed().await;
        on.towline().terminate(LIMIT).await.expect("it ends");
        let off = without_bus(&world).await;
        for number in 0..20 {
            create(&mut off.client(), &format!("off-{number}")).await;
        }
        off.towline().terminate(LIMIT).await.expect("it ends");
        on.start_again().await.expect("it starts");
        ready(&on).await;
        create(&mut on.client(), "on-again").await;
        follows(&mut queue, &mut mirror, &mut on.client()).await;
        assert_eq!((mirror.relists, mirror.repeated), (0, 0));
        assert_eq!(mirror.handled, world.changes(mirror.listed, mirror.highest).await);
    });
}
