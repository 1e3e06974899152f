//! The metrics of status sync: `towline_status_sync_*`, each with its description, and how they are recorded.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::telemetry::{self, Metric};

/// How long a whole pass took, by `family`.
const STATUS_SYNC_PASS_SECONDS: &str = "towline_status_sync_pass_seconds";
/// Passes that failed, by `family`.
const STATUS_SYNC_FAILED_PASSES_TOTAL: &str = "towline_status_sync_failed_passes_total";
/// Rows of `status` at the last pass, by `family`.
const STATUS_SYNC_ROWS: &str = "towline_status_sync_rows";
/// Hub objects at the last pass, by `family`.
const STATUS_SYNC_OBJECTS: &str = "towline_status_sync_objects";
/// Writes, by `family` and `outcome`.
const STATUS_SYNC_WRITES_TOTAL: &str = "towline_status_sync_writes_total";
/// Rows of the last pass that could not be read, or not completely, by `family`.
const STATUS_SYNC_BAD_ROWS: &str = "towline_status_sync_bad_rows";
/// Age of the oldest change of the database that is not written yet, by `family`.
const STATUS_SYNC_FRESHNESS_SECONDS: &str = "towline_status_sync_freshness_seconds";
/// Hub objects whose status is not written, by `family` and `reason`.
const STATUS_SYNC_WAITING: &str = "towline_status_sync_waiting";
/// Corrections of fields that another field manager had changed, by `family`.
const STATUS_SYNC_CONTENDED_FIELDS_TOTAL: &str = "towline_status_sync_contended_fields_total";
/// Whether the listener listens; only with `notify = true`.
const STATUS_SYNC_LISTENING: &str = "towline_status_sync_listening";
/// Tables that send no notifications; only with `notify = true`.
const STATUS_SYNC_MISSING_TRIGGERS: &str = "towline_status_sync_missing_triggers";
/// Notifications of the database; only with `notify = true`.
const STATUS_SYNC_NOTIFICATIONS_TOTAL: &str = "towline_status_sync_notifications_total";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::histogram(STATUS_SYNC_PASS_SECONDS, "Length of a whole pass over a family"),
    Metric::counter(STATUS_SYNC_FAILED_PASSES_TOTAL, "Passes over a family that failed"),
    Metric::gauge(STATUS_SYNC_ROWS, "Reported rows of a family at the last pass"),
    Metric::gauge(STATUS_SYNC_OBJECTS, "Hub objects of a family at the last pass"),
    Metric::counter(STATUS_SYNC_WRITES_TOTAL, "Writes to the hub by family and outcome"),
    Metric::gauge(STATUS_SYNC_BAD_ROWS, "Rows of the last pass that could not be read, in whole or in part"),
    Metric::gauge(
        STATUS_SYNC_FRESHNESS_SECONDS,
        "Age of the oldest change that is not written yet, or of the statement that the database has not answered",
    ),
    Metric::gauge(STATUS_SYNC_WAITING, "Hub objects whose status is not written, by family and reason"),
    Metric::counter(STATUS_SYNC_CONTENDED_FIELDS_TOTAL, "Corrections of fields that another field manager had changed"),
    Metric::gauge(STATUS_SYNC_LISTENING, "1 while the listener listens for changes of the database, else 0"),
    Metric::gauge(STATUS_SYNC_MISSING_TRIGGERS, "Tables that send no notifications of changes"),
    Metric::counter(STATUS_SYNC_NOTIFICATIONS_TOTAL, "Notifications of changes that the database has sent"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// An object was created.
    Created,
    /// Fields of an object were patched.
    Patched,
    /// An object of ours was deleted.
    Deleted,
    /// The request failed.
    Failed,
}

/// The metrics of one family.
#[derive(Debug)]
pub struct StatusSyncMetrics {
    pass_seconds: Histogram,
    failed_passes: Counter,
    rows: Gauge,
    objects: Gauge,
    bad_rows: Gauge,
    freshness: Gauge,
    created: Counter,
    patched: Counter,
    deleted: Counter,
    failed: Counter,
    contended_fields: Counter,
    waiting: Vec<(&'static str, Gauge)>,
}

impl StatusSyncMetrics {
    /// Registers the series of a family, all with the value 0. `reasons` are the reasons for which an object may wait.
    pub fn new(family: &'static str, reasons: &[&'static str]) -> Self {
        let labels = [("family", family)];
        let writes =
            |outcome: &'static str| counter!(STATUS_SYNC_WRITES_TOTAL, "family" => family, "outcome" => outcome);
        Self {
            pass_seconds: histogram!(STATUS_SYNC_PASS_SECONDS, &labels),
            failed_passes: counter!(STATUS_SYNC_FAILED_PASSES_TOTAL, &labels),
            rows: gauge!(STATUS_SYNC_ROWS, &labels),
            objects: gauge!(STATUS_SYNC_OBJECTS, &labels),
            bad_rows: gauge!(STATUS_SYNC_BAD_ROWS, &labels),
            freshness: gauge!(STATUS_SYNC_FRESHNESS_SECONDS, &labels),
            created: writes("created"),
            patched: writes("patched"),
            deleted: writes("deleted"),
            failed: writes("failed"),
            contended_fields: counter!(STATUS_SYNC_CONTENDED_FIELDS_TOTAL, &labels),
            waiting: reasons
                .iter()
                .map(|reason| (*reason, gauge!(STATUS_SYNC_WAITING, "family" => family, "reason" => *reason)))
                .collect(),
        }
    }

    /// Records a pass that has completed.
    pub fn pass(&self, took: Duration) {
        self.pass_seconds.record(took);
    }

    /// Counts a pass that has failed.
    pub fn failed(&self) {
        self.failed_passes.increment(1);
    }

    /// Counts a write.
    pub fn written(&self, outcome: WriteOutcome) {
        let counter = match outcome {
            WriteOutcome::Created => &self.created,
            WriteOutcome::Patched => &self.patched,
            WriteOutcome::Deleted => &self.deleted,
            WriteOutcome::Failed => &self.failed,
        };
        counter.increment(1);
    }

    /// Counts a correction of what another field manager had changed.
    pub fn contended_field(&self) {
        self.contended_fields.increment(1);
    }

    /// Sets how many hub objects wait, by reason; before a scrape.
    pub fn set_waiting(&self, waiting_for: impl Fn(&str) -> usize) {
        for (reason, gauge) in &self.waiting {
            gauge.set(telemetry::count(waiting_for(reason)));
        }
    }

    /// Sets what the last pass found, and the age of the oldest unwritten change; before a scrape.
    pub fn set(&self, rows: i64, objects: usize, bad_rows: usize, freshness: Duration) {
        self.rows.set(telemetry::count(usize::try_from(rows).unwrap_or_default()));
        self.objects.set(telemetry::count(objects));
        self.bad_rows.set(telemetry::count(bad_rows));
        self.freshness.set(freshness);
    }
}

#[derive(Debug)]
pub struct ListenerMetrics {
    listening: Gauge,
    missing_triggers: Gauge,
    notifications: Counter,
}

impl ListenerMetrics {
    /// Registers the series, all with the value 0.
    #[expect(clippy::new_without_default, reason = "it registers series, and a default should have no such effect")]
    pub fn new() -> Self {
        Self {
            listening: gauge!(STATUS_SYNC_LISTENING),
            missing_triggers: gauge!(STATUS_SYNC_MISSING_TRIGGERS),
            notifications: counter!(STATUS_SYNC_NOTIFICATIONS_TOTAL),
        }
    }

    /// Counts a notification.
    pub fn notified(&self) {
        self.notifications.increment(1);
    }

    /// Sets whether it listens, and how many tables send no notifications; before a scrape.
    pub fn set(&self, listening: bool, missing_triggers: usize) {
        self.listening.set(if listening { 1.0 } else { 0.0 });
        self.missing_triggers.set(telemetry::count(missing_triggers));
    }
}
