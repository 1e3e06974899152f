//! Events through faults that are drawn by lot: nothing is missing for a consumer that follows R3 to R5.

use integration::eventually;
use integration::hub::Replica;
use integration::soak::{Random, rounds, seed};
use lapin::types::FieldTable;
use tokio::time::{Duration, sleep, timeout};

use crate::consumer::{Mirror, Queue, list};
use crate::world::{LIMIT, World, create, label, ready, run};

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
}

const ALL: [Fault; 7] = [
    Fault::BrokerKilled,
    Fault::BrokerFrozen,
    Fault::RelayKilled,
    Fault::DatabaseRestarted,
    Fault::RelayFrozen,
    Fault::ConnectionLost,
    Fault::BrokerWiped,
];

async fn happens(fault: Fault, world: &World, replicas: &mut [Replica]) {
    match fault {
        Fault::BrokerKilled => {
            world.broker.kill().await.expect("killed");
            world.broker.start_again().await.expect("started");
        }
        Fault::BrokerFrozen => {
            let frozen = world.broker.freeze().expect("frozen");
            sleep(Duration::from_secs(20)).await;
            drop(frozen);
        }
        Fault::BrokerWiped => world.broker.wipe().await.expect("wiped"),
        Fault::RelayKilled => {
            for replica in replicas {
                replica.start_again().await.expect("started");
                ready(replica).await;
            }
        }
        Fault::RelayFrozen => {
            replicas[0].towline().freeze().expect("frozen");
            sleep(Duration::from_secs(5)).await;
            replicas[0].towline().thaw().expect("thawed");
        }
        Fault::DatabaseRestarted => {
            world.server.kill().await.expect("killed");
            world.server.start_again().await.expect("started");
            for replica in replicas.iter() {
                ready(replica).await;
            }
        }
        Fault::ConnectionLost => {
            world.broker.control(&["close_all_connections", "a test"]).await.expect("closed");
        }
    }
}

/// Test 4 of the specification, for events.
#[test]
fn a_consumer_that_follows_the_rules_misses_nothing_whatever_fails() {
    run(async {
        let mut faults = Random::new(seed()).rounds_of(&ALL);
        let world = World::new("rounds").await;
        let mut replicas = vec![world.relaying().await, world.replica().await];
        let mut mirror = Mirror::default();
        for round in 0..rounds(7) {
            let fault = faults.next().expect("there are some");
            println!("round {round}: {fault:?}");
            let url = world.broker.url();
            // The queue is durable; a consumer that finds it made anew has to list.
            let mut queue = Queue::open(&url, "rounds", FieldTable::default()).await.expect("a queue");
            let mut api = replicas[1].client();
            mirror.list(&mut api).await;
            for number in 0..30 {
                create(&mut api, &format!("r{round}-{number}")).await;
            }
            let writes = async {
                let mut api = replicas[1].client();
                for number in 0..30 {
                    label(&mut api, &format!("r{round}-{number}"), "before").await;
                }
            };
            writes.await;
            happens(fault, &world, &mut replicas).await;
            let mut api = replicas[1].client();
            for number in 0..30 {
                label(&mut api, &format!("r{round}-{number}"), "after").await;
            }
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
