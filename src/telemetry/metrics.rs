//! Metrics: every name with what it means, and where the values are kept.
//!
//! The names that controller-runtime uses are used as it uses them, so that its dashboards and alerts work. Labels are
//! closed sets: sections and clusters of the configuration, roles of actors, and the enums of `recorders`.

use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Reconciles that have ended, by `controller` (the section) and `result`.
pub(super) const RECONCILE_TOTAL: &str = "controller_runtime_reconcile_total";
/// How long a reconcile took, by `controller`.
pub(super) const RECONCILE_TIME_SECONDS: &str = "controller_runtime_reconcile_time_seconds";
/// Reconciles that are running, by `controller`.
pub(super) const ACTIVE_WORKERS: &str = "controller_runtime_active_workers";
/// Keys that wait, by `name` and `controller` (both the section).
pub(super) const WORKQUEUE_DEPTH: &str = "workqueue_depth";
/// Requests that were not merged with one already waiting, by `name` and `controller`.
pub(super) const WORKQUEUE_ADDS_TOTAL: &str = "workqueue_adds_total";
/// How long a key waited, by `name` and `controller`.
pub(super) const WORKQUEUE_QUEUE_DURATION_SECONDS: &str = "workqueue_queue_duration_seconds";
/// How long a key was worked on, by `name` and `controller`.
pub(super) const WORKQUEUE_WORK_DURATION_SECONDS: &str = "workqueue_work_duration_seconds";
/// Keys that were put back after a failure, by `name` and `controller`.
pub(super) const WORKQUEUE_RETRIES_TOTAL: &str = "workqueue_retries_total";
/// Requests to API servers, by `code`, `method` and `host` (one a cluster).
pub(super) const REST_CLIENT_REQUESTS_TOTAL: &str = "rest_client_requests_total";
/// Whether a section runs here, by `name` (the section).
pub(super) const LEADER_ELECTION_MASTER_STATUS: &str = "leader_election_master_status";
/// Whether a cluster answers, by `cluster`.
pub(super) const CLUSTER_AVAILABLE: &str = "towline_cluster_available";
/// Whether a section does well, by `section`.
pub(super) const SECTION_WELL: &str = "towline_section_well";
/// Objects, by `section` and `state`.
pub(super) const SYNC_OBJECTS: &str = "towline_sync_objects";
/// From a remote change's arrival to the acknowledged local write, by `section`.
pub(super) const SYNC_SPEC_LAG_SECONDS: &str = "towline_sync_spec_lag_seconds";
/// From a local change's arrival to the acknowledged remote write, by `section`.
pub(super) const SYNC_STATUS_LAG_SECONDS: &str = "towline_sync_status_lag_seconds";
/// Age of the oldest change that is not written yet, by `section` and `direction`.
pub(super) const SYNC_OLDEST_PENDING_SECONDS: &str = "towline_sync_oldest_pending_seconds";
/// Fields that were taken back from another manager, by `section`.
pub(super) const SYNC_CONTENDED_FIELDS_TOTAL: &str = "towline_sync_contended_fields_total";
/// Whether a section only plans, by `section`.
pub(super) const SYNC_DRY_RUN: &str = "towline_sync_dry_run";
/// Fields that an API server does not keep as they were written, by `section` and `direction`.
pub(super) const SYNC_UNKEPT_FIELDS: &str = "towline_sync_unkept_fields";
/// Objects that were taken over, by `section`.
pub(super) const SYNC_ADOPTED_OBJECTS_TOTAL: &str = "towline_sync_adopted_objects_total";
/// Objects that the guard against mass changes holds, by `section` and `kind`.
pub(super) const SYNC_HELD_OBJECTS: &str = "towline_sync_held_objects";
/// Objects with finalizers or marks of ours that no section owns, by `section`.
pub(super) const SYNC_LEFT_BEHIND_OBJECTS: &str = "towline_sync_left_behind_objects";
/// Whether a lease is held, by `section`.
pub(super) const LEASE_HELD: &str = "towline_lease_held";
/// When a lease's last renewal was acknowledged, in seconds since 1970, by `section`.
pub(super) const LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS: &str = "towline_lease_last_renewal_timestamp_seconds";
/// Renewals of a lease, by `section` and `outcome`.
pub(super) const LEASE_RENEWALS_TOTAL: &str = "towline_lease_renewals_total";
/// How long a whole pass took, by `family`.
pub(super) const STATUS_SYNC_PASS_SECONDS: &str = "towline_status_sync_pass_seconds";
/// Passes that failed, by `family`.
pub(super) const STATUS_SYNC_FAILED_PASSES_TOTAL: &str = "towline_status_sync_failed_passes_total";
/// Reported rows at the last pass, by `family`.
pub(super) const STATUS_SYNC_ROWS: &str = "towline_status_sync_rows";
/// Hub objects at the last pass, by `family`.
pub(super) const STATUS_SYNC_OBJECTS: &str = "towline_status_sync_objects";
/// Writes, by `family` and `outcome`.
pub(super) const STATUS_SYNC_WRITES_TOTAL: &str = "towline_status_sync_writes_total";
/// Rows of the last pass that count for nothing, or not for all that they say, by `family`.
pub(super) const STATUS_SYNC_BAD_ROWS: &str = "towline_status_sync_bad_rows";
/// Age of the oldest change of the database that is not written yet, by `family`.
pub(super) const STATUS_SYNC_FRESHNESS_SECONDS: &str = "towline_status_sync_freshness_seconds";
/// Hub objects that are not served, by `family` and `reason`.
pub(super) const STATUS_SYNC_WAITING: &str = "towline_status_sync_waiting";
/// Fields that were taken back from another manager, by `family`.
pub(super) const STATUS_SYNC_CONTENDED_FIELDS_TOTAL: &str = "towline_status_sync_contended_fields_total";
/// Whether the database is listened to, where `notify = true`.
pub(super) const STATUS_SYNC_LISTENING: &str = "towline_status_sync_listening";
/// Tables that don't tell of changes, where `notify = true`.
pub(super) const STATUS_SYNC_MISSING_TRIGGERS: &str = "towline_status_sync_missing_triggers";
/// Notifications of the database, where `notify = true`.
pub(super) const STATUS_SYNC_NOTIFICATIONS_TOTAL: &str = "towline_status_sync_notifications_total";
/// Connections of the pool, by `state`.
pub(super) const DB_POOL_CONNECTIONS: &str = "towline_db_pool_connections";
/// From a statement's sending to its last row, by `query`.
pub(super) const DB_QUERY_SECONDS: &str = "towline_db_query_seconds";
/// Restarts of actors, by `actor` (the role).
pub(super) const ACTOR_RESTARTS_TOTAL: &str = "towline_actor_restarts_total";
/// Messages that wait, by `actor` (the receiver's role).
pub(super) const MAILBOX_DEPTH: &str = "towline_mailbox_depth";
/// Messages that may wait, by `actor` (the receiver's role).
pub(super) const MAILBOX_CAPACITY: &str = "towline_mailbox_capacity";
/// The running version, by `version`.
pub(super) const BUILD_INFO: &str = "towline_build_info";
/// Processor time of this process.
pub(super) const PROCESS_CPU_SECONDS_TOTAL: &str = "process_cpu_seconds_total";
/// Resident memory of this process.
pub(super) const PROCESS_RESIDENT_MEMORY_BYTES: &str = "process_resident_memory_bytes";
/// When this process started.
pub(super) const PROCESS_START_TIME_SECONDS: &str = "process_start_time_seconds";

/// Upper bounds of every histogram's buckets, all of which are in seconds. From 1 ms, which a reconcile without writes
/// stays under, to 5 min, the cap of the back-off; steps of 2 to 2.5 give quantiles that are right to half their value.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// What a metric's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric as it is described to Prometheus.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

const fn metric(name: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric { name, kind, help }
}

/// Every metric of the recorder; those of the process are written by `process`.
pub(super) const ALL: [Metric; 43] = {
    use Kind::{Counter, Gauge, Histogram};
    [
        metric(RECONCILE_TOTAL, Counter, "Reconciles by section and result"),
        metric(RECONCILE_TIME_SECONDS, Histogram, "Length of time per reconcile by section"),
        metric(ACTIVE_WORKERS, Gauge, "Running reconciles by section"),
        metric(WORKQUEUE_DEPTH, Gauge, "Keys that wait to be reconciled"),
        metric(WORKQUEUE_ADDS_TOTAL, Counter, "Keys that were added, merged requests not counted"),
        metric(WORKQUEUE_QUEUE_DURATION_SECONDS, Histogram, "How long a key waits before it is reconciled"),
        metric(WORKQUEUE_WORK_DURATION_SECONDS, Histogram, "How long reconciling a key takes"),
        metric(WORKQUEUE_RETRIES_TOTAL, Counter, "Keys that were put back after a failure"),
        metric(REST_CLIENT_REQUESTS_TOTAL, Counter, "Requests to API servers by status code, method and host"),
        metric(LEADER_ELECTION_MASTER_STATUS, Gauge, "1 where the section runs in this process, 0 where it does not"),
        metric(
            CLUSTER_AVAILABLE,
            Gauge,
            "1 where the cluster answers, 0 where it does not or has no usable credentials",
        ),
        metric(SECTION_WELL, Gauge, "1 where nobody has to look after the section, 0 where towline status tells why"),
        metric(SYNC_OBJECTS, Gauge, "Objects by section and state"),
        metric(SYNC_LEFT_BEHIND_OBJECTS, Gauge, "Objects with marks of earlier settings that no section owns"),
        metric(SYNC_SPEC_LAG_SECONDS, Histogram, "From the arrival of a remote change to the acknowledged local write"),
        metric(
            SYNC_STATUS_LAG_SECONDS,
            Histogram,
            "From the arrival of a local change to the acknowledged remote write",
        ),
        metric(SYNC_OLDEST_PENDING_SECONDS, Gauge, "Age of the oldest change that is not written yet"),
        metric(
            SYNC_CONTENDED_FIELDS_TOTAL,
            Counter,
            "Fields that another field manager keeps setting and that were taken back",
        ),
        metric(SYNC_DRY_RUN, Gauge, "1 where the section only plans and writes nothing"),
        metric(SYNC_UNKEPT_FIELDS, Gauge, "Fields that an API server does not keep as they were written"),
        metric(
            SYNC_ADOPTED_OBJECTS_TOTAL,
            Counter,
            "Objects that were on the local cluster before their remote one and were taken over",
        ),
        metric(
            SYNC_HELD_OBJECTS,
            Gauge,
            "Objects that the guard against mass changes holds, by what would be done to them",
        ),
        metric(LEASE_HELD, Gauge, "1 where the lease is held, 0 where it is not"),
        metric(
            LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS,
            Gauge,
            "When the last renewal was acknowledged, in seconds since 1970; 0 before the first",
        ),
        metric(LEASE_RENEWALS_TOTAL, Counter, "Renewals of a lease by outcome"),
        metric(STATUS_SYNC_PASS_SECONDS, Histogram, "Length of a whole pass over a family"),
        metric(STATUS_SYNC_FAILED_PASSES_TOTAL, Counter, "Passes over a family that failed"),
        metric(STATUS_SYNC_ROWS, Gauge, "Reported rows of a family at the last pass"),
        metric(STATUS_SYNC_OBJECTS, Gauge, "Hub objects of a family at the last pass"),
        metric(STATUS_SYNC_WRITES_TOTAL, Counter, "Writes to the hub by family and outcome"),
        metric(STATUS_SYNC_BAD_ROWS, Gauge, "Rows of the last pass that could not be read, in whole or in part"),
        metric(
            STATUS_SYNC_FRESHNESS_SECONDS,
            Gauge,
            "Age of the oldest change that is not written yet, or of the question that the database does not answer",
        ),
        metric(STATUS_SYNC_WAITING, Gauge, "Hub objects that are not served, by family and reason"),
        metric(
            STATUS_SYNC_CONTENDED_FIELDS_TOTAL,
            Counter,
            "Fields that another field manager keeps setting and that were taken back",
        ),
        metric(STATUS_SYNC_LISTENING, Gauge, "1 where changes of the database are listened for, 0 where they are not"),
        metric(STATUS_SYNC_MISSING_TRIGGERS, Gauge, "Tables without the trigger that tells of changes"),
        metric(STATUS_SYNC_NOTIFICATIONS_TOTAL, Counter, "Notifications of changes by the database"),
        metric(DB_POOL_CONNECTIONS, Gauge, "Connections of the database pool by state"),
        metric(DB_QUERY_SECONDS, Histogram, "From the sending of a statement to its last row"),
        metric(ACTOR_RESTARTS_TOTAL, Counter, "Restarts of actors by role"),
        metric(MAILBOX_DEPTH, Gauge, "Messages that wait in the mailboxes of a role"),
        metric(MAILBOX_CAPACITY, Gauge, "Messages that may wait in the mailboxes of a role"),
        metric(BUILD_INFO, Gauge, "The running version; always 1"),
    ]
};

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
#[error("failed to install the metrics recorder")]
pub enum InstallMetrics {
    /// The buckets are not accepted.
    Buckets(#[source] BuildError),
    /// Another recorder is installed already.
    Installed(#[source] metrics::SetRecorderError<PrometheusRecorder>),
}

/// Makes the process's recorder, describes every metric to it, and returns what renders them. Once per process.
pub fn install() -> Result<PrometheusHandle, InstallMetrics> {
    let recorder = recorder().map_err(InstallMetrics::Buckets)?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(InstallMetrics::Installed)?;
    describe();
    Ok(handle)
}

/// A recorder that is not installed, so that tests can each have one.
pub(super) fn recorder() -> Result<PrometheusRecorder, BuildError> {
    Ok(PrometheusBuilder::new().set_buckets(&SECONDS)?.build_recorder())
}

/// Describes every metric to the current recorder, and records the version.
pub(super) fn describe() {
    for Metric { name, kind, help } in ALL {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, help),
            Kind::Gauge => metrics::describe_gauge!(name, help),
            Kind::Histogram => metrics::describe_histogram!(name, help),
        }
    }
    metrics::gauge!(BUILD_INFO, "version" => super::VERSION).set(1.0);
}

#[cfg(test)]
mod tests;
