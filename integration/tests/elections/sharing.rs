//! Replicas start and end: sections are shared evenly, move once, and are acquired in time.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::eventually;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

use crate::churn::Churn;
use crate::monitor::Monitor;
use crate::replica::Replica;
use crate::world::{Company, LIMIT, SECTIONS, World, run};

/// Starts replicas and waits until they share the sections.
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
fn sections_are_shared_and_move_no_more_than_they_have_to() {
    run(Company::None, async {
        let world = World::shared("sharing", Duration::from_secs(5), Duration::from_millis(1500)).await;
        let monitor = Monitor::start(&world).await;
        let _churn = Churn::start(&world, Duration::from_millis(100));
        let mut replicas = replicas(&world, &monitor, 3).await;
        let three: Vec<&str> = replicas.iter().map(|replica| replica.identity.as_str()).collect();
        let shares = monitor.shared(&three, "among three", LIMIT).await;
        assert!(shares.values().all(|share| share.len() == 2), "{shares:?}");
        for replica in &replicas {
            replica.towline.wait_ready(LIMIT).await.unwrap();
        }

        // A fourth one joins: one section moves to it, once.
        let before = (monitor.holders().await, monitor.terms().await);
        replicas.push(Replica::start(&world, 3).await);
        let fourth = &replicas[3];
        monitor.add(&fourth.identity, &fourth.towline.admin_url()).await;
        let four: Vec<&str> = replicas.iter().map(|replica| replica.identity.as_str()).collect();
        let shares = monitor.shared(&four, "among four", LIMIT).await;
        monitor.running(&shares, "among four").await;
        assert_eq!(shares[&fourth.identity].len(), 1, "{shares:?}");
        // And stays: nothing moves for two lease durations. This waits for time, because it checks that nothing happens.
        tokio::time::sleep(world.lease * 2).await;
        let after = (monitor.holders().await, monitor.terms().await);
        assert_eq!(after.1, before.1 + 1, "sections moved that had no need to: {:?} {:?}", before.0, after.0);
        let moved = before.0.iter().filter(|(section, holder)| after.0.get(*section) != Some(*holder)).count();
        assert_eq!(moved, 1, "{:?} {:?}", before.0, after.0);

        // It ends by SIGTERM: it releases its section, which another replica acquires at once, before it expires.
        let orphan = shares[&fourth.identity].first().unwrap().clone();
        let releases = monitor.releases_of(&orphan).await;
        fourth.towline.ask_to_end().unwrap();
        runs_elsewhere(&replicas[..3], std::slice::from_ref(&orphan)).await;
        assert_eq!(monitor.releases_of(&orphan).await, releases + 1, "{orphan} was left to expire");
        fourth.terminate().await;
        let shares = monitor.shared(&three_of(&replicas), "among three again", LIMIT).await;

        // One of three is killed: its sections expire, and then run in other replicas.
        let victim = &replicas[0];
        let orphans: Vec<String> = shares[&victim.identity].iter().cloned().collect();
        assert_eq!(orphans.len(), 2, "{shares:?}");
        let terms = monitor.terms().await;
        victim.kill().await;
        runs_elsewhere(&replicas[1..3], &orphans).await;
        assert_eq!(monitor.terms().await, terms + 2, "more sections moved than had to");
        let two: Vec<&str> = replicas[1..3].iter().map(|replica| replica.identity.as_str()).collect();
        let shares = monitor.shared(&two, "among two", LIMIT).await;
        assert!(shares.values().all(|share| share.len() == 3), "{shares:?}");

        // Its own Lease is deleted some time later.
        eventually(format!("the Lease of {} to be gone", victim.identity), LIMIT, async || {
            let leases: Api<Lease> = Api::namespaced(world.edge_client.clone(), &world.name);
            let leases = leases.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let is_its = |lease: &Lease| {
                lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref()) == Some(&victim.identity)
            };
            match leases.iter().find(|lease| is_its(lease)) {
                None => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();

        // A replica refuses orders for a section that it does not run, and names the one that does.
        let (mine, theirs) = (&replicas[1], &replicas[2]);
        let elsewhere = shares[&theirs.identity].first().unwrap();
        let refused = mine.towline.admin().approve(elsewhere).await.unwrap_err().to_string();
        assert!(refused.contains("503") && refused.contains(&theirs.identity), "{refused}");
        let report = mine.towline.admin().section(elsewhere).await.unwrap();
        assert_eq!(report["election"]["holder"], theirs.identity.as_str(), "{report}");
        assert_eq!(report["readiness"]["state"], "ready", "{report}");

        monitor.more_writes(10 * SECTIONS).await;
    });
}

fn three_of(replicas: &[Replica]) -> Vec<&str> {
    replicas[..3].iter().map(|replica| replica.identity.as_str()).collect()
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
