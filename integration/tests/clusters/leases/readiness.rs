//! The pod's readiness.

use integration::users;
use serde_json::json;

use crate::leases::world::{World, run};

#[test]
fn renewals_stop_with_the_pod_and_resume_with_its_return() {
    run(async {
        let world = World::shared("readiness", users::TOWLINE).await;
        world.offer(users::TOWLINE).await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        // Not there, there and not ready, ready, gone, back, ready, not ready.
        let waits = async |reason: &str| {
            let report = world.report(&side_car, reason, |report| report["not_held_because"] == json!(reason)).await;
            assert_eq!(report["readiness"]["state"], "ready", "the process may be a container of that pod");
        };
        waits("there is no such pod").await;
        world.make_pod().await;
        waits("the pod is not ready").await;
        assert!(world.leases().get_opt(crate::leases::world::LEASE).await.unwrap().is_none());
        for round in 0..2 {
            let mark = world.mark().await;
            world.turn_pod(true).await;
            world.wait_for_renewals(mark, 3).await;
            if round == 0 {
                world.delete_pod().await;
                waits("there is no such pod").await;
            } else {
                world.turn_pod(false).await;
                waits("the pod is not ready").await;
            }
            let mark = world.mark().await;
            world.run_out().await;
            assert_eq!(world.requests(mark).await, []);
            if round == 0 {
                world.make_pod().await;
            }
        }
    });
}
