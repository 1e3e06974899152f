//! Notices when another writer keeps changing our fields of an object. It only reports: corrections are an interval apart anyway.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::ObjectKey;
use crate::cluster::rewrites::{Rewrites, WITHIN};

/// Corrections count within so many intervals, if that is longer than usual.
const INTERVALS: u32 = 3;

/// The edits of other writers to one hub object's fields, and our corrections.
#[derive(Clone, Debug, Default)]
pub struct ConflictTracker {
    /// The object that a watch has shown with an edit, until the edit is corrected.
    edited: Option<ObjectKey>,
    corrections: Rewrites,
    is_reported: bool,
}

impl ConflictTracker {
    /// A watch has shown that another writer changed fields of ours.
    pub fn record_edit(&mut self, object: &ObjectKey) {
        self.edited = Some(object.clone());
    }

    /// Whether the other writer must be looked up and reported before a write that begins now. The write makes the
    /// fields ours, and removes the other writer's last trace from `managedFields`.
    pub fn is_report_due(&mut self, now: Instant, interval: Duration) -> bool {
        self.edited.is_some() && !self.is_reported && self.corrections.would_contend(now, within(interval))
    }

    /// The fields have the desired values again; `wrote` says whether that took a write of ours. Returns whether the
    /// write corrected an edit.
    pub fn record_applied(&mut self, wrote: bool, now: Instant, interval: Duration) -> bool {
        if self.edited.take().is_none() || !wrote {
            return false;
        }
        self.corrections.sent(now, within(interval));
        true
    }

    /// The other writer has been reported.
    pub fn record_report(&mut self) {
        self.is_reported = true;
    }

    /// The object with an edit that is not corrected yet.
    pub fn object(&self) -> Option<&ObjectKey> {
        self.edited.as_ref()
    }
}

fn within(interval: Duration) -> Duration {
    WITHIN.max(interval.saturating_mul(INTERVALS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn edits(tracker: &mut ConflictTracker, at: &[u64]) -> Vec<bool> {
        let begun = Instant::now();
        at.iter()
            .map(|second| {
                let now = begun + Duration::from_secs(*second);
                tracker.record_edit(&ObjectKey::new("n", "p"));
                let due = tracker.is_report_due(now, INTERVAL);
                if due {
                    tracker.record_report();
                }
                assert!(tracker.record_applied(true, now, INTERVAL));
                due
            })
            .collect()
    }

    #[test]
    fn the_third_correction_in_a_row_is_reported_and_only_once() {
        let reported = edits(&mut ConflictTracker::default(), &[0, 5, 10, 15, 1_000, 1_005, 1_010]);
        assert_eq!(reported, [false, false, true, false, false, false, false]);
    }

    #[test]
    fn an_edit_now_and_then_is_no_conflict() {
        assert!(edits(&mut ConflictTracker::default(), &[0, 61, 122, 183, 244]).iter().all(|due| !due));
    }

    #[test]
    fn a_write_that_the_database_asked_for_corrects_nothing() {
        let mut tracker = ConflictTracker::default();
        let now = Instant::now();
        assert!(!tracker.record_applied(true, now, INTERVAL));
        tracker.record_edit(&ObjectKey::new("n", "p"));
        assert!(!tracker.record_applied(false, now, INTERVAL), "the other writer reverted the edit itself");
        assert!(!tracker.record_applied(true, now, INTERVAL));
        tracker.record_edit(&ObjectKey::new("n", "p"));
        assert!(tracker.record_applied(true, now, INTERVAL));
    }
}
