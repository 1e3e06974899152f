//! Namespaces that several kinds share.

use integration::eventually;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};

use crate::faults::world::{LIMIT, Lane, delete, run, start};

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
        let mut towline = start(&(first.clusters() + &sections)).await;
        // The same names in both kinds: only the mark's kind and section tell the owners apart.
        for (namespace, owner, other) in [("a", &first, &second), ("b", &second, &first)] {
            first.make_namespace(namespace).await;
            owner.order(namespace, "same", "1Gi").await;
            owner.in_step("with the owner alone").await;
            other.order(namespace, "same", "1Gi").await;
            other.in_step("with the second one").await;
        }
        // The marks say it to another process, too.
        towline.start_again().await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
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
