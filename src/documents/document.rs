//! A document, in its two forms: a row of the database, and the JSON that clients see.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::kind::Kind;

/// What identifies a document among the living ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    /// Its namespace; empty for kinds without one.
    pub namespace: String,
    pub name: String,
}

/// A document without its sealed field. It serializes to the form that clients see.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub kind: Kind,
    /// Assigned by the hub when it was created.
    pub id: Uuid,
    /// Its namespace; empty for kinds without one.
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// What has to be removed before a deleted document is gone.
    pub finalizers: Vec<String>,
    /// 1, and one more with each change of own fields.
    pub generation: i64,
    /// Version of its last change.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When its deletion was requested.
    pub deleted_at: Option<Timestamp>,
    /// Own fields that are not sealed, and what stands for the one that is.
    pub data: Map<String, Value>,
    pub status: Map<String, Value>,
}

/// A time of the database's clock in RFC 3339, UTC, with microseconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Timestamp(String);

/// A row of the database does not have the columns of a document.
#[derive(Debug, thiserror::Error)]
#[error("a row of the documents or of their log can't be read")]
pub struct UnreadableRow(#[from] serde_json::Error);

/// The columns as `to_jsonb` prints them.
#[derive(Deserialize)]
struct Columns {
    kind: String,
    id: Uuid,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
    generation: i64,
    version: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
    deleted_at: Option<Timestamp>,
    data: Map<String, Value>,
    status: Map<String, Value>,
}

impl Key {
    pub fn new(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// `clusters/foo/c1`.
impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/", self.kind.plural())?;
        if !self.namespace.is_empty() {
            write!(formatter, "{}/", self.namespace)?;
        }
        formatter.write_str(&self.name)
    }
}

impl Document {
    /// Reads a row as `to_jsonb(row) - 'sealed'` prints it.
    pub fn from_row(row: &str) -> Result<Self, UnreadableRow> {
        let columns: Columns = serde_json::from_str(row)?;
        let unknown = || serde_json::Error::custom(format!("no kind is called {:?}", columns.kind));
        let kind = Kind::of_plural(&columns.kind).ok_or_else(unknown)?;
        Ok(Self {
            kind,
            id: columns.id,
            namespace: columns.namespace,
            name: columns.name,
            labels: columns.labels,
            annotations: columns.annotations,
            finalizers: columns.finalizers,
            generation: columns.generation,
            version: columns.version,
            created_at: columns.created_at,
            updated_at: columns.updated_at,
            deleted_at: columns.deleted_at,
            data: columns.data,
            status: columns.status,
        })
    }

    pub fn key(&self) -> Key {
        Key::new(self.kind, &self.namespace, &self.name)
    }

    /// The form that clients see without own fields and status.
    pub fn metadata(&self) -> impl Serialize + '_ {
        struct Metadata<'d>(&'d Document);
        impl Serialize for Metadata<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                self.0.serialize_metadata(&mut map)?;
                map.end()
            }
        }
        Metadata(self)
    }

    fn serialize_metadata<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("kind", self.kind.name())?;
        map.serialize_entry("id", &self.id)?;
        if self.kind.is_namespaced() {
            map.serialize_entry("namespace", &self.namespace)?;
        }
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("resourceVersion", &self.version.to_string())?;
        map.serialize_entry("generation", &self.generation)?;
        map.serialize_entry("labels", &self.labels)?;
        map.serialize_entry("annotations", &self.annotations)?;
        map.serialize_entry("finalizers", &self.finalizers)?;
        map.serialize_entry("createdAt", &self.created_at)?;
        map.serialize_entry("updatedAt", &self.updated_at)?;
        if let Some(deleted_at) = &self.deleted_at {
            map.serialize_entry("deletedAt", deleted_at)?;
        }
        Ok(())
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.serialize_metadata(&mut map)?;
        for (field, value) in &self.data {
            map.serialize_entry(field, value)?;
        }
        map.serialize_entry("status", &self.status)?;
        map.end()
    }
}

impl Timestamp {
    /// Whether the database can have it: it calls the year before the first one otherwise.
    pub fn is_storable(&self) -> bool {
        !self.0.starts_with('-') && !self.0.starts_with("0000")
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        Ok(text.parse::<jiff::Timestamp>()?.into())
    }
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(moment: jiff::Timestamp) -> Self {
        Self(format!("{moment:.6}"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROW: &str = r#"{"id": "6f1c0000-0000-4000-8000-000000000000", "data": {"paused": false, "kubeconfigGeneration": 1},
        "kind": "clusters", "name": "cluster1", "labels": {"env": "prod"}, "status": {"seen": true}, "version": 41,
        "namespace": "foo", "created_at": "2026-11-21T23:40:00.1234+00:00", "deleted_at": null, "finalizers": ["a.io/b"],
        "generation": 1, "updated_at": "2026-11-21T23:40:00+00:00", "annotations": {}}"#;

    #[test]
    fn clients_see_a_row_with_times_in_microseconds_and_its_version_as_text() {
        let document = Document::from_row(ROW).expect("a row");
        assert_eq!(document.key().to_string(), "clusters/foo/cluster1");
        let seen = serde_json::to_value(&document).expect("JSON");
        let metadata = json!({
            "kind": "Cluster", "id": "6f1c0000-0000-4000-8000-000000000000", "namespace": "foo", "name": "cluster1",
            "resourceVersion": "41", "generation": 1, "labels": {"env": "prod"}, "annotations": {}, "finalizers": ["a.io/b"],
            "createdAt": "2026-11-21T23:40:00.123400Z", "updatedAt": "2026-11-21T23:40:00.000000Z",
        });
        assert_eq!(serde_json::to_value(document.metadata()).expect("JSON"), metadata);
        let mut whole = metadata;
        whole["paused"] = json!(false);
        whole["kubeconfigGeneration"] = json!(1);
        whole["status"] = json!({"seen": true});
        assert_eq!(seen, whole);
    }

    #[test]
    fn a_deleted_document_shows_when_and_one_without_a_namespace_shows_none() {
        let mut document = Document::from_row(ROW).expect("a row");
        document.kind = Kind::SelectorSyncSet;
        document.namespace = String::new();
        document.deleted_at = Some("2026-11-22T00:00:00Z".parse().expect("a time"));
        let seen = serde_json::to_value(&document).expect("JSON");
        assert_eq!(seen["deletedAt"], "2026-11-22T00:00:00.000000Z");
        assert_eq!(seen.get("namespace"), None);
        assert_eq!(document.key().to_string(), "selectorsyncsets/cluster1");
    }

    #[test]
    fn a_row_of_an_unknown_kind_is_an_error() {
        let error = Document::from_row(&ROW.replace("\"clusters\"", "\"pods\"")).expect_err("an unknown kind");
        assert!(error.0.to_string().contains("\"pods\""), "{error:?}");
    }
}
