//! Two replicas: one of them reports, and what one has told the other does not tell again.

use std::path::Path;

use integration::commands::{KubectlTowline, in_each_format, pod_of_release};
use integration::rbac::{grant_election, grant_inventory};
use integration::{Kubelet, Towline, eventually, users};
use serde_json::json;

use crate::inventory::world::{LIMIT, World, run, small_chart};

/// A world with two replicas, which have told of the releases `a` and `b`; the one that runs the section comes first.
async fn two_replicas() -> (World, Vec<Towline>, String) {
    let world = World::new().await;
    grant_inventory(&world.admin, Some(users::REPLICAS)).await.unwrap();
    grant_election(&world.admin, "default", Some(users::REPLICAS)).await.unwrap();
    let election =
        "[election]\ncluster = \"edge\"\nnamespace = \"default\"\nlease_duration = \"5s\"\nrenew_interval = \"1s\"\n";
    let mut replicas = Vec::new();
    for user in &users::REPLICA[..2] {
        let config = world.config_as(user, "").replace("[inventory]", &format!("{election}[inventory]"));
        replicas.push(Towline::start(&config, &[]).await.unwrap());
    }
    for replica in &replicas {
        replica.wait_ready(LIMIT).await.unwrap();
    }
    let chart = world.helm.chart(&small_chart()).unwrap();
    for name in ["a", "b"] {
        world.helm.run(&["install", name, &chart]).await.unwrap();
        world.told(name, 1).await;
        world.wait_until_acknowledged(name).await;
    }
    let holder = eventually("a replica to hold the section", LIMIT, async || {
        for (position, replica) in replicas.iter().enumerate() {
            let section = replica.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["releases"] == 2 && section["state"] == "ready" {
                return Ok(position);
            }
        }
        Err("none".to_owned())
    })
    .await
    .unwrap();
    replicas.swap(0, holder);
    (world, replicas, chart)
}

/// An order goes to the replica that runs the section, also where that is the second pod.
async fn kubectl_sends_a_release_again(world: &World, replicas: &[Towline]) {
    let node = Kubelet::start(&world.admin, "elected").await.unwrap();
    for (number, replica) in [&replicas[1], &replicas[0]].into_iter().enumerate() {
        let admin = replica.admin_url().strip_prefix("http://").unwrap().parse().unwrap();
        let pod = pod_of_release("default", &format!("towline-{number}"), "inventory");
        node.run(&pod, &[("admin", admin)]).await.unwrap();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inventory-elected");
    drop(std::fs::remove_dir_all(&directory));
    std::fs::create_dir_all(&directory).unwrap();
    let kubeconfig = world.plane.kubeconfig(users::ADMIN).unwrap();
    let kubectl = KubectlTowline::new(&directory, &kubeconfig, "default").await.unwrap();
    let arguments = ["resync", "inventory", "default/a"];
    let sent = in_each_format(async |format| {
        let sent = eventually("what was sent last to be acknowledged, and sent again", LIMIT, async || {
            let output = kubectl.run(&[&arguments[..], &["-o", format]].concat()).await.unwrap();
            if output.status.success() { Ok(output) } else { Err(format!("{output:?}")) }
        });
        sent.await
    });
    let sent = sent.await;
    let sent = sent.unwrap();
    assert!(sent.code == Some(0) && sent.told.values().all(String::is_empty), "{sent:?}");
    assert_eq!((sent.document, sent.names), (json!({"releases": 1}), vec!["inventory".to_owned()]));
    assert_eq!(sent.table, "inventory: 1 release is sent again\n");
    let third = |told: &integration::Told| told.body["app_info"]["helm_info"]["revision"] == 3;
    world.sink.wait_for("of the third revision, again", 2, LIMIT, third).await.unwrap();
    // What it has been sent changes until it is at rest.
    let explained = eventually("what is known of it, in each format", LIMIT, async || {
        in_each_format(async |format| kubectl.run(&["explain", "inventory", "default/a", "-o", format]).await).await
    });
    let explained = explained.await.unwrap();
    assert!(explained.code == Some(0) && explained.told.values().all(String::is_empty), "{explained:?}");
    assert_eq!(explained.names, ["default/a"]);
    let is_asked = |replica: &Towline| replica.log().unwrap().contains("resync requested");
    assert!(is_asked(&replicas[0]) && !is_asked(&replicas[1]));
}

/// A replica that is killed hands nothing over: its lease expires. One that ends does.
#[test]
fn one_replica_reports_and_neither_a_kill_nor_a_handover_tells_anything_twice() {
    run(async {
        let (world, mut replicas, chart) = two_replicas().await;
        // Its post is under way, and its answer never comes.
        world.sink.script([integration::Reply::Hang]);
        world.helm.run(&["upgrade", "a", &chart, "--set", "value=2"]).await.unwrap();
        let second = |told: &integration::Told| told.body["app_info"]["helm_info"]["revision"] == 2;
        world.sink.wait_for("of the second revision", 1, LIMIT, second).await.unwrap();
        replicas[0].kill9().await.unwrap();
        let told = world.sink.wait_for("of the second revision", 2, LIMIT, second).await.unwrap();
        assert_eq!((&told[0].key, &told[0].body), (&told[1].key, &told[1].body), "it repeats the key");
        world.wait_until_acknowledged("a").await;
        world.helm.run(&["upgrade", "b", &chart, "--set", "value=2"]).await.unwrap();
        world.told("b", 2).await;
        world.wait_until_acknowledged("b").await;
        assert_eq!(world.sink.told().len(), 6, "the registration, two releases, a change twice and a change");
        let section = replicas[1].admin().section("inventory").await.unwrap();
        assert_eq!(section["releases"], 2, "{section}");

        replicas[0].start_again().await.unwrap();
        replicas[0].wait_ready(LIMIT).await.unwrap();
        assert!(replicas[1].terminate(LIMIT).await.unwrap().success());
        world.helm.run(&["upgrade", "a", &chart, "--set", "value=3"]).await.unwrap();
        world.told("a", 3).await;
        assert_eq!(world.sink.told().len(), 7, "and another change once");
        world.wait_until_acknowledged("a").await;
        replicas[1].start_again().await.unwrap();
        replicas[1].wait_ready(LIMIT).await.unwrap();
        kubectl_sends_a_release_again(&world, &replicas).await;
    });
}

/// It is stopped while a release waits, so that the other one takes over and delivers it.
#[test]
fn a_replica_that_has_lost_the_section_tells_of_nothing_that_waits() {
    run(async {
        let (world, replicas, chart) = two_replicas().await;
        world.sink.script([integration::Reply::Hang]);
        world.helm.run(&["upgrade", "a", &chart, "--set", "value=2"]).await.unwrap();
        let second = |told: &integration::Told| told.body["app_info"]["helm_info"]["revision"] == 2;
        world.sink.wait_for("of the second revision", 1, LIMIT, second).await.unwrap();
        replicas[0].freeze().unwrap();
        world.sink.wait_for("of the second revision, by the other replica", 2, LIMIT, second).await.unwrap();
        replicas[0].thaw().unwrap();
        eventually("the replica to tell of nothing that waits", LIMIT, async || {
            let metrics = replicas[0].admin().metrics().await.map_err(|error| error.to_string())?;
            let waits =
                |line: &&str| line.starts_with("towline_oldest_pending_seconds{") && line.contains("\"releases\"");
            match metrics.lines().find(waits).and_then(|line| line.rsplit_once(' ')) {
                Some((_, "0")) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    });
}
