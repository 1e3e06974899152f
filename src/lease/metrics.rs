//! The metrics of leases: `towline_lease_*`, each with its description, and how they are recorded.

use std::time::SystemTime;

use metrics::{Gauge, gauge};

use crate::config::SectionName;
use crate::telemetry::Metric;

/// Whether a lease is held, by `section`.
const LEASE_HELD: &str = "towline_lease_held";
/// When a lease's last renewal was acknowledged, in seconds since 1970, by `section`.
const LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS: &str = "towline_lease_last_renewal_timestamp_seconds";

/// All of them, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::gauge(LEASE_HELD, "1 where the lease is held, 0 where it is not"),
    Metric::gauge(
        LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS,
        "When the last renewal was acknowledged, in seconds since 1970; 0 before the first",
    ),
];

/// A lease section: `towline_lease_*`.
#[derive(Debug)]
pub struct LeaseMetrics {
    held: Gauge,
    last_renewal: Gauge,
}

impl LeaseMetrics {
    /// Makes the series of a section. All of them exist from here on, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let labels = [("section", section.to_string())];
        Self { held: gauge!(LEASE_HELD, &labels), last_renewal: gauge!(LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS, &labels) }
    }

    /// A renewal was acknowledged, just now.
    pub fn renewed(&self) {
        // With a clock before 1970 the value is wrong in any case.
        self.last_renewal.set(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    }

    /// Whether the lease is held, at the time of a scrape.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}
