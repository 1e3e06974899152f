//! A replica is stopped at any point, and continues long after others have acquired its sections.

use std::time::Duration;

use integration::{eventually, users};
use k8s_openapi::jiff::Timestamp;

use crate::elections::churn::Churn;
use crate::elections::monitor::{Monitor, rfc3339};
use crate::elections::sharing::replicas;
use crate::elections::world::{Company, LIMIT, SECTIONS, World, run};

#[test]
fn a_replica_that_was_paused_sends_nothing_under_its_expired_claims() {
    run(Company::None, async {
        let world = World::shared("frozen", Duration::from_secs(5), Duration::from_millis(1500)).await;
        let monitor = Monitor::start(&world).await;
        let churn = Churn::start(&world, Duration::from_millis(50));
        let mut others = replicas(&world, &monitor, 3).await;
        let holders = monitor.holders().await;
        let frozen =
            others.iter().position(|replica| holders.values().any(|holder| *holder == replica.identity)).unwrap();
        let frozen = others.remove(frozen);
        eventually("the replica to write something", LIMIT, async || {
            if monitor.writes_of(frozen.user).await.is_empty() { Err("nothing".to_owned()) } else { Ok(()) }
        })
        .await
        .unwrap();
        // The reads that a section makes only at its first start have to be done.
        let admin = world.edge.client(users::ADMIN).await.unwrap();
        for section in world.sections() {
            integration::settings_noted(&admin, &world.name, &section, LIMIT).await.unwrap();
        }
        frozen.towline.freeze().unwrap();
        let awake: Vec<&str> = others.iter().map(|replica| replica.identity.as_str()).collect();
        monitor.shared(&awake, "while one is frozen", LIMIT).await;
        // Long after that, by a clock that counts in leases.
        tokio::time::sleep(world.lease).await;
        let woke = rfc3339(Timestamp::now());
        frozen.towline.thaw().unwrap();

        // The others end, and it gets all sections. Until then its user writes nothing: every write is compared with the terms.
        frozen.towline.wait_ready(LIMIT).await.unwrap();
        for other in &others {
            other.terminate().await;
        }
        let shares = monitor.shared(&[&frozen.identity], "after it woke", LIMIT).await;
        monitor.running(&shares, "after it woke").await;
        let before = eventually("the replica to read something again", LIMIT, async || {
            let (before, after) = monitor.reads_around_a_claim(frozen.user, &frozen.identity, &woke).await;
            if after.is_empty() { Err(format!("only {before:#?}")) } else { Ok(before) }
        })
        .await
        .unwrap();
        assert!(before.is_empty(), "read without a claim, after it woke at {woke}: {before:#?}");
        drop(churn);
        let writes = monitor.check_writes().await;
        assert!(writes > 10 * SECTIONS, "{writes} writes are too few to show anything");
    });
}
