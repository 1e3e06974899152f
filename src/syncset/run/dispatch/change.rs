//! A change of a document, as the log has it, with what decides whom it concerns.

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::documents::Kind;

/// A row of the log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// None for a kind that only a newer release knows.
    pub(super) kind: Option<Kind>,
    pub(super) id: Uuid,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) before: DocumentState,
    pub(super) after: DocumentState,
}

/// A document before or after a change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DocumentState {
    Absent,
    Present(Facts),
    /// It can't be read, or the log no longer has it.
    Unknown,
}

/// What decides whom a change concerns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Facts {
    pub(super) generation: i64,
    /// A hash of labels, annotations, finalizers and the time of deletion: the metadata that clients change.
    pub(super) metadata: String,
    /// A hash of labels.
    pub(super) labels: String,
    /// Of a `SyncSet`.
    pub(super) refs: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub(super) selector: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub(super) namespaces: Option<Value>,
}

impl Change {
    /// Whether only the status has changed.
    pub(super) fn is_of_status_alone(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                before.generation == after.generation && before.metadata == after.metadata
            }
            _ => false,
        }
    }
}

impl DocumentState {
    /// As the read's statement prints it; `exists` says whether there has to be one.
    pub(super) fn read(text: Option<&str>, exists: bool) -> Self {
        match text {
            Some(text) => serde_json::from_str(text).map_or(Self::Unknown, Self::Present),
            None if exists => Self::Unknown,
            None => Self::Absent,
        }
    }

    /// The expression that prints it, of `jsonb_to_record` with [`RECORD`](Self::RECORD) as its columns.
    pub(super) fn expression(record: &str) -> String {
        format!(
            "case when {record}.generation is not null then jsonb_build_object('generation', {record}.generation, \
               'metadata', md5(concat_ws(' ', {record}.labels::text, {record}.annotations::text, {record}.finalizers::text, \
                 {record}.deleted_at)), 'labels', md5({record}.labels::text), \
               'refs', {record}.data #> '{{spec,clusterDeploymentRefs}}', \
               'selector', {record}.data #> '{{spec,clusterDeploymentSelector}}', \
               'namespaces', {record}.data #> '{{spec,clusterNamespaces}}')::text end"
        )
    }

    /// Columns of a document in the log. A large one is decompressed once. None has a type that a document could fail to have: it would
    /// fail the read of all others.
    pub(super) const RECORD: &str =
        "(generation jsonb, labels jsonb, annotations jsonb, finalizers jsonb, deleted_at text, data jsonb)";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_has_to_be_there_and_is_not_readable_is_unknown() {
        assert_eq!(DocumentState::read(None, false), DocumentState::Absent);
        assert_eq!(DocumentState::read(None, true), DocumentState::Unknown);
        assert_eq!(DocumentState::read(Some("{}"), true), DocumentState::Unknown);
        let text = r#"{"generation": 3, "metadata": "x", "labels": "y", "refs": null, "selector": {"a": 1}, "namespaces": ["*"]}"#;
        let facts = Facts {
            generation: 3,
            metadata: "x".to_owned(),
            labels: "y".to_owned(),
            refs: None,
            selector: Some(serde_json::json!({"a": 1})),
            namespaces: Some(serde_json::json!(["*"])),
        };
        assert_eq!(DocumentState::read(Some(text), true), DocumentState::Present(facts));
    }
}
