//! A replica is stopped at any point, and continues long after others have acquired its sections.

use std::time::Duration;

use integration::{eventually, users};
use k8s_openapi::jiff::Timestamp;

use crate::churn::Churn;
use crate::monitor::{Monitor, rfc3339};
use crate::sharing::replicas;
use crate::world::{Company, LIMIT, SECTIONS, World, run};

#[test]
fn a_replica_that_was_paused_sends_nothing_under_its_expired_claims() {
    run(Company::None, async {
        let world = World::shared("frozen", Duration::from_secs(5), Duration::from_millis(1500)).await;
        let monitor = Monitor::start(&world).await;
        let churn = Churn::start(&world, Duration::from_millis(20));
        let replicas = replicas(&world, &monitor, 3).await;
        let frozen = &replicas[0];
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
        tokio::time::sleep(Duration::from_secs(30)).await;
        let others: Vec<&str> = replicas[1..].iter().map(|replica| replica.identity.as_str()).collect();
        monitor.shared(&others, "while one is frozen", LIMIT).await;
        let terms = monitor.terms().await;
        let woke = rfc3339(Timestamp::now());
        frozen.towline.thaw().unwrap();

        // It gets its share again, and until then its user writes nothing: every write is compared with the terms.
        let all: Vec<&str> = replicas.iter().map(|replica| replica.identity.as_str()).collect();
        let shares = monitor.shared(&all, "after it woke", LIMIT).await;
        monitor.running(&shares, "after it woke").await;
        assert_eq!(shares[&frozen.identity].len(), 2, "{shares:?}");
        assert_eq!(monitor.terms().await, terms + 2, "more sections moved than had to");
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
