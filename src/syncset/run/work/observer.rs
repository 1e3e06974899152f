//! What is reported of reconciles, for metrics.

use std::time::Duration;

use tokio::time::Instant;

use crate::syncset::plan::pass::Outcome;
use crate::syncset::plan::spec::Behavior;

/// How a reconcile of a cluster ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReconcileEnd {
    Gone,
    Paused,
    /// It did not answer before, and is asked later.
    Waiting,
    /// Nothing was to be done.
    InStep,
    /// A pass came to its end.
    Complete,
    /// A pass has to go on.
    Yielded,
    Silent,
    /// Its API server wants fewer requests.
    Throttled,
    /// The claim was lost, or the process ends.
    Interrupted,
    /// What is stored could not be read or written.
    Failed,
}

impl ReconcileEnd {
    /// As the metric names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::InStep => "in_step",
            Self::Complete => "complete",
            Self::Yielded => "yielded",
            Self::Silent => "silent",
            Self::Throttled => "throttled",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// Observes workers. It must not block.
pub trait WorkObserver: Send + Sync {
    /// A reconcile begins whose cluster had been ready for so long.
    fn begun(&self, waited: Duration);

    /// A reconcile has ended after this time, with what a pass came to, if there was one.
    fn ended(&self, end: ReconcileEnd, took: Duration, outcome: Option<&Outcome>);

    /// A resource or a secret was sent, or the cluster refused it.
    fn sent(&self, behavior: Behavior, is_success: bool, took: Duration);

    /// Something has succeeded for the first time, so long after it could have begun.
    fn first_success(&self, of: First<'_>, took: Duration);
}

/// A reconcile under way. One that panics or is aborted ends as interrupted.
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

    pub(super) fn end(mut self, end: ReconcileEnd, outcome: Option<&Outcome>) {
        self.has_ended = true;
        self.observer.ended(end, self.began.elapsed(), outcome);
    }
}

impl Drop for Reconciling<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.observer.ended(ReconcileEnd::Interrupted, self.began.elapsed(), None);
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
