//! The API server of the election is down for longer than a lease duration.

use std::time::Duration;

use integration::eventually;

use crate::elections::churn::Churn;
use crate::elections::monitor::Monitor;
use crate::elections::sharing::replicas;
use crate::elections::world::{Company, LIMIT, World, run};

#[test]
fn no_section_runs_while_the_leases_are_out_of_reach_and_none_twice_afterwards() {
    // The API server that it stops is that of all of these tests.
    run(Company::None, async {
        let world = World::shared("outage", Duration::from_secs(4), Duration::from_millis(1300)).await;
        let monitor = Monitor::start(&world).await;
        let _churn = Churn::start(&world, Duration::from_millis(100));
        let replicas = replicas(&world, &monitor, 3).await;
        let written = monitor.more_writes(0).await;
        let before = monitor.holders().await;
        let terms = monitor.terms().await;
        world.edge.kill_api_server().await.unwrap();
        eventually("every section to stop", LIMIT, async || {
            for replica in &replicas {
                let claims = replica.claims().await.ok_or("no answer")?;
                if claims.values().any(|runs| *runs) {
                    return Err(format!("{} runs {claims:?}", replica.identity));
                }
            }
            Ok(())
        })
        .await
        .unwrap();
        // Long enough for a replica that wrongly acquires Leases that no replica can renew.
        tokio::time::sleep(world.lease).await;
        world.edge.start_api_server().await.unwrap();

        let all: Vec<&str> = replicas.iter().map(|replica| replica.identity.as_str()).collect();
        eventually("every section to be acquired again", LIMIT, async || {
            let acquired = monitor.terms().await - terms;
            if acquired >= before.len() { Ok(()) } else { Err(format!("{acquired} were")) }
        })
        .await
        .unwrap();
        let shares = monitor.shared(&all, "after the outage", LIMIT).await;
        monitor.running(&shares, "after the outage").await;
        assert_eq!(monitor.holders().await, before, "sections moved although their replicas are alive");
        // Its former holder acquired each again: one more term for each section.
        assert_eq!(monitor.terms().await, terms + before.len());
        monitor.more_writes(written).await;
    });
}
