//! What a section's state says, and how two versions of it are merged.
//!
//! The object may have been written by a later release, or by another process since it was read. So what is written is
//! never this release's view alone: what changed here since it was read goes over what is there now, field by field, and
//! what this release does not know stays as it is. Collections are maps for that reason: what either side adds is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Layout of the state; a later one is not read.
pub(super) const VERSION: u32 = 1;
/// The longest text that is written: far more than any section needs, and far below what a `ConfigMap` may hold.
pub(super) const LONGEST: usize = 256 * 1024;

/// A section's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SectionState {
    /// Who wrote it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<Daemon>,
    /// Which clusters the section's two sides are.
    pub identities: Identities,
    /// The section was ended for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detached: Option<Detached>,
    /// What the guard remembers.
    pub guard: GuardState,
    /// The settings that the section last ran with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// Identities of clusters: UIDs of their namespaces `kube-system`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identities {
    /// Of the remote cluster; of status sync, its database: host, port and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Of the local cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Of remote clusters in whose place this one is, and at which second (since 1970) that was approved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub former_remotes: BTreeMap<String, u64>,
    /// Of local clusters in whose place this one is, and at which second (since 1970) that was approved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub former_locals: BTreeMap<String, u64>,
}

/// How a section was ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detached {
    /// The local cluster is gone for ever: only the remote is released.
    pub local_gone: bool,
}

/// What the guard against mass changes remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuardState {
    /// Changes that were sent and count: how many, by the second (since 1970) in which they were.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sent: BTreeMap<u64, u64>,
    /// Of how many own pairs they were.
    #[serde(skip_serializing_if = "is_zero")]
    pub most: u64,
    /// So many more were approved ...
    #[serde(skip_serializing_if = "is_zero")]
    pub approved: u64,
    /// ... at this second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The settings that a section last ran with, as far as a change of them leaves something behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Of all that decides which objects bear which marks.
    pub fingerprint: String,
    /// Names of local secrets that were taken to the remote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secret_names: Vec<String>,
    /// What its marks were called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marks: Option<PastMarks>,
    /// What marks were called before that, as long as something bears them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<PastMarks>,
    /// How many objects bore marks that no section owns.
    #[serde(skip_serializing_if = "is_zero")]
    pub left: u64,
    /// The sections with the same local cluster, and those that are gone and whose states are left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<String>,
    /// Pointers to the fields that belonged to the local side.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub local_fields: Vec<String>,
    /// Pointers that were taken out of those, and whose objects have not all been written since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_fields: Vec<String>,
}

/// What the marks of a section were called, and on which objects they were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PastMarks {
    /// The section's name.
    pub section: String,
    /// Domain of annotations and the finalizer.
    pub annotation_domain: String,
    /// Name part of the finalizer.
    pub finalizer: String,
    /// The kind.
    pub resource: String,
    /// The names of the clusters.
    pub remote: String,
    /// See [`PastMarks::remote`].
    pub local: String,
    /// The rule between names, which says what bore them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_resource_suffix: String,
    /// See [`PastMarks::remote_resource_suffix`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_namespace_suffix: String,
    /// See [`PastMarks::remote_resource_suffix`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace_prefix: String,
}

impl PastMarks {
    /// The finalizer in full.
    pub fn finalizer(&self) -> String {
        format!("{}/{}", self.annotation_domain, self.finalizer)
    }
}

/// A daemon, as far as it can be told from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Daemon {
    /// This process.
    pub instance: String,
    /// The election by which its replicas share sections out: `cluster/namespace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election: Option<String>,
}

/// Why a text is no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not a state: {0}")]
    Content(String),
    #[error("it has version {0}, and this release reads version {VERSION}")]
    Version(u64),
}

/// A state as it was read, with what this release does not know.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Document {
    pub(super) known: SectionState,
    /// All of it.
    raw: Map<String, Value>,
}

impl Document {
    pub(super) fn parse(text: &str) -> Result<Self, Unreadable> {
        let raw: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| Unreadable::Content(error.to_string()))?;
        match raw.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(Unreadable::Version(version)),
            None => return Err(Unreadable::Content("there is no version".into())),
        }
        // From the text: only there may the keys of a map be numbers.
        let known = serde_json::from_str(text).map_err(|error| Unreadable::Content(error.to_string()))?;
        Ok(Self { known, raw })
    }

    /// What is there with what was changed since `base`.
    pub(super) fn with_changes(&self, base: &SectionState, current: &SectionState) -> Value {
        let mut raw = self.raw.clone();
        raw.insert("version".into(), VERSION.into());
        merge(plain(base), plain(current), Value::Object(raw))
    }
}

fn plain(state: &SectionState) -> Value {
    // A struct of plain values always serializes.
    serde_json::to_value(state).unwrap_or_default()
}

/// `theirs` with what `ours` changed since `base`: objects key by key, anything else as a whole.
pub(super) fn merge(base: Value, ours: Value, theirs: Value) -> Value {
    match (base, ours, theirs) {
        (base, ours, theirs) if base == ours => theirs,
        (base, Value::Object(ours), theirs @ (Value::Object(_) | Value::Null)) => {
            let mut base = into_map(base);
            let mut merged = into_map(theirs);
            for (key, value) in ours {
                let (before, there) = (base.remove(&key), merged.remove(&key));
                let value = merge(before.unwrap_or_default(), value, there.unwrap_or_default());
                if !value.is_null() {
                    merged.insert(key, value);
                }
            }
            // What ours no longer has was taken away.
            for key in base.keys() {
                merged.remove(key);
            }
            Value::Object(merged)
        }
        (_, ours, _) => ours,
    }
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
