//! A replica joins while others that were just killed still count as alive: it gets its share all the same, once.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

use crate::churn::Churn;
use crate::monitor::Monitor;
use crate::replica::Replica;
use crate::sharing::replicas;
use crate::world::{Company, LIMIT, SECTIONS, World, run};

async fn joins(world: &World, monitor: &Monitor, number: usize) -> Replica {
    let replica = Replica::start(world, number).await;
    monitor.add(&replica.identity, &replica.towline.admin_url()).await;
    replica
}

/// Whether the replica's own Lease still exists.
async fn has_membership(world: &World, replica: &Replica) -> bool {
    let leases: Api<Lease> = Api::namespaced(world.edge_client.clone(), &world.name);
    let members = ListParams::default().labels("towline.dev/election=replica");
    let is_its =
        |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref()) == Some(&replica.identity);
    leases.list(&members).await.unwrap().iter().any(is_its)
}

#[test]
fn a_replica_that_joins_right_after_another_was_killed_gets_its_share_within_a_few_leases_and_nothing_moves_in_vain() {
    run(Company::None, async {
        let world = World::shared("joining", Duration::from_secs(8), Duration::from_millis(2_500)).await;
        let monitor = Monitor::start(&world).await;
        let _churn = Churn::start(&world, Duration::from_millis(100));
        let two = replicas(&world, &monitor, 2).await;

        // One of two is killed, a third joins at once.
        let before = monitor.terms().await;
        two[0].kill().await;
        let third = joins(&world, &monitor, 2).await;
        let living = [two[1].identity.as_str(), third.identity.as_str()];
        monitor.held(&living, "after one of two was killed", world.lease * 4).await;
        let shares = monitor.shared(&living, "among the other and the third", LIMIT).await;
        monitor.running(&shares, "among the other and the third").await;
        let moved = monitor.terms().await - before;
        // Half of them expire, and may go to the replica that has seen them expire, and from there to the one that joined.
        assert!((SECTIONS / 2..=SECTIONS).contains(&moved), "{moved} moves");

        // The other is killed as well, and the third acquires everything. For a fourth the dead replicas count as alive and
        // without sections, and their names come before its own.
        let before = monitor.terms().await;
        two[1].kill().await;
        monitor.held(&living[1..], "by the third alone", world.lease * 4).await;
        assert_eq!(monitor.terms().await - before, SECTIONS / 2, "more sections moved than had to");
        assert!(has_membership(&world, &two[1]).await, "its Lease was deleted before the fourth replica joined");
        let fourth = joins(&world, &monitor, 3).await;
        let living = [third.identity.as_str(), fourth.identity.as_str()];
        let shares = monitor.shared(&living, "among the third and the fourth", LIMIT).await;
        monitor.running(&shares, "among the third and the fourth").await;
        // And stays: nothing moves for two lease durations. This waits for time, because it checks that nothing happens.
        tokio::time::sleep(world.lease * 2).await;
        assert_eq!(monitor.terms().await - before, SECTIONS, "sections moved that had no need to");

        monitor.more_writes(10 * SECTIONS).await;
        fourth.terminate().await;
    });
}
