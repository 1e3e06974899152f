//! What a renewal costs, and when it comes.

use std::time::Duration;

use integration::{Filter, users};
use k8s_openapi::jiff::Timestamp;

use crate::leases::world::{World, gaps, run};

#[test]
fn a_renewal_is_one_request_at_the_hub_and_none_at_the_managed_cluster() {
    run(async {
        // Nobody else is this user, so that every request counts, whatever it is on.
        let world = World::shared("costs", users::REPLICA[0]).await;
        world.offer(world.user).await;
        world.ready_pod().await;
        let begun = world.mark().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let first = world.renewed_after(Timestamp::now()).await;
        world.renewed_after(first.renew_time.unwrap().0).await;
        let of_the_user = |mark| Filter::since(mark).user(world.user).with_watches();
        let at_start = world.hub.audit().unwrap().records(&of_the_user(begun)).await.unwrap();
        assert!(at_start.iter().all(|record| record.resource == "leases"), "nothing is discovered: {at_start:?}");

        let (hub_mark, managed_mark) = (world.mark().await, world.managed.audit().unwrap().mark().await.unwrap());
        world.wait_for_renewals(hub_mark, 10).await;
        let requests = world.hub.audit().unwrap().records(&of_the_user(hub_mark)).await.unwrap();
        let renewals = world.renewals(hub_mark).await;
        assert!(requests.len() >= 10 && requests.iter().all(|record| record.verb == "patch"), "{requests:?}");
        assert!(renewals.len().abs_diff(requests.len()) <= 1, "one more may have arrived between the two looks");
        assert_eq!(world.managed.audit().unwrap().summary(&of_the_user(managed_mark)).await.unwrap(), [].into());

        // A third of the duration, a tenth of that to either side; what is added is how long an answer takes. One that takes long decides nothing.
        let mut gaps = gaps(&renewals);
        gaps.sort();
        let median = gaps[gaps.len() / 2];
        assert!(median >= Duration::from_millis(850) && median <= Duration::from_secs(3), "{gaps:?}");
        assert!(gaps[gaps.len() - 1] >= gaps[0] + Duration::from_millis(20), "jitter spreads them: {gaps:?}");
        drop(side_car);
    });
}
