//! Replicas start and end: sections are shared, move only when their replica ends, and are acquired in time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use integration::eventually;

use crate::elections::churn::Churn;
use crate::elections::monitor::Monitor;
use crate::elections::replica::Replica;
use crate::elections::world::{Company, LIMIT, SECTIONS, World, run};

/// Starts replicas and waits until they hold all sections.
pub(crate) async fn replicas(world: &World, monitor: &Monitor, count: usize) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for number in 0..count {
        replicas.push(Replica::start(world, number).await);
    }
    for replica in &replicas {
        monitor.add(&replica.identity, &replica.towline.admin_url()).await;
    }
    let identities: Vec<&str> = replicas.iter().map(|replica| replica.identity.as_str()).collect();
    let shares = monitor.shared(&identities, "at first", LIMIT).await;
    monitor.running(&shares, "at first").await;
    replicas
}

#[test]
fn every_section_is_held_and_one_that_runs_does_not_move() {
    run(Company::None, async {
        let world = World::shared("sharing", Duration::from_secs(15), Duration::from_secs(3)).await;
        let monitor = Monitor::start(&world).await;
        let _churn = Churn::start(&world, Duration::from_millis(100));
        let mut replicas = replicas(&world, &monitor, 3).await;
        for replica in &replicas {
            replica.towline.wait_ready(LIMIT).await.unwrap();
        }

        // A fourth one joins: nothing moves for a lease duration. This waits for time, because it checks that nothing happens.
        let before = (monitor.holders().await, monitor.terms().await);
        replicas.push(Replica::start(&world, 3).await);
        let fourth = &replicas[3];
        monitor.add(&fourth.identity, &fourth.towline.admin_url()).await;
        fourth.towline.wait_ready(LIMIT).await.unwrap();
        tokio::time::sleep(world.lease).await;
        assert_eq!((monitor.holders().await, monitor.terms().await), before, "a section moved");

        // One ends by SIGTERM: it releases its sections, and others acquire them before they would have expired.
        let (leaving, orphans) = take_one_that_holds(&mut replicas, &before.0);
        let releases = monitor.releases_of(&orphans[0]).await;
        leaving.towline.ask_to_end().unwrap();
        runs_elsewhere(&replicas, &orphans).await;
        assert_eq!(monitor.releases_of(&orphans[0]).await, releases + 1, "{orphans:?} were left to expire");
        leaving.terminate().await;
        monitor.shared(&identities(&replicas), "among three again", LIMIT).await;
        assert_eq!(monitor.terms().await, before.1 + orphans.len(), "more sections moved than had to");

        // One is killed: its sections expire, and then run in other replicas.
        let (holders, terms) = (monitor.holders().await, monitor.terms().await);
        let (victim, orphans) = take_one_that_holds(&mut replicas, &holders);
        victim.kill().await;
        runs_elsewhere(&replicas, &orphans).await;
        assert_eq!(monitor.terms().await, terms + orphans.len(), "more sections moved than had to");
        let shares = monitor.shared(&identities(&replicas), "among two", LIMIT).await;
        monitor.running(&shares, "among two").await;

        // A replica refuses orders for a section that it does not run, and names the one that does.
        let theirs = usize::from(shares[&replicas[0].identity].is_empty());
        let (mine, theirs) = (&replicas[1 - theirs], &replicas[theirs]);
        let elsewhere = shares[&theirs.identity].first().unwrap();
        let refused = mine.towline.admin().approve(elsewhere).await.unwrap_err().to_string();
        assert!(refused.contains("503") && refused.contains(&theirs.identity), "{refused}");
        let report = mine.towline.admin().section(elsewhere).await.unwrap();
        assert_eq!(report["election"]["holder"], theirs.identity.as_str(), "{report}");
        assert_eq!(report["readiness"]["state"], "ready", "{report}");

        monitor.more_writes(10 * SECTIONS).await;
    });
}

fn identities(replicas: &[Replica]) -> Vec<&str> {
    replicas.iter().map(|replica| replica.identity.as_str()).collect()
}

/// Takes a replica out that holds sections, and says which.
fn take_one_that_holds(replicas: &mut Vec<Replica>, holders: &BTreeMap<String, String>) -> (Replica, Vec<String>) {
    let holder = holders.values().next().unwrap();
    let place = replicas.iter().position(|replica| replica.identity == *holder).unwrap();
    let held = holders.iter().filter(|(_, other)| *other == holder).map(|(section, _)| section.clone());
    (replicas.remove(place), held.collect())
}

/// Waits until each of these sections has run in one of the replicas.
async fn runs_elsewhere(replicas: &[Replica], sections: &[String]) {
    let mut seen: BTreeSet<&String> = BTreeSet::new();
    eventually(format!("{sections:?} to run elsewhere"), LIMIT, async || {
        for replica in replicas {
            let claims = replica.claims().await.unwrap_or_default();
            seen.extend(sections.iter().filter(|section| claims.get(*section) == Some(&true)));
        }
        if seen.len() == sections.len() { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await
    .unwrap();
}
