//! `metadata = "mirror"` leaves no room for a mark on a local object that is in step: what proves that it is ours, and
//! that it is not any more.

use std::collections::BTreeMap;

use integration::Towline;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

const FOREIGN: &str = "example.org/held";

fn labelled(place: &str) -> Value {
    json!({
        "metadata": {
            "labels": {"place": place, "team": "a"}, "annotations": {"example.org/note": "n"}, "finalizers": [FOREIGN],
        },
        "spec": {"engine": "postgres-17", "storage": "3Gi"},
    })
}

/// Of a local object: who it is, and what it has from the remote one.
fn face(local: &DynamicObject) -> (Option<String>, BTreeMap<String, String>, BTreeMap<String, String>, Value) {
    (local.uid(), local.labels().clone(), local.annotations().clone(), local.data["spec"].clone())
}

/// The field manager proves it.
fn is_written_by_us(local: &DynamicObject) -> bool {
    local
        .managed_fields()
        .iter()
        .any(|entry| entry.manager.as_deref().is_some_and(|manager| manager.starts_with("towline-")))
}

/// Takes off the mark that an object was let go by a section that goes on, where it has it.
fn without_mark(mut local: DynamicObject) -> (bool, DynamicObject) {
    let marked = local.annotations_mut().remove(&mark("sync-released")).is_some();
    (marked, local)
}

/// The finalizer of somebody else is all that is left of finalizers; what the user wrote is there.
fn is_let_go(remote: &DynamicObject) -> bool {
    remote.finalizers() == [FOREIGN]
        && remote.labels().get("team").is_some_and(|team| team == "a")
        && remote.annotations().contains_key("example.org/note")
}

async fn delete_for_good(section: &Section, suffix: &str, name: &str) {
    section.patch_remote(suffix, name, &json!({"metadata": {"finalizers": null}})).await;
    section.delete_remote(suffix, name).await;
    section.remote_gone(suffix, name).await;
}

#[test]
fn a_mirrored_pair_that_is_let_go_keeps_both_objects_and_detached_nothing_that_is_ours() {
    run(async {
        let settings = "metadata = \"mirror\"\nselector = \"place=west\"";
        let mut section = Section::start_with("mirror-ends", databases(), settings, |mapping| {
            mapping.mirror = true;
            mapping.selector = "place=west".to_owned();
        })
        .await;
        // A namespace that was there, and one that is ours.
        section.make_namespaces("a").await;
        section.make_remote_namespace("b").await;
        for (suffix, name) in [("a", "leaves"), ("b", "leaves"), ("b", "stays")] {
            section.make_remote(suffix, name, &labelled("west")).await;
        }
        section.in_step().await;
        let mut faces = BTreeMap::new();
        for (suffix, name) in [("a", "leaves"), ("b", "leaves"), ("b", "stays")] {
            let local = section.local_has(suffix, name, is_written_by_us).await;
            let expected = [("place".to_owned(), "west".to_owned()), ("team".to_owned(), "a".to_owned())];
            assert_eq!(local.labels(), &BTreeMap::from(expected), "{suffix}/{name}");
            assert_eq!(local.annotations().len(), 1, "no mark of ours: {:?}", local.annotations());
            faces.insert((suffix, name), face(&local));
        }
        let west = json!({"metadata": {"labels": {"place": "west"}}});
        section.quiet_with(&west).await;

        for suffix in ["a", "b"] {
            section.patch_remote(suffix, "leaves", &json!({"metadata": {"labels": {"place": "north"}}})).await;
            section.remote_has(suffix, "leaves", is_let_go).await;
            let marked = |local: &DynamicObject| local.annotations().contains_key(&mark("sync-released"));
            let (_, local) = without_mark(section.local_has(suffix, "leaves", marked).await);
            assert_eq!(face(&local), faces[&(suffix, "leaves")], "{suffix}: as it was");
        }
        // From now on it is kept: when the remote one goes, and after a restart.
        delete_for_good(&section, "a", "leaves").await;
        section.quiet_with(&west).await;
        section.towline.kill9().await.unwrap();
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.quiet_with(&west).await;
        for suffix in ["a", "b"] {
            let (marked, local) = without_mark(section.local_has(suffix, "leaves", |_| true).await);
            assert!(marked && local.metadata.deletion_timestamp.is_none(), "{suffix}: {:?}", local.metadata);
            assert_eq!(face(&local), faces[&(suffix, "leaves")], "{suffix}: kept");
        }

        let detached =
            Towline::command(["detach", "--yes", &section.name, "--admin", &section.towline.admin_url()]).await;
        let detached = detached.unwrap();
        assert!(detached.status.success(), "{detached:?}");
        section.report_has("its end", |report| report["mode"] == json!("detached")).await;
        section.remote_has("b", "stays", is_let_go).await;
        for (suffix, name) in faces.keys() {
            let local = section.local_has(suffix, name, |local| !is_written_by_us(local)).await;
            assert_eq!(face(&local), faces[&(*suffix, *name)], "{suffix}/{name}: as it was, and no mark of ours");
        }
        let namespaces: Api<Namespace> = Api::all(section.edge.clone());
        let namespace = namespaces.get(&section.namespace("b")).await.unwrap();
        assert!(namespace.metadata.deletion_timestamp.is_none());
        let marks: Vec<_> = namespace.annotations().keys().filter(|key| key.starts_with(&mark(""))).collect();
        assert!(marks.is_empty(), "{marks:?}");
        // Neither its deletion nor a change concerns the local side any more.
        let since = section.mark().await;
        section.patch_remote("b", "stays", &json!({"spec": {"storage": "9Gi"}})).await;
        delete_for_good(&section, "b", "stays").await;
        section.report_has("that it is still detached", |report| report["mode"] == json!("detached")).await;
        assert_eq!(section.counted("b", since).await, (counts([]), counts([])));
        assert_eq!(face(&section.local_has("b", "stays", |_| true).await), faces[&("b", "stays")]);
    });
}
