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
    edited: Option<Edit>,
    corrections: Rewrites,
    /// The other writer, as it was told. It counts for as long as the conflict lasts.
    told: Option<String>,
}

/// An edit that is not corrected yet.
#[derive(Clone, Debug)]
struct Edit {
    /// The object that a watch has shown with it.
    object: ObjectKey,
    /// A correction has been sent. One that fails is sent again, and counts once.
    is_counted: bool,
}

impl ConflictTracker {
    /// A watch has shown that another writer changed fields of ours.
    pub fn record_edit(&mut self, object: &ObjectKey) {
        self.edited = Some(Edit { object: object.clone(), is_counted: false });
    }

    /// A write begins now. Returns the object whose other writer must be looked up and told before, if that is due: once in
    /// a conflict. The write makes the fields ours, and removes the other writer's last trace from `managedFields`.
    pub fn write_begins(&mut self, now: Instant, interval: Duration) -> Option<ObjectKey> {
        let is_told = self.contender(now, interval).is_some();
        let edit = self.edited.as_mut()?;
        if !std::mem::replace(&mut edit.is_counted, true) {
            self.corrections.sent(now, within(interval));
        }
        if is_told || self.corrections.calm_in(now, within(interval)).is_none() {
            return None;
        }
        self.told = None;
        Some(edit.object.clone())
    }

    /// Records that the other writer has been told, and how.
    pub fn told(&mut self, contender: String) {
        self.told = Some(contender);
    }

    /// The fields have the desired values again; `wrote` says whether that took a write of ours. Returns whether the
    /// write corrected an edit.
    pub fn record_applied(&mut self, wrote: bool) -> bool {
        self.edited.take().is_some() && wrote
    }

    /// The other writer, as it was told; `None` if there is no conflict now.
    pub fn contender(&self, now: Instant, interval: Duration) -> Option<&str> {
        self.told.as_deref().filter(|_| self.corrections.calm_in(now, within(interval)).is_some())
    }
}

fn within(interval: Duration) -> Duration {
    WITHIN.max(interval.saturating_mul(INTERVALS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    /// The object is edited at these seconds, and corrected at once. Returns the seconds at which the other writer is told.
    fn told(tracker: &mut ConflictTracker, begun: Instant, interval: Duration, at: &[u64]) -> Vec<u64> {
        let is_told = |second: &u64| {
            let now = begun + Duration::from_secs(*second);
            tracker.record_edit(&ObjectKey::new("n", "p"));
            let due = tracker.write_begins(now, interval).is_some();
            if due {
                tracker.told(format!("told at {second}"));
            }
            assert!(tracker.record_applied(true));
            due
        };
        at.iter().copied().filter(is_told).collect()
    }

    #[test]
    fn the_third_correction_in_a_row_is_told_once_until_none_was_needed_for_a_while() {
        for (interval, at, expected) in [
            (INTERVAL, &[0, 5, 10, 15, 70, 125, 180][..], &[10][..]),
            (INTERVAL, &[0, 5, 10, 15, 1_000, 1_005, 1_010, 1_015], &[10, 1_010]),
            (INTERVAL, &[0, 61, 122, 183, 244], &[]),
            // Corrections that are as far apart as the interval are one conflict, however long it is.
            (INTERVAL * 36, &[0, 180, 361, 542, 723, 1_200, 2_000, 2_180, 2_361], &[361, 2_361]),
        ] {
            let found = told(&mut ConflictTracker::default(), Instant::now(), interval, at);
            assert_eq!(found, expected, "edits at {at:?}, corrected every {interval:?}");
        }
    }

    #[test]
    fn a_contender_is_named_for_as_long_as_the_conflict_lasts_and_the_next_one_by_its_own_name() {
        let (mut tracker, begun) = (ConflictTracker::default(), Instant::now());
        let contender = |tracker: &ConflictTracker, second| {
            tracker.contender(begun + Duration::from_secs(second), INTERVAL).map(str::to_owned)
        };
        told(&mut tracker, begun, INTERVAL, &[0, 5, 10, 15]);
        assert_eq!(contender(&tracker, 74).as_deref(), Some("told at 10"));
        assert_eq!(contender(&tracker, 75), None);
        told(&mut tracker, begun, INTERVAL, &[6_000, 6_005]);
        assert_eq!(contender(&tracker, 6_005), None, "it is no conflict yet");
        told(&mut tracker, begun, INTERVAL, &[6_010]);
        assert_eq!(contender(&tracker, 6_010).as_deref(), Some("told at 6010"));
    }

    #[test]
    fn a_correction_that_fails_counts_once_and_is_told_once() {
        let (mut tracker, begun) = (ConflictTracker::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        tracker.record_edit(&ObjectKey::new("n", "p"));
        for second in [0, 5, 10, 15] {
            assert_eq!(tracker.write_begins(at(second), INTERVAL), None, "the same edit, at {second}");
        }
        assert!(tracker.record_applied(true));
        told(&mut tracker, begun, INTERVAL, &[20]);
        tracker.record_edit(&ObjectKey::new("n", "q"));
        for second in [25, 30] {
            let due = tracker.write_begins(at(second), INTERVAL);
            assert_eq!(due, Some(ObjectKey::new("n", "q")), "it was not looked up yet, at {second}");
        }
        tracker.told("who".to_owned());
        for second in [35, 84, 85, 1_000] {
            assert_eq!(tracker.write_begins(at(second), INTERVAL), None, "at {second}");
        }
    }

    #[test]
    fn a_write_that_the_database_asked_for_corrects_nothing() {
        let (mut tracker, now) = (ConflictTracker::default(), Instant::now());
        assert_eq!(tracker.write_begins(now, INTERVAL), None);
        assert!(!tracker.record_applied(true));
        tracker.record_edit(&ObjectKey::new("n", "p"));
        assert!(!tracker.record_applied(false), "the other writer reverted the edit itself");
        assert!(!tracker.record_applied(true));
        tracker.record_edit(&ObjectKey::new("n", "p"));
        assert!(tracker.record_applied(true));
    }
}
