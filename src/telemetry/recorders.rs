//! Typed functions that record metrics. They take typed values as labels, and keep the handles of frequently used series.
//!
//! Handles belong to the recorder that is installed when they are created, so [`install_metrics`](super::install_metrics)
//! must be called first.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use super::metrics as names;
use crate::config::{ClusterName, SectionName};

/// The result of a reconcile, in controller-runtime's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Nothing is left to do.
    Success,
    /// It failed or panicked, and is retried with back-off.
    Error,
    /// It is requeued at once, or on the next change.
    Requeue,
    /// It is requeued after a time.
    RequeueAfter,
}

/// Metrics of a section's queue and reconciles: `workqueue_*` and `controller_runtime_*`.
#[derive(Debug)]
pub struct WorkqueueMetrics {
    depth: Gauge,
    adds: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: Counter,
    active_workers: Gauge,
    reconcile_time: Histogram,
    success: Counter,
    error: Counter,
    requeue: Counter,
    requeue_after: Counter,
}

impl WorkqueueMetrics {
    /// Creates the series of a section, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let name = section.to_string();
        let queue = [("name", name.clone()), ("controller", name.clone())];
        let controller = [("controller", name.clone())];
        let total =
            |result: &'static str| counter!(names::RECONCILE_TOTAL, "controller" => name.clone(), "result" => result);
        Self {
            depth: gauge!(names::WORKQUEUE_DEPTH, &queue),
            adds: counter!(names::WORKQUEUE_ADDS_TOTAL, &queue),
            queue_duration: histogram!(names::WORKQUEUE_QUEUE_DURATION_SECONDS, &queue),
            work_duration: histogram!(names::WORKQUEUE_WORK_DURATION_SECONDS, &queue),
            retries: counter!(names::WORKQUEUE_RETRIES_TOTAL, &queue),
            active_workers: gauge!(names::ACTIVE_WORKERS, &controller),
            reconcile_time: histogram!(names::RECONCILE_TIME_SECONDS, &controller),
            success: total("success"),
            error: total("error"),
            requeue: total("requeue"),
            requeue_after: total("requeue_after"),
        }
    }

    /// Sets the number of waiting keys, at a scrape.
    pub fn set_depth(&self, waiting: usize) {
        self.depth.set(count(waiting));
    }

    /// A key was added that was not waiting.
    pub fn added(&self) {
        self.adds.increment(1);
    }

    /// So many keys were added, or asked for again.
    pub fn asked(&self, keys: u64) {
        self.adds.increment(keys);
    }

    /// A key's reconcile begins after this wait.
    pub fn started(&self, waited: Duration) {
        self.queue_duration.record(waited);
        self.active_workers.increment(1.0);
    }

    /// A reconcile that was [`started`](Self::started) has ended.
    pub fn finished(&self, took: Duration, result: ReconcileResult) {
        self.active_workers.decrement(1.0);
        self.work_duration.record(took);
        self.reconcile_time.record(took);
        let total = match result {
            ReconcileResult::Success => &self.success,
            ReconcileResult::Error => &self.error,
            ReconcileResult::Requeue => &self.requeue,
            ReconcileResult::RequeueAfter => &self.requeue_after,
        };
        total.increment(1);
    }

    /// A key was requeued with back-off.
    pub fn retried(&self) {
        self.retries.increment(1);
    }
}

/// Counts the requests to one API server: `rest_client_requests_total`. A lock, since all requests to the server record here;
/// it is held for the lookup in a short list.
#[derive(Debug)]
pub struct RestClientMetrics {
    host: String,
    /// One counter for each method and status so far; a handful.
    totals: Mutex<Vec<(Answered, Counter)>>,
}

/// A method, and the status of the answer if there was one.
type Answered = (http::Method, Option<http::StatusCode>);

impl RestClientMetrics {
    /// For the server with this address; each cluster has one.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into(), totals: Mutex::default() }
    }

    /// A request was answered with a status code, or failed without one.
    pub fn answered(&self, code: Option<http::StatusCode>, method: &http::Method) {
        let mut totals = self.totals.lock();
        if let Some((_, total)) = totals.iter().find(|((with, known), _)| with == method && *known == code) {
            total.increment(1);
            return;
        }
        let total = counter!(
            names::REST_CLIENT_REQUESTS_TOTAL,
            // client-go's label for a request without an answer.
            "code" => code.map_or_else(|| "<error>".to_owned(), |code| code.as_str().to_owned()),
            "method" => method.to_string(),
            "host" => self.host.clone()
        );
        total.increment(1);
        totals.push(((method.clone(), code), total));
    }
}

/// Whether a section runs in this process.
pub fn leader_election_master_status(section: &SectionName, is_here: bool) {
    gauge!(names::LEADER_ELECTION_MASTER_STATUS, "name" => section.to_string()).set(if is_here { 1.0 } else { 0.0 });
}

/// Whether a section is well, at a scrape.
pub fn section_well(section: &SectionName, is_well: bool) {
    gauge!(names::SECTION_WELL, "section" => section.to_string()).set(if is_well { 1.0 } else { 0.0 });
}

/// How many objects of a section are in a state, at a scrape.
pub fn section_objects(section: &SectionName, state: &'static str, objects: usize) {
    gauge!(names::OBJECTS, "section" => section.to_string(), "state" => state).set(count(objects));
}

/// How much of a section waits for an approval, by what would be done, at a scrape.
pub fn held_changes(section: &SectionName, kind: &'static str, held: usize) {
    gauge!(names::HELD_CHANGES, "section" => section.to_string(), "kind" => kind).set(count(held));
}

/// Whether a cluster answers, at a scrape.
pub fn cluster_available(cluster: &ClusterName, is_available: bool) {
    gauge!(names::CLUSTER_AVAILABLE, "cluster" => cluster.to_string()).set(if is_available { 1.0 } else { 0.0 });
}

/// Whether new credentials of a cluster do not work, so that the old ones stay in use.
pub fn cluster_new_credentials_fail(cluster: &ClusterName, fail: bool) {
    gauge!(names::CLUSTER_NEW_CREDENTIALS_FAIL, "cluster" => cluster.to_string()).set(if fail { 1.0 } else { 0.0 });
}

/// How old the oldest of those that wait in a section is, zero if none does. `kind` says in the plural what waits.
pub fn oldest_pending(section: &SectionName, kind: &'static str, age: Duration) {
    gauge!(names::OLDEST_PENDING_SECONDS, "section" => section.to_string(), "kind" => kind).set(age);
}

/// A statement has been read to its end.
pub fn db_query(query: &'static str, took: Duration) {
    histogram!(names::DB_QUERY_SECONDS, "query" => query).record(took);
}

/// A count as the value of a gauge. The conversion is exact up to 2^32, far more than any count here.
pub fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
