//! Work over the broker, as replicas and operators see it.

use integration::hub::Replica;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection};

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

/// `/status` and the metrics name the reason for each connection. Meanwhile workers visit clusters, and no message waits in memory.
#[test]
fn clusters_are_visited_while_the_broker_takes_nothing_and_that_is_named() {
    run(async {
        let world = World::new("unworking").await;
        let url = world.broker.url();
        let replica = working(&world, &url).await;
        let mut client = replica.client();
        for connection in ["relay", "worker", "announcer"] {
            stands(&replica, connection, "ready", "").await;
        }
        let mut clusters = 0;
        for is_of_disk in [false, true] {
            let set = async |on| {
                let set = if is_of_disk { world.broker.fill_disk(on).await } else { world.broker.alarm(on).await };
                set.expect("an alarm");
            };
            set(true).await;
            clusters += 1;
            create_unreachable(&mut client, &format!("c{clusters}")).await;
            for connection in ["relay", "announcer"] {
                stands(&replica, connection, "blocked", "memory or disk").await;
                assert!(!is_connected(&replica, connection).await, "{connection}");
            }
            world.visited(clusters).await;
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
            for connection in ["relay", "announcer"] {
                stands(&replica, connection, "ready", "").await;
            }
        }

        let connection = connect(&url).await.expect("a connection");
        replace_queue(&connection).await;
        world.broker.control(&["close_all_connections", "--vhost", "/", "a test"]).await.expect("closed");
        clusters += 1;
        create_unreachable(&mut client, &format!("c{clusters}")).await;
        for connection in ["relay", "worker", "announcer"] {
            stands(&replica, connection, "refused", WORK).await;
            assert!(!is_connected(&replica, connection).await, "{connection}");
        }
        world.visited(clusters).await;
        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("deleted");
        for connection in ["relay", "worker", "announcer"] {
            stands(&replica, connection, "ready", "").await;
            assert!(is_connected(&replica, connection).await, "{connection}");
        }
        world.relayed().await;
    });
}

/// The account's password is wrong: no connection can be used, and clusters are visited all the same.
#[test]
fn clusters_are_visited_while_the_broker_refuses_the_credentials() {
    run(async {
        let world = World::new("unwelcome").await;
        let replica = working(&world, &world.broker.url().replace("guest:guest", "guest:canary1234")).await;
        create_unreachable(&mut replica.client(), "c1").await;
        for connection in ["relay", "worker", "announcer"] {
            stands(&replica, connection, "away", "ACCESS_REFUSED").await;
            assert!(!is_connected(&replica, connection).await, "{connection}");
        }
        world.visited(1).await;
        let log = replica.towline().log().expect("a log");
        assert!(!log.contains("canary1234"), "{log}");
    });
}

/// Replicas with syncsets work on what the broker delivers; what no cluster is told of is a dead letter that operators see, requeue and
/// discard.
#[test]
fn clusters_are_visited_and_dead_letters_are_listed_requeued_and_discarded() {
    run(async {
        let world = World::new("working").await;
        let url = world.broker.url();
        let replica = working(&world, &url).await;
        for connection in ["worker", "announcer"] {
            stands(&replica, connection, "ready", "").await;
        }
        create_unreachable(&mut replica.client(), "c1").await;
        world.visited(1).await;

        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let publish = async |queue: &'static str, exchange: &'static str, body: &str| {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            channel
                .basic_publish(exchange.into(), queue.into(), options, body.as_bytes(), properties)
                .await
                .expect("sent");
        };
        publish(WORK, "", "junk\u{1b}[2J").await;
        integration::eventually("the junk to be rejected", LIMIT, async || {
            match metric(&replica, "towline_bus_dead_total").await {
                count if count > 0.5 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await
        .unwrap();
        let id = world.text("select id::text from clusters").await;
        publish("", "towline.dead", &id).await;
        let command = async |arguments: &[&str]| world.dead_letters(&url, arguments).await;
        let listed = integration::eventually("both to be listed", LIMIT, async || match command(&[]).await {
            (Some(0), text) if text.lines().count() == 2 => Ok(text),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        assert!(listed.contains("rejected  towline.work.clusters  junk\\u{1b}[2J"), "{listed}");
        assert!(listed.contains(&id), "{listed}");
        // The other one came past all replicas, as what the broker gives up after too many deliveries.
        integration::eventually("both to be counted as dead letters", LIMIT, async || {
            match metric(&replica, "towline_bus_dead_letters").await {
                count if (count - 2.0).abs() < 0.5 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await
        .unwrap();
        assert!((metric(&replica, "towline_bus_dead_total").await - 1.0).abs() < 0.5);
        let wanted = "select coalesce(sum(wanted), 0)::bigint from towline_work";
        let before = world.number(wanted).await;
        let (code, text) = command(&["requeue"]).await;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("1 dead letters requeued") && text.contains("1 dead letters name no cluster"), "{text}");
        assert!(world.number(wanted).await > before);
        let (code, text) = command(&["discard"]).await;
        assert_eq!((code, text.as_str()), (Some(0), "1 dead letters discarded\n"));
        let (code, text) = command(&[]).await;
        assert_eq!((code, text.as_str()), (Some(0), "there are no dead letters\n"));
    });
}
