//! What is deleted, how, and what is not.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

fn database() -> Value {
    json!({"spec": {"engine": "postgres-17"}})
}

/// The bodies of the daemon's deletes in a namespace of the edge.
fn deletes(place: &Place, suffix: &str) -> Vec<Value> {
    let log: PathBuf = place.world.edge.directory().join("audit.log");
    let namespace = place.local_namespace(suffix);
    let text = std::fs::read_to_string(log).unwrap();
    text.lines()
        .filter(|line| line.contains(&namespace))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["verb"] == "delete" && line["user"]["username"] == integration::users::TOWLINE)
        .filter(|line| line["objectRef"]["namespace"] == namespace.as_str())
        .map(|line| line["requestObject"].clone())
        .collect()
}

/// A config map that the local object owns, and which holds its deletion in the foreground.
async fn dependent(place: &Place, name: &str) {
    let owner = place.local_has("a", name, |_| true).await;
    let mut reference = controller(&owner);
    reference["blockOwnerDeletion"] = json!(true);
    let object: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "dependent", "ownerReferences": [reference], "finalizers": ["example.org/held"]},
    }))
    .unwrap();
    dependents(place).create(&PostParams::default(), &object).await.unwrap();
}

fn dependents(place: &Place) -> Api<ConfigMap> {
    Api::namespaced(place.edge.clone(), &place.namespace("a"))
}

async fn let_dependent_go(place: &Place) {
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    dependents(place).patch("dependent", &kube::api::PatchParams::default(), &patch).await.unwrap();
}

#[test]
fn dependents_go_first_go_alone_or_stay_by_the_policy_and_in_the_foreground_the_remote_waits() {
    run(async {
        let policies = ["Foreground", "Background", "Orphan"];
        let sections = policies.map(|policy| (policy.to_lowercase(), format!("propagation_policy = {policy:?}")));
        let sections = sections.each_ref().map(|(name, settings)| (name.as_str(), settings.as_str()));
        let (foreground, others) = Section::start_several(&databases(), &sections).await;
        let [background, orphan] = &others[..] else { panic!("two others") };
        for place in [&*foreground, background, orphan] {
            place.make_namespaces("a").await;
            place.make_remote("a", "orders", &database()).await;
            place.in_step().await;
            dependent(place, "orders").await;
            place.delete_remote("a", "orders").await;
        }
        let local = foreground.local_has("a", "orders", |local| local.metadata.deletion_timestamp.is_some()).await;
        foreground.quiet().await;
        let remote = foreground.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.finalizers(), [FINALIZER], "the local object is still there");
        let_dependent_go(&foreground).await;
        foreground.remote_gone("a", "orders").await;
        assert!(foreground.local("a").get_opt("orders").await.unwrap().is_none());

        background.remote_gone("a", "orders").await;
        let going = integration::eventually("the dependent to be collected", LIMIT, async || {
            let found = dependents(background).get("dependent").await.map_err(|error| error.to_string())?;
            found.metadata.deletion_timestamp.map(|_| ()).ok_or_else(|| "it is still there".to_owned())
        });
        going.await.unwrap();
        let_dependent_go(background).await;

        orphan.remote_gone("a", "orders").await;
        let left = dependents(orphan).get("dependent").await.unwrap();
        assert!(left.owner_references().is_empty() && left.metadata.deletion_timestamp.is_none());

        for (place, policy) in [&*foreground, background, orphan].into_iter().zip(policies) {
            let [delete] = deletes(place, "a").try_into().unwrap();
            assert_eq!(delete["propagationPolicy"], json!(policy));
            let precondition = &delete["preconditions"];
            assert!(precondition["uid"].is_string() && precondition["resourceVersion"].is_string(), "{delete}");
            if policy == "Foreground" {
                assert_eq!(precondition["uid"], json!(local.uid()));
            }
        }
    });
}

#[test]
fn foreign_finalizers_on_the_remote_stay_and_hold_it() {
    run(async {
        let section = Place::shared("foreign-finalizer", databases()).await;
        section.make_remote_namespace("a").await;
        let content = json!({"metadata": {"finalizers": ["example.org/first"]}, "spec": {"engine": "postgres-17"}});
        section.make_remote("a", "orders", &content).await;
        section.in_step().await;
        let patch = json!({"metadata": {"finalizers": ["example.org/first", FINALIZER, "example.org/last"]}});
        section.patch_remote("a", "orders", &patch).await;
        section.delete_remote("a", "orders").await;
        let ours_is_gone = |remote: &DynamicObject| !remote.finalizers().contains(&FINALIZER.to_owned());
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
fn a_local_object_that_was_never_ours_is_kept_also_in_a_namespace_of_ours_and_released_when_it_was_adopted() {
    run(async {
        let keeps = Place::shared("keeps", databases()).await;
        keeps.make_namespaces("a").await;
        let existing = keeps.make_local("a", "existing", &database()).await;
        keeps.make_remote_namespace("b").await;
        keeps.make_remote("b", "orders", &database()).await;
        keeps.local_has("b", "orders", |_| true).await;
        let own = keeps.make_local("b", "own", &database()).await;
        keeps.quiet().await;
        for (suffix, made) in [("a", &existing), ("b", &own)] {
            let kept = keeps.local_has(suffix, &made.name_any(), |_| true).await;
            assert_eq!(kept.resource_version(), made.resource_version());
        }
        // With a remote one of the same name it is adopted, and released when that goes.
        keeps.make_remote("a", "existing", &json!({"spec": {"engine": "mysql-8"}})).await;
        let adopted = |local: &DynamicObject| local.data["spec"]["engine"] == "mysql-8";
        assert_eq!(keeps.local_has("a", "existing", adopted).await.uid(), existing.uid());
        keeps.delete_remote("a", "existing").await;
        keeps.remote_gone("a", "existing").await;
        let released = keeps.local_has("a", "existing", |local| local.annotations().is_empty()).await;
        assert_eq!((released.uid(), released.metadata.deletion_timestamp), (existing.uid(), None));
    });
}

#[test]
fn what_was_deleted_while_the_daemon_was_down_goes_when_it_is_back() {
    run(async {
        let mut section = Section::start("down", databases(), "").await;
        section.make_remote_namespace("a").await;
        for name in ["one", "two", "three"] {
            section.make_remote("a", name, &database()).await;
        }
        section.in_step().await;
        let before = section.local_has("a", "three", |_| true).await;
        section.towline.kill9().await.unwrap();
        // Deleted and made anew by the same name, without anybody having let go properly.
        section.patch_remote("a", "three", &json!({"metadata": {"finalizers": null}})).await;
        section.delete_remote("a", "three").await;
        section.make_remote("a", "three", &json!({"spec": {"engine": "postgres-18"}})).await;
        section.delete_remote("a", "one").await;
        let held = section.remote_has("a", "one", |remote| remote.metadata.deletion_timestamp.is_some()).await;
        assert_eq!(held.finalizers(), [FINALIZER]);
        section.towline.start_again().await.unwrap();
        section.remote_gone("a", "one").await;
        section.in_step().await;
        assert!(section.local("a").get_opt("two").await.unwrap().is_some());
        assert_eq!(section.local("a").get("three").await.unwrap().uid(), before.uid(), "its successor has it");
    });
}

#[test]
fn a_stripped_finalizer_on_a_living_remote_is_put_back() {
    run(async {
        let section = Place::shared("stripped", databases()).await;
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
