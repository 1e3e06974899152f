//! The guard against mass deletion (rule 3).
//!
//! A remote object that is missing without having been seen terminating is suspicious: our finalizer should have held
//! it. One such object may be a stripped finalizer; many at once are a restored etcd or a wrong kubeconfig. So suspects
//! are noted when the cache *observes* that they are gone, before any of them is acted upon, and each is confirmed by a
//! live GET; if more than `max(10, 10 %)` of the section's objects would go within the window, none goes, until an
//! operator approves. Pure: time is passed in.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::ObjectKey;

/// How long a deletion counts (the specification's 10 minutes).
const WINDOW: Duration = Duration::from_mins(10);
/// So many may always go.
const ALWAYS: usize = 10;

/// What the guard says to one suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ask the API server whether it is really gone.
    Confirm,
    /// It may be deleted.
    Go,
    /// Others have to be confirmed or cleared first.
    Wait,
    /// Too many would go: none does.
    Held,
}

/// The guard of one section.
#[derive(Debug, Default)]
pub struct Guard {
    /// Missing, not confirmed yet.
    suspects: BTreeSet<ObjectKey>,
    /// Confirmed by a live GET, not deleted yet.
    confirmed: BTreeSet<ObjectKey>,
    /// Approved by an operator.
    approved: BTreeSet<ObjectKey>,
    /// When objects went this way.
    gone: VecDeque<Instant>,
}

impl Guard {
    /// An object is missing without having been seen terminating.
    pub fn suspect(&mut self, key: ObjectKey) {
        if !self.confirmed.contains(&key) && !self.approved.contains(&key) {
            self.suspects.insert(key);
        }
    }

    /// The object is there (again), or nothing of it is left to delete. Returns whether that may free others.
    pub fn clear(&mut self, key: &ObjectKey) -> bool {
        let was_suspect = self.suspects.remove(key);
        let was_confirmed = self.confirmed.remove(key);
        self.approved.remove(key);
        was_suspect || was_confirmed
    }

    /// A live GET confirmed that it is gone.
    pub fn confirm(&mut self, key: &ObjectKey) {
        if self.suspects.remove(key) {
            self.confirmed.insert(key.clone());
        }
    }

    /// What is to be done with a suspect, in a section of `objects` objects.
    pub fn verdict(&mut self, key: &ObjectKey, objects: usize, now: Instant) -> Verdict {
        if self.approved.contains(key) {
            return Verdict::Go;
        }
        self.suspect(key.clone());
        let limit = Self::limit(objects);
        let certain = self.recently_gone(now) + self.confirmed.len();
        if certain > limit {
            return Verdict::Held;
        }
        if self.suspects.contains(key) {
            return Verdict::Confirm;
        }
        if certain + self.suspects.len() > limit { Verdict::Wait } else { Verdict::Go }
    }

    /// It was deleted.
    pub fn went(&mut self, key: &ObjectKey, now: Instant) {
        let approved = self.approved.remove(key);
        self.suspects.remove(key);
        if self.confirmed.remove(key) && !approved {
            self.gone.push_back(now);
        }
    }

    /// An operator lets the held ones go; returns how many.
    pub fn approve(&mut self) -> Vec<ObjectKey> {
        let freed: Vec<ObjectKey> =
            std::mem::take(&mut self.confirmed).into_iter().chain(std::mem::take(&mut self.suspects)).collect();
        self.approved.extend(freed.iter().cloned());
        self.gone.clear();
        freed
    }

    /// Whether deletions are held, and how many wait.
    pub fn held(&mut self, objects: usize, now: Instant) -> Option<usize> {
        let certain = self.recently_gone(now) + self.confirmed.len();
        (certain > Self::limit(objects)).then(|| self.confirmed.len() + self.suspects.len())
    }

    /// Everyone who waits for a verdict.
    pub fn waiting(&self) -> Vec<ObjectKey> {
        self.suspects.iter().chain(&self.confirmed).cloned().collect()
    }

    fn limit(objects: usize) -> usize {
        ALWAYS.max(objects / 10)
    }

    fn recently_gone(&mut self, now: Instant) -> usize {
        while self.gone.front().is_some_and(|when| now.saturating_duration_since(*when) > WINDOW) {
            self.gone.pop_front();
        }
        self.gone.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> ObjectKey {
        ObjectKey::new("n", number.to_string())
    }

    /// Lets every suspect ask until nobody gets an answer other than wait or held; returns who went and how many asked.
    fn settle(guard: &mut Guard, objects: usize, now: Instant) -> (usize, usize) {
        let (mut went, mut asked) = (0, 0);
        loop {
            let mut moved = false;
            for key in guard.waiting() {
                match guard.verdict(&key, objects, now) {
                    Verdict::Confirm => {
                        asked += 1;
                        guard.confirm(&key);
                        moved = true;
                    }
                    Verdict::Go => {
                        guard.went(&key, now);
                        went += 1;
                        moved = true;
                    }
                    Verdict::Wait | Verdict::Held => {}
                }
            }
            if !moved {
                return (went, asked);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn up_to_the_limit_all_go_and_above_it_none() {
        for (objects, missing, goes) in [(5, 5, 5), (50, 10, 10), (50, 11, 0), (500, 50, 50), (500, 51, 0)] {
            let mut guard = Guard::default();
            (0..missing).for_each(|number| guard.suspect(key(number)));
            let (went, asked) = settle(&mut guard, objects, Instant::now());
            assert_eq!(went, goes, "{missing} of {objects}");
            assert!(asked <= Guard::limit(objects) + 1, "asked {asked} times");
            assert_eq!(guard.held(objects, Instant::now()).is_some(), goes == 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_went_counts_for_ten_minutes() {
        let mut guard = Guard::default();
        let start = Instant::now();
        (0..10).for_each(|number| guard.suspect(key(number)));
        assert_eq!(settle(&mut guard, 20, start).0, 10);
        guard.suspect(key(10));
        assert_eq!(settle(&mut guard, 20, start + WINDOW / 2).0, 0);
        assert_eq!(settle(&mut guard, 20, start + WINDOW + Duration::from_secs(1)).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn approval_frees_those_that_wait_and_nobody_else() {
        let mut guard = Guard::default();
        let now = Instant::now();
        (0..30).for_each(|number| guard.suspect(key(number)));
        assert_eq!(settle(&mut guard, 30, now).0, 0);
        let freed = guard.approve();
        assert_eq!(freed.len(), 30);
        assert!(freed.iter().all(|key| guard.verdict(key, 30, now) == Verdict::Go));
        for key in &freed {
            guard.went(key, now);
        }
        (100..130).for_each(|number| guard.suspect(key(number)));
        assert_eq!(settle(&mut guard, 30, now).0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_come_back_lift_the_hold() {
        let mut guard = Guard::default();
        let now = Instant::now();
        (0..30).for_each(|number| guard.suspect(key(number)));
        settle(&mut guard, 30, now);
        assert!(guard.held(30, now).is_some());
        (0..30).for_each(|number| {
            guard.clear(&key(number));
        });
        assert!(guard.held(30, now).is_none());
        assert!(guard.waiting().is_empty());
    }
}
