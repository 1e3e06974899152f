//! Who holds the lease, and what a start tells of that.

use integration::users;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::leases::world::{LEASE, LIMIT, POD, World, run};

pub(crate) async fn held_by_another(world: &World, transitions: i32) {
    let lease = json!({
        "metadata": {"name": LEASE},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3, "leaseTransitions": transitions},
    });
    world.leases().create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
}

fn holder(spec: &LeaseSpec) -> (Option<&str>, Option<i32>) {
    (spec.holder_identity.as_deref(), spec.lease_transitions)
}

async fn verbs(world: &World, since: integration::audit::Mark) -> Vec<String> {
    world.requests(since).await.into_iter().map(|request| request.verb).collect()
}

#[test]
fn a_holder_that_is_replaced_raises_the_transitions_and_one_that_returns_does_not() {
    run(async {
        let world = World::shared("transitions", users::TOWLINE).await;
        held_by_another(&world, 3).await;
        world.offer(users::TOWLINE).await;
        world.ready_pod().await;
        let mark = world.mark().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let first = world.renewed_after(Timestamp::now() - LIMIT).await;
        assert_eq!(holder(&first), (Some(POD), Some(4)));
        assert_eq!(verbs(&world, mark).await[..2], ["get", "patch"], "the verification has read it");
        side_car.terminate(LIMIT).await.unwrap();
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let acquired = first.acquire_time.unwrap().0;
        let again = world.renewed_after(Timestamp::now()).await;
        assert!(again.acquire_time.clone().unwrap().0 > acquired, "it was taken anew");
        assert_eq!(holder(&again), (Some(POD), Some(4)));
        // It expires while the pod is not ready, and somebody else takes it.
        world.turn_pod(false).await;
        world.report(&side_car, "a pod that is not ready", |report| report["held"] == false).await;
        world.run_out().await;
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "another", "leaseTransitions": 7}}));
        world.leases().patch(LEASE, &PatchParams::default(), &patch).await.unwrap();
        let mark = world.mark().await;
        world.turn_pod(true).await;
        let spec = world.renewed_after(Timestamp::now()).await;
        assert_eq!(holder(&spec), (Some(POD), Some(8)));
        assert_eq!(verbs(&world, mark).await[..2], ["get", "patch"]);
    });
}

#[test]
fn a_start_tells_only_of_what_lasts() {
    run(async {
        let world = World::shared("start", users::TOWLINE).await;
        world.offer(users::TOWLINE).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        world.renewed_after(Timestamp::now()).await;
        let log = side_car.log().unwrap();
        assert!(log.contains("lease is renewed") && !log.contains("lease is not renewed"), "{log}");
        side_car.terminate(LIMIT).await.unwrap();
        world.put_secret(&[("kubeconfig", &world.kubeconfig(&json!({"token": "nobody"})))]).await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let reason = json!("there are no credentials that work");
        world.report(&side_car, "credentials that do not work", |report| report["not_held_because"] == reason).await;
        let log = side_car.log().unwrap();
        assert!(log.contains("lease is not renewed"), "{log}");
    });
}
