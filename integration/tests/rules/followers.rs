//! Two local sides that follow the same remote objects.

use integration::compare::Mapping;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

/// Two sections in one daemon: `followers` writes back, `observer` does not; each has its copies in namespaces with a suffix of
/// its own.
async fn two_followers() -> Section {
    let world = world().await;
    let kind = databases();
    let second = "finalizer = \"sync-observer\"\nwrite_back = false\nlocal_namespace_suffix = \"-observer\"\n\
                  secret_names = [\"database-credentials\"]";
    let both = clusters(world)
        + &sync("followers", &kind, "local_namespace_suffix = \"-first\"\nsecret_names = [\"database-credentials\"]")
        + &sync("followers", &kind, second).replacen("name = \"followers\"", "name = \"observer\"", 1);
    let suffix = |mapping: &mut Mapping| mapping.local_namespace_suffix = "-first".to_owned();
    Section::start_config("followers", kind, &both, suffix).await
}

#[test]
fn one_follower_writes_back_and_the_other_only_follows() {
    run(async {
        let section = two_followers().await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        let copies: Api<kube::core::DynamicObject> =
            Api::namespaced_with(section.edge.clone(), &(section.namespace("a") + "-observer"), &section.kind);
        let copy = object_that(&copies, "the observer's copy", "orders", |_| true).await;
        let local = section.local_has("a", "orders", |_| true).await;
        let own = mark("sync-observer");
        section
            .remote_has("a", "orders", |remote| remote.finalizers().len() == 2 && remote.finalizers().contains(&own))
            .await;
        // Both have a status and a secret; only the first one's go up.
        let status = kube::api::Patch::Merge(json!({"status": {"phase": "Failed", "endpoint": "of the observer"}}));
        copies.patch_status("orders", &kube::api::PatchParams::default(), &status).await.unwrap();
        make_secret(&section.remote_secrets("a"), "database-credentials", &json!({})).await;
        let observed: Api<k8s_openapi::api::core::v1::Secret> =
            Api::namespaced(section.edge.clone(), &(section.namespace("a") + "-observer"));
        let content =
            json!({"stringData": {"password": "observer"}, "metadata": {"ownerReferences": [controller(&copy)]}});
        put_secret(&observed, "database-credentials", &content).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        let content =
            json!({"stringData": {"password": "first"}, "metadata": {"ownerReferences": [controller(&local)]}});
        put_secret(&section.local_secrets("a"), "database-credentials", &content).await;
        section.remote_has("a", "orders", |remote| remote.data["status"] == json!({"phase": "Ready"})).await;
        secret_that(&section.remote_secrets("a"), "database-credentials", "the first one's content", |secret| {
            data(secret, "password") == "first"
        })
        .await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "4Gi"}})).await;
        object_that(&copies, "the change at the observer's", "orders", |copy| copy.data["spec"]["storage"] == "4Gi")
            .await;
        section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "4Gi").await;
        section.quiet().await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.data["status"], json!({"phase": "Ready"}));
        assert_eq!(data(&section.remote_secrets("a").get("database-credentials").await.unwrap(), "password"), "first");
        assert!(noted_hash(&observed.get("database-credentials").await.unwrap()).is_none());
        assert_eq!(remote.annotations().get(&mark("sync-local-generation")).unwrap(), "2");
        // The remote is held until both have let go.
        let patch = json!({"metadata": {"finalizers": ["example.org/held"]}});
        copies.patch("orders", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
        section.delete_remote("a", "orders").await;
        section.local_gone("a", "orders").await;
        let held = section.remote_has("a", "orders", |remote| remote.finalizers().len() == 1).await;
        assert_eq!(held.finalizers(), [own]);
        let patch = json!({"metadata": {"finalizers": null}});
        copies.patch("orders", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
        section.remote_gone("a", "orders").await;
    });
}
