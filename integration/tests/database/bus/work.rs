//! Work over the broker, as replicas and operators see it.

use integration::hub::Replica;
use lapin::Connection;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use crate::bus::consumer::connect;
use crate::bus::world::{LIMIT, SYNCSETS, World, create_unreachable, label, metric, run, stands};

const WORK: &str = "towline.work.clusters";
/// Changes of one document while nothing is published. If each was kept for the broker, with all that there is of it, they would take more
/// than [`MORE`].
const CHANGES: usize = 2_000;
const MORE: f64 = (48 << 20) as f64;

/// A replica with workers that uses the broker at this URL.
async fn working(world: &World, url: &str) -> Replica {
    let config = format!("bus = \"amqp\"\namqp_url = {url:?}\n{SYNCSETS}");
    let replica = Replica::run(&world.place, &config, &[]).await.expect("it starts");
    replica.wait_ready(LIMIT).await.expect("it is ready");
    replica
}

async fn is_connected(replica: &Replica, connection: &str) -> bool {
    metric(replica, &format!("towline_bus_connected{{connection=\"{connection}\"}}")).await > 0.5
}

/// Replaces a work queue by one of the same name with other arguments. Whoever has lost the queue declares it anew, and may be faster.
async fn replace_queue(connection: &Connection) {
    integration::eventually("the queue to be another one", LIMIT, async || {
        let channel = connection.create_channel().await.map_err(|error| error.to_string())?;
        let deleted = channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await;
        deleted.map_err(|error| error.to_string())?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(WORK.into(), durable, FieldTable::default()).await;
        declared.map(|_| ()).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

/// `/status` and the metrics name the reason for each connection. Meanwhile workers reconcile clusters, and no message waits in memory.
#[test]
fn clusters_are_reconciled_while_the_broker_takes_nothing_and_that_is_named() {
    run(async {
        let world = World::alone("unworking", "").await;
        let url = world.url();
        let replica = working(&world, &url).await;
        let mut client = replica.client();
        for connection in ["relay", "worker"] {
            stands(&replica, connection, "ready", "").await;
        }
        // The dispatcher's first turn is for all clusters, and hints at none.
        create_unreachable(&mut client, "c1").await;
        world.reconciled(1).await;
        let mut clusters = 1;
        for is_of_disk in [false, true] {
            let set = async |on| {
                let set = if is_of_disk { world.broker.fill_disk(on).await } else { world.broker.alarm(on).await };
                set.expect("an alarm");
            };
            set(true).await;
            clusters += 1;
            create_unreachable(&mut client, &format!("c{clusters}")).await;
            for connection in ["relay", "worker"] {
                stands(&replica, connection, "blocked", "memory or disk").await;
                assert!(!is_connected(&replica, connection).await, "{connection}");
            }
            world.reconciled(clusters).await;
            if !is_of_disk {
                let resident = async || metric(&replica, "process_resident_memory_bytes ").await;
                let before = resident().await;
                for number in 0..CHANGES {
                    label(&mut client, "c1", &number.to_string()).await;
                }
                let more = resident().await - before;
                assert!(before > 0.0 && more < MORE, "{more} bytes more");
            }
            set(false).await;
            for connection in ["relay", "worker"] {
                stands(&replica, connection, "ready", "").await;
            }
        }

        let connection = connect(&url).await.expect("a connection");
        replace_queue(&connection).await;
        world.broker.control(&["close_all_connections", "--vhost", "/", "a test"]).await.expect("closed");
        clusters += 1;
        create_unreachable(&mut client, &format!("c{clusters}")).await;
        stands(&replica, "worker", "refused", WORK).await;
        assert!(!is_connected(&replica, "worker").await);
        stands(&replica, "relay", "ready", "").await;
        world.reconciled(clusters).await;
        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("deleted");
        for connection in ["relay", "worker"] {
            stands(&replica, connection, "ready", "").await;
            assert!(is_connected(&replica, connection).await, "{connection}");
        }
        world.relayed().await;
    });
}

/// The account's password is wrong: no connection can be used, and clusters are reconciled all the same.
#[test]
fn clusters_are_reconciled_while_the_broker_refuses_the_credentials() {
    run(async {
        let world = World::new("unwelcome").await;
        let replica = working(&world, &world.url().replace("guest:guest", "guest:canary1234")).await;
        create_unreachable(&mut replica.client(), "c1").await;
        for connection in ["relay", "worker"] {
            stands(&replica, connection, "away", "ACCESS_REFUSED").await;
            assert!(!is_connected(&replica, connection).await, "{connection}");
        }
        world.reconciled(1).await;
        let log = replica.towline().log().expect("a log");
        assert!(!log.contains("canary1234"), "{log}");
    });
}
