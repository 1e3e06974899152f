//! What the relay publishes.

use std::time::Duration;

use integration::hub::Request;
use lapin::types::{AMQPValue, FieldTable};

use crate::bus::consumer::{Mirror, Queue};
use crate::bus::world::{World, create, label, leaves, metric, run, stands};

/// Each change is published once and in order, as a persistent message that says what it is about and shows no secret.
#[test]
fn each_change_is_published_once_and_in_order() {
    run(async {
        let world = World::new("changes").await;
        let replica = world.relaying().await;
        stands(&replica, "relay", "ready", "").await;
        let mut queue = Queue::open(&world.url(), "changes", FieldTable::default()).await.expect("a queue");
        let mut api = replica.client();
        let mut versions = vec![create(&mut api, "c1").await];
        for value in 0..20 {
            versions.push(label(&mut api, "c1", &value.to_string()).await);
        }
        api.send(&Request::delete("/v1/clusters/foo/c1")).await.expect("an answer").success().expect("deleted");
        for (number, version) in versions.iter().enumerate() {
            let received = queue.next().await;
            assert_eq!(received.message_id, Some(*version));
            let kind = if number == 0 { "added" } else { "modified" };
            assert_eq!(received.routing_key, format!("clusters.{kind}"));
            assert_eq!(received.body["type"], kind.to_uppercase());
            assert_eq!(received.body["object"]["resourceVersion"], version.to_string());
            assert!(received.is_persistent && !received.body.to_string().contains("hunter2"));
            let header = |name: &str| received.headers[name].clone();
            assert_eq!(["kind", "namespace", "name"].map(header), ["Cluster", "foo", "c1"]);
            assert_eq!(received.body["object"]["id"], header("id"));
            received.ack().await.expect("it is acknowledged");
        }
        let removed = queue.next().await;
        assert_eq!((removed.routing_key.as_str(), &removed.body["type"]), ("clusters.deleted", &"DELETED".into()));
        assert!(queue.next_within(Duration::from_secs(2)).await.is_none());
        world.relayed().await;
        assert!(metric(&replica, "towline_bus_published_total{outcome=\"confirmed\"}").await >= 22.0);
    });
}

/// A relay whose claim has passed on moves no cursor, although it has published.
#[test]
fn a_relay_that_was_replaced_moves_no_cursor() {
    run(async {
        let world = World::new("replaced").await;
        let replica = world.relaying().await;
        let mut queue = Queue::open(&world.url(), "replaced", FieldTable::default()).await.expect("a queue");
        let mut api = replica.client();
        let cursor = "select cursor from towline_claim where name = 'relay'";
        let before = world.number(cursor).await;
        world
            .run("update towline_claim set holder = 'other', token = token + 1, until = now() + interval '1 h' where name = 'relay'")
            .await;
        // Its fence is still open, or has closed by the time: it may publish once.
        create(&mut api, "c1").await;
        queue.next_within(Duration::from_secs(10)).await;
        // By then its renewal has said that the claim is lost.
        leaves(&replica, "relay").await;
        create(&mut api, "c2").await;
        assert!(queue.next_within(Duration::from_secs(3)).await.is_none(), "it publishes nothing any more");
        assert_eq!(world.number(cursor).await, before);
    });
}

/// A queue that takes no more messages gets a demand to list as soon as it does; the cursor waits for that.
#[test]
fn what_a_full_queue_refuses_is_replaced_by_a_demand_to_list() {
    run(async {
        let world = World::new("nacks").await;
        let replica = world.relaying().await;
        let mut limited = FieldTable::default();
        limited.insert("x-max-length".into(), AMQPValue::LongInt(3));
        limited.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let mut queue = Queue::open(&world.url(), "nacks", limited).await.expect("a queue");
        let mut api = replica.client();
        world.relayed().await;
        // The prefetch is larger than the queue, so that it fills up behind what is not acknowledged.
        for number in 0..120 {
            create(&mut api, &format!("c{number}")).await;
        }
        integration::eventually("events to be refused", crate::bus::world::LIMIT, async || {
            let nacked = metric(&replica, "towline_bus_published_total{outcome=\"nacked\"}").await;
            if nacked > 0.0 { Ok(()) } else { Err(nacked.to_string()) }
        })
        .await
        .unwrap();
        let mut mirror = Mirror::default();
        while mirror.relists == 0 {
            let received = queue.next().await;
            received.ack().await.expect("it is acknowledged");
            mirror.handle(&received);
        }
        world.relayed().await;
        mirror.list(&mut api).await;
        assert_eq!(mirror.clusters.len(), 121);
        queue.purge("nacks").await;
    });
}

/// 4 MiB go through, and nothing is held up behind.
#[test]
fn the_largest_document_is_an_event_like_any_other() {
    run(async {
        let world = World::new("large").await;
        let replica = world.replica_at(&world.broker.tls_url().replace("%2F", &world.vhost)).await;
        stands(&replica, "relay", "ready", "").await;
        let mut queue = Queue::open(&world.url(), "large", FieldTable::default()).await.expect("a queue");
        let mut api = replica.client();
        create(&mut api, "c1").await;
        let status = serde_json::json!({"status": {"text": "x".repeat(4_000_000)}});
        let large = api.send(&Request::merge_patch("/v1/clusters/foo/c1/status", &status)).await.expect("an answer");
        let version = large.success().expect("changed").version().expect("a version").cast_signed();
        let next = create(&mut api, "c2").await;
        let mut sizes = Vec::new();
        loop {
            let received = queue.next().await;
            sizes.push(received.body.to_string().len());
            received.ack().await.expect("it is acknowledged");
            match received.message_id {
                Some(id) if id == version => assert!(sizes.last() > Some(&4_000_000)),
                Some(id) if id == next => break,
                _ => {}
            }
        }
    });
}
