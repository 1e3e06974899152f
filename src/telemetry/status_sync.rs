//! Recorders of status sync and of the database.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::metrics as names;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// A new object.
    Created,
    /// Fields of an object.
    Patched,
    /// An object of ours that nobody needs any more.
    Deleted,
    /// None of these.
    Failed,
}

/// A family of status sync: `towline_status_sync_*`.
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
    /// Makes the series of a family. All of them exist from here on, with the value 0. `reasons` are those for which an
    /// object may wait.
    pub fn new(family: &'static str, reasons: &[&'static str]) -> Self {
        let labels = [("family", family)];
        let writes =
            |outcome: &'static str| counter!(names::STATUS_SYNC_WRITES_TOTAL, "family" => family, "outcome" => outcome);
        Self {
            pass_seconds: histogram!(names::STATUS_SYNC_PASS_SECONDS, &labels),
            failed_passes: counter!(names::STATUS_SYNC_FAILED_PASSES_TOTAL, &labels),
            rows: gauge!(names::STATUS_SYNC_ROWS, &labels),
            objects: gauge!(names::STATUS_SYNC_OBJECTS, &labels),
            bad_rows: gauge!(names::STATUS_SYNC_BAD_ROWS, &labels),
            freshness: gauge!(names::STATUS_SYNC_FRESHNESS_SECONDS, &labels),
            created: writes("created"),
            patched: writes("patched"),
            deleted: writes("deleted"),
            failed: writes("failed"),
            contended_fields: counter!(names::STATUS_SYNC_CONTENDED_FIELDS_TOTAL, &labels),
            waiting: reasons
                .iter()
                .map(|reason| (*reason, gauge!(names::STATUS_SYNC_WAITING, "family" => family, "reason" => *reason)))
                .collect(),
        }
    }

    /// A whole pass has ended well.
    pub fn pass(&self, took: Duration) {
        self.pass_seconds.record(took);
    }

    /// A pass has failed.
    pub fn failed(&self) {
        self.failed_passes.increment(1);
    }

    /// A write has ended.
    pub fn written(&self, outcome: WriteOutcome) {
        let counter = match outcome {
            WriteOutcome::Created => &self.created,
            WriteOutcome::Patched => &self.patched,
            WriteOutcome::Deleted => &self.deleted,
            WriteOutcome::Failed => &self.failed,
        };
        counter.increment(1);
    }

    /// A field was taken back from another manager.
    pub fn contended_field(&self) {
        self.contended_fields.increment(1);
    }

    /// How many hub objects wait for each reason, at the time of a scrape.
    pub fn set_waiting(&self, waiting_for: impl Fn(&str) -> usize) {
        for (reason, gauge) in &self.waiting {
            gauge.set(count(waiting_for(reason) as u64));
        }
    }

    /// What the last pass found, and the age of the oldest change that is not written; at the time of a scrape.
    pub fn set(&self, rows: i64, objects: usize, bad_rows: usize, freshness: Duration) {
        self.rows.set(count(u64::try_from(rows).unwrap_or_default()));
        self.objects.set(count(objects as u64));
        self.bad_rows.set(count(bad_rows as u64));
        self.freshness.set(freshness);
    }
}

/// The listener of status sync: `towline_status_sync_listening` and its like.
#[derive(Debug)]
pub struct ListenerMetrics {
    listening: Gauge,
    missing_triggers: Gauge,
    notifications: Counter,
}

impl ListenerMetrics {
    /// Makes the series. All of them exist from here on, with the value 0.
    #[expect(clippy::new_without_default, reason = "it makes series, which a default does not say")]
    pub fn new() -> Self {
        Self {
            listening: gauge!(names::STATUS_SYNC_LISTENING),
            missing_triggers: gauge!(names::STATUS_SYNC_MISSING_TRIGGERS),
            notifications: counter!(names::STATUS_SYNC_NOTIFICATIONS_TOTAL),
        }
    }

    /// The database has told of a change.
    pub fn notified(&self) {
        self.notifications.increment(1);
    }

    /// Whether it listens, and how many tables don't tell; at the time of a scrape.
    pub fn set(&self, listening: bool, missing_triggers: usize) {
        self.listening.set(if listening { 1.0 } else { 0.0 });
        self.missing_triggers.set(count(missing_triggers as u64));
    }
}

/// A statement has been read to its end.
pub fn db_query(query: &'static str, took: Duration) {
    histogram!(names::DB_QUERY_SECONDS, "query" => query).record(took);
}

/// The pool's connections, at the time of a scrape.
pub fn db_pool_connections(idle: u32, in_use: u32, max: u32) {
    for (state, number) in [("idle", idle), ("in_use", in_use), ("max", max)] {
        gauge!(names::DB_POOL_CONNECTIONS, "state" => state).set(f64::from(number));
    }
}

/// Counts are far below 2^32, up to where the conversion is exact.
fn count(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
