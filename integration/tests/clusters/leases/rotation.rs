//! Credentials that are rotated while the old ones are revoked.

use std::time::Duration;

use integration::audit::Mark;
use integration::rbac::{LeaseSide, grant_lease, revoke_lease};
use integration::{eventually, users};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::leases::world::{LIMIT, Renewal, World, gaps, run};

/// Renewed every four seconds.
const DURATION: &str = "--lease-duration=12";
/// An interval with its jitter, and what a busy machine needs for an answer: two intervals take more.
const NONE_MISSED: Duration = Duration::from_secs(7);

/// Waits for two renewals by this user since then, and gives all.
async fn renewed_by(world: &World, since: Mark, user: &str) -> Vec<Renewal> {
    eventually(format!("renewals of {} by {user}", world.namespace), LIMIT, async || {
        let renewals = world.renewals(since).await;
        let count = renewals.iter().filter(|renewal| renewal.user == user).count();
        if count >= 2 { Ok(renewals) } else { Err(format!("{renewals:?}")) }
    })
    .await
    .unwrap()
}

#[test]
fn no_renewal_is_missed_when_new_credentials_come_and_the_old_ones_are_revoked() {
    run(async {
        let world = World::shared("rotated", users::TOWLINE).await;
        let (first, second, third) = (users::TOWLINE, users::REPLICA[1], users::REPLICA[2]);
        let grant =
            async |user| grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, user, None).await.unwrap();
        world.offer(first).await;
        world.ready_pod().await;
        let mark = world.mark().await;
        let side_car = world.side_car(&[DURATION]).await;
        renewed_by(&world, mark, first).await;

        // New ones first, then the old ones are revoked.
        grant(second).await;
        world.offer(second).await;
        revoke_lease(&world.hub_admin, &world.namespace, first).await.unwrap();
        renewed_by(&world, mark, second).await;

        // The other way round, within the period.
        grant(third).await;
        let before = world.mark().await;
        world.wait_for_renewals(before, 1).await;
        revoke_lease(&world.hub_admin, &world.namespace, second).await.unwrap();
        world.offer(third).await;
        let renewals = renewed_by(&world, mark, third).await;
        let gaps = gaps(&renewals);
        assert!(gaps.iter().all(|gap| *gap <= NONE_MISSED), "{gaps:?} in {renewals:?}");
        let report = side_car.admin().section(crate::leases::world::LEASE).await.unwrap();
        assert_eq!((&report["held"], &report["credentials_fault"]), (&json!(true), &json!(null)), "{report}");
    });
}

#[test]
fn credentials_that_were_revoked_are_replaced_at_once_when_new_ones_come() {
    run(async {
        let world = World::shared("revoked", users::TOWLINE).await;
        world.ready_pod().await;
        // Long enough for the first renewal, also on a busy machine.
        let certificate = world.hub.client_certificate(users::TOWLINE, Duration::from_secs(15)).unwrap();
        let kubeconfig = world.kubeconfig(&json!({"client-certificate": "tls.crt", "client-key": "tls.key"}));
        let keys = [
            ("kubeconfig", kubeconfig.as_str()),
            ("tls.crt", &certificate.certificate_pem),
            ("tls.key", &certificate.key_pem),
        ];
        world.put_secret(&keys).await;
        // A period is several times the limit of this test: what is not done at once is not done in time.
        let side_car = world.side_car(&["--lease-duration=900"]).await;
        world.renewed_after(Timestamp::now() - LIMIT).await;
        let report = eventually("the credentials to be unknown", LIMIT, async || {
            // A pod that is ready again is a reason to renew.
            world.turn_pod(false).await;
            world.report(&side_car, "a pod that is not ready", |report| report["held"] == false).await;
            world.turn_pod(true).await;
            let has_tried = |report: &serde_json::Value| report["held"] == true || report["failing"].is_object();
            let report = world.report(&side_car, "a renewal", has_tried).await;
            if report["failing"]["kind"] == "unauthorized" { Ok(report) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
        assert_eq!(report["readiness"]["state"], "unreachable", "{report}");
        let mark = world.mark().await;
        world.offer(users::TOWLINE).await;
        world.wait_for_renewals(mark, 1).await;
        world.report(&side_car, "a lease that is held", |report| report["held"] == true).await;
    });
}

#[test]
fn broken_credentials_change_nothing_until_they_are_mended() {
    run(async {
        let world = World::shared("broken", users::TOWLINE).await;
        world.ready_pod().await;
        world.offer(users::TOWLINE).await;
        let mark = world.mark().await;
        let side_car = world.side_car(&[DURATION]).await;
        renewed_by(&world, mark, users::TOWLINE).await;
        for (keys, expected) in [
            (vec![("kubeconfig", "nonsense".to_owned())], "not a kubeconfig"),
            (vec![("kubeconfig", world.kubeconfig(&json!({"token": "nobody's"})))], "does not accept the credentials"),
        ] {
            let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (*key, value.as_str())).collect();
            world.put_secret(&keys).await;
            world
                .report(&side_car, expected, |report| {
                    let fault = report["credentials_fault"].as_str().unwrap_or_default();
                    report["held"] == true && fault.contains(expected)
                })
                .await;
        }
        let during = world.mark().await;
        world.wait_for_renewals(during, 2).await;
        grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, users::REPLICA[1], None).await.unwrap();
        world.offer(users::REPLICA[1]).await;
        let renewals = renewed_by(&world, mark, users::REPLICA[1]).await;
        let gaps = gaps(&renewals);
        assert!(gaps.iter().all(|gap| *gap <= NONE_MISSED), "{gaps:?} in {renewals:?}");
        world.report(&side_car, "no fault", |report| report["credentials_fault"] == json!(null)).await;
    });
}
