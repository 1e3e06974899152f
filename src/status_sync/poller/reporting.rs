//! What a poller tells of itself: its report, its gauges, its lines of the log.

use std::time::Duration;

use tokio::sync::watch;

use super::{Ended, Life, Poller};
use crate::cluster::{Error as ClusterError, Retry, full_text};
use crate::db;
use crate::status_sync::report::FamilyReport;
use crate::status_sync::standing::Objection;
use crate::status_sync::write::Written;

impl Poller {
    /// Its own report, as it is now.
    pub fn report(&self) -> FamilyReport {
        self.report.borrow().clone()
    }

    /// Refreshes the gauges, before a scrape.
    pub fn refresh(&self) {
        let report = self.report.borrow();
        self.metrics.set(report.rows, report.objects, report.bad_rows, report.freshness());
        self.metrics.set_waiting(|reason| report.waiting.get(reason).copied().unwrap_or_default());
    }

    /// A pass failed, after so many before it.
    pub(super) fn failed(&self, error: &db::Error, failures: u32) {
        let (kind, text) = (error.kind(), full_text(error));
        if failures == 0 {
            tracing::warn!(family = self.family.as_str(), kind, error = %text, "pass failed, trying on");
        } else {
            tracing::debug!(family = self.family.as_str(), kind, error = %text, "pass failed again");
        }
        self.metrics.failed();
        self.report.send_modify(|report| report.failure = Some((kind, text)));
    }

    /// A pass has compared, and may not write.
    pub(super) fn held(&self, objection: &Objection) {
        let reason = format!("the section is held: {objection}");
        self.report.send_modify(|report| {
            report.failure = None;
            report.waits_for = Some(reason);
        });
    }

    /// After a pass.
    pub(super) fn publish(&self, life: &Life, took: Duration) {
        self.show(life);
        if life.ended == Ended::Whole {
            self.report.send_modify(|report| {
                report.last_pass = Some(took);
                report.passes += 1;
                report.failure = None;
            });
        }
    }

    /// Brings the report up to what the table says now.
    pub(in crate::status_sync) fn show(&self, life: &Life) {
        let waiting = life.table.waiting();
        let foreign = life.table.foreign();
        let oldest = life.table.oldest_pending();
        let is_mended = !life.table.any_failing();
        let held = life.guard.all_held().filter_map(|id| Some(life.table.get(*id)?.key.clone()));
        let mut held: Vec<_> = held.collect();
        held.sort_unstable();
        self.report.send_modify(|report| {
            report.objects = life.table.len();
            report.waiting = waiting;
            report.foreign = foreign;
            report.oldest_pending = oldest;
            report.mass_clear_held = life.guard.held();
            report.held = held.into();
            if is_mended {
                report.write_failure = None;
            }
        });
    }

    /// A write failed.
    pub(in crate::status_sync) fn write_failed(&self, write: &Written, error: &ClusterError) {
        let family = self.family.as_str();
        if error.is_unreachable() || matches!(error.retry(), Retry::Reread) {
            tracing::debug!(family, object = %write.key, verb = %write.verb, %error, "write failed");
        } else {
            tracing::warn!(family, object = %write.key, verb = %write.verb, %error, "write failed, trying on");
        }
        let text = format!("{} {}: {error}", write.verb, write.key);
        self.report.send_modify(|report| report.write_failure = Some((error.kind(), text)));
    }
}

/// From the beginning of a run to its end, however it ends: outside of it there is nothing to report, no first pass has
/// been made and no change grows old.
pub(super) struct Term<'p>(&'p watch::Sender<FamilyReport>);

impl<'p> Term<'p> {
    pub(super) fn begin(report: &'p watch::Sender<FamilyReport>) -> Self {
        report.send_replace(FamilyReport::default());
        Self(report)
    }
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        self.0.send_replace(FamilyReport::default());
    }
}
