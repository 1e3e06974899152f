//! Requests whose answers are read as far as the object's metadata: what a caller needs that sends many objects and remembers none.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::connection::PARTIAL_METADATA;
use super::reply::Stated;
use super::{Cluster, Error, Kind, ObjectKey, Propagation, Request};

/// An object's metadata, as an answer has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Partial")]
pub struct Metadata {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Arc<str>,
    /// Version.
    pub resource_version: Arc<str>,
    /// Whether it is being deleted.
    pub is_terminating: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Who owns which of its fields.
    pub managers: Vec<ManagedFields>,
}

/// The fields that a manager owns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Entry")]
pub struct ManagedFields {
    /// The manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// The version of the kind that the names of the fields are from: `apps/v1`.
    pub api_version: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// When it last changed something, as the server wrote it; it may be absent.
    pub time: Option<String>,
    /// The fields (`fieldsV1`) as the server wrote them: as values they would take ten times as much memory.
    pub fields: Box<str>,
}

impl ManagedFields {
    /// The fields as a value; null if the text is no JSON.
    pub fn fields_value(&self) -> Value {
        serde_json::from_str(&self.fields).unwrap_or(Value::Null)
    }
}

#[derive(Deserialize)]
struct Partial {
    metadata: PartialMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMetadata {
    name: Arc<str>,
    #[serde(default)]
    namespace: Arc<str>,
    uid: Arc<str>,
    #[serde(default)]
    resource_version: Arc<str>,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<ManagedFields>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Option<String>,
    fields_v1: Option<Box<RawValue>>,
}

// `RawValue` has no default, so the derive is of no use for an absent field.
impl Default for Entry {
    fn default() -> Self {
        let none = String::new;
        Self {
            manager: none(),
            operation: none(),
            api_version: none(),
            subresource: none(),
            time: None,
            fields_v1: None,
        }
    }
}

/// The answer names no object.
#[derive(Debug, thiserror::Error)]
#[error("metadata without name or UID, or with such that no API server makes")]
struct Nameless;

/// Most bytes of a UID and of a `resourceVersion`: they are stored. API servers make UUIDs and numbers.
pub(super) const LONGEST_IDENTITY: usize = 128;

impl TryFrom<Partial> for Metadata {
    type Error = Nameless;

    fn try_from(Partial { metadata }: Partial) -> Result<Self, Nameless> {
        let is_usual = |text: &str| text.len() <= LONGEST_IDENTITY;
        let is_named = !metadata.name.is_empty() && !metadata.uid.is_empty();
        if !is_named || !is_usual(&metadata.uid) || !is_usual(&metadata.resource_version) {
            return Err(Nameless);
        }
        Ok(Self {
            key: ObjectKey { namespace: metadata.namespace, name: metadata.name },
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            is_terminating: metadata.deletion_timestamp.is_some(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            managers: metadata.managed_fields.unwrap_or_default(),
        })
    }
}

impl From<Entry> for ManagedFields {
    fn from(entry: Entry) -> Self {
        Self {
            manager: entry.manager,
            operation: entry.operation,
            api_version: entry.api_version,
            subresource: entry.subresource,
            time: entry.time,
            fields: entry.fields_v1.map(Into::into).unwrap_or_default(),
        }
    }
}

impl Cluster {
    /// Reads the metadata of one object; `None` if the API server answers that there is no such object. Another 404, such as of a
    /// kind that is not served, is an error.
    pub async fn read_metadata(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Metadata>, Error> {
        match self.send(Request::get(kind, key), PARTIAL_METADATA).await {
            Ok(metadata) => Ok(Some(metadata)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a create, an apply or a patch: the metadata after it, and whether it has created the object (201).
    pub async fn change(&self, request: Request<'_>) -> Result<Stated<Metadata>, Error> {
        self.send(request, PARTIAL_METADATA).await
    }

    /// Deletes an object and lets the garbage collector delete its dependents, if it still has this UID, and this version if one
    /// is given: else it is a conflict. An object that does not exist counts as deleted.
    pub async fn remove(&self, kind: &Kind, key: &ObjectKey, uid: &str, version: Option<&str>) -> Result<(), Error> {
        match self.write(Request::delete(kind, key, uid, version, Propagation::Background)).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_read_with_its_managers_as_text() {
        let text = r#"{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
            "name": "site", "namespace": "team", "uid": "u-1", "resourceVersion": "7", "labels": {"a": "b"},
            "annotations": {"c": "d"}, "deletionTimestamp": "2026-11-19T08:00:03Z", "managedFields": [
                {"manager": "towline", "operation": "Apply", "apiVersion": "v1", "time": "2026-11-19T08:00:02Z",
                 "fieldsType": "FieldsV1", "fieldsV1": {"f:data":{"f:x":{}}}},
                {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "subresource": "status"}]}}"#;
        let metadata: Metadata = serde_json::from_str(text).unwrap();
        assert_eq!(metadata.key, ObjectKey::new("team", "site"));
        assert_eq!((&*metadata.uid, &*metadata.resource_version), ("u-1", "7"));
        assert!(metadata.is_terminating);
        assert_eq!(metadata.labels, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        assert_eq!(metadata.annotations, BTreeMap::from([("c".to_owned(), "d".to_owned())]));
        let [ours, kubelet] = metadata.managers.as_slice() else { panic!("{:?}", metadata.managers) };
        assert_eq!(
            (ours.manager.as_str(), ours.operation.as_str(), ours.api_version.as_str()),
            ("towline", "Apply", "v1")
        );
        assert_eq!((ours.time.as_deref(), &*ours.fields), (Some("2026-11-19T08:00:02Z"), r#"{"f:data":{"f:x":{}}}"#));
        assert_eq!(ours.fields_value(), json!({"f:data": {"f:x": {}}}));
        assert_eq!((kubelet.subresource.as_str(), kubelet.time.as_deref(), &*kubelet.fields), ("status", None, ""));
    }

    #[test]
    fn an_answer_that_names_no_object_is_none() {
        for text in
            ["{}", r#"{"metadata": {}}"#, r#"{"metadata": {"name": "a", "uid": ""}}"#, r#"{"metadata": {"uid": "u"}}"#]
        {
            serde_json::from_str::<Metadata>(text).expect_err(text);
        }
        let long = "u".repeat(LONGEST_IDENTITY + 1);
        for (uid, version) in [(long.as_str(), "7"), ("u", long.as_str())] {
            let text = format!(r#"{{"metadata": {{"name": "a", "uid": "{uid}", "resourceVersion": "{version}"}}}}"#);
            serde_json::from_str::<Metadata>(&text).expect_err("it would be stored");
        }
        let least: Metadata =
            serde_json::from_str(r#"{"metadata": {"name": "a", "uid": "u", "labels": null}}"#).unwrap();
        assert!(!least.is_terminating && least.labels.is_empty() && least.managers.is_empty());
    }
}
