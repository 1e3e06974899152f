//! What a section's state says, and how two versions of it are merged.
//!
//! A later release may have written the object, or another process since it was read. So a write never contains this
//! process's view alone: its changes since the read are applied, field by field, to what the object holds now, and fields
//! that this release does not know stay as they are. Collections are maps for that reason: what either side adds is kept.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of the layout. Others are not read.
pub(super) const VERSION: u32 = 1;
/// The longest text that is written: far more than any section needs, and far less than a `ConfigMap` may hold.
pub(super) const LONGEST: usize = 256 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredState {
    /// The daemon that wrote it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<Daemon>,
    /// The identities of the section's two sides.
    pub identities: Identities,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detached: Option<Detached>,
    /// What the guard has counted.
    pub guard: GuardState,
    /// The settings that the section last ran with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// Identities of clusters: the UIDs of their namespaces `kube-system`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identities {
    /// The remote cluster's; for status sync the database's: host, port and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The local cluster's; for status sync the hub's, where its state is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Those of remote clusters that this one replaces, and when that was approved, in seconds since 1970.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub former_remotes: BTreeMap<String, u64>,
    /// Those of local clusters that this one replaces, and when that was approved, in seconds since 1970.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub former_locals: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detached {
    /// The local cluster no longer exists: only the remote is released.
    pub local_gone: bool,
}

/// What the guard against mass changes has counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuardState {
    /// How many changes were sent, by the second (since 1970) in which they were.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sent: BTreeMap<u64, u64>,
    /// How many own objects there were then.
    #[serde(skip_serializing_if = "is_zero")]
    pub most: u64,
    /// How many more were approved.
    #[serde(skip_serializing_if = "is_zero")]
    pub approved: u64,
    /// When they were approved, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The settings that a section last ran with, as far as a change of them may leave something behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The keys that decide which objects have the section's marks, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub marking: BTreeMap<String, String>,
    /// The names of local secrets that were copied to the remote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secret_names: Vec<String>,
    /// Pointers to the fields that belonged to the local side.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub local_fields: Vec<String>,
    /// Pointers that were removed from these, while not all objects have been written since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_fields: Vec<String>,
}

/// What distinguishes a daemon from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Daemon {
    pub instance: String,
    /// The election by which its replicas share sections: `cluster/namespace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election: Option<String>,
}

impl fmt::Display for Daemon {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.election {
            Some(election) => write!(formatter, "{} (election {election})", self.instance),
            None => write!(formatter, "{} (no election)", self.instance),
        }
    }
}

/// Why a text can't be read as a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not a state: {0}")]
    Content(String),
    #[error("it has version {0}, and this release reads version {VERSION}")]
    Version(u64),
}

/// A state as it was read, with the fields that this release does not know.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Document {
    pub(super) known: StoredState,
    /// All fields.
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
        // Parsed from the text, since the keys of some maps are numbers.
        let known = serde_json::from_str(text).map_err(|error| Unreadable::Content(error.to_string()))?;
        Ok(Self { known, raw })
    }

    /// This document with the changes from `base` to `current`.
    pub(super) fn with_changes(&self, base: &StoredState, current: &StoredState) -> Value {
        let mut raw = self.raw.clone();
        raw.insert("version".into(), VERSION.into());
        merge(plain(base), plain(current), Value::Object(raw))
    }
}

fn plain(state: &StoredState) -> Value {
    // A struct of plain values always serializes.
    serde_json::to_value(state).unwrap_or_default()
}

/// `theirs` with the changes from `base` to `ours`: objects key by key, anything else as a whole.
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
            // A key that ours no longer has was removed.
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
