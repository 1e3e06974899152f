//! Another broker's URL, replica by replica: nothing is missing for consumers that have bound to the new broker early.

use std::time::Duration;

use integration::hub::{Client, Replica};
use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::FieldTable;

use crate::bus::consumer::{Mirror, Queue, connect, list};
use crate::bus::world::{LIMIT, World, create, label, run, stands};
use crate::servers;

/// A consumer that has bound to a broker, perhaps before a relay was there.
struct Consumer {
    queue: Queue,
    mirror: Mirror,
}

impl Consumer {
    async fn start(url: &str, api: &mut Client) -> Self {
        let connection = connect(url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default();
        channel
            .exchange_declare("towline.events".into(), ExchangeKind::Topic, durable, none.clone())
            .await
            .expect("an exchange");
        let queue = Queue::open(url, "switching", none).await.expect("a queue");
        let mut mirror = Mirror::default();
        mirror.list(api).await;
        Self { queue, mirror }
    }

    /// Handles messages until nothing is missing, and then what comes within two seconds.
    async fn follows(&mut self, api: &mut Client) {
        let (expected, _) = list(api).await;
        loop {
            let is_equal = self.mirror.clusters == expected;
            let received = if is_equal {
                self.queue.next_within(Duration::from_secs(2)).await
            } else {
                Some(self.queue.next().await)
            };
            let Some(received) = received else { return };
            received.ack().await.expect("it is acknowledged");
            if self.mirror.handle(&received) {
                self.mirror.list(api).await;
            }
        }
    }
}

/// Starts one replica before the other one ends, as a rolling change does.
async fn rolled(world: &World, from: &Replica, url: &str) -> Replica {
    let to = world.replica_at(url).await;
    from.towline().terminate(LIMIT).await.expect("it ends");
    stands(&to, "relay", "ready", "").await;
    to
}

/// Who has bound to the new broker misses what went to the old one, and is told to list once. So is who consumes from the old one when
/// replicas go back to it. Neither a restart nor another connection to the same broker is a change.
#[test]
fn a_change_of_the_broker_is_one_demand_to_list_for_those_that_consume_from_the_new_one() {
    run(async {
        let world = World::new("switching").await;
        // A virtual host is a broker of its own.
        let other_vhost = servers::vhost().await;
        let other = world.broker.url_of(&other_vhost);
        let old = world.relaying().await;
        let mut api = old.client();
        let mut at_old = Consumer::start(&world.url(), &mut api).await;
        let mut at_new = Consumer::start(&other, &mut api).await;
        for number in 0..5 {
            create(&mut api, &format!("old-{number}")).await;
        }
        world.relayed().await;
        at_old.follows(&mut api).await;
        assert_eq!((at_old.mirror.events, at_old.mirror.relists), (5, 0));

        let mut new = rolled(&world, &old, &other).await;
        let mut api = new.client();
        at_new.follows(&mut api).await;
        assert_eq!((at_new.mirror.relists, at_new.mirror.clusters.len()), (1, 6));
        let events = at_new.mirror.events;
        for number in 0..5 {
            label(&mut api, "first", &number.to_string()).await;
            world.relayed().await;
        }
        world.broker.close_connections(&other_vhost).await.expect("closed");
        label(&mut api, "first", "connected-again").await;
        at_new.queue = Queue::open(&other, "switching", FieldTable::default()).await.expect("a queue");
        world.relayed().await;
        new.towline().terminate(LIMIT).await.expect("it ends");
        new.start_again().await.expect("it starts");
        crate::bus::world::ready(&new).await;
        let mut api = new.client();
        label(&mut api, "first", "started-again").await;
        world.relayed().await;
        at_new.follows(&mut api).await;
        assert_eq!((at_new.mirror.relists, at_new.mirror.events - events), (1, 7));
        assert_eq!(at_new.mirror.handled, world.changes(at_new.mirror.listed, at_new.mirror.highest).await);

        let again = rolled(&world, &new, &world.url()).await;
        let mut api = again.client();
        label(&mut api, "first", "back").await;
        at_old.follows(&mut api).await;
        assert_eq!(at_old.mirror.relists, 1);
    });
}
