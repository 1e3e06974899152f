//! The kinds that the inventory works with, and the watches of them.

use std::sync::Arc;

use super::super::config::Storage;
use super::super::plan::contents::Content;
use super::super::plan::identity::GivenId;
use super::super::plan::revision;
use crate::cluster::{CanonicalJson, Kind, Projection, WatchId, WatchSpec};
use crate::config::ClusterName;

/// The Secret of a namespace with the id of its releases.
pub const SECRET: &str = "uuid";
/// The name of the projections.
const PROJECTION: &str = "inventory";

/// The kind of projects, as its CRD defines it: discovery would say nothing else.
pub fn projects() -> Kind {
    let mut kind = Kind::core("Hosstedproject", "hosstedprojects", false);
    "hossted.com".clone_into(&mut kind.resource.group);
    "hossted.com/v1".clone_into(&mut kind.resource.api_version);
    kind.status_subresource = true;
    kind
}

/// The kind of the objects that store releases.
pub fn storage(storage: Storage) -> Kind {
    match storage {
        Storage::Secret => Kind::core("Secret", "secrets", true),
        Storage::ConfigMap => Kind::core("ConfigMap", "configmaps", true),
    }
}

fn content(content: Content) -> Kind {
    match content {
        Content::Pod => Kind::core("Pod", "pods", true),
        Content::Service => Kind::core("Service", "services", true),
        Content::Volume => Kind::core("PersistentVolumeClaim", "persistentvolumeclaims", true),
        Content::Ingress => {
            let mut kind = Kind::core("Ingress", "ingresses", true);
            "networking.k8s.io".clone_into(&mut kind.resource.group);
            "networking.k8s.io/v1".clone_into(&mut kind.resource.api_version);
            kind
        }
    }
}

fn id(cluster: &ClusterName, kind: &Kind) -> WatchId {
    WatchId { projection: Some(PROJECTION), ..WatchId::all(cluster.clone(), kind.id()) }
}

/// A built-in kind needs no discovery.
fn spec(kind: Kind, projection: Projection) -> WatchSpec {
    WatchSpec { kind: Some(kind), projection: Some(projection), ..WatchSpec::default() }
}

pub fn projects_watch(cluster: &ClusterName) -> (WatchId, WatchSpec) {
    let kind = projects();
    (WatchId::all(cluster.clone(), kind.id()), WatchSpec { kind: Some(kind), ..WatchSpec::default() })
}

/// The watch of the revisions of releases: metadata, of which the labels are read.
pub fn releases(cluster: &ClusterName, stored: Storage) -> (WatchId, WatchSpec) {
    let kind = storage(stored);
    let fields = if stored == Storage::Secret { revision::TYPE } else { "" };
    let labels = revision::OWNER.to_owned();
    let id = WatchId { labels, fields: fields.to_owned(), metadata_only: true, ..id(cluster, &kind) };
    (id, spec(kind, revision::projection()))
}

/// The watch of what runs in releases.
pub fn contents(cluster: &ClusterName, of: Content) -> (WatchId, WatchSpec) {
    let kind = content(of);
    (WatchId { labels: of.selector().to_owned(), ..id(cluster, &kind) }, spec(kind, of.projection()))
}

/// The watch of the Secrets with ids, of which nothing else is kept.
pub fn given_ids(cluster: &ClusterName) -> (WatchId, WatchSpec) {
    let kind = Kind::core("Secret", "secrets", true);
    let projection: Projection = Arc::new(|object| {
        object.content = CanonicalJson::of(&given_id(&object.content).to_content());
        object.annotations.clear();
        object.labels.clear();
        object.finalizers.clear();
        object.owned = Vec::new();
        object.controller = None;
    });
    (WatchId { fields: format!("metadata.name={SECRET}"), ..id(cluster, &kind) }, spec(kind, projection))
}

/// The id in a Secret's data.
fn given_id(content: &CanonicalJson) -> GivenId {
    #[derive(serde::Deserialize)]
    struct Content {
        data: Data,
    }
    #[derive(serde::Deserialize)]
    struct Data {
        uuid: k8s_openapi::ByteString,
    }
    let value = serde_json::from_str(content.as_str()).ok().map(|Content { data: Data { uuid } }| uuid.0);
    GivenId::of(value.and_then(|value| String::from_utf8(value).ok()).as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::Decoded;

    #[test]
    fn of_a_secret_only_the_id_is_kept() {
        let (_, spec) = given_ids(&ClusterName::default());
        let held = |data: &Value| {
            let metadata =
                json!({"name": "uuid", "namespace": "n", "labels": {"a": "canary"}, "annotations": {"a": "canary"}});
            let secret = json!({"metadata": metadata, "data": data, "type": "Opaque"});
            let mut object = serde_json::from_value::<Decoded>(secret).unwrap().into_object();
            spec.projection.as_ref().unwrap()(&mut object);
            assert!(!format!("{object:?}").contains("canary"));
            object.content.value()
        };
        // 1-a, then "canary!".
        assert_eq!(held(&json!({"uuid": "MS1h", "other": "Y2FuYXJ5"})), json!("A-1-a"));
        for unusable in
            [json!({"uuid": "Y2FuYXJ5IQ=="}), json!({"other": "Y2FuYXJ5"}), json!({"uuid": "gICA"}), Value::Null]
        {
            assert_eq!(held(&unusable), Value::Null, "{unusable}");
        }
    }

    #[test]
    fn watches_select_what_they_need_on_the_server() {
        let cluster = ClusterName::default();
        let (secrets, _) = releases(&cluster, Storage::Secret);
        assert_eq!((secrets.labels.as_str(), secrets.fields.as_str()), ("owner=helm", "type=helm.sh/release.v1"));
        assert!(secrets.metadata_only);
        let (config_maps, _) = releases(&cluster, Storage::ConfigMap);
        assert_eq!((config_maps.resource.plural.as_str(), config_maps.fields.as_str()), ("configmaps", ""));
        for of in [Content::Service, Content::Ingress] {
            assert_eq!(contents(&cluster, of).0.labels, "app.kubernetes.io/managed-by=Helm");
        }
        for of in [Content::Pod, Content::Volume] {
            assert_eq!(contents(&cluster, of).0.labels, "");
        }
    }
}
