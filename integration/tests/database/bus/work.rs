//! Work over the broker, as replicas and operators see it.

use integration::eventually;
use integration::hub::Replica;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ExchangeKind};

use crate::bus::consumer::{Queue, connect};
use crate::bus::world::{LIMIT, SYNCSETS, World, create_unreachable, label, metric, run, stands};

const WORK: &str = "towline.work.clusters";
const CONNECTIONS: [&str; 2] = ["relay", "worker"];
/// Changes of one document while nothing is published. If each was kept for the broker, with all that there is of it, they would take more
/// than [`MORE`].
const CHANGES: usize = 1_000;
const MORE: f64 = (24 << 20) as f64;

/// A replica with workers that uses the broker at this URL.
async fn working(world: &World, url: &str) -> Replica {
    let config = format!("bus = \"amqp\"\namqp_url = {url:?}\n{SYNCSETS}");
    let replica = Replica::run(&world.place, &config, &[]).await.expect("it starts");
    replica.wait_ready(LIMIT).await.expect("it is ready");
    replica
}

/// Replaces a work queue by one of the same name with other arguments. Whoever has lost the queue declares it anew, and may be faster.
async fn replace_queue(connection: &Connection) {
    eventually("the queue to be another one", LIMIT, async || {
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

/// Both connections stand so, for a reason that contains a text.
async fn both_stand(replica: &Replica, state: &str, detail: &str) {
    for connection in CONNECTIONS {
        stands(replica, connection, state, detail).await;
    }
}

/// Creates a cluster, which workers must find out about without the broker.
async fn works(world: &World, replica: &Replica, clusters: &mut i64) {
    *clusters += 1;
    create_unreachable(&mut replica.client(), &format!("c{clusters}")).await;
    world.reconciled(*clusters).await;
}

/// While there is an alarm of memory or disk no message waits in memory; events follow when it is over. If it ends while the database is away,
/// the connection that was blocked is gone with the database's, and the next one never was.
async fn alarms(world: &World, replica: &Replica, clusters: &mut i64) {
    let mut queue = Queue::open(&world.url(), "alarms", FieldTable::default()).await.expect("a queue");
    for is_of_disk in [false, true] {
        let set = async |on| {
            let set = if is_of_disk { world.broker.fill_disk(on).await } else { world.broker.alarm(on).await };
            set.expect("an alarm");
        };
        set(true).await;
        works(world, replica, clusters).await;
        both_stand(replica, "blocked", "memory or disk").await;
        if !is_of_disk {
            let resident = async || metric(replica, "process_resident_memory_bytes ").await;
            let before = resident().await;
            for number in 0..CHANGES {
                label(&mut replica.client(), "c1", &number.to_string()).await;
            }
            let more = resident().await - before;
            assert!(before > 0.0 && more < MORE, "{more} bytes more");
        }
        eventually("the relay to be behind", LIMIT, async || {
            let lag = metric(replica, "towline_oldest_pending_seconds{section=\"hub\",kind=\"events\"}").await;
            if lag > 1.0 { Ok(()) } else { Err(lag.to_string()) }
        })
        .await
        .unwrap();
        set(false).await;
        both_stand(replica, "ready", "").await;
        loop {
            let received = queue.next().await;
            received.ack().await.expect("it is acknowledged");
            if received.body["type"] == "ADDED" && received.body["object"]["name"] == format!("c{clusters}") {
                break;
            }
        }
        world.relayed().await;
    }
    world.broker.alarm(true).await.expect("an alarm");
    works(world, replica, clusters).await;
    both_stand(replica, "blocked", "memory or disk").await;
    world.server().kill().await.expect("it is killed");
    world.broker.alarm(false).await.expect("no alarm");
    world.server().start_again().await.expect("it starts");
    world.relayed().await;
    both_stand(replica, "ready", "").await;
}

/// An exchange or a queue with other arguments, alarms, a broker that is away: `/status` names the reason for each connection, and
/// meanwhile workers reconcile clusters. The broker is used as soon as it can be.
#[test]
fn clusters_are_reconciled_and_events_wait_while_the_broker_can_not_be_used_and_that_is_named() {
    run(async {
        let world = World::alone("unworking", "").await;
        let url = world.url();
        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default();
        channel.exchange_declare("towline.events".into(), ExchangeKind::Direct, options, none).await.expect("declared");
        let replica = working(&world, &url).await;
        stands(&replica, "relay", "refused", "towline.events").await;
        let mut clusters = 0;
        // The dispatcher's first turn is for all clusters, and hints at none.
        works(&world, &replica, &mut clusters).await;
        channel.exchange_delete("towline.events".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
        both_stand(&replica, "ready", "").await;
        world.relayed().await;

        alarms(&world, &replica, &mut clusters).await;

        world.broker.kill().await.expect("it is killed");
        both_stand(&replica, "away", "").await;
        works(&world, &replica, &mut clusters).await;
        world.broker.start_again().await.expect("it starts");
        both_stand(&replica, "ready", "").await;
        world.relayed().await;

        let connection = connect(&url).await.expect("a connection");
        replace_queue(&connection).await;
        world.broker.close_connections("/").await.expect("closed");
        works(&world, &replica, &mut clusters).await;
        stands(&replica, "worker", "refused", WORK).await;
        stands(&replica, "relay", "ready", "").await;
        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.queue_delete(WORK.into(), QueueDeleteOptions::default()).await.expect("deleted");
        both_stand(&replica, "ready", "").await;
        world.relayed().await;
    });
}

/// The account's password is wrong: no connection can be used, the reason is named without the password, and clusters are reconciled all the same.
#[test]
fn clusters_are_reconciled_while_the_broker_refuses_the_credentials() {
    run(async {
        let world = World::new("unwelcome").await;
        let replica = working(&world, &world.url().replace("guest:guest", "guest:canary1234")).await;
        create_unreachable(&mut replica.client(), "c1").await;
        both_stand(&replica, "away", "ACCESS_REFUSED").await;
        world.reconciled(1).await;
        let admin = replica.towline().admin();
        let status = admin.status().await.expect("a report").to_string();
        let log = replica.towline().log().expect("a log");
        let metrics = admin.metrics().await.expect("metrics");
        for text in [status, log, metrics] {
            assert!(!text.contains("canary1234"), "{text}");
        }
    });
}
