//! A contest over the fields of an object: what one entry remembers of it.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::ObjectKey;

/// So many rewrites after each other are a contest and no longer an accident.
const REWRITES: u32 = 3;
/// Rewrites further apart than this, and than as many intervals, are no contest.
const CALM: Duration = Duration::from_mins(1);
const CALM_INTERVALS: u32 = 3;

/// What was taken back from another writer, and when.
#[derive(Clone, Debug, Default)]
pub struct Contest {
    /// The object that a watch has shown to be edited, until that is taken back.
    edited: Option<ObjectKey>,
    rewrites: u32,
    last: Option<Instant>,
    told: bool,
}

impl Contest {
    /// A watch shows that somebody else has changed fields of ours.
    pub fn edited(&mut self, object: &ObjectKey) {
        self.edited = Some(object.clone());
    }

    /// Whether a write that begins now is the one to find out before who keeps editing it: afterwards the fields are
    /// ours, and nothing of the other writer is left on the object.
    pub fn is_due(&self, now: Instant, interval: Duration) -> bool {
        self.edited.is_some() && !self.told && self.rewrites_at(now, interval) >= REWRITES
    }

    /// The fields are as they should be again; `wrote` where that took a write of ours. Returns whether an edit was taken
    /// back.
    pub fn settled(&mut self, wrote: bool, now: Instant, interval: Duration) -> bool {
        if self.edited.take().is_none() || !wrote {
            return false;
        }
        self.rewrites = self.rewrites_at(now, interval);
        self.last = Some(now);
        true
    }

    /// Who edits it has been told.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// The object that was edited.
    pub fn object(&self) -> Option<&ObjectKey> {
        self.edited.as_ref()
    }

    /// The number of a rewrite that is made now, of those after each other.
    fn rewrites_at(&self, now: Instant, interval: Duration) -> u32 {
        let calm = CALM.max(interval.saturating_mul(CALM_INTERVALS));
        let goes_on = self.last.is_some_and(|last| now.saturating_duration_since(last) <= calm);
        if goes_on { self.rewrites.saturating_add(1) } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn edits(contest: &mut Contest, at: &[u64]) -> Vec<bool> {
        let begun = Instant::now();
        at.iter()
            .map(|second| {
                let now = begun + Duration::from_secs(*second);
                contest.edited(&ObjectKey::new("n", "p"));
                let due = contest.is_due(now, INTERVAL);
                if due {
                    contest.told();
                }
                assert!(contest.settled(true, now, INTERVAL));
                due
            })
            .collect()
    }

    #[test]
    fn the_third_rewrite_after_the_others_is_told_and_only_once() {
        let told = edits(&mut Contest::default(), &[0, 5, 10, 15, 1_000, 1_005, 1_010]);
        assert_eq!(told, [false, false, true, false, false, false, false]);
    }

    #[test]
    fn an_edit_now_and_then_is_no_contest() {
        assert!(edits(&mut Contest::default(), &[0, 61, 122, 183, 244]).iter().all(|due| !due));
    }

    #[test]
    fn a_write_that_the_database_asked_for_takes_nothing_back() {
        let mut contest = Contest::default();
        let now = Instant::now();
        assert!(!contest.settled(true, now, INTERVAL));
        contest.edited(&ObjectKey::new("n", "p"));
        assert!(!contest.settled(false, now, INTERVAL), "they took it back themselves");
        assert!(!contest.settled(true, now, INTERVAL));
        contest.edited(&ObjectKey::new("n", "p"));
        assert!(contest.settled(true, now, INTERVAL));
    }
}
