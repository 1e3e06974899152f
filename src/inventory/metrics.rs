//! The metric of the inventory, with its description, and how it is recorded.

use metrics::{Gauge, gauge};

use super::plan::index::Summary;
use crate::telemetry::{Metric, count};

/// Releases of which something is to be sent.
const PENDING: &str = "towline_inventory_pending";

/// With its description for Prometheus.
pub(super) const ALL: &[Metric] = &[Metric::gauge(PENDING, "Helm releases of which something is to be sent")];

#[derive(Debug)]
pub struct InventoryMetrics {
    pending: Gauge,
}

impl InventoryMetrics {
    /// Makes the series, which exists from here on, with the value 0.
    #[expect(clippy::new_without_default, reason = "it registers a series, and a default should have no such effect")]
    pub fn new() -> Self {
        Self { pending: gauge!(PENDING) }
    }

    /// Sets it, at the time of a scrape.
    pub(super) fn set(&self, summary: &Summary) {
        self.pending.set(count(summary.pending));
    }
}
