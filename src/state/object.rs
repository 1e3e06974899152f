//! The requests for the `ConfigMap` that holds a section's state.

use std::sync::Arc;

use serde_json::{Value, json};

use super::content::{Document, LONGEST, Unreadable};
use crate::cluster::{AccessRequest, Cluster, Error, FIELD_MANAGER, Kind, Object, ObjectKey, Payload, Request, Verb};
use crate::config::SectionName;

/// The annotation that marks an object as a section's state; its value is the section's name.
pub const MARK: &str = "towline.dev/section-state";
/// The name of a section's object is this and the section's name.
const PREFIX: &str = "towline-";
/// The key of its data.
const DATA: &str = "state";
/// The verbs that a section needs on it.
const VERBS: [Verb; 3] = [Verb::Get, Verb::Create, Verb::Patch];

/// Whether an object is the state of a section, of any daemon. Such an object is never synced.
pub fn is_state_object(object: &Object) -> bool {
    object.annotation(MARK).is_some()
}

/// The permissions that a section needs in the namespace of its state.
pub fn needed_access(section: &SectionName, namespace: &str) -> Vec<AccessRequest> {
    // For an object that is about to be created, the API server authorizes without a name.
    let name = |verb| if verb == Verb::Create { String::new() } else { format!("{PREFIX}{section}") };
    VERBS.iter().map(|verb| AccessRequest::new(*verb, "configmaps", namespace, &name(*verb))).collect()
}

pub(super) enum Read {
    Missing,
    /// The section's state, and the version of its object.
    State(Box<Document>, Arc<str>),
    /// An object that is not the section's state, or can't be parsed as one.
    Foreign(Foreign),
}

/// Why an object of that name is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Foreign {
    #[error("somebody else's: it has no annotation {MARK}")]
    Unmarked,
    #[error("the state of section {0}")]
    OtherSection(String),
    #[error("unreadable: {0}")]
    Unreadable(#[from] Unreadable),
}

fn kind() -> Kind {
    Kind::core("ConfigMap", "configmaps", true)
}

pub(super) fn key(section: &SectionName, namespace: &str) -> ObjectKey {
    ObjectKey::new(namespace, format!("{PREFIX}{section}"))
}

/// Reads the state of a section.
pub(super) async fn read(cluster: &Cluster, section: &SectionName, namespace: &str) -> Result<Read, Error> {
    let Some(object) = cluster.get(&kind(), &key(section, namespace)).await? else { return Ok(Read::Missing) };
    Ok(match object.annotation(MARK) {
        None => Read::Foreign(Foreign::Unmarked),
        Some(other) if other != section.as_str() => Read::Foreign(Foreign::OtherSection(other.to_owned())),
        Some(_) => {
            let content = object.content.value();
            let text = content.pointer(&format!("/data/{DATA}")).and_then(Value::as_str).unwrap_or_default();
            match Document::parse(text) {
                Ok(document) => Read::State(Box::new(document), object.resource_version),
                Err(unreadable) => Read::Foreign(unreadable.into()),
            }
        }
    })
}

/// Whether the namespace exists; `None` if that can't be read.
pub(super) async fn has_namespace(cluster: &Cluster, namespace: &str) -> Option<bool> {
    let found = cluster.get(&Kind::core("Namespace", "namespaces", false), &ObjectKey::new("", namespace)).await;
    found.ok().map(|found| found.is_some())
}

/// Writes the state of a section: replaces this version, or creates the object. Returns the new version.
pub(super) async fn write(
    cluster: &Cluster,
    section: &SectionName,
    namespace: &str,
    version: Option<&str>,
    text: &str,
) -> Result<Arc<str>, Error> {
    if text.len() > LONGEST {
        let message = format!("the state has {} bytes, {LONGEST} are allowed", text.len());
        return Err(Error::Rejected { code: 413, reason: "TooLarge".into(), message });
    }
    let key = key(section, namespace);
    let kind = kind();
    let request = if let Some(version) = version {
        let body = json!({"metadata": {"resourceVersion": version}, "data": {DATA: text}});
        Request::patch(&kind, &key, Payload::merge_patch(&body))
    } else {
        let metadata = json!({
            "name": &*key.name, "namespace": &*key.namespace, "annotations": {MARK: section.as_str()},
            "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER},
        });
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {DATA: text}});
        Request::create(&kind, &key, &body)
    };
    Ok(cluster.write(request.by(FIELD_MANAGER)).await?.resource_version)
}
