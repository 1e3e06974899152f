//! First successes, as Hive measures them: from when a syncset could have been applied to when it was.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::observer::First;
use crate::documents::Document;
use crate::syncset::plan::name::SyncSetKind;
use crate::syncset::plan::rows::ResultRow;
use crate::syncset::run::store::Snapshot;

/// When all syncsets of a cluster had succeeded.
const FIRST_SUCCESS: &str = "firstSuccessTime";

/// What has succeeded for the first time since the snapshot, and how long after both the syncset and the cluster were there. A
/// `SelectorSyncSet` counts on new clusters only: nobody knows when an older one got its labels.
pub(super) fn of_syncsets<'s>(snapshot: &'s Snapshot, results: &[ResultRow]) -> Vec<(First<'s>, Duration)> {
    let Some(cluster) = &snapshot.cluster else { return Vec::new() };
    let is_new = snapshot.cluster_sync.as_ref().is_some_and(|document| !document.status.contains_key(FIRST_SUCCESS));
    let mut found = Vec::new();
    for result in results {
        let Some(at) = result.first_success else { continue };
        let had_succeeded = |earlier: &ResultRow| earlier.syncset == result.syncset && earlier.first_success.is_some();
        if snapshot.results.iter().any(had_succeeded) {
            continue;
        }
        let Some(candidate) = snapshot.candidates.iter().find(|candidate| candidate.id == result.syncset) else {
            continue;
        };
        let of = match candidate.name.kind {
            SyncSetKind::SyncSet => {
                let group = candidate.metrics_group.as_deref().filter(|group| !group.is_empty());
                First::SyncSet { group }
            }
            SyncSetKind::SelectorSyncSet if is_new => First::SelectorSyncSet { name: &candidate.name.name },
            SyncSetKind::SelectorSyncSet => continue,
        };
        let since = created(&cluster.document).max(candidate.created_at);
        found.push((of, between(since, at)));
    }
    found
}

/// How long a cluster took until all of its syncsets had succeeded, if this status is the first one that says so.
pub(super) fn of_cluster(
    snapshot: &Snapshot,
    before: &Map<String, Value>,
    status: &Map<String, Value>,
) -> Option<Duration> {
    if before.contains_key(FIRST_SUCCESS) {
        return None;
    }
    let at: Timestamp = status.get(FIRST_SUCCESS)?.as_str()?.parse().ok()?;
    Some(between(created(&snapshot.cluster.as_ref()?.document), at))
}

/// The database prints it, in RFC 3339.
fn created(document: &Document) -> Timestamp {
    document.created_at.to_string().parse().unwrap_or(Timestamp::MAX)
}

/// Nothing if it would be negative: the clocks of processes differ.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
