//! The metrics of syncsets, each with its description, and how they are recorded.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::dispatch::{DispatchObserver, Turn};
use super::rules::pass::Outcome;
use super::work::{Visited, WorkObserver};
use crate::telemetry::Metric;

/// How long visits of clusters took, by `outcome`.
const PASS_SECONDS: &str = "towline_syncset_pass_seconds";
/// Clusters by `state`.
const CLUSTERS: &str = "towline_syncset_clusters";
/// Objects that nobody wants any more and that were kept, by `why`.
const RELEASED_TOTAL: &str = "towline_syncset_released_total";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::histogram(PASS_SECONDS, "How long visits of clusters took, by outcome"),
    Metric::gauge(CLUSTERS, "Clusters by state"),
    Metric::counter(RELEASED_TOTAL, "Objects that no syncset wants any more and that were kept, by the reason"),
];

/// The metrics of syncsets.
#[derive(Debug, Default)]
pub(super) struct SyncsetMetrics;

impl SyncsetMetrics {
    /// So many clusters are in a state.
    pub(super) fn clusters(state: &'static str, count: i64) {
        #[expect(clippy::cast_precision_loss, reason = "there are far fewer than 2^52")]
        gauge!(CLUSTERS, "state" => state).set(count as f64);
    }
}

impl WorkObserver for SyncsetMetrics {
    fn visited(&self, visited: Visited, took: Duration, outcome: Option<&Outcome>) {
        histogram!(PASS_SECONDS, "outcome" => visited.as_str()).record(took);
        for (why, count) in outcome.into_iter().flat_map(|outcome| &outcome.releases) {
            counter!(RELEASED_TOTAL, "why" => why.as_str()).increment(u64::try_from(*count).unwrap_or(u64::MAX));
        }
    }
}

impl DispatchObserver for SyncsetMetrics {
    fn dispatched(&self, _: Turn) {}

    fn mended(&self, _: u64) {}
}
