//! Replicas of the side-car elect one among themselves.

use integration::rbac::{LeaseSide, grant_election, grant_lease};
use integration::{Towline, eventually, users};
use k8s_openapi::jiff::Timestamp;

use crate::leases::world::{LEASE, LIMIT, World, run};

async fn holds(side_car: &Towline) -> bool {
    let metrics = side_car.admin().metrics().await.unwrap();
    metrics.contains("leader_election_master_status{name=\"add-on\"} 1")
}

#[test]
fn of_two_replicas_one_renews_and_the_other_goes_on_when_it_ends() {
    run(async {
        let world = World::shared("elected", users::REPLICA[1]).await;
        grant_election(&world.managed_admin, &world.namespace, Some(users::REPLICAS)).await.unwrap();
        grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, world.user, None).await.unwrap();
        world.offer(world.user).await;
        world.ready_pod().await;
        let flags = ["--lease-duration=3", "--leader-election"];
        let (one, other) = tokio::join!(world.side_car(&flags), world.side_car(&flags));
        world.renewed_after(Timestamp::now()).await;
        let (holder, follower) = eventually("one of two replicas to hold the section", LIMIT, async || {
            match (holds(&one).await, holds(&other).await) {
                (true, false) => Ok((&one, &other)),
                (false, true) => Ok((&other, &one)),
                both => Err(format!("{both:?}")),
            }
        })
        .await
        .unwrap();
        let before = world.mark().await;
        let seen = world.wait_for_renewals(before, 3).await;
        let shared = follower.admin().section(LEASE).await.unwrap();
        assert_eq!(shared["renewals"], 0, "{seen:?} are of the holder alone: {shared}");
        holder.terminate(LIMIT).await.unwrap();
        let ended = Timestamp::now();
        world.renewed_after(ended).await;
        assert!(holds(follower).await);
    });
}
