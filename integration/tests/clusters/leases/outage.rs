//! A hub that is away, and a lease that somebody deletes.

use integration::users;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::json;

use crate::leases::world::{LEASE, LIMIT, World, run};

#[test]
fn a_hub_that_was_away_for_periods_is_noticed_and_renewed_again() {
    run(async {
        let world = Box::pin(World::with_own_hub("outage", users::TOWLINE)).await;
        world.ready_pod().await;
        // By a client certificate, which the new connection shows again.
        let certificate = world.hub.client_certificate(users::TOWLINE, LIMIT * 60).unwrap();
        let kubeconfig = world.kubeconfig(&json!({"client-certificate": "tls.crt", "client-key": "tls.key"}));
        let keys = [
            ("kubeconfig", kubeconfig.as_str()),
            ("tls.crt", &certificate.certificate_pem),
            ("tls.key", &certificate.key_pem),
        ];
        world.put_secret(&keys).await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        world.renewed_after(Timestamp::now()).await;
        world.hub.kill_api_server().await.unwrap();
        // Three periods of a second.
        let is_away = |report: &serde_json::Value| {
            report["held"] == false && report["seconds_since_renewal"].as_f64().is_some_and(|age| age > 3.0)
        };
        let report = world.report(&side_car, "a hub that is away", is_away).await;
        assert_eq!(report["readiness"]["state"], "unreachable", "{report}");
        assert_eq!(side_car.admin().readyz().await.unwrap().status, 200, "an add-on is not unready for its hub");
        world.hub.start_api_server().await.unwrap();
        world.renewed_after(Timestamp::now()).await;
        world.report(&side_car, "a lease that is held", |report| report["held"] == true).await;
    });
}

#[test]
fn what_was_due_while_the_hub_was_away_is_renewed_when_it_is_back_and_not_a_period_later() {
    run(async {
        let world = Box::pin(World::with_own_hub("return", users::TOWLINE)).await;
        world.ready_pod().await;
        world.offer(users::TOWLINE).await;
        // A period is several times the limit of this test.
        let side_car = world.side_car(&["--lease-duration=900"]).await;
        world.renewed_after(Timestamp::now() - LIMIT).await;
        world.hub.kill_api_server().await.unwrap();
        // A pod that is ready again is a reason to renew at once.
        world.turn_pod(false).await;
        world.report(&side_car, "a pod that is not ready", |report| report["held"] == false).await;
        world.turn_pod(true).await;
        world.report(&side_car, "a hub that is away", |report| report["failing"].is_object()).await;
        let before = Timestamp::now();
        world.hub.start_api_server().await.unwrap();
        world.renewed_after(before).await;
    });
}

#[test]
fn a_lease_that_was_deleted_is_back_with_the_next_renewal() {
    run(async {
        let world = World::shared("deleted", users::TOWLINE).await;
        world.ready_pod().await;
        world.offer(users::TOWLINE).await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        world.renewed_after(Timestamp::now()).await;
        let mark = world.mark().await;
        world.leases().delete(LEASE, &DeleteParams::default()).await.unwrap();
        let spec = world.renewed_after(Timestamp::now()).await;
        assert_eq!(spec.holder_identity.as_deref(), Some(crate::leases::world::POD));
        let requests = world.requests(mark).await;
        let made = requests.iter().position(|request| request.verb == "create").unwrap();
        assert_eq!((requests[made - 1].verb.as_str(), requests[made - 1].status), ("patch", 404), "in the same turn");
        let missed = requests.iter().filter(|request| request.status == 404).count();
        assert_eq!(missed, 1, "the first renewal that found nothing did not make it: {requests:?}");
        assert!(side_car.log().unwrap().lines().all(|line| !line.contains("ERROR")));
    });
}
