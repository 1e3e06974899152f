//! What the server answers to deletions, and of objects that are being deleted.

use serde_json::json;
use towline::test_api::cluster::{Error, ObjectKey, Payload, Request};

use crate::edges::world::{Edge, config_maps, namespaces, run};

#[test]
fn only_the_object_with_the_uid_and_the_version_is_deleted() {
    run(async {
        let edge = Edge::new("delete").await;
        let (kind, key) = (config_maps(), edge.key("site"));
        let first = edge.apply("site", &json!({"a": "1"})).await.unwrap().body;
        let second = edge.apply("site", &json!({"a": "2"})).await.unwrap().body;
        for (uid, version) in [
            ("another", None),
            (&*first.uid, Some(&*first.resource_version)),
            ("another", Some(&*second.resource_version)),
        ] {
            let error = edge.cluster.remove(&kind, &key, uid, version).await.unwrap_err();
            assert!(matches!(error, Error::Conflict { exists: false, .. }), "{uid} {version:?}: {error:?}");
        }
        edge.cluster.remove(&kind, &key, &second.uid, Some(&*second.resource_version)).await.unwrap();
        assert_eq!(edge.metadata(&kind, "site").await, None);
        // It counts as deleted.
        edge.cluster.remove(&kind, &key, &second.uid, Some(&*second.resource_version)).await.unwrap();
    });
}

#[test]
fn an_apply_on_an_object_that_is_being_deleted_succeeds_and_says_so() {
    run(async {
        let edge = Edge::new("terminating").await;
        let (kind, key) = (config_maps(), edge.key("site"));
        let applied = edge.apply("site", &json!({"a": "1"})).await.unwrap();
        assert!(applied.body.deletion.is_none());
        let held = json!({"metadata": {"finalizers": ["demo.towline.dev/held"]}});
        edge.cluster.change(Request::patch(&kind, &key, Payload::merge_patch(&held))).await.unwrap();
        edge.cluster.remove(&kind, &key, &applied.body.uid, None).await.unwrap();
        let again = edge.apply("site", &json!({"a": "2"})).await.unwrap();
        assert!(!again.created && again.body.deletion.is_some() && again.body.uid == applied.body.uid);
        assert!(edge.metadata(&kind, "site").await.unwrap().deletion.is_some());
        let free = json!({"metadata": {"finalizers": null}});
        edge.cluster.change(Request::patch(&kind, &key, Payload::merge_patch(&free))).await.unwrap();
        edge.is_gone(&kind, "site").await;
    });
}

#[test]
fn a_namespace_that_is_being_deleted_and_one_that_is_missing_are_told_apart() {
    run(async {
        let edge = Edge::new("ending").await;
        let applied = edge.apply("site", &json!({})).await.unwrap();
        let held = json!({"metadata": {"finalizers": ["demo.towline.dev/held"]}});
        let (kind, key) = (config_maps(), edge.key("site"));
        edge.cluster.change(Request::patch(&kind, &key, Payload::merge_patch(&held))).await.unwrap();
        let own = ObjectKey::new("", edge.namespace);
        let namespace = edge.cluster.read_metadata(&namespaces(), &own).await.unwrap().unwrap();
        edge.cluster.remove(&namespaces(), &own, &namespace.uid, None).await.unwrap();
        let error = edge.apply("other", &json!({})).await.unwrap_err();
        assert!(matches!(error, Error::NamespaceTerminating { .. }), "{error:?}");
        let missing = ObjectKey::new("nowhere", "site");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site"}});
        let error = edge.cluster.change(Request::apply(&kind, &missing, &body).by("towline")).await.unwrap_err();
        assert!(matches!(error, Error::NotServed { .. }), "{error:?}");
        assert_eq!(edge.cluster.read_metadata(&kind, &missing).await.unwrap(), None);
        let free = json!({"metadata": {"finalizers": null}});
        edge.cluster.change(Request::patch(&kind, &key, Payload::merge_patch(&free))).await.unwrap();
        assert_eq!(applied.body.key, key);
    });
}
