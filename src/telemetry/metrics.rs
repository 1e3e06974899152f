//! The metrics that belong to no job, with their descriptions, and the recorder of all metrics. Each job describes its own.
//!
//! Names of controller-runtime have the same meaning as there, so that its dashboards and alerts work. Labels are closed
//! sets: sections and clusters of the configuration, roles of actors, and the enums of `recorders`.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Finished reconciles, by `controller` (the section) and `result`.
pub(super) const RECONCILE_TOTAL: &str = "controller_runtime_reconcile_total";
/// Duration of a reconcile, by `controller`.
pub(super) const RECONCILE_TIME_SECONDS: &str = "controller_runtime_reconcile_time_seconds";
/// Running reconciles, by `controller`.
pub(super) const ACTIVE_WORKERS: &str = "controller_runtime_active_workers";
/// Waiting keys, by `name` and `controller` (both the section).
pub(super) const WORKQUEUE_DEPTH: &str = "workqueue_depth";
/// Added keys, without requests that were merged with a waiting key, by `name` and `controller`.
pub(super) const WORKQUEUE_ADDS_TOTAL: &str = "workqueue_adds_total";
/// How long a key waited, by `name` and `controller`.
pub(super) const WORKQUEUE_QUEUE_DURATION_SECONDS: &str = "workqueue_queue_duration_seconds";
/// How long a key was worked on, by `name` and `controller`.
pub(super) const WORKQUEUE_WORK_DURATION_SECONDS: &str = "workqueue_work_duration_seconds";
/// Keys that were requeued after a failure, by `name` and `controller`.
pub(super) const WORKQUEUE_RETRIES_TOTAL: &str = "workqueue_retries_total";
/// Requests to API servers, by `code`, `method` and `host` (one per cluster).
pub(super) const REST_CLIENT_REQUESTS_TOTAL: &str = "rest_client_requests_total";
/// Whether a section runs here, by `name` (the section).
pub(super) const LEADER_ELECTION_MASTER_STATUS: &str = "leader_election_master_status";
/// Whether a cluster answers, by `cluster`.
pub(super) const CLUSTER_AVAILABLE: &str = "towline_cluster_available";
pub(super) const CLUSTER_NEW_CREDENTIALS_FAIL: &str = "towline_cluster_new_credentials_fail";
/// Whether a section is well, by `section`.
pub(super) const SECTION_WELL: &str = "towline_section_well";
/// Objects, by `section` and `state`.
pub(super) const OBJECTS: &str = "towline_objects";
/// What the guard against mass changes holds, by `section` and `kind`.
pub(super) const HELD_CHANGES: &str = "towline_held_changes";
/// Age of the oldest thing that waits, by `section` and `kind`: what waits.
pub(super) const OLDEST_PENDING_SECONDS: &str = "towline_oldest_pending_seconds";
/// Duration of a statement until its last row, by `query`.
pub(super) const DB_QUERY_SECONDS: &str = "towline_db_query_seconds";
/// The running version, by `version`.
pub(super) const BUILD_INFO: &str = "towline_build_info";
pub(super) const PROCESS_CPU_SECONDS_TOTAL: &str = "process_cpu_seconds_total";
pub(super) const PROCESS_RESIDENT_MEMORY_BYTES: &str = "process_resident_memory_bytes";
pub(super) const PROCESS_START_TIME_SECONDS: &str = "process_start_time_seconds";

/// Upper bounds of the buckets of histograms that name none, in seconds: from 1 ms, more than a reconcile without writes takes, to
/// 5 min, the cap of the back-off. With steps of 2 to 2.5, quantiles are accurate to about half their value.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric as it is described to Prometheus.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    /// Its description, without a full stop.
    pub help: &'static str,
    /// Upper bounds of a histogram's buckets, in seconds; none for those that most histograms have.
    pub bounds: Option<&'static [f64]>,
}

impl Metric {
    /// A number that only grows. Its name ends with `_total`.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, help, bounds: None }
    }

    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, help, bounds: None }
    }

    /// Durations, in seconds. Its name ends with `_seconds`.
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, help, bounds: None }
    }

    /// Durations in buckets of its own, whose upper bounds ascend.
    pub const fn histogram_within(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        Self { name, kind: MetricKind::Histogram, help, bounds: Some(bounds) }
    }

    fn describe(self) {
        let Self { name, kind, help, bounds: _ } = self;
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, help),
            MetricKind::Gauge => metrics::describe_gauge!(name, help),
            MetricKind::Histogram => metrics::describe_histogram!(name, help),
        }
    }
}

/// The metrics that belong to no job. `process` writes those of the process.
const COMMON: &[Metric] = &[
    Metric::counter(RECONCILE_TOTAL, "Reconciles by section and result"),
    Metric::histogram(RECONCILE_TIME_SECONDS, "Length of time per reconcile by section"),
    Metric::gauge(ACTIVE_WORKERS, "Running reconciles by section"),
    Metric::gauge(WORKQUEUE_DEPTH, "Keys waiting to be reconciled"),
    Metric::counter(WORKQUEUE_ADDS_TOTAL, "Added keys, without merged requests"),
    Metric::histogram(WORKQUEUE_QUEUE_DURATION_SECONDS, "How long a key waits before it is reconciled"),
    Metric::histogram(WORKQUEUE_WORK_DURATION_SECONDS, "How long reconciling a key takes"),
    Metric::counter(WORKQUEUE_RETRIES_TOTAL, "Keys that were requeued after a failure"),
    Metric::counter(REST_CLIENT_REQUESTS_TOTAL, "Requests to API servers by status code, method and host"),
    Metric::gauge(LEADER_ELECTION_MASTER_STATUS, "1 if the section runs in this process, else 0"),
    Metric::gauge(CLUSTER_AVAILABLE, "1 if the cluster answers, 0 if it does not or has no usable credentials"),
    Metric::gauge(
        CLUSTER_NEW_CREDENTIALS_FAIL,
        "1 if the cluster's files have new credentials that do not work, so that the old ones stay in use, else 0",
    ),
    Metric::gauge(SECTION_WELL, "1 if the section needs no attention, 0 if it does: towline status shows why"),
    Metric::gauge(OBJECTS, "Objects (of syncsets: clusters) by section and state"),
    Metric::gauge(
        HELD_CHANGES,
        "Objects (of syncsets: syncsets) that wait for an approval, by what would be done to them",
    ),
    Metric::gauge(
        OLDEST_PENDING_SECONDS,
        "Age of the oldest change, event, release or cluster that waits in a section; 0 if none does",
    ),
    Metric::histogram(DB_QUERY_SECONDS, "Duration of a statement until its last row"),
    Metric::gauge(BUILD_INFO, "The running version; always 1"),
];

#[derive(Debug, thiserror::Error)]
#[error("failed to install the metrics recorder")]
pub enum InstallMetrics {
    Buckets(#[source] BuildError),
    Installed(#[source] metrics::SetRecorderError<PrometheusRecorder>),
}

/// Installs the process's recorder, describes all metrics including those of the jobs, and returns the handle that renders
/// them. Once per process.
pub fn install(of_jobs: impl IntoIterator<Item = &'static Metric>) -> Result<PrometheusHandle, InstallMetrics> {
    let of_jobs: Vec<&'static Metric> = of_jobs.into_iter().collect();
    let recorder = recorder(of_jobs.iter().copied()).map_err(InstallMetrics::Buckets)?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(InstallMetrics::Installed)?;
    describe(of_jobs);
    Ok(handle)
}

/// A recorder that is not installed, so that tests can each have one. It has to know the buckets of all histograms before there is a
/// sample.
pub fn recorder(of_jobs: impl IntoIterator<Item = &'static Metric>) -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new().set_buckets(&SECONDS)?;
    for metric in of_jobs {
        if let Some(bounds) = metric.bounds {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    Ok(builder.build_recorder())
}

/// Describes every metric to the current recorder, and records the version. Returns what was described.
pub fn describe(of_jobs: impl IntoIterator<Item = &'static Metric>) -> Vec<Metric> {
    let all: Vec<Metric> = COMMON.iter().chain(of_jobs).copied().collect();
    for metric in &all {
        metric.describe();
    }
    metrics::gauge!(BUILD_INFO, "version" => super::VERSION).set(1.0);
    all
}
