//! Requests whose answers are read as far as the object's metadata: what a caller needs that sends many objects and remembers none.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::connection::PARTIAL_METADATA;
use super::reply::Stated;
use super::request::JSON;
use super::{Cluster, Error, Kind, ObjectKey, Propagation, Request};
use crate::config::text::cut;

/// An object's metadata, as an answer has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Partial")]
pub struct Metadata {
    pub key: ObjectKey,
    pub uid: Arc<str>,
    pub resource_version: Arc<str>,
    pub deletion: Option<Deletion>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Who owns which of its fields.
    pub managers: Vec<ManagedFields>,
}

/// That an object is being deleted, and is there until what holds it lets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// When it was deleted, or its time to end ends, as the server wrote it.
    pub at: String,
    pub finalizers: Vec<String>,
    /// The message of a terminating namespace about its remaining objects.
    pub remaining: Option<String>,
}

/// The fields that a manager owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Entry")]
pub struct ManagedFields {
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
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<ManagedFields>>,
}

/// What of metadata says that an object is being deleted.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ending {
    deletion_timestamp: Option<String>,
    finalizers: Option<Vec<String>>,
}

/// The answer to a deletion: the object, or a `Status` if it is gone.
#[derive(Deserialize)]
struct Removed {
    #[serde(default)]
    metadata: Ending,
}

/// What a namespace says of its end.
#[derive(Deserialize)]
struct NamespaceSays {
    #[serde(default)]
    status: NamespaceStatus,
}

#[derive(Default, Deserialize)]
struct NamespaceStatus {
    #[serde(default)]
    conditions: Vec<NamespaceCondition>,
}

#[derive(Deserialize)]
struct NamespaceCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

/// The conditions that name what is left in a namespace that is being deleted, the most telling first.
const REMAINING: [&str; 4] = [
    "NamespaceFinalizersRemaining",
    "NamespaceContentRemaining",
    "NamespaceDeletionContentFailure",
    "NamespaceDeletionDiscoveryFailure",
];
/// Most characters of one of them that are shown.
const LONGEST_REMAINING: usize = 300;

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

/// A whole object, and its metadata.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct WithWhole {
    metadata: Metadata,
    whole: Value,
}

impl TryFrom<Value> for WithWhole {
    type Error = serde_json::Error;

    fn try_from(whole: Value) -> Result<Self, serde_json::Error> {
        Ok(Self { metadata: Metadata::deserialize(&whole)?, whole })
    }
}

impl TryFrom<Partial> for Metadata {
    type Error = Nameless;

    fn try_from(Partial { metadata }: Partial) -> Result<Self, Nameless> {
        let is_usual = |text: &str| text.len() <= LONGEST_IDENTITY;
        let is_named = !metadata.name.is_empty() && !metadata.uid.is_empty();
        if !is_named || !is_usual(&metadata.uid) || !is_usual(&metadata.resource_version) {
            return Err(Nameless);
        }
        let ending = Ending { deletion_timestamp: metadata.deletion_timestamp, finalizers: metadata.finalizers };
        Ok(Self {
            key: ObjectKey { namespace: metadata.namespace, name: metadata.name },
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion: ending.deletion(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            managers: metadata.managed_fields.unwrap_or_default(),
        })
    }
}

impl Ending {
    fn deletion(self) -> Option<Deletion> {
        let finalizers = self.finalizers.unwrap_or_default();
        self.deletion_timestamp.map(|at| Deletion { at, finalizers, remaining: None })
    }
}

impl NamespaceSays {
    fn remaining(&self) -> Option<String> {
        let of_kind = |kind: &&str| {
            let said = self.status.conditions.iter().find(|said| said.kind == **kind && said.status == "True");
            said.map(|said| cut(&said.message, LONGEST_REMAINING))
        };
        REMAINING.iter().find_map(of_kind)
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
    /// kind that is not served, is an error. Of a namespace that is being deleted its status is read, too: it names what is left in it.
    pub async fn read_metadata(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Metadata>, Error> {
        let mut metadata: Metadata = match self.send(Request::get(kind, key), PARTIAL_METADATA).await {
            Ok(metadata) => metadata,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(deletion) = &mut metadata.deletion
            && kind.resource.group.is_empty()
            && kind.resource.plural == "namespaces"
        {
            let says: Result<NamespaceSays, Error> = self.send(Request::get(kind, key), JSON).await;
            deletion.remaining = says.ok().and_then(|says| says.remaining());
        }
        Ok(Some(metadata))
    }

    /// Reads the whole object; `None` if there is none.
    pub async fn read_whole(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Value>, Error> {
        match self.send(Request::get(kind, key), JSON).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Like [`change`](Self::change), with the whole object after it.
    pub async fn change_whole(&self, request: Request<'_>) -> Result<(Stated<Metadata>, Value), Error> {
        let Stated { created, body: WithWhole { metadata, whole } } = self.send(request, JSON).await?;
        Ok((Stated { created, body: metadata }, whole))
    }

    /// Sends a create, an apply or a patch: the metadata after it, and whether it has created the object (201).
    pub async fn change(&self, request: Request<'_>) -> Result<Stated<Metadata>, Error> {
        self.send(request, PARTIAL_METADATA).await
    }

    /// Deletes an object and lets the garbage collector delete its dependents, if it still has this UID, and this version if one
    /// is given: else it is a conflict. An object that does not exist counts as deleted. Returns what is known if it is still there.
    pub async fn remove(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        uid: &str,
        version: Option<&str>,
    ) -> Result<Option<Deletion>, Error> {
        let request = Request::delete(kind, key, uid, version, Propagation::Background);
        match self.send::<Removed>(request, PARTIAL_METADATA).await {
            Ok(Removed { metadata }) => Ok(metadata.deletion()),
            Err(Error::NotFound { .. }) => Ok(None),
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
            "annotations": {"c": "d"}, "deletionTimestamp": "2026-11-19T08:00:03Z",
            "finalizers": ["example.com/wait"], "managedFields": [
                {"manager": "towline", "operation": "Apply", "apiVersion": "v1", "time": "2026-11-19T08:00:02Z",
                 "fieldsType": "FieldsV1", "fieldsV1": {"f:data":{"f:x":{}}}},
                {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "subresource": "status"}]}}"#;
        let metadata: Metadata = serde_json::from_str(text).unwrap();
        assert_eq!(metadata.key, ObjectKey::new("team", "site"));
        assert_eq!((&*metadata.uid, &*metadata.resource_version), ("u-1", "7"));
        let deletion = metadata.deletion.unwrap();
        assert_eq!(
            (deletion.at.as_str(), deletion.finalizers),
            ("2026-11-19T08:00:03Z", vec!["example.com/wait".to_owned()])
        );
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
        assert!(least.deletion.is_none() && least.labels.is_empty() && least.managers.is_empty());
    }

    #[test]
    fn an_answer_to_a_deletion_says_whether_the_object_is_still_there_and_what_holds_it() {
        let left = |text: &str| serde_json::from_str::<Removed>(text).unwrap().metadata.deletion();
        for gone in [
            r#"{"kind": "Status", "status": "Success", "metadata": {}, "details": {"name": "a", "uid": "u"}}"#,
            r#"{"kind": "PartialObjectMetadata", "metadata": {"name": "a", "uid": "u", "finalizers": null}}"#,
            "{}",
        ] {
            assert_eq!(left(gone), None, "{gone}");
        }
        let text = r#"{"metadata": {"name": "a", "deletionTimestamp": "2026-11-19T08:00:03Z", "finalizers": ["x"], "managedFields": []}}"#;
        let held =
            Deletion { at: "2026-11-19T08:00:03Z".to_owned(), finalizers: vec!["x".to_owned()], remaining: None };
        assert_eq!(left(text), Some(held));
    }

    #[test]
    fn of_what_is_left_in_a_namespace_its_most_telling_condition_counts() {
        let says = |conditions: serde_json::Value| {
            let namespace =
                json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating", "conditions": conditions}});
            serde_json::from_value::<NamespaceSays>(namespace).unwrap().remaining()
        };
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "message": format!("of {kind}")});
        let content = condition("NamespaceContentRemaining", "True");
        assert_eq!(
            says(json!([content, condition("NamespaceFinalizersRemaining", "True")])).as_deref(),
            Some("of NamespaceFinalizersRemaining")
        );
        assert_eq!(
            says(json!([content, condition("NamespaceFinalizersRemaining", "False")])).as_deref(),
            Some("of NamespaceContentRemaining")
        );
        assert_eq!(says(json!([])), None);
    }
}
