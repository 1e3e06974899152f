//! The condition of ignored projects: it is written once for each reason, and again after a failure.
//!
//! One that somebody else removes is not written again: two writers would follow each other without end.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::actor::Backoff;

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// The conditions of ignored projects, by UID.
#[derive(Debug, Default)]
pub struct Marks(BTreeMap<String, Mark>);

#[derive(Debug)]
struct Mark {
    reason: &'static str,
    state: IgnoredState,
    /// Attempts that failed since the last one that did not.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IgnoredState {
    Writing,
    Written,
    /// It is written again at this time.
    Failed(Instant),
}

impl Marks {
    /// Keeps those of projects that are still ignored.
    pub fn retain(&mut self, is_ignored: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_ignored(uid));
    }

    /// Whether the condition is to be written now; if so, that has begun. `is_there` tells whether the project has it.
    pub fn begin(&mut self, uid: &str, reason: &'static str, is_there: bool, now: Instant) -> bool {
        let known = self.0.get(uid);
        let failures = known.map_or(0, |mark| mark.failures);
        let state = match known.map(|mark| (mark.state, mark.reason == reason)) {
            // What it is compared with may be older than what is being written.
            Some((IgnoredState::Writing, _) | (IgnoredState::Written, true)) => return false,
            _ if is_there => IgnoredState::Written,
            Some((IgnoredState::Failed(until), _)) if until > now => return false,
            Some(_) | None => IgnoredState::Writing,
        };
        self.0.insert(uid.to_owned(), Mark { reason, state, failures });
        state == IgnoredState::Writing
    }

    /// A write has ended.
    pub fn ended(&mut self, uid: &str, is_done: bool, now: Instant) {
        let Some(mark) = self.0.get_mut(uid) else { return };
        if is_done {
            (mark.state, mark.failures) = (IgnoredState::Written, 0);
        } else {
            mark.state = IgnoredState::Failed(now + BACKOFF.next_delay(mark.failures));
            mark.failures = mark.failures.saturating_add(1);
        }
    }

    /// The cluster answers again, or has granted a permission: what failed is due.
    pub fn cluster_changed(&mut self, now: Instant) {
        for mark in self.0.values_mut().filter(|mark| matches!(mark.state, IgnoredState::Failed(_))) {
            mark.state = IgnoredState::Failed(now);
        }
    }

    /// When the next attempt is due.
    pub fn until(&self) -> Option<Instant> {
        let due = |mark: &Mark| if let IgnoredState::Failed(until) = mark.state { Some(until) } else { None };
        self.0.values().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_write_that_fails_is_repeated_with_a_delay_that_doubles() {
        let (mut marks, mut now) = (Marks::default(), Instant::now());
        assert!(marks.begin("u", "NotTheFirst", false, now));
        assert!(!marks.begin("u", "NotTheFirst", false, now + HOUR), "it is being written");
        for longest in [1, 2, 4, 8] {
            marks.ended("u", false, now);
            let until = marks.until().expect("another attempt");
            let longest = Duration::from_secs(longest);
            assert!(until - now <= longest && until - now >= longest / 2, "{:?} of {longest:?}", until - now);
            assert!(!marks.begin("u", "NotTheFirst", false, now), "before its time");
            assert!(marks.begin("u", "NotTheFirst", false, until));
            now = until;
        }
        marks.ended("u", false, now);
        marks.cluster_changed(now);
        assert!(marks.begin("u", "NotTheFirst", false, now), "the cluster answers again");
        marks.ended("u", true, now);
        assert_eq!(marks.until(), None);
        assert!(!marks.begin("u", "NotTheFirst", false, now + HOUR), "somebody else has removed it");
    }

    #[test]
    fn a_condition_is_written_again_when_the_reason_changes() {
        let (mut marks, now) = (Marks::default(), Instant::now());
        for reason in ["NotTheFirst", "InstallsCharts", "NotTheFirst"] {
            assert!(marks.begin("u", reason, false, now), "{reason}");
            marks.ended("u", true, now);
            assert!(!marks.begin("u", reason, true, now), "{reason}");
        }
        assert!(!marks.begin("other", "NotTheFirst", true, now), "it is there since an earlier process");
        assert!(marks.begin("other", "InstallsCharts", false, now));
        marks.retain(|uid| uid != "u");
        assert!(marks.begin("u", "NotTheFirst", false, now), "it was ignored before, and counted meanwhile");
    }
}
