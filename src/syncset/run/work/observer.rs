//! What metrics and the log say of reconciles.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Read;
use crate::documents::{Document, Work};
use crate::syncset::plan::action::{Action, Probe};
use crate::syncset::plan::name::SyncSetKind;
use crate::syncset::plan::pass::Outcome;
use crate::syncset::plan::reason::Retry;
use crate::syncset::plan::rows::ResultRow;
use crate::syncset::plan::snapshot::Snapshot;
use crate::syncset::plan::spec::Behavior;
use crate::syncset::plan::status::{FIRST_SUCCESS, Unreachable};
use crate::telemetry::ReconcileResult;

/// Most objects of a pass that are named: each full pass names them again.
const MOST_NAMED: usize = 20;

/// Observes workers. It must not block.
pub trait WorkObserver: Send + Sync {
    /// A reconcile begins whose cluster had been ready for so long.
    fn begun(&self, waited: Duration);

    /// A reconcile has ended after this time.
    fn ended(&self, result: ReconcileResult, took: Duration);

    /// A resource or a secret was sent, or the cluster refused it.
    fn sent(&self, behavior: Behavior, is_success: bool, took: Duration);

    /// Something has succeeded for the first time, so long after it could have begun.
    fn first_success(&self, of: First<'_>, took: Duration);
}

/// What has succeeded for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First<'f> {
    SyncSet {
        /// The group that its annotation names.
        group: Option<&'f str>,
    },
    /// A `SelectorSyncSet` on a new cluster.
    SelectorSyncSet { name: &'f str },
    /// All syncsets of a cluster.
    Cluster,
}

/// A reconcile under way. One that panics or is aborted is requeued.
pub(super) struct Reconciling<'o> {
    observer: &'o dyn WorkObserver,
    began: Instant,
    has_ended: bool,
}

impl<'o> Reconciling<'o> {
    /// One of a cluster that had been ready for so long.
    pub(super) fn begin(observer: &'o dyn WorkObserver, waited: Duration) -> Self {
        observer.begun(waited);
        Self { observer, began: Instant::now(), has_ended: false }
    }

    pub(super) fn end(mut self, result: ReconcileResult) {
        self.has_ended = true;
        self.observer.ended(result, self.began.elapsed());
    }
}

impl Drop for Reconciling<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.observer.ended(ReconcileResult::Requeue, self.began.elapsed());
        }
    }
}

/// The result of a pass that came to its end, as a controller would call it.
pub(super) fn result_of(outcome: &Outcome) -> ReconcileResult {
    if outcome.retry != Some(Retry::Backoff) {
        return ReconcileResult::Success;
    }
    // Without a failure it waits until something that was deleted is gone.
    let fails = outcome.results.iter().any(|row| row.failure.is_some());
    if fails { ReconcileResult::Error } else { ReconcileResult::RequeueAfter }
}

/// What has succeeded for the first time since the snapshot, and how long after both the syncset and the cluster were there. A
/// `SelectorSyncSet` counts on new clusters only: nobody knows when an older one got its labels.
pub(super) fn first_successes<'s>(snapshot: &'s Snapshot, results: &[ResultRow]) -> Vec<(First<'s>, Duration)> {
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
pub(super) fn first_success_of_cluster(
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

/// Logs what was kept although nobody wants it, and what others change again and again.
pub(super) fn log_pass(cluster: &str, outcome: &Outcome) {
    if !outcome.releases.is_empty() {
        let kept: Vec<String> =
            outcome.releases.iter().map(|(why, count)| format!("{} {count}", why.as_str())).collect();
        tracing::info!(cluster, kept = kept.join(", "), "objects that no syncset wants were not deleted");
    }
    for (object, manager) in outcome.contended.iter().take(MOST_NAMED) {
        let manager = manager.as_deref().unwrap_or("unknown");
        tracing::warn!(cluster, %object, manager, "an object had to be mended by two full passes in a row; towline.dev/ignore-fields leaves fields to others");
    }
}

impl Read {
    /// Logs that the cluster no longer answers, if it did the last time, or if somebody has asked for this pass.
    pub(super) fn log_unreachable(&self, work: &Work, reason: Unreachable, error: &str) {
        let is_demanded = matches!(&self.plan.action, Action::Pass(plan) if plan.probe == Probe::Demanded);
        let (cluster, reason) = (work.name.as_str(), reason.as_str());
        if is_demanded || self.cluster_row().reachable != Some(false) {
            tracing::warn!(cluster, reason, error, "a cluster is unreachable, its changes wait");
        } else {
            tracing::debug!(cluster, reason, error, "a cluster is unreachable still");
        }
    }

    /// Logs that the cluster answers, if it did not the last time.
    pub(super) fn log_reachable(&self, work: &Work) {
        if self.cluster_row().reachable == Some(false) {
            tracing::info!(cluster = work.name, "a cluster is reachable again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::syncset::plan::name::SyncSetName;
    use crate::syncset::plan::pass::{End, Progress, Writes};
    use crate::syncset::plan::reason::Reason;
    use crate::syncset::plan::rows::Failure;

    #[test]
    fn a_pass_that_waits_for_something_to_be_gone_has_not_failed() {
        let outcome = |retry, failure| Outcome {
            end: End::Finished,
            writes: Writes::default(),
            results: vec![ResultRow {
                syncset: uuid::Uuid::from_u128(1),
                name: SyncSetName {
                    kind: SyncSetKind::SelectorSyncSet,
                    namespace: String::new(),
                    name: "s".to_owned(),
                },
                inputs: ResultRow::UNFINISHED,
                generation: 2,
                failure,
                since: Timestamp::UNIX_EPOCH,
                first_success: None,
                has_pending_deletions: true,
            }],
            retry,
            awaits_check: false,
            is_suspended: false,
            releases: BTreeMap::new(),
            contended: Vec::new(),
            ending: BTreeSet::new(),
            requests: 1,
            progress: Progress::default(),
        };
        let of = |retry, failure| result_of(&outcome(retry, failure));
        let failure = |reason| Some(Failure { reason, message: "failed".to_owned() });
        assert_eq!(of(None, None), ReconcileResult::Success);
        assert_eq!(of(Some(Retry::Backoff), None), ReconcileResult::RequeueAfter);
        assert_eq!(of(Some(Retry::Backoff), failure(Reason::Forbidden)), ReconcileResult::Error);
        assert_eq!(of(Some(Retry::OnChange), failure(Reason::ResourceInvalid)), ReconcileResult::Success);
    }
}
