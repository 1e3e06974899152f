//! Two local sides that follow the same remote objects.

use integration::compare::Mapping;
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

/// Two sections in one daemon: the first writes back, `observer` does not; each has its copies in namespaces with a suffix of
/// its own.
async fn two_followers(name: &str, kind: ApiResource) -> Section {
    let world = world().await;
    let second = "finalizer = \"sync-observer\"\nwrite_back = false\nlocal_namespace_suffix = \"-observer\"\n\
                  secret_names = [\"database-credentials\"]";
    let both = clusters(world)
        + &sync(name, &kind, "local_namespace_suffix = \"-first\"\nsecret_names = [\"database-credentials\"]")
        + &sync(name, &kind, second).replacen(&format!("name = {name:?}"), "name = \"observer\"", 1);
    let suffix = |mapping: &mut Mapping| mapping.local_namespace_suffix.push_str("-first");
    Section::start_config(name, kind, &both, suffix).await
}

#[test]
fn one_follower_writes_back_and_the_other_only_follows_and_notes_nothing_for_it() {
    run(async {
        let mut section = two_followers("followers", databases()).await;
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

        // What the other one has noted proves nothing after a restart. The first one's local generation is 3 after a drift that was
        // mended, and so is the observer's after two.
        section.make_remote("a", "bills", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        object_that(&copies, "the observer's copy", "bills", |_| true).await;
        section.local_has("a", "bills", |_| true).await;
        section.patch_local("a", "bills", &json!({"spec": {"storage": "drift"}})).await;
        let noted = |remote: &kube::core::DynamicObject| {
            remote.annotations().get(&mark("sync-local-generation")).is_some_and(|generation| generation == "3")
        };
        section.remote_has("a", "bills", noted).await;
        section.towline.kill9().await.unwrap();
        for storage in ["drift", "drifted"] {
            let patch = kube::api::Patch::Merge(json!({"spec": {"storage": storage}}));
            copies.patch("bills", &kube::api::PatchParams::default(), &patch).await.unwrap();
        }
        assert_eq!(copies.get("bills").await.unwrap().metadata.generation, Some(3));
        section.towline.start_again().await.unwrap();
        object_that(&copies, "the drift mended", "bills", |copy| copy.data["spec"]["storage"] == "1Gi").await;
    });
}

#[test]
fn only_the_follower_that_writes_back_tells_what_the_edge_rejects() {
    run(async {
        let section = two_followers("followers-told", widgets()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.quiet().await;
        let since = section.mark().await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 50}})).await;
        let is_told = |remote: &kube::core::DynamicObject| remote.annotations().contains_key(&mark("sync-error"));
        section.remote_has("a", "gear", is_told).await;
        let observer = |what: &'static str, failing: u64| {
            let section = &section;
            async move {
                integration::eventually(format!("the observer to report {what}"), LIMIT, async || {
                    let report = section.towline.admin().section("observer").await.map_err(|error| error.chain())?;
                    if report["objects"]["failing"] == json!(failing) { Ok(()) } else { Err(report.to_string()) }
                })
                .await
                .unwrap();
            }
        };
        observer("its own failure", 1).await;
        section.quiet().await;
        let patches = || async { section.counted("a", since).await.0["patch widgets"] };
        assert_eq!(patches().await, 1, "one error");
        section.patch_remote("a", "gear", &json!({"spec": {"size": 2}})).await;
        section.remote_has("a", "gear", |remote| !is_told(remote)).await;
        section.local_has("a", "gear", |local| local.data["spec"]["size"] == 2).await;
        observer("no failure", 0).await;
        section.quiet().await;
        assert_eq!(patches().await, 2, "it went with the generations");
    });
}
