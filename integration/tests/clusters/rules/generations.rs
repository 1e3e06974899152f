//! `observedGeneration` in a status, for those who compare it with the generation of the remote object.

use std::process::Stdio;

use integration::rbac::{Grant, Side};
use integration::{ControlPlane, users};
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::rules_world::*;

fn status(top: i64, ready: i64) -> Value {
    json!({"observedGeneration": top, "conditions": [
        {"type": "Ready", "status": "True", "observedGeneration": ready},
        {"type": "Backup", "status": "True"},
    ]})
}

fn generation(object: &DynamicObject) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

#[test]
fn translated_generations_are_those_of_the_remote_object_and_never_ahead_of_what_the_edge_has_observed() {
    run(async {
        let settings = "observed_generation = \"translate\"\nlocal_fields = [\"/spec/own\"]";
        let section = Section::start("translated", documents(), settings).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "report", &json!({"spec": {"n": 1, "own": 0}})).await;
        section.local_has("a", "report", |_| true).await;
        // The two sides do not count alike.
        for own in 1..4 {
            section.patch_local("a", "report", &json!({"spec": {"own": own}})).await;
        }
        assert_eq!(generation(&section.local_has("a", "report", |_| true).await), 4);
        let shows = async |top: i64, ready: i64| {
            let expected = status(top, ready);
            section.remote_has("a", "report", |remote| remote.data.get("status") == Some(&expected)).await
        };
        section.patch_local_status("a", "report", &status(4, 4)).await;
        assert_eq!(generation(&shows(1, 1).await), 1);
        let remote = section.patch_remote("a", "report", &json!({"spec": {"n": 2}})).await;
        assert_eq!(generation(&remote), 2);
        let local = section.local_has("a", "report", |local| local.data["spec"]["n"] == 2).await;
        assert_eq!(generation(&local), 5);
        section.quiet().await;
        let before = shows(1, 1).await;
        assert_eq!(before.annotations().get(&mark("sync-local-generation")).map(String::as_str), Some("5"));
        section.patch_local_status("a", "report", &status(5, 4)).await;
        shows(2, 1).await;
        section.patch_local_status("a", "report", &status(5, 5)).await;
        shows(2, 2).await;
        // A change of the edge's own is not observed yet, and no news for the hub.
        section.patch_local("a", "report", &json!({"spec": {"own": 9}})).await;
        section.quiet().await;
        shows(2, 2).await;
        section.patch_local_status("a", "report", &status(6, 6)).await;
        section.quiet().await;
        shows(2, 2).await;
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])));
    });
}

/// How long a kubectl waits: longer than all that is waited for meanwhile.
const LONG: &str = "10m";

/// kubectl as somebody runs it who works with the hub.
async fn kubectl(hub: &ControlPlane, section: &Place, args: &[&str]) -> Command {
    let mut command = hub.kubectl(users::HUB_USER).await.unwrap();
    command.args(["--namespace", &section.namespace("a")]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a kubectl that was started before says in the end, with success.
async fn ends_well(waiting: Child) -> String {
    let output = waiting.wait_with_output().await.unwrap();
    let told = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "{told}");
    told
}

#[test]
fn kubectl_wait_on_the_hub_ends_when_the_edge_has_observed_the_change_and_not_before() {
    run(async {
        let settings = "observed_generation = \"translate\"\nlocal_fields = [\"/spec/own\"]";
        let section = Section::start("waited-for", documents(), settings).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "report", &json!({"spec": {"n": 1, "own": 0}})).await;
        section.local_has("a", "report", |_| true).await;
        // The edge counts further than the hub; so its own number would satisfy kubectl too early.
        for own in 1..4 {
            section.patch_local("a", "report", &json!({"spec": {"own": own}})).await;
        }
        section.patch_local_status("a", "report", &status(4, 4)).await;
        section.remote_has("a", "report", |remote| remote.data.get("status") == Some(&status(1, 1))).await;
        let hub = &section.world.hub;
        // One condition has a generation of its own, for the other that of the status counts.
        let conditions = ["Ready", "Backup"];
        let wait = async |condition: &str, timeout: &str| {
            let condition = format!("--for=condition={condition}");
            kubectl(hub, &section, &["wait", &condition, &format!("--timeout={timeout}"), "document/report"]).await
        };
        let is_met = async |condition: &str| {
            let output = wait(condition, "0").await.output().await.unwrap();
            let told = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success() || told.contains("condition not met"), "{told}");
            output.status.success()
        };
        for condition in conditions {
            assert!(is_met(condition).await, "{condition}");
        }
        section.patch_remote("a", "report", &json!({"spec": {"n": 2}})).await;
        let mut waiting = Vec::new();
        for condition in conditions {
            waiting.push(wait(condition, LONG).await.spawn().unwrap());
        }
        section.local_has("a", "report", |local| local.data["spec"]["n"] == 2).await;
        section.quiet().await;
        for (condition, waiting) in conditions.into_iter().zip(&mut waiting) {
            assert!(!is_met(condition).await, "{condition}");
            assert_eq!(waiting.try_wait().unwrap(), None, "{condition}");
        }
        section.patch_local_status("a", "report", &status(5, 5)).await;
        for waiting in waiting {
            ends_well(waiting).await;
        }
        for condition in conditions {
            assert!(is_met(condition).await, "{condition}");
        }
    });
}

#[test]
fn kubectl_rollout_status_on_a_hub_without_controllers_ends_with_the_rollout_on_the_edge_and_not_before() {
    run(async {
        let world = world().await;
        let (hub, _) = crate::faults::world::shared().await;
        let grant = Grant::kind(Side::Remote, "deployments", "apps").secrets(&SECRETS);
        grant.apply(&admin(hub).await).await.unwrap();
        let config = format!(
            "[clusters.hub]\nkubeconfig = {:?}\n[clusters.edge]\nkubeconfig = {:?}\n{}",
            hub.kubeconfig(users::TOWLINE).unwrap(),
            world.edge_kubeconfig,
            sync("rollout", &deployments(), "observed_generation = \"translate\"")
        );
        let mut section = Section::start_config("rollout", deployments(), &config, |_| {}).await;
        section.place_mut().hub = hub.client(users::HUB_USER).await.unwrap();
        section.make_namespaces("a").await;
        // No pod becomes ready without a kubelet.
        let content = |image: &str| {
            let pods = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": image}]}});
            json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": pods}})
        };
        section.make_remote("a", "web", &content("example.com/x:1")).await;
        let rollout = async |more: &str| kubectl(hub, &section, &["rollout", "status", "deployment/web", more]).await;
        let timeout = format!("--timeout={LONG}");
        ends_well(rollout(&timeout).await.spawn().unwrap()).await;
        let paused = |value: Option<&str>| json!({"metadata": {"annotations": {mark("paused"): value}}});
        section.patch_local("a", "web", &paused(Some("true"))).await;
        section.report_has("the pause", |report| report["objects"]["paused"] == json!(1)).await;
        section.patch_remote("a", "web", &content("example.com/x:2")).await;
        let mut waiting = rollout(&timeout).await.spawn().unwrap();
        section.quiet_with(&content("example.com/x:1")).await;
        let told = ends_well(rollout("--watch=false").await.spawn().unwrap()).await;
        assert!(told.contains("spec update to be observed"), "{told}");
        assert_eq!(waiting.try_wait().unwrap(), None);
        section.patch_local("a", "web", &paused(None)).await;
        ends_well(waiting).await;
        let is_observed = |local: &DynamicObject| {
            local.data["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/x:2"
                && local.data["status"]["observedGeneration"] == json!(generation(local))
        };
        section.local_has("a", "web", is_observed).await;
    });
}
