//! A remote that is suddenly another one, or empty: nothing is deleted until somebody says so.

use std::path::{Path, PathBuf};

use integration::rbac::Side;
use integration::{Filter, Towline, eventually, users};
use kube::api::ListParams;
use serde_json::Value;

use crate::world::{LIMIT, Lane, delete, edit, objects, plane, report, run, start};

const OBJECTS: usize = 25;

async fn held(towline: &Towline, when: &str) -> Value {
    report(towline, "lane", &format!("that mass deletion is held {when}"), |report| {
        report["mass_delete_held"].as_u64() == Some(OBJECTS as u64) && objects(report, "held") > 0
    })
    .await
}

async fn free(towline: &Towline, when: &str) {
    report(towline, "lane", &format!("that everything is in step {when}"), |report| {
        report.get("mass_delete_held").is_none() && objects(report, "in_step") == OBJECTS as u64
    })
    .await;
}

async fn deletions(lane: &Lane, since: integration::audit::Mark) -> usize {
    let filter = Filter::since(since).user(users::TOWLINE).verb("delete");
    let all = lane.edge.audit().unwrap().records(&filter).await.unwrap();
    all.iter()
        .filter(|record| record.namespace.starts_with(&lane.prefix) || record.name.starts_with(&lane.prefix))
        .count()
}

#[test]
fn a_remote_that_comes_back_empty_deletes_nothing_and_its_return_lifts_the_hold() {
    run(async {
        let shared = Lane::shared("unused", "databases").await;
        let hub = plane("emptied", Side::Remote, |options| options.controller_manager = false).await;
        let lane = Lane::between(hub, shared.edge, "emptied", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;
        let mark = lane.edge.audit().unwrap().mark().await.unwrap();

        let prefix = lane.hub.prefix();
        lane.hub.restart_with_prefix("nothing-here").await.unwrap();
        let admin = lane.hub.client(users::ADMIN).await.unwrap();
        integration::crds::install(&admin, &crate::world::manifest("databases")).await.unwrap();
        integration::rbac::Grant::demo(Side::Remote).apply(&admin).await.unwrap();
        held(&towline, "by the remote that is empty").await;
        // Known from nothing but what is there: a daemon that starts now holds just the same.
        towline.kill9().await.unwrap();
        towline.start_again().await.unwrap();
        held(&towline, "after a restart").await;
        // Whoever orders something there is served, though what is missing is held.
        lane.make_namespace("new").await;
        lane.order("new", "fresh", "5Gi").await;
        eventually("the new object to arrive", LIMIT, async || {
            lane.on_edge("new").get("fresh").await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        delete(&lane.on_hub("new"), "fresh").await;
        eventually("the new object to go", LIMIT, async || match lane.on_hub("new").get_opt("fresh").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        assert!(lane.on_edge("team").list(&ListParams::default()).await.unwrap().items.len() == OBJECTS);

        lane.hub.restart_with_prefix(&prefix).await.unwrap();
        free(&towline, "with the right cluster").await;
        lane.resize_many("team", OBJECTS, "9Gi").await;
        assert_eq!(lane.in_step("after the right cluster has come back").await, before, "nothing was made anew");
        let deleted = deletions(&lane, mark).await;
        assert!(deleted <= 2, "only the new object and its namespace went, and not {deleted}");
    });
}

/// A kubeconfig file whose content is replaced.
fn put(path: &Path, source: &Path) {
    let next = path.with_extension("next");
    std::fs::copy(source, &next).unwrap();
    std::fs::rename(next, path).unwrap();
}

fn switchable(lane: &Lane) -> PathBuf {
    let path = lane.hub.directory().join(format!("{}switched", lane.prefix));
    put(&path, &lane.hub.kubeconfig(users::TOWLINE).unwrap());
    path
}

#[test]
fn a_kubeconfig_that_points_at_another_cluster_deletes_nothing_until_it_is_approved() {
    run(async {
        let lane = Lane::shared("switched", "databases").await;
        let other = plane("other", Side::Remote, |options| options.controller_manager = false).await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let kubeconfig = switchable(&lane);
        let clusters =
            Lane::cluster("hub", &kubeconfig) + &Lane::cluster("edge", &lane.edge.kubeconfig(users::TOWLINE).unwrap());
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        let before = lane.in_step("before").await;
        let mark = lane.edge.audit().unwrap().mark().await.unwrap();

        put(&kubeconfig, &other.kubeconfig(users::TOWLINE).unwrap());
        held(&towline, "by the wrong cluster").await;
        let ready = towline.admin().readyz().await.unwrap();
        assert_eq!(ready.status, 200, "{}", ready.body);
        put(&kubeconfig, &lane.hub.kubeconfig(users::TOWLINE).unwrap());
        free(&towline, "with the right kubeconfig").await;
        edit(&lane.on_hub("team"), "o3", serde_json::json!({"spec": {"storage": "3Gi"}})).await;
        assert_eq!(lane.in_step("with the right kubeconfig").await, before, "nothing was made anew");
        assert_eq!(deletions(&lane, mark).await, 0);
        let refused = Towline::command(["approve", "lane", "--admin", &towline.admin_url()]).await.unwrap();
        assert_eq!(refused.status.code(), Some(1), "nothing is held, so there is nothing to approve");

        put(&kubeconfig, &other.kubeconfig(users::TOWLINE).unwrap());
        held(&towline, "by the other cluster").await;
        let approved = Towline::command(["approve", "lane", "--admin", &towline.admin_url()]).await.unwrap();
        assert!(approved.status.success(), "{approved:?}");
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
