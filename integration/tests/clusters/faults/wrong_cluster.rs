//! A remote or a local cluster that is suddenly another one, or empty: nothing happens until somebody says so.

use std::path::{Path, PathBuf};

use integration::audit::Mark;
use integration::rbac::Side;
use integration::{ControlPlane, Filter, Towline, eventually, page, users};
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::faults::world::{LIMIT, Lane, another_edge, another_hub, edit, mortals, objects, report, run, start};

const OBJECTS: usize = 5;

/// Waits until the whole section is held, for a reason that has these words.
async fn held(towline: &Towline, words: &[&str]) -> Value {
    report(towline, "lane", &format!("that it is held: {words:?}"), |report| {
        let message = report["message"].as_str().unwrap_or_default();
        report["state"] == "held"
            && words.iter().all(|word| message.contains(word))
            && objects(report, "held") == OBJECTS as u64
    })
    .await
}

async fn mass_deletion_held(towline: &Towline, when: &str) {
    report(towline, "lane", &format!("that mass deletion is held {when}"), |report| {
        report["held"]["delete"].as_u64() == Some(OBJECTS as u64) && objects(report, "held") > 0
    })
    .await;
}

async fn free(towline: &Towline, when: &str) {
    report(towline, "lane", &format!("that everything is in step {when}"), |report| {
        report.get("held").is_none() && objects(report, "in_step") == OBJECTS as u64
    })
    .await;
}

/// The daemon's changes of objects and namespaces of a lane.
async fn changes(plane: &ControlPlane, lane: &Lane, since: Mark) -> Vec<String> {
    let records = plane.audit().unwrap().records(&Filter::since(since).user(users::TOWLINE)).await.unwrap();
    let is_ours = |name: &str| name.starts_with(&lane.prefix);
    records
        .iter()
        .filter(|record| ["create", "update", "patch", "delete"].contains(&record.verb.as_str()))
        .filter(|record| is_ours(&record.namespace) || (record.resource == "namespaces" && is_ours(&record.name)))
        .map(|record| format!("{} {} {}", record.verb, record.resource, record.name))
        .collect()
}

async fn mark(plane: &ControlPlane) -> Mark {
    plane.audit().unwrap().mark().await.unwrap()
}

#[test]
fn a_remote_that_comes_back_as_another_cluster_changes_nothing_and_its_return_lifts_the_hold() {
    run(async {
        let (_turn, hub, edge) = mortals().await;
        let lane = Lane::between(hub, edge, "emptied", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;
        let since = mark(&lane.edge).await;

        let prefix = lane.hub.prefix();
        lane.hub.restart_with_prefix("nothing-here").await.unwrap();
        let admin = lane.hub.client(users::ADMIN).await.unwrap();
        integration::crds::install(&admin, &crate::faults::world::manifest("databases")).await.unwrap();
        integration::rbac::Grant::demo(Side::Remote).apply(&admin).await.unwrap();
        held(&towline, &["another cluster answers as hub", "towline approve lane"]).await;
        // What is remembered outlives the process: a daemon that starts now holds just the same.
        towline.kill9().await.unwrap();
        towline.start_again().await.unwrap();
        held(&towline, &["another cluster answers as hub"]).await;
        // Nothing is made there or from there, either.
        lane.make_namespace("new").await;
        lane.order("new", "fresh", "5Gi").await;
        assert!(lane.on_edge("team").list(&ListParams::default()).await.unwrap().items.len() == OBJECTS);

        lane.hub.restart_with_prefix(&prefix).await.unwrap();
        free(&towline, "with the right cluster").await;
        assert_eq!(changes(&lane.edge, &lane, since).await, Vec::<String>::new());
        lane.resize_many("team", OBJECTS, "9Gi").await;
        assert_eq!(lane.in_step("after the right cluster has come back").await, before, "nothing was made anew");
    });
}

/// A kubeconfig file whose content is replaced.
fn put(path: &Path, source: &Path) {
    let next = path.with_extension("next");
    std::fs::copy(source, &next).unwrap();
    std::fs::rename(next, path).unwrap();
}

fn switchable(plane: &ControlPlane, lane: &Lane) -> PathBuf {
    let path = plane.directory().join(format!("{}switched", lane.prefix));
    put(&path, &plane.kubeconfig(users::TOWLINE).unwrap());
    path
}

#[test]
fn a_kubeconfig_of_another_remote_changes_nothing_until_it_is_approved_and_then_the_guard_asks_again() {
    run(async {
        let lane = Lane::shared("switched", "databases").await;
        let other = another_hub().await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let kubeconfig = switchable(&lane.hub, &lane);
        let clusters =
            Lane::cluster("hub", &kubeconfig) + &Lane::cluster("edge", &lane.edge.kubeconfig(users::TOWLINE).unwrap());
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        let before = lane.in_step("before").await;
        let since = mark(&lane.edge).await;

        put(&kubeconfig, &other.kubeconfig(users::TOWLINE).unwrap());
        held(&towline, &["another cluster answers as hub"]).await;
        let ready = towline.admin().readyz().await.unwrap();
        assert_eq!(ready.status, 200, "{}", ready.body);
        let unready = towline.admin().section_readyz("lane").await.unwrap();
        assert!(unready.status == 503 && unready.body.contains("another cluster"), "{}", unready.body);
        put(&kubeconfig, &lane.hub.kubeconfig(users::TOWLINE).unwrap());
        free(&towline, "with the right kubeconfig").await;
        edit(&lane.on_hub("team"), "o3", json!({"spec": {"storage": "3Gi"}})).await;
        assert_eq!(lane.in_step("with the right kubeconfig").await, before, "nothing was made anew");
        assert_eq!(changes(&lane.edge, &lane, since).await, ["patch databases o3"]);
        let refused = Towline::command(["approve", "--yes", "lane", "--admin", &towline.admin_url()]).await.unwrap();
        assert_eq!(refused.status.code(), Some(1), "nothing is held, so there is nothing to approve");

        put(&kubeconfig, &other.kubeconfig(users::TOWLINE).unwrap());
        held(&towline, &["another cluster answers as hub"]).await;
        for (path, request, state) in [
            ("/status", "/status", "held"),
            ("/objects/lane", "/objects/", "held"),
            ("/history", "/history", "of clusters"),
            ("/history/lane", "/history/", "of a section"),
        ] {
            page::agrees(request, state, &towline.admin().get(path).await.unwrap()).unwrap();
        }
        page::agrees("/approve/", "clusters", &towline.admin().approve("lane").await.unwrap()).unwrap();
        // That it is another cluster is approved, and not what follows from it.
        mass_deletion_held(&towline, "by the other cluster").await;
        assert_eq!(lane.local_uids().await, before);
        page::agrees("/held/", "objects", &towline.admin().get("/held/lane?limit=1").await.unwrap()).unwrap();
        page::agrees("/approve/", "objects", &towline.admin().approve("lane").await.unwrap()).unwrap();
        eventually("what was approved to be deleted", LIMIT, async || {
            let left = lane.local_uids().await.len();
            if left == 0 { Ok(()) } else { Err(format!("{left} objects")) }
        })
        .await
        .unwrap();
        // The other cluster's content is now the truth: none.
        let swapped = Lane::between(other, lane.edge, "switched", "databases").await;
        assert!(swapped.in_step("after approval").await.is_empty());
    });
}

#[test]
fn a_kubeconfig_of_another_edge_makes_overwrites_and_clears_nothing() {
    run(async {
        let lane = Lane::shared("moved", "databases").await;
        let other = another_edge().await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let kubeconfig = switchable(&lane.edge, &lane);
        let clusters =
            Lane::cluster("hub", &lane.hub.kubeconfig(users::TOWLINE).unwrap()) + &Lane::cluster("edge", &kubeconfig);
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        lane.in_step("before").await;
        lane.report_many("team", OBJECTS, "10.0.0.1").await;
        lane.in_step("with statuses").await;
        // There are objects of the same names on the other edge.
        let there =
            Lane::between(std::sync::Arc::clone(&lane.hub), std::sync::Arc::clone(&other), "moved", "databases");
        let there = there.await;
        crate::faults::world::make_namespace(&there.edge_client, &there.namespace("team")).await;
        for name in ["o0", "o1"] {
            let object = serde_json::from_value(there.object(name, "7Gi")).unwrap();
            there.on_edge("team").create(&kube::api::PostParams::default(), &object).await.unwrap();
        }
        let (on_hub, on_edge) = (mark(&lane.hub).await, mark(&other).await);

        put(&kubeconfig, &other.kubeconfig(users::TOWLINE).unwrap());
        held(&towline, &["another cluster answers as edge"]).await;
        put(&kubeconfig, &lane.edge.kubeconfig(users::TOWLINE).unwrap());
        free(&towline, "with the right kubeconfig").await;
        lane.in_step("with the right kubeconfig").await;
        assert_eq!(changes(&lane.hub, &lane, on_hub).await, Vec::<String>::new());
        assert_eq!(changes(&other, &lane, on_edge).await, Vec::<String>::new());
    });
}

#[test]
fn two_kubeconfigs_of_one_cluster_pair_no_object_with_itself() {
    run(async {
        let lane = Lane::shared("twice", "widgets").await;
        lane.make_namespace("team").await;
        lane.order("team", "orders", "1Gi").await;
        let before = lane.on_hub("team").get("orders").await.unwrap();
        let copy = switchable(&lane.hub, &lane);
        let clusters =
            Lane::cluster("hub", &lane.hub.kubeconfig(users::TOWLINE).unwrap()) + &Lane::cluster("edge", &copy);
        integration::rbac::Grant::kind(Side::Local, "widgets", "demo.towline.dev")
            .apply(&lane.hub.client(users::ADMIN).await.unwrap())
            .await
            .unwrap();
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        report(&towline, "lane", "that it is refused", |report| {
            report["state"] == "refused"
                && report["message"].as_str().is_some_and(|message| message.contains("are one cluster"))
        })
        .await;
        let after = lane.on_hub("team").get("orders").await.unwrap();
        assert_eq!(after.metadata.resource_version, before.metadata.resource_version, "nothing was written");
        // An approval would change nothing, and nothing recommends it.
        let approved = Towline::command(["approve", "--yes", "lane", "--admin", &towline.admin_url()]).await.unwrap();
        let told = String::from_utf8_lossy(&approved.stderr);
        assert!(approved.status.code() == Some(1) && told.contains("an approval does not help"), "{approved:?}");
        let refused = report(&towline, "lane", "the objects that are held", |report| objects(report, "held") > 0).await;
        assert_eq!(refused["state"], "refused", "{refused}");
        assert!(!refused["not_in_step"].to_string().contains("towline approve"), "{refused}");
        assert_eq!(refused["not_in_step"][0]["next_step"], "correct the kubeconfigs", "{refused}");
        let path = towline.config_path();
        let check = Towline::command(["check", "--config", path.to_str().unwrap(), "--connect"]).await.unwrap();
        let told = String::from_utf8_lossy(&check.stdout);
        assert_eq!(check.status.code(), Some(1), "{told}");
        assert!(told.contains("are one cluster"), "{told}");
    });
}
