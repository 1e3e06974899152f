//! What operators see of a family: its report for `/status`, its metrics, log messages, and other writers that keep editing our fields.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::family_guard::FamilyGuard;
use super::table::Table;
use super::write::Written;
use crate::cluster::events::{EventMailbox, EventType, ObjectEvent};
use crate::cluster::{Cluster, Error as ClusterError, Kind, ObjectKey, Objection, Retry, Verb, full_text};
use crate::db;
use crate::guard::HeldChanges;
use crate::status::{ObjectState, Objects};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::metrics::{StatusSyncMetrics, WriteOutcome};
use crate::status_sync::plan::Sample;

/// Shorter waits for the database are usual, and do not count for the freshness.
const USUAL_ANSWER: Duration = Duration::from_secs(5);

/// What operators see of a family.
#[derive(Clone, Debug, Default)]
pub struct FamilyReport {
    /// Rows of `status` at the last pass.
    pub rows: i64,
    /// Rows of `spec`, by state.
    pub objects: Objects,
    /// Writes so far.
    pub written: u64,
    /// Rows of `spec` whose status is not written, by reason.
    pub waiting: BTreeMap<&'static str, usize>,
    /// Rows that could not be read in the last pass, or not completely.
    pub bad_rows: usize,
    /// The first of the bad rows.
    pub bad_row_examples: Vec<String>,
    /// Objects of other owners that have the names of ours. They are left alone.
    pub foreign: Sample,
    /// Edits of other writers that were corrected so far.
    pub corrected: u64,
    /// Objects that another writer keeps editing now, with the writer.
    pub contenders: Sample,
    /// Complete passes so far.
    pub passes: u64,
    /// How long the last one took.
    pub last_pass: Option<Duration>,
    /// Since when the oldest unwritten change has been known.
    pub oldest_pending: Option<Instant>,
    /// Since when the poller has waited for the database, across statements that failed.
    pub unanswered_since: Option<Instant>,
    /// What the guard holds.
    pub held: HeldChanges,
    /// Kind and text of the error that ended the last pass.
    pub failure: Option<(&'static str, String)>,
    /// Kind and text of the last failed write.
    pub write_failure: Option<(&'static str, String)>,
    /// Why no pass can begin.
    pub waits_for: Option<String>,
}

impl FamilyReport {
    /// The age of the oldest change that the hub may not show: of the oldest unwritten change, or of the oldest wait
    /// for the database, if that is longer than usual.
    pub fn freshness(&self) -> Duration {
        let age = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        let unanswered = age(self.unanswered_since);
        age(self.oldest_pending).max(if unanswered >= USUAL_ANSWER { unanswered } else { Duration::ZERO })
    }

    /// The family's part of `/status`.
    pub fn to_json(&self) -> Value {
        let mut report = json!({
            "rows": self.rows,
            "objects": self.objects.total(),
            "written": self.written,
            "waiting": self.waiting,
            "bad_rows": self.bad_rows,
            "contended_fields": self.corrected,
            "passes": self.passes,
            "last_pass_seconds": self.last_pass.map(|took| took.as_secs_f64()),
            "oldest_unwritten_seconds": self.oldest_pending.map(|since| since.elapsed().as_secs_f64()),
            "database_unanswered_seconds": self.unanswered_since.map(|since| since.elapsed().as_secs_f64()),
        });
        let Some(map) = report.as_object_mut() else { return report };
        if !self.bad_row_examples.is_empty() {
            map.insert("bad_row_examples".to_owned(), json!(self.bad_row_examples));
        }
        for (name, sample) in [("foreign", &self.foreign), ("contenders", &self.contenders)] {
            if sample.count > 0 {
                map.insert(name.to_owned(), json!({"objects": sample.count, "examples": sample.examples}));
            }
        }
        if let Some(waits_for) = &self.waits_for {
            map.insert("waits_for".to_owned(), json!(waits_for));
        }
        for (name, failure) in [("failure", &self.failure), ("write_failure", &self.write_failure)] {
            if let Some((kind, text)) = failure {
                map.insert(name.to_owned(), json!({"kind": kind, "error": text}));
            }
        }
        report
    }
}

/// The report and the metrics of a family.
pub(super) struct Reporter {
    family: StatusFamily,
    /// The interval between two passes, by which conflicts are told.
    interval: Duration,
    report: watch::Sender<FamilyReport>,
    metrics: StatusSyncMetrics,
}

impl Reporter {
    /// The reporter of a family whose poller has not started.
    pub(super) fn new(family: StatusFamily, interval: Duration) -> Self {
        let metrics = StatusSyncMetrics::new(family.as_str());
        Self { family, interval, report: watch::Sender::default(), metrics }
    }

    /// The report, as it is now.
    pub(super) fn report(&self) -> FamilyReport {
        self.report.borrow().clone()
    }

    /// A sender of the report, for tests that change it or wait for it.
    #[cfg(test)]
    pub(super) fn sender(&self) -> watch::Sender<FamilyReport> {
        self.report.clone()
    }

    /// Begins the report of a run, what the guard counts in it, and its table. Dropping the returned value ends them.
    pub(super) fn begin<'r>(&'r self, guard: &'r FamilyGuard, table: &'r Mutex<Table>) -> RunReport<'r> {
        let begun = RunReport { report: &self.report, guard, table };
        begun.forget();
        begun
    }

    /// Reports why no pass can begin; `None` if one can.
    pub(super) fn waits_for(&self, reason: Option<String>) {
        self.report.send_modify(|report| report.waits_for = reason);
    }

    /// Reports that the poller waits for the database, unless it has reported that already.
    pub(super) fn unanswered(&self) {
        self.report.send_modify(|report| _ = report.unanswered_since.get_or_insert_with(Instant::now));
    }

    /// Reports that the database has answered.
    pub(super) fn answered(&self) {
        self.report.send_modify(|report| report.unanswered_since = None);
    }

    /// Reports how many rows of `status` change detection has found.
    pub(super) fn detected(&self, rows: i64) {
        self.report.send_modify(|report| report.rows = rows);
    }

    /// Reports the bad rows that a pass has found.
    pub(super) fn bad_rows(&self, bad: Sample) {
        self.report.send_modify(|report| {
            report.bad_rows = bad.count;
            report.bad_row_examples = bad.examples;
        });
    }

    /// Reports a failed pass, after `failures` others in a row.
    pub(super) fn failed(&self, error: &db::Error, failures: u32) {
        let (kind, text) = (error.kind(), full_text(error));
        if failures == 0 {
            tracing::warn!(family = self.family.as_str(), kind, error = %text, "pass failed, retrying");
        } else {
            tracing::debug!(family = self.family.as_str(), kind, error = %text, "pass failed again");
        }
        self.report.send_modify(|report| report.failure = Some((kind, text)));
    }

    /// Reports that a pass ended early, because the section may not write to its hub.
    pub(super) fn held(&self, objection: &Objection) {
        let reason = format!("the section is held: {objection}");
        self.report.send_modify(|report| {
            report.failure = None;
            report.waits_for = Some(reason);
        });
    }

    /// Reports that a pass has read everything, and tried to write every difference.
    pub(super) fn completed(&self, took: Duration) {
        self.report.send_modify(|report| {
            report.last_pass = Some(took);
            report.passes += 1;
            report.failure = None;
        });
    }

    /// Updates the report from the table.
    pub(super) fn update(&self, table: &Table, guard: &FamilyGuard) {
        let waiting = table.waiting();
        let foreign = table.foreign();
        let contenders = table.contenders(Instant::now(), self.interval);
        let oldest = table.oldest_pending();
        let held = guard.held_objects().into_iter().map(|(key, _)| key).collect();
        let objects = table.objects(self.family.as_str(), &held);
        self.report.send_modify(|report| {
            report.waiting = waiting;
            report.foreign = foreign;
            report.contenders = contenders;
            report.oldest_pending = oldest;
            if objects.count(ObjectState::Failing) == 0 {
                report.write_failure = None;
            }
            report.objects = objects;
        });
    }

    /// Reports the writes of a hub object.
    pub(super) fn written(&self, written: &[Written]) {
        for write in written {
            self.metrics.written(outcome_of(write));
        }
        let succeeded = written.iter().filter(|write| write.result.is_ok()).count();
        if succeeded > 0 {
            self.report.send_modify(|report| report.written += u64::try_from(succeeded).unwrap_or_default());
        }
    }

    /// Reports a failed write. Returns it in words.
    pub(super) fn write_failed(&self, write: &Written, error: &ClusterError) -> String {
        let family = self.family.as_str();
        if error.is_unreachable() || matches!(error.retry(), Retry::Reread) {
            tracing::debug!(family, object = %write.key, verb = %write.verb, %error, "write failed");
        } else {
            tracing::warn!(family, object = %write.key, verb = %write.verb, %error, "write failed, retrying");
        }
        let text = format!("{} {}: {error}", write.verb, write.key);
        self.report.send_modify(|report| report.write_failure = Some((error.kind(), text.clone())));
        text
    }

    /// Reports that a write has corrected an edit of another writer.
    pub(super) fn corrected(&self) {
        self.report.send_modify(|report| report.corrected += 1);
    }
}

fn outcome_of(write: &Written) -> WriteOutcome {
    match (&write.result, write.verb) {
        (Err(_), _) => WriteOutcome::Failed,
        (Ok(_), Verb::Create) => WriteOutcome::Created,
        (Ok(_), Verb::Delete) => WriteOutcome::Deleted,
        (Ok(_), _) => WriteOutcome::Patched,
    }
}

/// Clears the report when a run ends, however it ends. Otherwise the age of an unwritten change would grow in a replica
/// that no longer runs the section.
pub(super) struct RunReport<'r> {
    report: &'r watch::Sender<FamilyReport>,
    guard: &'r FamilyGuard,
    table: &'r Mutex<Table>,
}

impl RunReport<'_> {
    fn forget(&self) {
        *self.table.lock() = Table::default();
        self.guard.forget();
        self.report.send_replace(FamilyReport::default());
    }
}

impl Drop for RunReport<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A conflict over the fields of an object.
pub(super) struct ConflictReport {
    pub(super) family: StatusFamily,
    pub(super) cluster: Cluster,
    pub(super) kind: Arc<Kind>,
    /// The subresource that has our fields: `status`, or empty.
    pub(super) subresource: &'static str,
    pub(super) object: ObjectKey,
    pub(super) uid: Option<Arc<str>>,
    pub(super) events: EventMailbox,
}

impl ConflictReport {
    /// Looks up the other writer, and reports it in the log and as an Event. Returns what the report says of it. Must be called before
    /// our write corrects the fields, because that removes the other writer from `managedFields`.
    pub(super) async fn send(self) -> String {
        let Self { family, cluster, kind, subresource, object: key, uid, events } = self;
        let managers = cluster.other_managers(&kind, &key, &[subresource]).await;
        let who = match managers.as_slice() {
            [] => "another field manager".to_owned(),
            names => format!("field manager {}", names.join(", ")),
        };
        tracing::warn!(family = family.as_str(), object = %key, who, "another writer keeps changing fields that the database decides");
        let told = format!("{key}: {who}");
        let note = format!("{who} keeps changing fields that the hub's database decides; they are set back");
        let severity = EventType::Warning;
        events.offer(ObjectEvent { cluster, kind, key, uid, severity, reason: "Contended", action: "Sync", note });
        told
    }
}
