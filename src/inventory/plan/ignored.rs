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
pub struct IgnoredConditions(BTreeMap<String, Condition>);

#[derive(Debug)]
struct Condition {
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

impl IgnoredConditions {
    /// Keeps those of projects that are still ignored.
    pub fn retain(&mut self, is_ignored: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_ignored(uid));
    }

    /// Whether the condition is to be written now; if so, that has begun. `is_there` tells whether the project has it.
    pub fn begin(&mut self, uid: &str, reason: &'static str, is_there: bool, now: Instant) -> bool {
        let known = self.0.get(uid);
        let failures = known.map_or(0, |condition| condition.failures);
        let state = match known.map(|condition| (condition.state, condition.reason == reason)) {
            // What it is compared with may be older than what is being written.
            Some((IgnoredState::Writing, _) | (IgnoredState::Written, true)) => return false,
            _ if is_there => IgnoredState::Written,
            Some((IgnoredState::Failed(until), _)) if until > now => return false,
            Some(_) | None => IgnoredState::Writing,
        };
        self.0.insert(uid.to_owned(), Condition { reason, state, failures });
        state == IgnoredState::Writing
    }

    /// A write has ended.
    pub fn ended(&mut self, uid: &str, is_done: bool, now: Instant) {
        let Some(condition) = self.0.get_mut(uid) else { return };
        if is_done {
            (condition.state, condition.failures) = (IgnoredState::Written, 0);
        } else {
            condition.state = IgnoredState::Failed(now + BACKOFF.next_delay(condition.failures));
            condition.failures = condition.failures.saturating_add(1);
        }
    }

    /// The cluster answers again, or has granted a permission: what failed is due.
    pub fn cluster_changed(&mut self, now: Instant) {
        for condition in self.0.values_mut().filter(|condition| matches!(condition.state, IgnoredState::Failed(_))) {
            condition.state = IgnoredState::Failed(now);
        }
    }

    /// When the next attempt is due.
    pub fn until(&self) -> Option<Instant> {
        let due =
            |condition: &Condition| if let IgnoredState::Failed(until) = condition.state { Some(until) } else { None };
        self.0.values().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_write_that_fails_is_repeated_with_a_delay_that_doubles() {
        let (mut conditions, mut now) = (IgnoredConditions::default(), Instant::now());
        assert!(conditions.begin("u", "NotTheFirst", false, now));
        assert!(!conditions.begin("u", "NotTheFirst", false, now + HOUR), "it is being written");
        for longest in [1, 2, 4, 8] {
            conditions.ended("u", false, now);
            let until = conditions.until().expect("another attempt");
            let longest = Duration::from_secs(longest);
            assert!(until - now <= longest && until - now >= longest / 2, "{:?} of {longest:?}", until - now);
            assert!(!conditions.begin("u", "NotTheFirst", false, now), "before its time");
            assert!(conditions.begin("u", "NotTheFirst", false, until));
            now = until;
        }
        conditions.ended("u", false, now);
        conditions.cluster_changed(now);
        assert!(conditions.begin("u", "NotTheFirst", false, now), "the cluster answers again");
        conditions.ended("u", true, now);
        assert_eq!(conditions.until(), None);
        assert!(!conditions.begin("u", "NotTheFirst", false, now + HOUR), "somebody else has removed it");
    }

    #[test]
    fn a_condition_is_written_again_when_the_reason_changes() {
        let (mut conditions, now) = (IgnoredConditions::default(), Instant::now());
        for reason in ["NotTheFirst", "InstallsCharts", "NotTheFirst"] {
            assert!(conditions.begin("u", reason, false, now), "{reason}");
            conditions.ended("u", true, now);
            assert!(!conditions.begin("u", reason, true, now), "{reason}");
        }
        assert!(!conditions.begin("other", "NotTheFirst", true, now), "it is there since an earlier process");
        assert!(conditions.begin("other", "InstallsCharts", false, now));
        conditions.retain(|uid| uid != "u");
        assert!(conditions.begin("u", "NotTheFirst", false, now), "it was ignored before, and counted meanwhile");
    }
}
