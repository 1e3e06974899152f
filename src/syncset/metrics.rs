//! The metrics of syncsets, each with its description, and how they are recorded.
//!
//! Those whose names begin with `hive_` have the names, labels and buckets of `OpenShift` Hive, so that its dashboards work. Names of
//! documents are labels there: at most [`MOST_LABELS`] of each, and [`OTHER`] for the rest.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use parking_lot::Mutex;

use super::plan::health::HealthState;
use super::plan::spec::Behavior;
use super::run::applied::{Applied, MOST_LABELS, SelectorApplied};
use super::run::counts::{Counted, RolloutGroup};
use super::run::dispatch::{Batch, DispatchObserver};
use super::run::work::{First, WorkObserver};
use crate::config::SectionName;
use crate::guard::{self, GuardedChange};
use crate::telemetry::{Family, Metric, ReconcileResult, Series, WorkqueueMetrics, count, oldest_pending};

const HEALTH: &str = "towline_syncset_health";
const ROLLOUTS: &str = "towline_syncset_rollouts";
const HIVE_SYNCSET_SECONDS: &str = "hive_syncset_apply_duration_seconds";
const HIVE_SELECTORSYNCSET_SECONDS: &str = "hive_selectorsyncset_apply_duration_seconds";
const HIVE_RESOURCES_TOTAL: &str = "hive_syncsetinstance_resources_applied_total";
const HIVE_RESOURCE_SECONDS: &str = "hive_syncsetinstance_apply_duration_seconds";
const HIVE_FIRST_SUCCESS_SECONDS: &str = "hive_clustersync_first_success_duration_seconds";

/// Hive's buckets for first successes, for single objects, and for whole clusters.
const OF_SYNCSETS: &[f64] = &[5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0];
const OF_OBJECTS: &[f64] = &[0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
const OF_CLUSTERS: &[f64] = &[60.0, 300.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0, 3600.0];

/// Gauges, although Hive names them totals.
static SELECTOR_CLUSTERS: Metric =
    Metric::gauge("hive_selectorsyncset_clusters_total", "Clusters to which a SelectorSyncSet is applied, by name");
static SELECTOR_UNAPPLIED: Metric = Metric::gauge(
    "hive_selectorsyncset_clusters_unapplied_total",
    "Clusters on which a SelectorSyncSet fails or has not been applied yet, by name",
);
static SYNCSETS: Metric = Metric::gauge("hive_syncsets_total", "SyncSets, each counted once per cluster");
static SYNCSETS_UNAPPLIED: Metric = Metric::gauge(
    "hive_syncsets_unapplied_total",
    "SyncSets that fail or have not been applied yet, each counted once per cluster",
);

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::gauge(HEALTH, "Syncsets whose health is read, each counted once per cluster, by what was read last"),
    Metric::gauge(ROLLOUTS, "Rollouts of syncsets by state"),
    Metric::histogram_within(
        HIVE_SYNCSET_SECONDS,
        "Time to the first success of a SyncSet on a cluster, by group",
        OF_SYNCSETS,
    ),
    Metric::histogram_within(
        HIVE_SELECTORSYNCSET_SECONDS,
        "Time to the first success of a SelectorSyncSet on a new cluster, by name",
        OF_SYNCSETS,
    ),
    Metric::counter(HIVE_RESOURCES_TOTAL, "Resources and secrets that were sent to clusters, by type and result"),
    Metric::histogram_within(
        HIVE_RESOURCE_SECONDS,
        "How long it took to send a resource or a secret to a cluster, by type and result",
        OF_OBJECTS,
    ),
    Metric::histogram_within(
        HIVE_FIRST_SUCCESS_SECONDS,
        "Time from a cluster's creation to the first success of all of its syncsets",
        OF_CLUSTERS,
    ),
];

/// The label of values beyond [`MOST_LABELS`].
const OTHER: &str = "other";
/// The group of a `SyncSet` without the annotation, as Hive calls it.
const NO_GROUP: &str = "none";

#[derive(Debug)]
pub struct SyncsetMetrics {
    section: SectionName,
    /// Shown like the work queues of controllers. Each process counts the clusters that it claims, the dispatcher's also those for which it
    /// requests a pass, and every process the rows that wait.
    queue: WorkqueueMetrics,
    groups: Bounded,
    names: Bounded,
}

/// The values of a label that were used. Locked only for one look-up.
#[derive(Debug, Default)]
struct Bounded(Mutex<BTreeSet<String>>);

impl Bounded {
    /// The value, or [`OTHER`] if there are too many.
    fn value(&self, value: &str) -> String {
        let mut values = self.0.lock();
        if !values.contains(value) {
            if values.len() >= MOST_LABELS {
                return OTHER.to_owned();
            }
            values.insert(value.to_owned());
        }
        value.to_owned()
    }
}

impl SyncsetMetrics {
    pub fn new(section: &SectionName) -> Self {
        Self {
            section: section.clone(),
            queue: WorkqueueMetrics::new(section),
            groups: Bounded::default(),
            names: Bounded::default(),
        }
    }

    pub fn counted(&self, counted: &Counted) {
        self.queue.set_depth(usize::try_from(counted.work.ready).unwrap_or_default());
        for state in HealthState::ALL {
            let syncsets = counted.health.get(&state).copied().unwrap_or_default();
            gauge!(HEALTH, "state" => state.as_str().to_ascii_lowercase()).set(count(syncsets));
        }
        for group in RolloutGroup::ALL {
            let rollouts = counted.rollouts.get(&group).copied().unwrap_or_default();
            gauge!(ROLLOUTS, "state" => group.as_str()).set(count(rollouts));
        }
        guard::record_held(
            &self.section,
            &[(GuardedChange::Delete, counted.suspended.len() + counted.more_suspended)].into(),
        );
        oldest_pending(&self.section, "changes", counted.dispatcher.lag.unwrap_or_default());
        oldest_pending(&self.section, "clusters", counted.work.oldest.unwrap_or_default());
    }

    /// Hive's gauges, of what was counted last.
    pub fn families(applied: &Applied) -> Vec<Family> {
        let of_all = |metric, value| Family { metric, series: vec![Series { label: None, value: count(value) }] };
        let of_each = |metric, value: fn(&SelectorApplied) -> usize| {
            let series = |selector: &SelectorApplied| Series {
                label: Some(("name", selector.name.clone())),
                value: count(value(selector)),
            };
            Family { metric, series: applied.selectors.iter().map(series).collect() }
        };
        vec![
            of_each(&SELECTOR_CLUSTERS, |selector| selector.clusters),
            of_each(&SELECTOR_UNAPPLIED, |selector| selector.unapplied),
            of_all(&SYNCSETS, applied.syncsets),
            of_all(&SYNCSETS_UNAPPLIED, applied.syncsets_unapplied),
        ]
    }
}

impl WorkObserver for SyncsetMetrics {
    fn begun(&self, waited: Duration) {
        self.queue.started(waited);
    }

    fn ended(&self, result: ReconcileResult, took: Duration) {
        self.queue.finished(took, result);
        if result == ReconcileResult::Error {
            self.queue.retried();
        }
    }

    fn sent(&self, behavior: Behavior, is_success: bool, took: Duration) {
        let kind = match behavior {
            Behavior::Apply => "apply",
            Behavior::CreateOrUpdate => "createOrUpdate",
            Behavior::CreateOnly => "createOnly",
        };
        let result = if is_success { "success" } else { "error" };
        counter!(HIVE_RESOURCES_TOTAL, "type" => kind, "result" => result).increment(1);
        histogram!(HIVE_RESOURCE_SECONDS, "type" => kind, "result" => result).record(took);
    }

    fn first_success(&self, of: First<'_>, took: Duration) {
        match of {
            First::SyncSet { group } => {
                let group = self.groups.value(group.unwrap_or(NO_GROUP));
                histogram!(HIVE_SYNCSET_SECONDS, "group" => group).record(took);
            }
            First::SelectorSyncSet { name } => {
                histogram!(HIVE_SELECTORSYNCSET_SECONDS, "name" => self.names.value(name)).record(took);
            }
            First::Cluster => histogram!(HIVE_FIRST_SUCCESS_SECONDS).record(took),
        }
    }
}

impl DispatchObserver for SyncsetMetrics {
    fn dispatched(&self, batch: Batch) {
        self.queue.asked(batch.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_users_choose_has_a_bounded_number_of_values() {
        let labels = Bounded::default();
        for number in 0..MOST_LABELS {
            assert_eq!(labels.value(&format!("n{number}")), format!("n{number}"));
        }
        assert_eq!(labels.value("one more"), OTHER);
        assert_eq!(labels.value("n7"), "n7", "those that were there stay");
    }

    #[test]
    fn gauges_by_name_are_those_of_the_names_that_there_are() {
        let monitoring = SelectorApplied { name: "monitoring".to_owned(), clusters: 7, unapplied: 2 };
        let applied = Applied { selectors: vec![monitoring], syncsets: 5, syncsets_unapplied: 1 };
        let series = |family: Family| {
            let series = family.series.into_iter().map(|one| (one.label.map(|(_, name)| name), one.value));
            (family.metric.name, series.collect::<Vec<_>>())
        };
        let shown: Vec<_> = SyncsetMetrics::families(&applied).into_iter().map(series).collect();
        let of = |value| vec![(Some("monitoring".to_owned()), value)];
        assert_eq!(
            shown,
            [
                ("hive_selectorsyncset_clusters_total", of(7.0)),
                ("hive_selectorsyncset_clusters_unapplied_total", of(2.0)),
                ("hive_syncsets_total", vec![(None, 5.0)]),
                ("hive_syncsets_unapplied_total", vec![(None, 1.0)]),
            ]
        );
    }
}
