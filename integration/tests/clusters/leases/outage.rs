//! A hub that is away.

use integration::users;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::faults::world::mortals;
use crate::leases::world::{LIMIT, World, run};

#[test]
fn a_hub_that_was_away_is_noticed_and_what_was_due_is_renewed_when_it_is_back_and_not_a_period_later() {
    run(async {
        let (_turn, hub, _) = mortals().await;
        let shared = World::shared("outage", users::TOWLINE).await;
        let short = shared.with_hub(hub.clone(), "outage-short").await;
        short.ready_pod().await;
        // By a client certificate, which the new connection shows again.
        let certificate = short.hub.client_certificate(users::TOWLINE, LIMIT * 60).unwrap();
        let kubeconfig = short.kubeconfig(&json!({"client-certificate": "tls.crt", "client-key": "tls.key"}));
        let keys = [
            ("kubeconfig", kubeconfig.as_str()),
            ("tls.crt", &certificate.certificate_pem),
            ("tls.key", &certificate.key_pem),
        ];
        short.put_secret(&keys).await;
        let of_short = short.side_car(&["--lease-duration=3"]).await;
        // A period is several times the limit of this test.
        let long = shared.with_hub(hub, "outage-long").await;
        long.ready_pod().await;
        long.offer(users::TOWLINE).await;
        let of_long = long.side_car(&["--lease-duration=900"]).await;
        short.renewed_after(Timestamp::now()).await;
        long.renewed_after(Timestamp::now() - LIMIT).await;
        short.hub.kill_api_server().await.unwrap();

        // Three periods of a second.
        let is_away = |report: &serde_json::Value| {
            report["held"] == false && report["seconds_since_renewal"].as_f64().is_some_and(|age| age > 3.0)
        };
        let report = short.report(&of_short, "a hub that is away", is_away).await;
        assert_eq!(report["readiness"]["state"], "unreachable", "{report}");
        assert_eq!(of_short.admin().readyz().await.unwrap().status, 200, "an add-on is not unready for its hub");
        // A pod that is ready again is a reason to renew at once.
        long.turn_pod(false).await;
        long.report(&of_long, "a pod that is not ready", |report| report["held"] == false).await;
        long.turn_pod(true).await;
        long.report(&of_long, "a hub that is away", |report| report["failing"].is_object()).await;

        let before = Timestamp::now();
        short.hub.start_api_server().await.unwrap();
        long.renewed_after(before).await;
        short.renewed_after(Timestamp::now()).await;
        short.report(&of_short, "a lease that is held", |report| report["held"] == true).await;
    });
}
