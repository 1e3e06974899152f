//! The stored rows as the database prints and reads them: JSON with the columns of their tables.

use std::fmt::Write;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::syncset::plan::health::Health;
use crate::syncset::plan::name::{Digest, ObjectRef, SyncSetKind, SyncSetName};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{AppliedRow, ClusterRow, Failure, GuardRow, PatchedRow, ResultRow};

/// Why a stored row can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableColumn {
    /// Not the notation of so many bytes.
    #[error("a digest is not 32 bytes")]
    Digest,
    #[error("{0:?} is not a time")]
    Time(String),
    /// A newer release has written it.
    #[error("{0:?} is no kind of syncset")]
    Kind(String),
    /// Out of the range of its type.
    #[error("{0} is out of range")]
    Number(i64),
}

/// A row of `towline_result`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ResultColumns {
    cluster: Uuid,
    syncset: Uuid,
    kind: String,
    namespace: String,
    name: String,
    inputs: String,
    generation: i64,
    result: String,
    reason: Option<String>,
    message: Option<String>,
    since: String,
    first_success: Option<String>,
    pending_deletions: bool,
    /// Written by a statement of its own, and kept by those that write the rest.
    #[serde(default, skip_serializing)]
    health: Option<serde_json::Value>,
}

/// A row of `towline_applied`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AppliedColumns {
    cluster: Uuid,
    api_group: String,
    kind: String,
    namespace: String,
    name: String,
    syncset: Uuid,
    api_version: String,
    content: Option<String>,
    wanted: bool,
    tracked: bool,
    adopted: bool,
    uid: Option<String>,
    version: Option<String>,
    owned: Option<String>,
    resent: i64,
    gone: i64,
}

/// A row of `towline_patched`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PatchedColumns {
    cluster: Uuid,
    syncset: Uuid,
    position: i64,
    content: Option<String>,
    uid: Option<String>,
    version: Option<String>,
}

/// A row of `towline_cluster`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClusterColumns {
    cluster: Uuid,
    identity: Option<String>,
    home: Option<String>,
    kubeconfig_generation: i64,
    asked_generation: i64,
    reachable: Option<bool>,
    last_contact: Option<String>,
    last_full: Option<String>,
    next_full: Option<String>,
    attempts: i64,
    retry_at: Option<String>,
    resyncs: i64,
    left_at: Option<String>,
    /// Written by a statement of its own, and void once the rest is written again.
    #[serde(default, skip_serializing)]
    failure: Option<serde_json::Value>,
}

/// A row of `towline_guard`, as far as a pass needs it.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct GuardColumns {
    syncset: Uuid,
    checked: i64,
    gone: bool,
    held: bool,
}

/// What identifies a row of `towline_applied` of a cluster.
#[derive(Debug, Serialize)]
pub(super) struct AppliedKey<'r> {
    api_group: &'r str,
    kind: &'r str,
    namespace: &'r str,
    name: &'r str,
    syncset: Uuid,
    deleted: bool,
}

/// PostgreSQL has no text with U+0000, and some texts are what clusters answered: none may keep the state of a cluster from being
/// stored.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn optional(given: Option<&String>) -> Option<String> {
    given.map(|given| text(given))
}

fn bytes(digest: Digest) -> String {
    let mut text = String::with_capacity(66);
    text.push_str("\\x");
    for byte in digest.0 {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn digest(text: &str) -> Result<Digest, UnreadableColumn> {
    let hex =
        text.strip_prefix("\\x").filter(|hex| hex.len() == 64 && hex.is_ascii()).ok_or(UnreadableColumn::Digest)?;
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        let pair = hex.get(at..at + 2).ok_or(UnreadableColumn::Digest)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| UnreadableColumn::Digest)?;
    }
    Ok(Digest(digest))
}

fn some_digest(text: Option<&String>) -> Result<Option<Digest>, UnreadableColumn> {
    text.map(|text| digest(text)).transpose()
}

fn passes(count: i64) -> Result<u8, UnreadableColumn> {
    u8::try_from(count).map_err(|_| UnreadableColumn::Number(count))
}

pub(super) fn time(text: &str) -> Result<Timestamp, UnreadableColumn> {
    text.parse().map_err(|_| UnreadableColumn::Time(text.to_owned()))
}

pub(super) fn some_time(text: Option<&String>) -> Result<Option<Timestamp>, UnreadableColumn> {
    text.map(|text| time(text)).transpose()
}

pub(super) fn kind(kind: &str) -> Result<SyncSetKind, UnreadableColumn> {
    [SyncSetKind::SyncSet, SyncSetKind::SelectorSyncSet]
        .into_iter()
        .find(|known| known.as_str() == kind)
        .ok_or_else(|| UnreadableColumn::Kind(kind.to_owned()))
}

impl ResultColumns {
    /// What is known of the health of the syncset. What another release has written is read anew.
    pub(super) fn health(&self) -> Option<(Uuid, Health)> {
        Some((self.syncset, serde_json::from_value(self.health.clone()?).ok()?))
    }

    pub(super) fn of(cluster: Uuid, row: &ResultRow) -> Self {
        Self {
            cluster,
            syncset: row.syncset,
            kind: row.name.kind.as_str().to_owned(),
            namespace: row.name.namespace.clone(),
            name: row.name.name.clone(),
            inputs: bytes(row.inputs),
            generation: row.generation,
            result: if row.failure.is_some() { "Failure" } else { "Success" }.to_owned(),
            reason: row.failure.as_ref().map(|failure| failure.reason.as_str().to_owned()),
            message: row.failure.as_ref().map(|failure| text(&failure.message)),
            since: row.since.to_string(),
            first_success: row.first_success.map(|time| time.to_string()),
            pending_deletions: row.has_pending_deletions,
            health: None,
        }
    }
}

impl TryFrom<ResultColumns> for ResultRow {
    type Error = UnreadableColumn;

    fn try_from(columns: ResultColumns) -> Result<Self, UnreadableColumn> {
        let failure = match (columns.reason, columns.message) {
            (Some(reason), message) => Some(Failure {
                // One of a newer release, whatever it means: another attempt finds out.
                reason: Reason::of_name(&reason).unwrap_or(Reason::Rejected),
                message: message.unwrap_or_default(),
            }),
            (None, _) => None,
        };
        Ok(Self {
            syncset: columns.syncset,
            name: SyncSetName { kind: kind(&columns.kind)?, namespace: columns.namespace, name: columns.name },
            inputs: digest(&columns.inputs)?,
            generation: columns.generation,
            failure,
            since: time(&columns.since)?,
            first_success: some_time(columns.first_success.as_ref())?,
            has_pending_deletions: columns.pending_deletions,
        })
    }
}

impl AppliedColumns {
    pub(super) fn of(cluster: Uuid, row: &AppliedRow) -> Self {
        Self {
            cluster,
            api_group: row.object.group.clone(),
            kind: row.object.kind.clone(),
            namespace: row.object.namespace.clone(),
            name: row.object.name.clone(),
            syncset: row.syncset,
            api_version: row.api_version.clone(),
            content: row.content.map(bytes),
            wanted: row.wanted,
            tracked: row.tracked,
            adopted: row.adopted,
            uid: optional(row.uid.as_ref()),
            version: optional(row.version.as_ref()),
            owned: row.owned.map(bytes),
            resent: row.resent.into(),
            gone: row.gone.into(),
        }
    }
}

impl TryFrom<AppliedColumns> for AppliedRow {
    type Error = UnreadableColumn;

    fn try_from(columns: AppliedColumns) -> Result<Self, UnreadableColumn> {
        Ok(Self {
            object: ObjectRef {
                group: columns.api_group,
                kind: columns.kind,
                namespace: columns.namespace,
                name: columns.name,
            },
            syncset: columns.syncset,
            api_version: columns.api_version,
            content: some_digest(columns.content.as_ref())?,
            wanted: columns.wanted,
            tracked: columns.tracked,
            adopted: columns.adopted,
            uid: columns.uid,
            version: columns.version,
            owned: some_digest(columns.owned.as_ref())?,
            resent: passes(columns.resent)?,
            gone: passes(columns.gone)?,
        })
    }
}

impl PatchedColumns {
    pub(super) fn of(cluster: Uuid, row: &PatchedRow) -> Self {
        Self {
            cluster,
            syncset: row.syncset,
            // A syncset has at most 200 patches.
            position: i64::try_from(row.position).unwrap_or(i64::MAX),
            content: row.content.map(bytes),
            uid: optional(row.uid.as_ref()),
            version: optional(row.version.as_ref()),
        }
    }
}

impl TryFrom<PatchedColumns> for PatchedRow {
    type Error = UnreadableColumn;

    fn try_from(columns: PatchedColumns) -> Result<Self, UnreadableColumn> {
        Ok(Self {
            syncset: columns.syncset,
            position: usize::try_from(columns.position).map_err(|_| UnreadableColumn::Number(columns.position))?,
            content: some_digest(columns.content.as_ref())?,
            uid: columns.uid,
            version: columns.version,
        })
    }
}

impl ClusterColumns {
    pub(super) fn of(cluster: Uuid, row: &ClusterRow, resyncs: i64) -> Self {
        let text = |time: Option<Timestamp>| time.map(|time| time.to_string());
        Self {
            cluster,
            identity: optional(row.identity.as_ref()),
            home: optional(row.home.as_ref()),
            kubeconfig_generation: row.kubeconfig_generation,
            asked_generation: row.asked_generation,
            reachable: row.reachable,
            last_contact: text(row.last_contact),
            last_full: text(row.last_full),
            next_full: text(row.next_full),
            attempts: row.attempts.into(),
            retry_at: text(row.retry_at),
            resyncs,
            left_at: text(row.left_at),
            failure: None,
        }
    }

    /// Whether no pass could begin.
    pub(super) fn has_failure(&self) -> bool {
        self.failure.is_some()
    }

    /// How often a full pass was demanded.
    pub(super) fn resyncs(&self) -> i64 {
        self.resyncs
    }
}

impl TryFrom<ClusterColumns> for ClusterRow {
    type Error = UnreadableColumn;

    fn try_from(columns: ClusterColumns) -> Result<Self, UnreadableColumn> {
        Ok(Self {
            identity: columns.identity,
            home: columns.home,
            kubeconfig_generation: columns.kubeconfig_generation,
            asked_generation: columns.asked_generation,
            reachable: columns.reachable,
            last_contact: some_time(columns.last_contact.as_ref())?,
            last_full: some_time(columns.last_full.as_ref())?,
            next_full: some_time(columns.next_full.as_ref())?,
            attempts: u32::try_from(columns.attempts).map_err(|_| UnreadableColumn::Number(columns.attempts))?,
            retry_at: some_time(columns.retry_at.as_ref())?,
            left_at: some_time(columns.left_at.as_ref())?,
        })
    }
}

impl From<GuardColumns> for GuardRow {
    fn from(columns: GuardColumns) -> Self {
        Self { syncset: columns.syncset, checked: columns.checked, gone: columns.gone, held: columns.held }
    }
}

impl<'r> AppliedKey<'r> {
    pub(super) fn of(object: &'r ObjectRef, syncset: Uuid, deleted: bool) -> Self {
        let ObjectRef { group, kind, namespace, name } = object;
        Self { api_group: group, kind, namespace, name, syncset, deleted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syncset::plan::reason::Retry;

    #[test]
    fn a_digest_is_read_as_it_was_written_and_nothing_else_is_one() {
        let original = Digest(std::array::from_fn(|at| u8::try_from(at * 7 % 256).expect("a byte")));
        assert_eq!(digest(&bytes(original)).map(|read| read.0), Ok(original.0));
        for wrong in
            ["", "\\x00", &"0".repeat(66), &format!("\\x{}", "g".repeat(64)), &format!("\\x{}", "é".repeat(32))]
        {
            assert_eq!(digest(wrong), Err(UnreadableColumn::Digest), "{wrong}");
        }
    }

    #[test]
    fn what_a_newer_release_wrote_is_an_error_and_no_panic() {
        assert_eq!(kind("Other"), Err(UnreadableColumn::Kind("Other".to_owned())));
        assert_eq!(time("soon"), Err(UnreadableColumn::Time("soon".to_owned())));
        assert_eq!(kind("SelectorSyncSet"), Ok(SyncSetKind::SelectorSyncSet));
    }

    #[test]
    fn a_failure_whose_reason_a_newer_release_has_written_is_tried_again() {
        let columns = |reason: Option<&str>| ResultColumns {
            cluster: Uuid::nil(),
            syncset: Uuid::nil(),
            kind: "SyncSet".to_owned(),
            namespace: "team-a".to_owned(),
            name: "base".to_owned(),
            inputs: bytes(Digest([7; 32])),
            generation: 3,
            result: "Failure".to_owned(),
            reason: reason.map(str::to_owned),
            message: Some("failed to apply resource 2: no".to_owned()),
            since: "2026-11-19T08:00:00Z".to_owned(),
            first_success: None,
            pending_deletions: false,
            health: Some(serde_json::json!({"state": "Sleeping"})),
        };
        assert_eq!(columns(None).health(), None, "a state that only a newer release knows is read anew");
        let failure = |reason| ResultRow::try_from(columns(reason)).expect("a row").failure;
        let unknown = failure(Some("Quota")).expect("a failure");
        assert_eq!(
            (unknown.reason.retry(), unknown.message.as_str()),
            (Retry::Backoff, "failed to apply resource 2: no")
        );
        assert_eq!(failure(Some("Forbidden")).map(|failure| failure.reason), Some(Reason::Forbidden));
        assert_eq!(failure(None), None);
    }

    #[test]
    fn no_text_of_a_cluster_keeps_its_state_from_being_stored() {
        let row = PatchedRow {
            syncset: Uuid::nil(),
            position: 3,
            content: None,
            uid: Some("a\0b".to_owned()),
            version: Some("7".to_owned()),
        };
        let columns = PatchedColumns::of(Uuid::nil(), &row);
        assert_eq!((columns.uid.as_deref(), columns.version.as_deref()), (Some("a\u{fffd}b"), Some("7")));
    }
}
