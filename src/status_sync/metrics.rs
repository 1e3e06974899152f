//! The metrics of status sync: `towline_status_sync_*`, each with its description, and how they are recorded.

use metrics::{Counter, counter};

use crate::telemetry::Metric;

/// Writes, by `family` and `outcome`.
const STATUS_SYNC_WRITES_TOTAL: &str = "towline_status_sync_writes_total";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] =
    &[Metric::counter(STATUS_SYNC_WRITES_TOTAL, "Writes to the hub by family and outcome")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Created,
    /// Fields of an object were patched.
    Patched,
    /// An object of ours was deleted.
    Deleted,
    Failed,
}

/// The metrics of one family.
#[derive(Debug)]
pub struct StatusSyncMetrics {
    created: Counter,
    patched: Counter,
    deleted: Counter,
    failed: Counter,
}

impl StatusSyncMetrics {
    /// Registers the series of a family, all with the value 0.
    pub fn new(family: &'static str) -> Self {
        let writes =
            |outcome: &'static str| counter!(STATUS_SYNC_WRITES_TOTAL, "family" => family, "outcome" => outcome);
        Self {
            created: writes("created"),
            patched: writes("patched"),
            deleted: writes("deleted"),
            failed: writes("failed"),
        }
    }

    pub fn written(&self, outcome: WriteOutcome) {
        let counter = match outcome {
            WriteOutcome::Created => &self.created,
            WriteOutcome::Patched => &self.patched,
            WriteOutcome::Deleted => &self.deleted,
            WriteOutcome::Failed => &self.failed,
        };
        counter.increment(1);
    }
}
