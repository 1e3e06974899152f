//! What the writer writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::document::{Document, Key, Timestamp};
use super::history::Record;
use super::kind::Kind;

/// Changes that are made together or not at all. As JSON it is an item of the procedure `towline_write`.
#[derive(Clone, PartialEq, Serialize)]
pub struct Item {
    /// Identifies it in the log, so that a write whose answer was lost is found there.
    pub request: Uuid,
    /// The claim under which it is written; none for requests of clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<WorkClaim>,
    /// What its namespace may have, for requests of clients. What the hub writes by itself has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Whether it counts among what the clients of a namespace [change](super::Changes): not what administrators of everything do, and not what
    /// the hub writes by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_charged: bool,
    /// Its changes, of different documents: the database refuses an item that changes one twice. The first one's version is the
    /// outcome's.
    pub changes: Vec<Change>,
}

/// A claim on the work of a cluster: a fencing token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkClaim {
    pub cluster: Uuid,
    pub holder: String,
    /// The number of the grant.
    pub token: i64,
}

/// What a namespace may have. A change that makes more of it is refused, and none that makes less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// Documents, without `ClusterSync`s.
    pub documents: u64,
    /// KiB of all documents, and of the revisions of rollouts. Each counts in whole ones.
    pub kib: u64,
}

/// What a namespace has, or what a change adds to it: documents and KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Usage(pub i64, pub i64);

#[derive(Clone, PartialEq, Serialize)]
pub struct Change {
    /// Its kind, by its plural.
    #[serde(serialize_with = "plural")]
    pub kind: Kind,
    /// Its namespace; empty without one.
    pub namespace: String,
    pub name: String,
    /// The version that the decision was made from.
    pub expected: Expected,
    /// The document's new content; `None` deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<Row>,
    /// Terms of its selector, which replace the present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terms: Option<Vec<(String, String)>>,
    /// Who asked for it, for `towline_history`; `None` where no client did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
}

/// The version that a change requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Absent,
    Version(i64),
    /// Whatever it is, or none: for the `ClusterSync` of a cluster alone.
    Any,
}

/// A document's columns that a change sets.
#[derive(Clone, PartialEq, Serialize)]
pub struct Row {
    /// For a new document; the present one keeps its own.
    pub id: Uuid,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub finalizers: Vec<String>,
    pub generation: i64,
    /// Whether the deletion was requested. When, the database sets: the time of the write that was the first to have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// Own fields that are not sealed.
    pub data: Map<String, Value>,
    pub status: Map<String, Value>,
    /// The sealed field as stored; `None` keeps the present value.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hexadecimal")]
    pub sealed: Option<Vec<u8>>,
}

/// What became of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its changes were made.
    Written {
        /// Version of the first change; 0 where there was nothing to do, since what it deletes does not exist.
        version: i64,
        /// The database's time.
        at: Timestamp,
    },
    /// Nothing was written: a document has another version than expected.
    Conflict {
        /// The present version of the first such document; `None` if it does not exist.
        present: Option<i64>,
    },
    /// Nothing was written: the claim has ended or belongs to another process.
    Fenced,
    /// Nothing was written: its namespace would have more than its quota.
    Exceeded { used: Usage, more: Usage },
}

impl Item {
    /// Changes without a claim or a quota, which count as nobody's.
    pub fn of(request: Uuid, changes: Vec<Change>) -> Self {
        Self { request, claim: None, quota: None, is_charged: false, changes }
    }

    /// The same, unless the namespace would have more than this then.
    #[must_use]
    pub fn within(self, quota: Quota) -> Self {
        Self { quota: Some(quota), ..self }
    }
}

impl Row {
    /// The columns of a document as it is; the sealed field stays.
    pub fn of(document: &Document) -> Self {
        Self {
            id: document.id,
            labels: document.labels.clone(),
            annotations: document.annotations.clone(),
            finalizers: document.finalizers.clone(),
            generation: document.generation,
            deleted_at: document.deleted_at.clone(),
            data: document.data.clone(),
            status: document.status.clone(),
            sealed: None,
        }
    }
}

impl Change {
    /// A change that writes this row.
    pub fn put(key: &Key, expected: Expected, row: Row) -> Self {
        Self { row: Some(row), ..Self::delete(key, expected) }
    }

    /// A change that deletes the document.
    pub fn delete(key: &Key, expected: Expected) -> Self {
        let Key { kind, namespace, name } = key.clone();
        Self { kind, namespace, name, expected, row: None, terms: None, record: None }
    }
}

/// As the procedure reads it: `null`, a number or `"any"`.
impl Serialize for Expected {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_none(),
            Self::Version(version) => serializer.serialize_i64(*version),
            Self::Any => serializer.serialize_str("any"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn plural<S: serde::Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.plural())
}

/// PostgreSQL's notation of bytes: `\x01ff`.
#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn hexadecimal<S: serde::Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    use std::fmt::Write;
    let bytes = bytes.as_deref().unwrap_or_default();
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    serializer.serialize_str(&text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_has_the_form_that_the_procedure_reads() {
        let row = Row {
            id: Uuid::nil(),
            labels: BTreeMap::from([("env".to_owned(), "prod".to_owned())]),
            annotations: BTreeMap::new(),
            finalizers: Vec::new(),
            generation: 2,
            deleted_at: None,
            data: Map::new(),
            status: Map::new(),
            sealed: Some(vec![1, 255]),
        };
        let key = Key::new(Kind::Cluster, "foo", "c1");
        let mut put = Change::put(&key, Expected::Version(41), row);
        put.terms = Some(vec![("env".to_owned(), "prod".to_owned())]);
        let delete = Change::delete(&Key::new(Kind::ClusterSync, "foo", "c1"), Expected::Any);
        let claim = WorkClaim { cluster: Uuid::nil(), holder: "towline-7c9f".to_owned(), token: 17 };
        let quota = Some(Quota { documents: 5, kib: 7 });
        let item = Item { claim: Some(claim), quota, is_charged: true, ..Item::of(Uuid::nil(), vec![put, delete]) };
        let nil = "00000000-0000-0000-0000-000000000000";
        let expected = json!({
            "request": nil, "claim": {"cluster": nil, "holder": "towline-7c9f", "token": 17},
            "quota": {"documents": 5, "kib": 7}, "is_charged": true, "changes": [
                {"kind": "clusters", "namespace": "foo", "name": "c1", "expected": 41, "terms": [["env", "prod"]],
                 "row": {"id": nil, "labels": {"env": "prod"}, "annotations": {}, "finalizers": [], "generation": 2, "data": {},
                         "status": {}, "sealed": "\\x01ff"}},
                {"kind": "clustersyncs", "namespace": "foo", "name": "c1", "expected": "any"}]
        });
        assert_eq!(serde_json::to_value(&item).expect("JSON"), expected);
        let absent = Change::delete(&key, Expected::Absent);
        assert_eq!(serde_json::to_value(&absent).expect("JSON")["expected"], json!(null));
    }
}
