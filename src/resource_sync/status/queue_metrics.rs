//! Metrics of a section's queue, with the names that controller-runtime uses.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::actor::{Observe, Outcome};
use crate::config::SectionName;
use crate::resource_sync::plan::names::PairKey;
use crate::telemetry::{ReconcileResult, WorkqueueMetrics};

/// Counts the work of the dispatcher, and knows when delayed keys run again.
pub struct QueueMetrics {
    metrics: WorkqueueMetrics,
    /// One entry for each key that waits for a delay.
    retries: Mutex<HashMap<PairKey, Instant>>,
}

impl QueueMetrics {
    pub fn new(section: &SectionName) -> Self {
        Self { metrics: WorkqueueMetrics::new(section), retries: Mutex::default() }
    }

    /// How long until a key runs again, if it waits for a delay.
    pub fn retried_in(&self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.retries.lock().get(key).map(|due| due.saturating_duration_since(now))
    }

    /// Sets the number of waiting keys, before a scrape.
    pub fn set_depth(&self, waiting: usize) {
        self.metrics.set_depth(waiting);
    }
}

impl Observe<PairKey> for QueueMetrics {
    fn added(&self, _: &PairKey) {
        self.metrics.added();
    }

    fn started(&self, key: &PairKey, waited: Duration) {
        self.retries.lock().remove(key);
        self.metrics.started(waited);
    }

    fn finished(&self, _: &PairKey, took: Duration, outcome: &Outcome) {
        self.metrics.finished(
            took,
            match outcome {
                Outcome::Done => ReconcileResult::Success,
                Outcome::Wait => ReconcileResult::Requeue,
                Outcome::RetryAfter(_) => ReconcileResult::RequeueAfter,
                Outcome::Retry => ReconcileResult::Error,
            },
        );
    }

    fn retried(&self, key: &PairKey, delay: Duration) {
        self.retries.lock().insert(key.clone(), Instant::now() + delay);
        self.metrics.retried();
    }

    fn panicked(&self, key: &PairKey, message: &str) {
        self.metrics.finished(Duration::ZERO, ReconcileResult::Error);
        tracing::error!(%key, message, "a reconcile panicked");
    }
}
