//! The side-car's command line.

use std::process::Output;

use integration::rbac::{LeaseSide, grant_lease};
use integration::{Towline, programs, users};
use k8s_openapi::jiff::Timestamp;
use tokio::process::Command;

use crate::leases::transitions::held_by_another;
use crate::leases::world::{LEASE, POD, World, run};

/// `kubectl get lease` as somebody who has the hub's role and nothing else.
async fn kubectl(world: &World, path: &str) -> String {
    let output = Command::new(programs::control_plane("kubectl").await.unwrap())
        .arg("--kubeconfig")
        .arg(world.hub.kubeconfig(users::ADMIN).unwrap())
        .args(["--as", world.user, "--namespace", &world.namespace, "get", "lease", LEASE, "--output"])
        .arg(format!("jsonpath={{{path}}}"))
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn flags_with_one_dash_or_two_make_and_renew_the_lease() {
    run(async {
        let world = World::shared("flags", users::TOWLINE).await;
        world.offer(users::TOWLINE).await;
        world.ready_pod().await;
        for dashes in ["-", "--"] {
            let started = Timestamp::now();
            let duration = format!("{dashes}lease-duration");
            let side_car = world.side_car_with(&[&duration, "3"], dashes).await;
            let first = world.renewed_after(started).await;
            assert_eq!(first.lease_duration_seconds, Some(3));
            assert!(first.acquire_time.unwrap().0 >= started, "it was taken anew");
            let next = world.renewed_after(first.renew_time.unwrap().0).await;
            assert_eq!(kubectl(&world, ".spec.holderIdentity").await, POD);
            let shown: Timestamp = kubectl(&world, ".spec.renewTime").await.parse().unwrap();
            assert!(shown >= next.renew_time.unwrap().0, "{shown}");
            let metrics = side_car.admin().metrics().await.unwrap();
            assert!(metrics.contains("towline_lease_held{section=\"add-on\"} 1"), "{metrics}");
            assert_eq!(side_car.admin().readyz().await.unwrap().status, 200);
            let status = side_car.terminate(crate::leases::world::LIMIT).await.unwrap();
            assert!(status.success(), "{status}");
            assert_eq!(world.leases().get(LEASE).await.unwrap().spec.unwrap().holder_identity.as_deref(), Some(POD));
        }
    });
}

#[test]
fn update_is_enough_where_the_hub_does_not_grant_patch_and_replaces_a_holder_as_well() {
    run(async {
        let world = World::shared("updates", users::UNPRIVILEGED).await;
        let verbs = ["get", "create", "update"];
        grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, world.user, Some(&verbs)).await.unwrap();
        held_by_another(&world, 0).await;
        world.offer(users::UNPRIVILEGED).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let start = Timestamp::now();
        let first = world.renewed_after(start).await;
        let next = world.renewed_after(first.renew_time.unwrap().0).await;
        for (holder, transitions) in
            [(first.holder_identity, first.lease_transitions), (next.holder_identity, next.lease_transitions)]
        {
            assert_eq!((holder.as_deref(), transitions), (Some(POD), Some(1)));
        }
        let mark = world.mark().await;
        world.wait_for_renewals(mark, 5).await;
        let requests = world.requests(mark).await;
        assert!(requests.iter().all(|request| request.verb == "update" && request.status == 200), "{requests:?}");
        drop(side_car);
    });
}

/// Runs the side-car with a command line that it refuses.
async fn refused(flags: &[&str]) -> String {
    let output: Output = Towline::command(std::iter::once("lease").chain(flags.iter().copied())).await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{flags:?}: {told}");
    told
}

#[test]
fn a_wrong_command_line_ends_with_code_2_and_names_the_flag() {
    run(async {
        let all = ["-lease-name=a", "-lease-namespace=b", "-hub-kubeconfig-secret=c"];
        // This process has no WATCH_NAMESPACE to hand on.
        let told = refused(&all).await;
        assert!(told.contains("WATCH_NAMESPACE: missing; allowed: "), "{told}");
        let cases: [(&[&str], &str); 8] = [
            (&[], "--lease-name: missing"),
            (&["--lease-name="], "--lease-name: found \"\""),
            (&["--lease-namespace=Hub"], "--lease-namespace: found \"Hub\""),
            (&["--lease-duration=0"], "--lease-duration: found \"0\"; allowed: a whole number of seconds from 1"),
            (&["--lease-duration", "-1"], "--lease-duration: found \"-1\""),
            (&["-startup-delay", "soon"], "--startup-delay: found \"soon\""),
            (&["--metrics-port=99999"], "--metrics-port: found \"99999\""),
            (&["--lease-nam=a"], "--lease-nam"),
        ];
        for (flags, expected) in cases {
            let told = refused(flags).await;
            assert!(told.contains(expected), "{expected} in {told}");
        }
        assert!(refused(&["--lease-name"]).await.contains("--lease-name"));
    });
}
