//! The metric of leases, `towline_lease_held`, with its description, and how it is recorded.

use metrics::{Gauge, gauge};

use crate::config::SectionName;
use crate::telemetry::Metric;

/// Whether a lease is held, by `section`.
const LEASE_HELD: &str = "towline_lease_held";

/// With its description for Prometheus.
pub(super) const ALL: &[Metric] = &[Metric::gauge(LEASE_HELD, "1 where the lease is held, 0 where it is not")];

/// Of a lease section.
#[derive(Debug)]
pub struct LeaseMetrics {
    held: Gauge,
}

impl LeaseMetrics {
    /// Makes the series of a section, which exists from here on, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        Self { held: gauge!(LEASE_HELD, "section" => section.to_string()) }
    }

    /// Whether the lease is held, at the time of a scrape.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}
