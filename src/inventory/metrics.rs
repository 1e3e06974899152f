//! The metrics of the inventory: `towline_inventory_*`, each with its description, and how they are recorded.

use metrics::{Counter, Gauge, counter, gauge};

use super::plan::index::{PostKey, Refusal, Summary};
use crate::telemetry::Metric;

/// Releases of which something is to be sent.
const PENDING: &str = "towline_inventory_pending";
/// Posts, by `kind` (register, app) and `outcome` (ok, later, unauthorized, rejected).
const POSTS_TOTAL: &str = "towline_inventory_posts_total";

/// All of them, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::gauge(PENDING, "Helm releases of which something is to be sent"),
    Metric::counter(POSTS_TOTAL, "Posts to the API by kind and outcome"),
];

/// The outcomes of posts.
const OUTCOMES: [&str; 4] = ["ok", "later", "unauthorized", "rejected"];

#[derive(Debug)]
pub struct InventoryMetrics {
    pending: Gauge,
    registrations: [Counter; 4],
    apps: [Counter; 4],
}

impl Default for InventoryMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl InventoryMetrics {
    /// Makes the series. All of them exist from here on, with the value 0.
    pub fn new() -> Self {
        let posts =
            |kind: &'static str| OUTCOMES.map(|outcome| counter!(POSTS_TOTAL, "kind" => kind, "outcome" => outcome));
        Self { pending: gauge!(PENDING), registrations: posts("register"), apps: posts("app") }
    }

    /// A post has ended. One that was not sent does not count.
    pub(super) fn posted(&self, key: &PostKey, outcome: &Result<(), Refusal>) {
        let counters = if *key == PostKey::Registration { &self.registrations } else { &self.apps };
        let [ok, later, unauthorized, rejected] = counters;
        match outcome {
            Ok(()) => ok.increment(1),
            Err(Refusal::Later { .. } | Refusal::Interrupted) => later.increment(1),
            Err(Refusal::Unauthorized) => unauthorized.increment(1),
            Err(Refusal::Rejected { .. }) => rejected.increment(1),
            Err(Refusal::NotSent) => {}
        }
    }

    /// The releases in numbers, at the time of a scrape.
    #[expect(clippy::cast_precision_loss, reason = "a gauge of some thousands")]
    pub(super) fn set(&self, summary: &Summary) {
        self.pending.set(summary.pending as f64);
    }
}
