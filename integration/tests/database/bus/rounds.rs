//! Events through faults that are drawn by lot: nothing is missing for a consumer that follows the rules of docs/bus.md.

use integration::hub::Replica;
use integration::soak::{Random, rounds, seed};
use integration::{Link, eventually};
use lapin::types::FieldTable;
use tokio::time::{Duration, sleep, timeout};

use crate::bus::consumer::{Mirror, Queue, list};
use crate::bus::python::Follower;
use crate::bus::world::{LIMIT, World, create, find, label, ready, run, stands};

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Fault {
    BrokerKilled,
    BrokerFrozen,
    BrokerWiped,
    RelayKilled,
    RelayFrozen,
    DatabaseRestarted,
    ConnectionLost,
    /// No packet between the replicas and the broker arrives.
    Partitioned,
}

const ALL: [Fault; 8] = [
    Fault::Partitioned,
    Fault::BrokerKilled,
    Fault::BrokerFrozen,
    Fault::RelayKilled,
    Fault::DatabaseRestarted,
    Fault::RelayFrozen,
    Fault::ConnectionLost,
    Fault::BrokerWiped,
];

/// In each round so many clusters are made, and changed three times.
const CLUSTERS: usize = 30;

/// Changes each cluster of a round, or a part of them.
async fn change(replica: &Replica, round: u64, clusters: std::ops::Range<usize>, value: &str) {
    let mut api = replica.client();
    for number in clusters {
        label(&mut api, &format!("r{round}-{number}"), value).await;
    }
}

/// Whether a replica holds the claim of the relay, and uses it.
async fn is_relay(replica: &Replica) -> bool {
    let section = replica.towline().admin().section("hub").await.expect("a report");
    find(&section, "connections").is_some_and(|connections| connections["relay"]["state"] == "ready")
}

/// Brings a fault about and ends it. Clusters are changed meanwhile if the hub goes on.
async fn happens(fault: Fault, round: u64, world: &World, link: &Link, replicas: &mut [Replica]) {
    match fault {
        Fault::BrokerKilled => {
            world.broker.kill().await.expect("killed");
            world.broker.start_again().await.expect("started");
        }
        Fault::BrokerFrozen => {
            let frozen = world.broker.freeze().expect("frozen");
            change(&replicas[1], round, 0..CLUSTERS, "during").await;
            sleep(Duration::from_secs(20)).await;
            drop(frozen);
        }
        Fault::Partitioned => {
            link.cut().await.expect("no packet arrives");
            change(&replicas[1], round, 0..CLUSTERS, "during").await;
            sleep(Duration::from_secs(20)).await;
            link.restore().await.expect("packets arrive");
        }
        Fault::BrokerWiped => world.broker.wipe().await.expect("wiped"),
        Fault::RelayKilled => {
            for replica in replicas {
                replica.start_again().await.expect("started");
                ready(replica).await;
            }
        }
        Fault::RelayFrozen => {
            let relay = usize::from(!is_relay(&replicas[0]).await);
            replicas[relay].towline().freeze().expect("frozen");
            change(&replicas[1 - relay], round, 0..CLUSTERS, "during").await;
            // Until the claim has ended and is granted again.
            stands(&replicas[1 - relay], "relay", "ready", "").await;
            change(&replicas[1 - relay], round, 0..CLUSTERS, "by-the-other").await;
            replicas[relay].towline().thaw().expect("thawed");
        }
        Fault::DatabaseRestarted => {
            world.server().kill().await.expect("killed");
            world.server().start_again().await.expect("started");
            for replica in replicas.iter() {
                ready(replica).await;
            }
        }
        Fault::ConnectionLost => {
            world.broker.close_connections("/").await.expect("closed");
        }
    }
}

#[test]
fn a_consumer_that_follows_the_rules_misses_nothing_whatever_fails() {
    run(async {
        let mut faults = Random::new(seed()).rounds_of(&ALL);
        let world = World::alone("rounds", "").await;
        let link = Link::to(world.broker.address()).await.expect("a link");
        let far = world.broker.url_by(link.address());
        let mut replicas = vec![world.replica_at(&far).await, world.replica_at(&far).await];
        create(&mut replicas[0].client(), "first").await;
        world.relayed().await;
        let mut mirror = Mirror::default();
        let follower = Follower::start(&world, &replicas[1]).await;
        for round in 0..rounds(2) {
            let fault = faults.next().expect("there are some");
            println!("round {round}: {fault:?}");
            let url = world.url();
            // The queue is durable; a consumer that finds it made anew has to list.
            let mut queue = Queue::open(&url, "rounds", FieldTable::default()).await.expect("a queue");
            let mut api = replicas[1].client();
            mirror.list(&mut api).await;
            for number in 0..CLUSTERS {
                create(&mut api, &format!("r{round}-{number}")).await;
            }
            change(&replicas[1], round, 0..CLUSTERS, "before").await;
            happens(fault, round, &world, &link, &mut replicas).await;
            change(&replicas[1], round, 0..CLUSTERS / 2, "after").await;
            let mut api = replicas[1].client();
            let (expected, _) = list(&mut api).await;
            let limit = LIMIT.as_secs();
            let begun = tokio::time::Instant::now();
            while mirror.clusters != expected {
                assert!(begun.elapsed().as_secs() < limit, "round {round}: {fault:?}: {mirror:?} is not {expected:?}");
                match timeout(Duration::from_secs(3), queue.try_next()).await {
                    Ok(Ok(received)) => {
                        if mirror.handle(&received) {
                            mirror.list(&mut api).await;
                        }
                        // An acknowledgement that is lost causes a repetition.
                        let _ = received.ack().await;
                    }
                    Err(_)
                        if matches!(
                            fault,
                            Fault::BrokerKilled | Fault::BrokerWiped | Fault::ConnectionLost | Fault::BrokerFrozen
                        ) =>
                    {
                        queue = reopened(&url, "rounds").await;
                        if matches!(fault, Fault::BrokerWiped) {
                            mirror.list(&mut api).await;
                        }
                    }
                    Ok(Err(_)) => {
                        queue = reopened(&url, "rounds").await;
                        if matches!(fault, Fault::BrokerWiped) {
                            mirror.list(&mut api).await;
                        }
                    }
                    Err(_) => {}
                }
            }
            // Each change that no list has brought was handled once, and in order.
            assert_eq!(mirror.handled, world.changes(mirror.listed, mirror.highest).await, "round {round}: {fault:?}");
            // The same for the client in Python.
            let newest = expected.values().max().copied().unwrap_or_default();
            follower.knows(&world, newest, expected.len()).await;
        }
        println!("{} events, {} repeated, {} lists demanded", mirror.events, mirror.repeated, mirror.relists);
    });
}

async fn reopened(url: &str, name: &str) -> Queue {
    eventually("the broker to take the consumer", LIMIT, async || {
        Queue::open(url, name, FieldTable::default()).await.map_err(|error| error.to_string())
    })
    .await
    .unwrap()
}
