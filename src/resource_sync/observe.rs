//! A section's queue in metrics, by the names that controller-runtime uses.

use std::time::Duration;

use crate::actor::{Observe, Outcome};
use crate::cluster::ObjectKey;
use crate::config::SectionName;
use crate::telemetry::{ReconcileResult, WorkqueueMetrics};

/// Counts what the dispatcher does.
pub struct QueueMetrics(WorkqueueMetrics);

impl QueueMetrics {
    /// The metrics of a section.
    pub fn new(section: &SectionName) -> Self {
        Self(WorkqueueMetrics::new(section))
    }

    /// How many keys wait, at the time of a scrape.
    pub fn set_depth(&self, waiting: usize) {
        self.0.set_depth(waiting);
    }
}

impl Observe<ObjectKey> for QueueMetrics {
    fn added(&self, _: &ObjectKey) {
        self.0.added();
    }

    fn started(&self, _: &ObjectKey, waited: Duration) {
        self.0.started(waited);
    }

    fn finished(&self, _: &ObjectKey, took: Duration, outcome: &Outcome) {
        self.0.finished(
            took,
            match outcome {
                Outcome::Done => ReconcileResult::Success,
                Outcome::Wait => ReconcileResult::Requeue,
                Outcome::RetryAfter(_) => ReconcileResult::RequeueAfter,
                Outcome::Retry => ReconcileResult::Error,
            },
        );
    }

    fn retried(&self, _: &ObjectKey, _: Duration) {
        self.0.retried();
    }

    fn panicked(&self, key: &ObjectKey, message: &str) {
        self.0.finished(Duration::ZERO, ReconcileResult::Error);
        tracing::error!(%key, message, "reconcile panicked");
    }
}
