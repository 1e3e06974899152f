//! Everything that a poller reports: the family's report, its metrics, and log messages.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::family_guard::FamilyGuard;
use super::family_report::FamilyReport;
use super::poller_state::{PassOutcome, PollerState};
use super::write::Written;
use crate::cluster::{Error as ClusterError, Objection, Retry, Verb, full_text};
use crate::db;
use crate::status::ObjectState;
use crate::status_sync::config::StatusFamily;
use crate::status_sync::metrics::{StatusSyncMetrics, WriteOutcome};
use crate::status_sync::plan::Sample;

/// The report and the metrics of a family.
pub(super) struct Reporter {
    family: StatusFamily,
    report: watch::Sender<FamilyReport>,
    metrics: StatusSyncMetrics,
}

impl Reporter {
    /// The reporter of a family whose poller has not started.
    pub(super) fn new(family: StatusFamily) -> Self {
        let metrics = StatusSyncMetrics::new(family.as_str());
        Self { family, report: watch::Sender::default(), metrics }
    }

    /// The report, as it is now.
    pub(super) fn report(&self) -> FamilyReport {
        self.report.borrow().clone()
    }

    /// A sender of the report, for a task that reports on its own.
    pub(super) fn sender(&self) -> watch::Sender<FamilyReport> {
        self.report.clone()
    }

    /// Refreshes the gauges, before a scrape.
    pub(super) fn refresh(&self) {
        self.metrics.set_freshness(self.report.borrow().freshness());
    }

    /// Begins the report of a run, and what the guard counts in it. Dropping the returned value ends both.
    pub(super) fn begin<'r>(&'r self, guard: &'r FamilyGuard) -> RunReport<'r> {
        guard.forget();
        self.report.send_replace(FamilyReport::default());
        RunReport { report: &self.report, guard }
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

    /// Reports that a pass has ended.
    pub(super) fn pass_ended(&self, state: &PollerState, guard: &FamilyGuard, took: Duration) {
        self.update(state, guard);
        if state.last_pass == PassOutcome::Complete {
            self.report.send_modify(|report| {
                report.last_pass = Some(took);
                report.passes += 1;
                report.failure = None;
            });
        }
    }

    /// Updates the report from the table.
    pub(super) fn update(&self, state: &PollerState, guard: &FamilyGuard) {
        let table = &state.table;
        let waiting = table.waiting();
        let foreign = table.foreign();
        let oldest = table.oldest_pending();
        let held = guard.held_objects().into_iter().map(|(key, _)| key).collect();
        let objects = table.objects(self.family.as_str(), &held);
        self.report.send_modify(|report| {
            report.waiting = waiting;
            report.foreign = foreign;
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
}

impl Drop for RunReport<'_> {
    fn drop(&mut self) {
        self.guard.forget();
        self.report.send_replace(FamilyReport::default());
    }
}
