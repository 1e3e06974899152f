//! The pod's readiness.

use std::time::Duration;

use integration::users;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::world::{World, between, run};

#[test]
fn renewals_stop_with_the_pod_and_resume_within_a_second_of_its_return() {
    run(async {
        let world = World::shared("readiness", users::TOWLINE).await;
        world.offer(users::TOWLINE).await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        // Not there, there and not ready, ready, not ready, ready, gone, back.
        let waits = async |reason: &str| {
            let report = world.report(&side_car, reason, |report| report["not_held_because"] == json!(reason)).await;
            assert_eq!(report["readiness"]["state"], "ready", "the process may be a container of that pod");
        };
        waits("there is no such pod").await;
        world.make_pod().await;
        waits("the pod is not ready").await;
        assert!(world.leases().get_opt(crate::world::LEASE).await.unwrap().is_none());
        for round in 0..3 {
            let (mark, event) = (world.mark().await, Timestamp::now());
            world.turn_pod(true).await;
            let renewals = world.wait_for_renewals(mark, 3).await;
            let resumed = between(event, renewals[0].at);
            assert!(resumed <= Duration::from_secs(1), "round {round}: {resumed:?} after the event");
            if round == 1 {
                world.delete_pod().await;
                waits("there is no such pod").await;
            } else {
                world.turn_pod(false).await;
                waits("the pod is not ready").await;
            }
            let mark = world.mark().await;
            world.run_out().await;
            assert_eq!(world.requests(mark).await, []);
            if round == 1 {
                world.make_pod().await;
            }
        }
    });
}
