//! A Helm that is killed while it waits.

use integration::{Towline, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::inventory::world::{LIMIT, World, ask, brief, chart, run};

/// Kills Helm while it waits for this pod, which has taken the place of every other one: without a scheduler, no pod becomes ready.
async fn kill(world: &World, args: &[&str], pod: &str) {
    let mut helm = world.helm.begin(&[args, &["--wait", "--timeout", "10m"]].concat()).unwrap();
    let pods = Api::<Pod>::namespaced(world.admin.clone(), "default");
    eventually(format!("{pod} to be the only one"), LIMIT, async || {
        match pods.list_metadata(&ListParams::default()).await {
            Ok(list) if list.items.iter().map(ResourceExt::name_any).eq([pod]) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(helm.try_wait().unwrap(), None, "it waits");
    helm.kill().await.unwrap();
}

async fn problems(daemon: &Towline, what: &str, is_so: impl Fn(&str) -> bool) -> String {
    eventually(what.to_owned(), LIMIT, async || {
        let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
        let problems = section["problems"].to_string();
        if is_so(&problems) { Ok(problems) } else { Err(section.to_string()) }
    })
    .await
    .unwrap()
}

fn images(body: &Value) -> impl Iterator<Item = &str> {
    body["app_info"]["pod_info"].as_array().unwrap().iter().map(|pod| pod["image"].as_str().unwrap())
}

/// Waits until the newest report of `web` is as it should be. How many there were before depends on how fast Helm replaces pods.
async fn last(world: &World, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(what.to_owned(), LIMIT, async || match world.accepted("web").pop() {
        Some(body) if is_so(&body) => Ok(body),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap()
}

#[test]
fn a_helm_that_was_killed_is_a_problem_and_what_runs_is_told_with_the_revision_before() {
    const PENDING: &str = "an operation of Helm on revision";
    const ADVICE: &str = "if no Helm runs any more, roll the release back or uninstall it";
    run(async {
        let world = World::new().await;
        let daemon = world.start("helm_timeout = \"5s\"\n").await;
        let chart = world.helm.chart(&chart()).unwrap();
        kill(&world, &["install", "new", &chart], "new-keycloak-23").await;
        let told = problems(&daemon, "the installation to be a problem", |told| told.contains("default/new")).await;
        assert!(told.contains(&format!("{PENDING} 1 has been pending since ")) && told.contains(ADVICE), "{told}");
        let (_, explained) = ask(&daemon, "explain", "default/new").await;
        assert!(explained.contains("revision 1 pending") && explained.contains(ADVICE), "{explained}");
        world.helm.run(&["uninstall", "new"]).await.unwrap();
        problems(&daemon, "no problem after the uninstallation", |told| told == "[]").await;

        world.helm.run(&["install", "web", &chart]).await.unwrap();
        let first = world.told("web", 1).await.remove(0);
        kill(&world, &["upgrade", "web", &chart, "--set", "image=keycloak:24"], "web-keycloak-24").await;
        let told = problems(&daemon, "the upgrade to be a problem", |told| told.contains("default/web")).await;
        assert!(told.contains(&format!("{PENDING} 2 has been pending since ")), "{told}");
        let second = last(&world, "the pod of the upgrade", |body| images(body).eq(["keycloak:24"])).await;
        assert_eq!(second["app_info"]["helm_info"], first["app_info"]["helm_info"]);
        world.helm.run(&["rollback", "web", "1"]).await.unwrap();
        last(&world, "the rollback", |body| brief(body) == (3, "deployed".to_owned())).await;
        problems(&daemon, "no problem after the rollback", |told| told == "[]").await;
        assert_eq!(world.accepted("new").len(), 0, "of what was never installed nothing is told");
    });
}
