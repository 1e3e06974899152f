//! Objects as they are sent: with our marks, and without what only API servers set.

use std::borrow::Cow;
use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::name::SyncSetName;
use super::spec::{Desired, DesiredPatch, RECREATE, SecretMapping, SecretSource};
use crate::documents::has_owners;
use crate::documents::{FIELD_POINTERS, FieldPointer, IGNORE_FIELDS, field_pointers};

/// The label of all objects that syncsets send, with the value `true`. Hive's name: its objects are taken over.
pub const MANAGED: &str = "hive.openshift.io/managed";
/// The annotation that names the syncset: `SyncSet/team-a/base`.
pub const SYNCSET: &str = "towline.dev/syncset";
/// The annotation with the id of the syncset, which decides whose an object is.
pub const SYNCSET_ID: &str = "towline.dev/syncset-id";
/// The annotation of objects that existed before, and so are never deleted.
pub const ADOPTED: &str = "towline.dev/adopted";
/// The annotation by which a resource takes over what exists already.
const ADOPT: &str = "towline.dev/adopt";

/// The annotation by which an object stays when no syncset wants it any more.
pub const PRUNE: &str = "towline.dev/prune";

/// What API servers set in `metadata`, and `generateName`, which names nothing.
const SET_BY_SERVERS: [&str; 7] =
    ["managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink", "generateName"];
/// Kinds that take what is in them along when they are deleted.
pub(super) const NEVER_RECREATED: [(&str, &str); 3] =
    [("", "Namespace"), ("", "PersistentVolumeClaim"), ("apiextensions.k8s.io", "CustomResourceDefinition")];

/// A `resourceVersion` that no object has: those of Kubernetes begin above it.
const NO_VERSION: &str = "1";

/// What must be true of an object for it to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition<'u> {
    Uid(&'u str),
    /// There is none. An apply creates the object all the same, and the server refuses it with a 409 if there is one: it compares
    /// versions only then (tested).
    Absent,
}

/// A part of an object has another type than every object has there. It shows no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} is not {allowed}")]
pub struct WrongPart {
    pub place: &'static str,
    pub allowed: &'static str,
}

/// Brings an object to the form in which it is sent. Done twice it is the same as done once.
pub fn normalize(body: &mut Value, syncset: &SyncSetName, id: Uuid) -> Result<(), WrongPart> {
    let fields = body.as_object_mut().ok_or(WrongPart { place: "the object", allowed: "an object" })?;
    if fields.get("metadata").is_some_and(Value::is_null) {
        fields.remove("metadata");
    }
    let metadata = part(fields, "metadata", "metadata")?;
    // A null elsewhere removes a field, or is its value. Here it would be one more annotation without a text.
    metadata.retain(|_, value| !value.is_null());
    metadata.values_mut().for_each(remove_nulls);
    metadata.retain(|name, _| !SET_BY_SERVERS.contains(&name.as_str()));
    if metadata.get("namespace").is_some_and(|namespace| namespace == "") {
        metadata.remove("namespace");
    }
    if metadata.remove("ownerReferences").as_ref().is_some_and(has_owners) {
        return Err(WrongPart {
            place: "metadata.ownerReferences",
            allowed: "empty: another cluster does not have their UIDs",
        });
    }
    part(metadata, "labels", "metadata.labels")?.insert(MANAGED.to_owned(), json!("true"));
    let annotations = part(metadata, "annotations", "metadata.annotations")?;
    // A copy of an object that existed before us elsewhere is ours.
    annotations.remove(ADOPTED);
    annotations.insert(SYNCSET.to_owned(), json!(owner(syncset)));
    annotations.insert(SYNCSET_ID.to_owned(), json!(id));
    let is = |field: &str, expected: &str| fields.get(field).is_some_and(|value| value == expected);
    if is("apiVersion", "v1") && is("kind", "Secret") {
        // Only nulls: a syncset has no values of Secrets. It is never read back, and so would differ always.
        fields.remove("stringData");
    }
    Ok(())
}

/// `SyncSet/team-a/base`, `SelectorSyncSet/monitoring`.
fn owner(syncset: &SyncSetName) -> String {
    let parts = [syncset.kind.as_str(), &syncset.namespace, &syncset.name];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// Removes null members everywhere. Elements of lists stay: others would get their places.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// A part that is an object, made if there is none.
fn part<'f>(
    fields: &'f mut Map<String, Value>,
    name: &str,
    place: &'static str,
) -> Result<&'f mut Map<String, Value>, WrongPart> {
    let part = fields.entry(name).or_insert_with(|| json!({}));
    part.as_object_mut().ok_or(WrongPart { place, allowed: "an object" })
}

/// A mapped secret with its data.
#[derive(Clone, Debug)]
pub struct SecretContent {
    /// What is not secret.
    pub source: SecretSource,
    /// The values in base64, by name.
    pub data: BTreeMap<String, SecretString>,
}

/// The object that a mapping makes of a secret, not normalized yet.
pub(super) fn of_secret(mapping: &SecretMapping, content: &SecretContent) -> Value {
    let source = content.source.copied_by(&std::iter::once(mapping));
    let data: Map<String, Value> =
        content.data.iter().map(|(name, value)| (name.clone(), json!(value.expose_secret()))).collect();
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": mapping.target_name,
            "namespace": mapping.target_namespace,
            "labels": source.labels,
            "annotations": source.annotations,
        },
        "type": source.secret_type,
        "data": data,
    });
    if let Some(fields) = body.as_object_mut().filter(|_| source.is_immutable) {
        fields.insert("immutable".to_owned(), json!(true));
    }
    body
}

/// `towline.dev/adopt: "true"`.
pub(super) fn may_adopt(body: &Value) -> bool {
    is_annotated(body, ADOPT)
}

/// Whether a resource stays when no syncset wants it any more: `towline.dev/prune: "false"`.
pub(super) fn is_kept(body: &Value) -> bool {
    let annotations = body.get("metadata").and_then(|metadata| metadata.get("annotations"));
    annotations.and_then(|annotations| annotations.get(PRUNE)).is_some_and(|value| value == "false")
}

/// `towline.dev/recreate: "true"`, on a kind that may be.
pub(super) fn may_recreate(body: &Value, group: &str, kind: &str) -> bool {
    is_annotated(body, RECREATE) && !NEVER_RECREATED.contains(&(group, kind))
}

/// Whether the cluster deletes an object when it has done its work: a Job with a time to live.
pub fn may_end_by_itself(body: &Value) -> bool {
    let is = |field: &str, expected: &str| body.get(field).and_then(Value::as_str) == Some(expected);
    let has_time = body.pointer("/spec/ttlSecondsAfterFinished").is_some_and(|seconds| !seconds.is_null());
    is("kind", "Job") && is("apiVersion", "batch/v1") && has_time
}

/// The fields that are set at creation and then left alone (`towline.dev/ignore-fields`). What is malformed was refused before.
pub fn left_alone(body: &Value) -> Vec<FieldPointer> {
    let annotations = body.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let text = annotations.and_then(|annotations| annotations.get(IGNORE_FIELDS)).and_then(Value::as_str);
    text.and_then(|text| field_pointers(text).ok()).unwrap_or_default()
}

/// What is wrong with the annotation that names these fields, if something is.
pub(super) fn check_left_alone(body: &Value) -> Result<(), String> {
    let annotations = body.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(text) = annotations.and_then(|annotations| annotations.get(IGNORE_FIELDS)) else { return Ok(()) };
    let read = text.as_str().map_or_else(|| Err("no string".to_owned()), field_pointers);
    read.map(drop).map_err(|error| format!("{IGNORE_FIELDS}: {error}; allowed: {FIELD_POINTERS}"))
}

fn is_annotated(body: &Value, annotation: &str) -> bool {
    let annotations = body.get("metadata").and_then(|metadata| metadata.get("annotations"));
    annotations.and_then(|annotations| annotations.get(annotation)).is_some_and(|value| value == "true")
}

impl Desired {
    /// The object of a kind without namespaces: the API server accepts one and drops it. The content is the same.
    #[must_use]
    pub fn without_namespace(mut self) -> Self {
        self.object.namespace.clear();
        if let Some(metadata) = self.body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
        }
        self
    }

    /// The object as it is sent, with a mark of whether it existed before, if that is given: `false` also takes back the mark of an
    /// earlier write, which patches would leave. With a precondition the server refuses to write to another
    /// object of the name. Neither counts for the content: what is known of the object is stored beside it.
    pub fn sent(&self, is_adopted: Option<bool>, only_if: Option<Precondition<'_>>) -> Cow<'_, Value> {
        if is_adopted.is_none() && only_if.is_none() {
            return Cow::Borrowed(&self.body);
        }
        let mut body = self.body.clone();
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            match only_if {
                Some(Precondition::Uid(uid)) => metadata.insert("uid".to_owned(), json!(uid)),
                Some(Precondition::Absent) => metadata.insert("resourceVersion".to_owned(), json!(NO_VERSION)),
                None => None,
            };
            let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            if let (Some(annotations), Some(is_adopted)) = (annotations, is_adopted) {
                annotations.insert(ADOPTED.to_owned(), json!(is_adopted.to_string()));
            }
        }
        Cow::Owned(body)
    }
}

impl DesiredPatch {
    /// The patch for an object of a kind without namespaces.
    #[must_use]
    pub fn without_namespace(mut self) -> Self {
        self.object.namespace.clear();
        self
    }
}

#[cfg(test)]
mod tests;
