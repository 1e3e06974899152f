//! Typed ways to record: each takes what the labels mean, and keeps the handles where the path is hot.
//!
//! Handles belong to the recorder that is installed when they are made, so [`install`](super::install) comes first.

use std::time::{Duration, SystemTime};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use super::metrics as names;
use crate::config::{ClusterName, SectionName};

/// How a reconcile ended, as controller-runtime tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Nothing is left to do.
    Success,
    /// It failed, or panicked, and is retried with back-off.
    Error,
    /// It asked to be run again, at once or on the next change.
    Requeue,
    /// It asked to be run again after a time.
    RequeueAfter,
}

/// A section's queue and its reconciles: `workqueue_*` and `controller_runtime_*`.
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
    /// Makes the series of a section. All of them exist from here on, with the value 0.
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

    /// How many keys wait, at the time of a scrape.
    pub fn set_depth(&self, waiting: usize) {
        self.depth.set(count(waiting));
    }

    /// A key was added that was not waiting.
    pub fn added(&self) {
        self.adds.increment(1);
    }

    /// A key's reconcile begins, after it waited this long.
    pub fn started(&self, waited: Duration) {
        self.queue_duration.record(waited);
        self.active_workers.increment(1.0);
    }

    /// A reconcile that was [`started`](Self::started) has ended, in whichever way.
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

    /// A key was put back with back-off.
    pub fn retried(&self) {
        self.retries.increment(1);
    }
}

/// What a pair of objects is in. A state is added here and nowhere else: metrics, reports and tests go by
/// [`ObjectState::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectState {
    /// Both sides agree.
    InStep,
    /// A change is on its way.
    Pending,
    /// Someone paused it.
    Paused,
    /// The last reconcile failed.
    Failing,
    /// One side is being deleted.
    Deleting,
    /// What would be done to it waits for an approval.
    Held,
    /// A local object bears our marks and is not proved to be ours: it is kept.
    Unclaimed,
    /// Another local cluster holds the remote object by the same finalizer.
    OtherCluster,
    /// A local object was there before its remote one and is not to be taken over.
    Stranger,
    /// The remote object that the local one came from lives under another key: the local one is an orphan.
    MappingChanged,
    /// The remote object was itself made from the local one: nothing is done.
    Circle,
}

impl ObjectState {
    /// Every state, in the order of a report.
    pub const ALL: [Self; 11] = [
        Self::InStep,
        Self::Pending,
        Self::Paused,
        Self::Failing,
        Self::Deleting,
        Self::Held,
        Self::Unclaimed,
        Self::Stranger,
        Self::MappingChanged,
        Self::Circle,
        Self::OtherCluster,
    ];

    /// The label's value, and the key in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InStep => "in_step",
            Self::Pending => "pending",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Deleting => "deleting",
            Self::Held => "held",
            Self::Unclaimed => "unclaimed",
            Self::Stranger => "stranger",
            Self::MappingChanged => "mapping_changed",
            Self::Circle => "circle",
            Self::OtherCluster => "other_cluster",
        }
    }

    /// From when on an object in this state is listed by name, the most urgent states first; `None`: never.
    pub fn listed_after(self) -> Option<(u8, Duration)> {
        match self {
            Self::Held => Some((0, Duration::ZERO)),
            Self::Failing => Some((1, Duration::ZERO)),
            // Finalizers of healthy controllers are done sooner.
            Self::Deleting => Some((2, Duration::from_mins(1))),
            // Longer than a change takes on its way through clusters that are well.
            Self::Pending => Some((3, Duration::from_secs(10))),
            // Nothing happens to them before somebody looks.
            Self::Circle | Self::OtherCluster | Self::MappingChanged | Self::Unclaimed | Self::Stranger => {
                Some((4, Duration::ZERO))
            }
            Self::InStep | Self::Paused => None,
        }
    }
}

/// Which way a change goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the remote to the local cluster.
    Spec,
    /// From the local to the remote cluster.
    Status,
}

/// A resource sync section: `towline_sync_*`.
#[derive(Debug)]
pub struct SyncMetrics {
    objects: [(ObjectState, Gauge); ObjectState::ALL.len()],
    spec_lag: Histogram,
    status_lag: Histogram,
    oldest_pending_spec: Gauge,
    oldest_pending_status: Gauge,
    unkept_spec: Gauge,
    unkept_status: Gauge,
    contended_fields: Counter,
    dry_run: Gauge,
    adopted: Counter,
    held: [(&'static str, Gauge); HELD_KINDS.len()],
    left_behind: Gauge,
}

/// What the guard against mass changes holds objects from, as a label.
pub const HELD_KINDS: [&str; 4] = ["delete", "let_go", "overwrite", "clear_status"];

impl SyncMetrics {
    /// Makes the series of a section. All of them exist from here on, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let name = section.to_string();
        let labels = [("section", name.clone())];
        let oldest_pending = |direction: &'static str| gauge!(names::SYNC_OLDEST_PENDING_SECONDS, "section" => name.clone(), "direction" => direction);
        let unkept = |direction: &'static str| gauge!(names::SYNC_UNKEPT_FIELDS, "section" => name.clone(), "direction" => direction);
        Self {
            objects: ObjectState::ALL.map(|state| {
                (state, gauge!(names::SYNC_OBJECTS, "section" => name.clone(), "state" => state.as_str()))
            }),
            spec_lag: histogram!(names::SYNC_SPEC_LAG_SECONDS, &labels),
            status_lag: histogram!(names::SYNC_STATUS_LAG_SECONDS, &labels),
            oldest_pending_spec: oldest_pending("spec"),
            oldest_pending_status: oldest_pending("status"),
            unkept_spec: unkept("spec"),
            unkept_status: unkept("status"),
            contended_fields: counter!(names::SYNC_CONTENDED_FIELDS_TOTAL, &labels),
            dry_run: gauge!(names::SYNC_DRY_RUN, &labels),
            adopted: counter!(names::SYNC_ADOPTED_OBJECTS_TOTAL, &labels),
            held: HELD_KINDS
                .map(|kind| (kind, gauge!(names::SYNC_HELD_OBJECTS, "section" => name.clone(), "kind" => kind))),
            left_behind: gauge!(names::SYNC_LEFT_BEHIND_OBJECTS, &labels),
        }
    }

    /// Whether the section only plans.
    pub fn set_dry_run(&self, dry_run: bool) {
        self.dry_run.set(if dry_run { 1.0 } else { 0.0 });
    }

    /// How many objects are in each state, at the time of a scrape.
    pub fn set_objects(&self, objects_in: impl Fn(ObjectState) -> usize) {
        for (state, gauge) in &self.objects {
            gauge.set(count(objects_in(*state)));
        }
    }

    /// How many objects bear marks that no section owns, at the time of a scrape.
    pub fn set_left_behind(&self, objects: usize) {
        self.left_behind.set(count(objects));
    }

    /// Age of the oldest change that is not written yet; zero where there is none. At the time of a scrape.
    pub fn set_oldest_pending(&self, direction: Direction, age: Duration) {
        match direction {
            Direction::Spec => self.oldest_pending_spec.set(age),
            Direction::Status => self.oldest_pending_status.set(age),
        }
    }

    /// How many fields an API server does not keep as they were written, at the time of a scrape.
    pub fn set_unkept(&self, direction: Direction, fields: usize) {
        match direction {
            Direction::Spec => self.unkept_spec.set(count(fields)),
            Direction::Status => self.unkept_status.set(count(fields)),
        }
    }

    /// A change was acknowledged by the other side, this long after it arrived in the watch.
    pub fn written(&self, direction: Direction, lag: Duration) {
        match direction {
            Direction::Spec => self.spec_lag.record(lag),
            Direction::Status => self.status_lag.record(lag),
        }
    }

    /// A field was taken back from another manager.
    pub fn contended_field(&self) {
        self.contended_fields.increment(1);
    }

    /// The write that takes an object over was acknowledged.
    pub fn adopted(&self) {
        self.adopted.increment(1);
    }

    /// How many objects the guard against mass changes holds of each of [`HELD_KINDS`], at the time of a scrape.
    pub fn set_held(&self, held_of: impl Fn(&str) -> usize) {
        for (kind, gauge) in &self.held {
            gauge.set(count(held_of(kind)));
        }
    }
}

/// A lease section: `towline_lease_*`.
#[derive(Debug)]
pub struct LeaseMetrics {
    held: Gauge,
    last_renewal: Gauge,
    success: Counter,
    failure: Counter,
}

impl LeaseMetrics {
    /// Makes the series of a section. All of them exist from here on, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        let name = section.to_string();
        let labels = [("section", name.clone())];
        let renewals = |outcome: &'static str| counter!(names::LEASE_RENEWALS_TOTAL, "section" => name.clone(), "outcome" => outcome);
        Self {
            held: gauge!(names::LEASE_HELD, &labels),
            last_renewal: gauge!(names::LEASE_LAST_RENEWAL_TIMESTAMP_SECONDS, &labels),
            success: renewals("success"),
            failure: renewals("failure"),
        }
    }

    /// A renewal was acknowledged, just now.
    pub fn renewed(&self) {
        self.success.increment(1);
        // A clock before 1970 is not worth more than a wrong value.
        self.last_renewal.set(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    }

    /// A renewal has failed, and is tried again.
    pub fn failed(&self) {
        self.failure.increment(1);
    }

    /// Whether the lease is held, at the time of a scrape.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}

/// The requests to one API server: `rest_client_requests_total`.
#[derive(Debug)]
pub struct RestClientMetrics {
    host: String,
    /// One for each method and status that was seen; a handful.
    totals: Mutex<Vec<(Answered, Counter)>>,
}

/// A method, and the status of the answer where there was one.
type Answered = (http::Method, Option<http::StatusCode>);

impl RestClientMetrics {
    /// Of the server with this address, of which there is one a cluster.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into(), totals: Mutex::default() }
    }

    /// A request was answered with a status code, or with none where it failed before that.
    pub fn answered(&self, code: Option<http::StatusCode>, method: &http::Method) {
        let mut totals = self.totals.lock();
        if let Some((_, total)) = totals.iter().find(|((with, known), _)| with == method && *known == code) {
            total.increment(1);
            return;
        }
        let total = counter!(
            names::REST_CLIENT_REQUESTS_TOTAL,
            // What client-go says of a request without an answer.
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

/// Whether a section does well, at the time of a scrape.
pub fn section_well(section: &SectionName, is_well: bool) {
    gauge!(names::SECTION_WELL, "section" => section.to_string()).set(if is_well { 1.0 } else { 0.0 });
}

/// Whether a cluster answers, at the time of a scrape.
pub fn cluster_available(cluster: &ClusterName, is_available: bool) {
    gauge!(names::CLUSTER_AVAILABLE, "cluster" => cluster.to_string()).set(if is_available { 1.0 } else { 0.0 });
}

/// All actors of one role together, at the time of a scrape. A role is what is the same for all sections, clusters and
/// keys: `watcher`, `reconciler`.
pub fn actors(role: &'static str, restarts: u64, mailbox_depth: usize, mailbox_capacity: usize) {
    counter!(names::ACTOR_RESTARTS_TOTAL, "actor" => role).absolute(restarts);
    gauge!(names::MAILBOX_DEPTH, "actor" => role).set(count(mailbox_depth));
    gauge!(names::MAILBOX_CAPACITY, "actor" => role).set(count(mailbox_capacity));
}

/// Counts are far below 2^32, up to where the conversion is exact.
fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
