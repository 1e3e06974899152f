//! The metrics of status sync: `towline_status_sync_*`, each with its description, and how they are recorded.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use crate::telemetry::Metric;

/// Writes, by `family` and `outcome`.
const STATUS_SYNC_WRITES_TOTAL: &str = "towline_status_sync_writes_total";
/// Age of the oldest change of the database that is not written yet, by `family`.
const STATUS_SYNC_FRESHNESS_SECONDS: &str = "towline_status_sync_freshness_seconds";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::counter(STATUS_SYNC_WRITES_TOTAL, "Writes to the hub by family and outcome"),
    Metric::gauge(
        STATUS_SYNC_FRESHNESS_SECONDS,
        "Age of the oldest change that is not written yet, or of the statement that the database has not answered",
    ),
];

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
    freshness: Gauge,
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
            freshness: gauge!(STATUS_SYNC_FRESHNESS_SECONDS, "family" => family),
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

    /// Sets the age of the oldest unwritten change; before a scrape.
    pub fn set_freshness(&self, freshness: Duration) {
        self.freshness.set(freshness);
    }
}
