//! Namespaces that several kinds share, and namespaces that take long to go.

use integration::eventually;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, delete, objects, report, run, start};

fn namespaces(lane: &Lane) -> Api<Namespace> {
    Api::all(lane.edge_client.clone())
}

async fn wait_gone(lane: &Lane, name: &str) {
    eventually(format!("namespace {name} to go"), LIMIT, async || match namespaces(lane).get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

#[test]
fn the_last_living_remote_object_of_any_section_keeps_the_namespace() {
    run(async {
        let first = Lane::shared("owners", "databases").await;
        let second = first.beside("owners", "documents").await;
        let sections = first.section("first", "") + &second.section("second", "");
        // The same names in both kinds: only the mark's kind and section tell the owners apart.
        for (namespace, owner, other) in [("a", &first, &second), ("b", &second, &first)] {
            first.make_namespace(namespace).await;
            owner.order(namespace, "same", "1Gi").await;
            let towline = start(&(first.clusters() + &sections)).await;
            owner.in_step("with the owner alone").await;
            other.order(namespace, "same", "1Gi").await;
            other.in_step("with the second one").await;
            assert!(towline.terminate(LIMIT).await.unwrap().success());
        }
        let _towline = start(&(first.clusters() + &sections)).await;
        for (namespace, lane) in [("a", "first"), ("b", "second")] {
            let made = namespaces(&first).get(&first.namespace(namespace)).await.unwrap();
            assert_eq!(made.annotations()["cloud.teleport.dev/sync-owner-section"], lane);
            assert_eq!(made.annotations()["cloud.teleport.dev/sync-owner"], "same");
        }

        // In both namespaces the object that the namespace was made for goes first.
        for (namespace, owner, other) in [("a", &first, &second), ("b", &second, &first)] {
            delete(&owner.on_hub(namespace), "same").await;
            // Not compared as a whole: to this kind alone, the namespace looks left over.
            eventually("the owner to go on both sides", LIMIT, async || {
                let (hub, edge) = (owner.on_hub(namespace), owner.on_edge(namespace));
                match (hub.get_opt("same").await, edge.get_opt("same").await) {
                    (Ok(None), Ok(None)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
            let kept = namespaces(&first).get(&first.namespace(namespace)).await.unwrap();
            assert!(kept.metadata.deletion_timestamp.is_none(), "the other kind's object lives in it");
            assert!(other.on_edge(namespace).get_opt("same").await.unwrap().is_some());
            delete(&other.on_hub(namespace), "same").await;
            wait_gone(&first, &first.namespace(namespace)).await;
        }
        for lane in [&first, &second] {
            assert!(lane.in_step("at the end").await.is_empty());
            assert!(lane.remote_uids().await.is_empty(), "every finalizer is released");
        }
    });
}

#[test]
fn a_terminating_namespace_is_waited_for_and_no_failure() {
    run(async {
        let lane = Lane::shared("ending", "databases").await;
        for namespace in ["slow", "other"] {
            lane.make_namespace(namespace).await;
            lane.order_many(namespace, 3).await;
        }
        let towline = lane.towline().await;
        lane.in_step("before").await;

        // Somebody deletes the local namespace, and something in it does not go.
        let slow = lane.namespace("slow");
        let anchors: Api<ConfigMap> = Api::namespaced(lane.edge_client.clone(), &slow);
        let anchor = ConfigMap {
            metadata: ObjectMeta {
                name: Some("anchor".to_owned()),
                finalizers: Some(vec!["demo.towline.dev/holds".to_owned()]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        anchors.create(&PostParams::default(), &anchor).await.unwrap();
        namespaces(&lane).delete(&slow, &DeleteParams::default()).await.unwrap();
        let waiting = report(&towline, "lane", "three objects that wait for their namespace", |report| {
            objects(report, "deleting") + objects(report, "pending") == 3 && objects(report, "in_step") == 3
        })
        .await;
        assert_eq!(objects(&waiting, "failing"), 0, "{waiting}");
        lane.order("slow", "late", "4Gi").await;
        lane.resize_many("other", 3, "2Gi").await;
        let waiting = report(&towline, "lane", "four objects that wait", |report| {
            objects(report, "deleting") + objects(report, "pending") == 4 && objects(report, "in_step") == 3
        })
        .await;
        assert_eq!(waiting["failures"], json!([]), "waiting is no failure");
        assert_eq!(lane.remote_uids().await.len(), 7, "the remote objects live");

        let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": []}}));
        anchors.patch("anchor", &kube::api::PatchParams::default(), &free).await.unwrap();
        assert_eq!(lane.in_step("with the namespace made anew").await.len(), 7);
        let made = namespaces(&lane).get(&slow).await.unwrap();
        assert!(made.annotations().contains_key("cloud.teleport.dev/sync-owner"));
    });
}
