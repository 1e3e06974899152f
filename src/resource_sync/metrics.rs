//! The metrics of resource sync: `towline_sync_*`, each with its description, and how they are recorded.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::config::SectionName;
use crate::telemetry::Metric;

/// From the watch event of a change to the acknowledged write on the other side, by `section` and `direction`.
const SYNC_LAG_SECONDS: &str = "towline_sync_lag_seconds";
/// Fields that were taken back from another manager, by `section`.
const SYNC_CONTENDED_FIELDS_TOTAL: &str = "towline_sync_contended_fields_total";

/// All metrics of this job, with their descriptions.
pub(super) const ALL: &[Metric] = &[
    Metric::histogram(SYNC_LAG_SECONDS, "From the arrival of a change to the acknowledged write on the other side"),
    Metric::counter(
        SYNC_CONTENDED_FIELDS_TOTAL,
        "Fields that another field manager keeps setting and that were taken back",
    ),
];

/// From a change to the acknowledged write of it.
pub(super) const LAG: &str = SYNC_LAG_SECONDS;

/// The direction in which a change is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the remote to the local cluster.
    Spec,
    /// From the local to the remote cluster.
    Status,
}

impl Direction {
    /// Its name as a label: the part of the object that is synced.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Status => "status",
        }
    }
}

#[derive(Debug)]
pub struct SyncMetrics {
    spec_lag: Histogram,
    status_lag: Histogram,
    contended_fields: Counter,
}

impl SyncMetrics {
    /// Registers the series of a section, all with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let name = section.to_string();
        let lag = |direction: Direction| histogram!(SYNC_LAG_SECONDS, "section" => name.clone(), "direction" => direction.as_str());
        Self {
            spec_lag: lag(Direction::Spec),
            status_lag: lag(Direction::Status),
            contended_fields: counter!(SYNC_CONTENDED_FIELDS_TOTAL, "section" => name.clone()),
        }
    }

    /// Records the time from the watch event of a change to the acknowledged write on the other side.
    pub fn written(&self, direction: Direction, lag: Duration) {
        match direction {
            Direction::Spec => self.spec_lag.record(lag),
            Direction::Status => self.status_lag.record(lag),
        }
    }

    /// Counts a field that was taken back from another field manager.
    pub fn contended_field(&self) {
        self.contended_fields.increment(1);
    }
}
