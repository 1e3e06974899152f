//! The metrics of leases: `towline_lease_*`, each with its description, and how they are recorded.

use std::time::SystemTime;

use jiff::SignedDuration;
use metrics::{Counter, Gauge, counter, gauge};

use crate::config::SectionName;
use crate::telemetry::Metric;

/// Whether a lease is held, by `section`.
const LEASE_HELD: &str = "towline_lease_held";
/// When a lease's last renewal was acknowledged, in seconds since 1970, by `section`.
const LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS: &str = "towline_lease_last_renewal_timestamp_seconds";
/// How far this machine's clock is ahead of the hub's at least, by `section`.
const LEASE_CLOCK_SKEW_SECONDS: &str = "towline_lease_clock_skew_seconds";
/// Renewals of a lease, by `section` and `outcome`.
const LEASE_RENEWALS_TOTAL: &str = "towline_lease_renewals_total";

/// All of them, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::gauge(LEASE_HELD, "1 where the lease is held, 0 where it is not"),
    Metric::gauge(
        LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS,
        "When the last renewal was acknowledged, in seconds since 1970; 0 before the first",
    ),
    Metric::gauge(
        LEASE_CLOCK_SKEW_SECONDS,
        "How far the clock of this machine is ahead of the hub's at least; negative where it is behind",
    ),
    Metric::counter(LEASE_RENEWALS_TOTAL, "Renewals of a lease by outcome"),
];

/// A lease section: `towline_lease_*`.
#[derive(Debug)]
pub struct LeaseMetrics {
    held: Gauge,
    last_renewal: Gauge,
    skew: Gauge,
    success: Counter,
    failure: Counter,
}

impl LeaseMetrics {
    /// Makes the series of a section. All of them exist from here on, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let name = section.to_string();
        let labels = [("section", name.clone())];
        let renewals =
            |outcome: &'static str| counter!(LEASE_RENEWALS_TOTAL, "section" => name.clone(), "outcome" => outcome);
        Self {
            held: gauge!(LEASE_HELD, &labels),
            last_renewal: gauge!(LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS, &labels),
            skew: gauge!(LEASE_CLOCK_SKEW_SECONDS, &labels),
            success: renewals("success"),
            failure: renewals("failure"),
        }
    }

    /// A renewal was acknowledged, just now.
    pub fn renewed(&self) {
        self.success.increment(1);
        // With a clock before 1970 the value is wrong in any case.
        self.last_renewal.set(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    }

    /// How far this machine's clock is ahead of the hub's.
    pub fn set_skew(&self, skew: SignedDuration) {
        self.skew.set(skew.as_secs_f64());
    }

    /// A renewal has failed and will be retried.
    pub fn failed(&self) {
        self.failure.increment(1);
    }

    /// Whether the lease is held, at the time of a scrape.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}
