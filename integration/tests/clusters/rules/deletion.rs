//! What is deleted, how, and what is not.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

fn database() -> Value {
    json!({"spec": {"engine": "postgres-17"}})
}

/// The bodies of the daemon's deletes in a namespace of the edge.
fn deletes(section: &Section, suffix: &str) -> Vec<Value> {
    let log: PathBuf = section.world.edge.directory().join("audit.log");
    let text = std::fs::read_to_string(log).unwrap();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["verb"] == "delete" && line["user"]["username"] == integration::users::TOWLINE)
        .filter(|line| {
            let object = &line["objectRef"];
            object["namespace"] == section.namespace(suffix).as_str()
        })
        .map(|line| line["requestObject"].clone())
        .collect()
}

/// A config map that the local object owns, and which holds its deletion in the foreground.
async fn dependent(section: &Section, suffix: &str, name: &str) -> ConfigMap {
    let owner = section.local_has(suffix, name, |_| true).await;
    let mut reference = controller(&owner);
    reference["blockOwnerDeletion"] = json!(true);
    let object: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": format!("{name}-dependent"), "ownerReferences": [reference], "finalizers": ["example.org/held"]},
    }))
    .unwrap();
    config_maps_in(section, suffix).create(&PostParams::default(), &object).await.unwrap()
}

fn config_maps_in(section: &Section, suffix: &str) -> Api<ConfigMap> {
    Api::namespaced(section.edge.clone(), &section.namespace(suffix))
}

async fn let_dependent_go(section: &Section, suffix: &str, name: &str) {
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let name = format!("{name}-dependent");
    config_maps_in(section, suffix).patch(&name, &kube::api::PatchParams::default(), &patch).await.unwrap();
}

async fn with_policy(policy: &str) -> Section {
    let settings = format!("propagation_policy = {policy:?}");
    let section = Section::start(&policy.to_lowercase(), databases(), &settings).await;
    section.make_namespaces("a").await;
    section.make_remote("a", "orders", &database()).await;
    section.in_step().await;
    dependent(&section, "a", "orders").await;
    section.delete_remote("a", "orders").await;
    section
}

#[test]
fn in_the_foreground_dependents_go_first_and_the_remote_waits() {
    run(async {
        let section = with_policy("Foreground").await;
        let local = section.local_has("a", "orders", |local| local.metadata.deletion_timestamp.is_some()).await;
        section.quiet().await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.finalizers(), [FINALIZER], "the local object is still there");
        let_dependent_go(&section, "a", "orders").await;
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
        let [delete] = deletes(&section, "a").try_into().unwrap();
        assert_eq!(delete["propagationPolicy"], json!("Foreground"));
        assert_eq!(delete["preconditions"]["uid"], json!(local.uid()));
        assert!(delete["preconditions"]["resourceVersion"].is_string(), "{delete}");
    });
}

#[test]
fn in_the_background_nobody_waits_for_dependents() {
    run(async {
        let section = with_policy("Background").await;
        section.remote_gone("a", "orders").await;
        let api = config_maps_in(&section, "a");
        let going = integration::eventually("the dependent to be collected", LIMIT, async || {
            let found = api.get("orders-dependent").await.map_err(|error| error.to_string())?;
            found.metadata.deletion_timestamp.map(|_| ()).ok_or_else(|| "it is still there".to_owned())
        });
        going.await.unwrap();
        let_dependent_go(&section, "a", "orders").await;
        let [delete] = deletes(&section, "a").try_into().unwrap();
        assert_eq!(delete["propagationPolicy"], json!("Background"));
    });
}

#[test]
fn orphaned_dependents_stay() {
    run(async {
        let section = with_policy("Orphan").await;
        section.remote_gone("a", "orders").await;
        let left = config_maps_in(&section, "a").get("orders-dependent").await.unwrap();
        assert!(left.owner_references().is_empty() && left.metadata.deletion_timestamp.is_none());
        let [delete] = deletes(&section, "a").try_into().unwrap();
        assert_eq!(delete["propagationPolicy"], json!("Orphan"));
        assert!(delete["preconditions"]["uid"].is_string() && delete["preconditions"]["resourceVersion"].is_string());
    });
}

#[test]
fn foreign_finalizers_on_the_remote_stay_and_hold_it() {
    run(async {
        let section = Section::start("foreign-finalizer", databases(), "").await;
        section.make_remote_namespace("a").await;
        let content = json!({"metadata": {"finalizers": ["example.org/first"]}, "spec": {"engine": "postgres-17"}});
        section.make_remote("a", "orders", &content).await;
        section.in_step().await;
        let patch = json!({"metadata": {"finalizers": ["example.org/first", FINALIZER, "example.org/last"]}});
        section.patch_remote("a", "orders", &patch).await;
        section.delete_remote("a", "orders").await;
        let ours_is_gone = |remote: &kube::core::DynamicObject| !remote.finalizers().contains(&FINALIZER.to_owned());
        let remote = section.remote_has("a", "orders", ours_is_gone).await;
        assert_eq!(remote.finalizers(), ["example.org/first", "example.org/last"]);
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])), "nobody fights for it");
        section.patch_remote("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
        section.remote_gone("a", "orders").await;
    });
}

#[test]
fn a_local_object_that_was_never_ours_is_kept_by_default_and_deleted_where_configured() {
    run(async {
        let keeps = Section::start("keeps", databases(), "").await;
        let deletes = Section::start("deletes", databases(), "unclaimed = \"delete\"").await;
        for section in [&keeps, &deletes] {
            section.make_namespaces("a").await;
            section.make_local("a", "stranger", &database()).await;
        }
        deletes.local_gone("a", "stranger").await;
        keeps.quiet().await;
        let kept = keeps.local_has("a", "stranger", |_| true).await;
        assert!(kept.metadata.deletion_timestamp.is_none() && kept.annotations().is_empty());
        // With a remote one of the same name it is adopted, and released when that goes.
        keeps.make_remote("a", "stranger", &json!({"spec": {"engine": "mysql-8"}})).await;
        keeps.in_step().await;
        assert_eq!(keeps.local("a").get("stranger").await.unwrap().uid(), kept.uid());
        keeps.delete_remote("a", "stranger").await;
        keeps.remote_gone("a", "stranger").await;
        let released = keeps.local_has("a", "stranger", |local| local.annotations().is_empty()).await;
        assert_eq!((released.uid(), released.metadata.deletion_timestamp), (kept.uid(), None));
    });
}

#[test]
fn somebody_s_own_object_in_a_namespace_of_ours_is_kept() {
    run(async {
        let section = Section::start("own-object", databases(), "").await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &database()).await;
        section.in_step().await;
        let own = section.make_local("a", "own", &database()).await;
        section.quiet().await;
        let kept = section.local_has("a", "own", |_| true).await;
        assert_eq!(kept.resource_version(), own.resource_version());
    });
}

#[test]
fn what_was_deleted_while_the_daemon_was_down_goes_when_it_is_back() {
    run(async {
        let mut section = Section::start("down", databases(), "").await;
        section.make_remote_namespace("a").await;
        for name in ["one", "two"] {
            section.make_remote("a", name, &database()).await;
        }
        section.in_step().await;
        section.towline.kill9().await.unwrap();
        section.delete_remote("a", "one").await;
        let held = section.remote_has("a", "one", |remote| remote.metadata.deletion_timestamp.is_some()).await;
        assert_eq!(held.finalizers(), [FINALIZER]);
        section.towline.start_again().await.unwrap();
        section.remote_gone("a", "one").await;
        section.in_step().await;
        assert!(section.local("a").get_opt("two").await.unwrap().is_some());
    });
}

#[test]
fn a_stripped_finalizer_on_a_living_remote_is_put_back() {
    run(async {
        let section = Section::start("stripped", databases(), "").await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &database()).await;
        section.in_step().await;
        section.patch_remote("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
        section.remote_has("a", "orders", |remote| remote.finalizers() == [FINALIZER]).await;
        section.in_step().await;
        assert!(section.remote("a").delete("orders", &DeleteParams::default()).await.is_ok());
        section.remote_gone("a", "orders").await;
    });
}
