//! What is reported of reconciles, for metrics.

use std::time::Duration;

use tokio::time::Instant;

use crate::syncset::plan::pass::Outcome;
use crate::syncset::plan::reason::Retry;
use crate::syncset::plan::spec::Behavior;
use crate::telemetry::ReconcileResult;

/// The result of a pass that came to its end, as a controller would call it.
pub(super) fn result_of(outcome: &Outcome) -> ReconcileResult {
    if outcome.retry != Some(Retry::Backoff) {
        return ReconcileResult::Success;
    }
    // Without a failure it waits until something that was deleted is gone.
    let fails = outcome.results.iter().any(|row| row.failure.is_some());
    if fails { ReconcileResult::Error } else { ReconcileResult::RequeueAfter }
}

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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use jiff::Timestamp;

    use super::*;
    use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
    use crate::syncset::plan::pass::{End, Progress, Writes};
    use crate::syncset::plan::reason::Reason;
    use crate::syncset::plan::rows::{Failure, ResultRow};

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
            left: None,
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
