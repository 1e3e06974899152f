//! Namespaces: which are ours, made and deleted.

use integration::eventually;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

fn database() -> serde_json::Value {
    json!({"spec": {"engine": "postgres-17"}})
}

fn namespaces(section: &Place) -> Api<Namespace> {
    Api::all(section.edge.clone())
}

async fn namespace_gone(section: &Place, suffix: &str) {
    gone(&namespaces(section), "the namespace on the edge", &section.namespace(suffix)).await;
}

/// Waits until so many remote objects are left.
async fn remotes_left(section: &Place, suffix: &str, count: usize) {
    eventually(format!("{count} remote objects to be left"), LIMIT, async || {
        let left = section.remote(suffix).list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        if left.items.len() == count { Ok(()) } else { Err(format!("{} are left", left.items.len())) }
    })
    .await
    .unwrap();
}

#[test]
fn a_missing_namespace_is_made_with_owner_marks_and_one_that_is_there_stays_as_it_is() {
    run(async {
        let section = Place::shared("marks", databases()).await;
        section.make_remote_namespace("made").await;
        section.make_namespaces("there").await;
        section.make_remote("made", "orders", &database()).await;
        section.make_remote("there", "orders", &database()).await;
        section.in_step().await;
        let made = namespaces(&section).get(&section.namespace("made")).await.unwrap();
        for (name, value) in [
            ("sync-owner", "orders"),
            ("sync-owner-resource", "databases.demo.towline.dev"),
            ("sync-owner-section", "databases"),
        ] {
            assert_eq!(made.annotations().get(&mark(name)).map(String::as_str), Some(value), "{name}");
        }
        let there = namespaces(&section).get(&section.namespace("there")).await.unwrap();
        assert!(there.annotations().is_empty(), "{:?}", there.annotations());
        for suffix in ["made", "there"] {
            section.delete_remote(suffix, "orders").await;
            section.remote_gone(suffix, "orders").await;
        }
        namespace_gone(&section, "made").await;
        let there = namespaces(&section).get(&section.namespace("there")).await.unwrap();
        assert!(there.metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn the_last_object_to_go_takes_the_namespace_and_none_before() {
    run(async {
        let section = Place::shared("last-goes", databases()).await;
        section.make_remote_namespace("a").await;
        for name in ["one", "two", "three"] {
            section.make_remote("a", name, &database()).await;
            section.local_has("a", name, |_| true).await;
        }
        section.in_step().await;
        let since = section.mark().await;
        // The one that the namespace was made for goes first.
        for name in ["one", "two"] {
            section.delete_remote("a", name).await;
            section.remote_gone("a", name).await;
        }
        let namespace = namespaces(&section).get(&section.namespace("a")).await.unwrap();
        assert!(namespace.metadata.deletion_timestamp.is_none());
        let (_, edge) = section.counted("a", since).await;
        assert_eq!(edge, counts([("delete databases", 2)]));
        section.delete_remote("a", "three").await;
        section.remote_gone("a", "three").await;
        namespace_gone(&section, "a").await;
        let (hub, edge) = section.counted("a", since).await;
        assert_eq!(hub, counts([("patch databases", 3)]));
        assert_eq!(edge, counts([("delete databases", 2), ("delete namespaces", 1)]));
    });
}

#[test]
fn one_remote_object_waits_for_the_end_of_a_namespace_and_the_others_for_their_own_objects() {
    run(async {
        let mut section = Section::start("ends", databases(), "").await;
        section.make_remote_namespace("a").await;
        for name in ["one", "two", "three"] {
            section.make_remote("a", name, &database()).await;
        }
        section.in_step().await;
        // Somebody else's finalizer holds the namespace in its end.
        let others: Api<ConfigMap> = Api::namespaced(section.edge.clone(), &section.namespace("a"));
        let held = json!({"metadata": {"name": "held", "finalizers": ["example.org/held"]}});
        others.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
        let since = section.mark().await;
        section.towline.kill9().await.unwrap();
        for name in ["one", "two", "three"] {
            section.delete_remote("a", name).await;
        }
        section.towline.start_again().await.unwrap();
        remotes_left(&section, "a", 1).await;
        section.quiet().await;
        remotes_left(&section, "a", 1).await;
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        others.patch("held", &PatchParams::default(), &patch).await.unwrap();
        remotes_left(&section, "a", 0).await;
        namespace_gone(&section, "a").await;
        let (hub, edge) = section.counted("a", since).await;
        assert_eq!(hub, counts([("patch databases", 3)]));
        assert_eq!(edge, counts([("delete databases", 2), ("delete namespaces", 1)]));
    });
}

#[test]
fn an_owner_mark_without_a_section_counts_for_the_only_section_and_another_section_s_for_nobody_else() {
    run(async {
        let section = Section::start("old-marks", databases(), "").await;
        for (suffix, marks) in [
            ("unnamed", json!({mark("sync-owner"): "orders"})),
            (
                "others",
                json!({
                    mark("sync-owner"): "orders", mark("sync-owner-resource"): "databases.demo.towline.dev",
                    mark("sync-owner-section"): "somebody-else",
                }),
            ),
            (
                "kinds",
                json!({
                    mark("sync-owner"): "orders", mark("sync-owner-resource"): "queues.demo.towline.dev",
                    mark("sync-owner-section"): "old-marks",
                }),
            ),
        ] {
            section.make_remote_namespace(suffix).await;
            make_namespace(&section.edge, &section.namespace(suffix), &marks).await;
            section.make_remote(suffix, "orders", &database()).await;
            section.local_has(suffix, "orders", |_| true).await;
            section.delete_remote(suffix, "orders").await;
            section.remote_gone(suffix, "orders").await;
        }
        namespace_gone(&section, "unnamed").await;
        for suffix in ["others", "kinds"] {
            let namespace = namespaces(&section).get(&section.namespace(suffix)).await.unwrap();
            assert!(namespace.metadata.deletion_timestamp.is_none(), "{suffix}");
            assert!(section.local(suffix).get_opt("orders").await.unwrap().is_none(), "only the object went");
        }
    });
}

#[test]
fn a_terminating_namespace_is_waited_for_and_made_anew() {
    run(async {
        let section = Section::start("terminating", databases(), "").await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &database()).await;
        section.in_step().await;
        // Somebody else's finalizer holds the namespace in its end.
        let held = section
            .make_local(
                "a",
                "held",
                &json!({"metadata": {"finalizers": ["example.org/held"]}, "spec": {"engine": "x-1"}}),
            )
            .await;
        let first = namespaces(&section).get(&section.namespace("a")).await.unwrap();
        namespaces(&section).delete(&section.namespace("a"), &DeleteParams::background()).await.unwrap();
        section.local_gone("a", "orders").await;
        section.report_has("one that waits", |report| report["objects"]["deleting"] == json!(1)).await;
        let report = section.towline.admin().section(&section.name).await.unwrap();
        assert_eq!(report["objects"]["failing"], json!(0), "{report}");
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        section.local("a").patch(&held.name_any(), &PatchParams::default(), &patch).await.unwrap();
        section.local_has("a", "orders", |_| true).await;
        let second = namespaces(&section).get(&section.namespace("a")).await.unwrap();
        assert!(first.uid() != second.uid() && second.annotations().contains_key(&mark("sync-owner")));
        section.in_step().await;
    });
}
