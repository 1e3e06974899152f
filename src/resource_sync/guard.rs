//! The guard against mass deletion (rule 3).
//!
//! A remote object that is missing without having been seen terminating is suspicious: our finalizer should have held
//! it. One such object may be a stripped finalizer; many at once are a restored etcd or a wrong kubeconfig. So suspects
//! are noted when the cache *observes* that they are gone, before any of them is acted upon, and each is confirmed by a
//! live GET; if more than `max(10, 10 %)` of the section's objects would go within the window, none goes, until an
//! operator approves. Approval lifts the limit for those that wait, never the GET. A confirmation counts here; it does not
//! keep: who may go is asked for once more, in the run that deletes. Pure: time is passed in.

use std::collections::{BTreeMap, VecDeque};
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
    /// It may be deleted, where this very run has asked whether it is really gone.
    Go,
    /// Others have to be confirmed or cleared first.
    Wait,
    /// Too many would go: none does.
    Held,
}

#[derive(Debug, Clone, Copy, Default)]
struct Suspect {
    /// A live GET said that it is gone.
    confirmed: bool,
    /// An operator let it go.
    approved: bool,
}

/// The guard of one section.
#[derive(Debug, Default)]
pub struct Guard {
    suspects: BTreeMap<ObjectKey, Suspect>,
    /// How many of them are confirmed and not approved: what counts against the limit for certain.
    certain: usize,
    /// How many of them are neither.
    open: usize,
    /// When objects went this way.
    gone: VecDeque<Instant>,
    /// The most objects that the section had since the first of them went: those that went are some of a tenth of all.
    most: usize,
}

impl Guard {
    /// An object is missing without having been seen terminating.
    pub fn suspect(&mut self, key: ObjectKey) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.suspects.entry(key) {
            entry.insert(Suspect::default());
            self.open += 1;
        }
    }

    /// The object is there (again), or nothing of it is left to delete. Returns whether that may free others.
    pub fn clear(&mut self, key: &ObjectKey) -> bool {
        self.remove(key).is_some_and(|suspect| !suspect.approved && !self.suspects.is_empty())
    }

    /// A live GET confirmed that it is gone.
    pub fn confirm(&mut self, key: &ObjectKey) {
        if let Some(suspect) = self.suspects.get_mut(key)
            && !std::mem::replace(&mut suspect.confirmed, true)
            && !suspect.approved
        {
            self.open -= 1;
            self.certain += 1;
        }
    }

    /// What is to be done with a suspect, in a section of `objects` objects.
    pub fn verdict(&mut self, key: &ObjectKey, objects: usize, now: Instant) -> Verdict {
        self.suspect(key.clone());
        let suspect = self.suspects.get(key).copied().unwrap_or_default();
        let (gone, limit) = self.gone_and_limit(objects, now);
        let certain = gone + self.certain;
        if !suspect.approved && certain > limit {
            return Verdict::Held;
        }
        if !suspect.confirmed {
            return Verdict::Confirm;
        }
        if suspect.approved || certain + self.open <= limit { Verdict::Go } else { Verdict::Wait }
    }

    /// It was deleted.
    pub fn went(&mut self, key: &ObjectKey, now: Instant) {
        if self.remove(key).is_some_and(|suspect| !suspect.approved) {
            self.gone.push_back(now);
        }
    }

    /// An operator lets those that wait go; returns them.
    pub fn approve(&mut self) -> Vec<ObjectKey> {
        for suspect in self.suspects.values_mut() {
            suspect.approved = true;
        }
        (self.certain, self.open) = (0, 0);
        self.gone.clear();
        self.waiting()
    }

    /// Whether deletions are held, and how many wait.
    pub fn held(&mut self, objects: usize, now: Instant) -> Option<usize> {
        let (gone, limit) = self.gone_and_limit(objects, now);
        let waiting = self.certain + self.open;
        (waiting > 0 && gone + self.certain > limit).then_some(waiting)
    }

    /// Everyone who waits for a verdict.
    pub fn waiting(&self) -> Vec<ObjectKey> {
        self.suspects.keys().cloned().collect()
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Suspect> {
        let suspect = self.suspects.remove(key)?;
        if !suspect.approved {
            let count = if suspect.confirmed { &mut self.certain } else { &mut self.open };
            *count -= 1;
        }
        Some(suspect)
    }

    fn limit(objects: usize) -> usize {
        ALWAYS.max(objects / 10)
    }

    /// How many went within the window, and how many may.
    fn gone_and_limit(&mut self, objects: usize, now: Instant) -> (usize, usize) {
        while self.gone.front().is_some_and(|when| now.saturating_duration_since(*when) > WINDOW) {
            self.gone.pop_front();
        }
        self.most = if self.gone.is_empty() { objects } else { self.most.max(objects) };
        (self.gone.len(), Self::limit(self.most))
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
    async fn the_tenth_is_of_all_that_there_were_before_the_first_went() {
        let mut guard = Guard::default();
        let start = Instant::now();
        (0..20).for_each(|number| guard.suspect(key(number)));
        for number in 0..20 {
            assert_eq!(guard.verdict(&key(number), 200, start), Verdict::Confirm, "{number}");
            guard.confirm(&key(number));
        }
        for number in 0..20 {
            assert_eq!(guard.verdict(&key(number), 200 - number, start), Verdict::Go, "{number}");
            guard.went(&key(number), start);
        }
        assert_eq!(guard.verdict(&key(20), 180, start), Verdict::Confirm);
        guard.confirm(&key(20));
        assert_eq!(guard.verdict(&key(20), 180, start), Verdict::Held, "the 21st of 200");
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
        assert!(guard.held(30, now).is_none());
        let (went, asked) = settle(&mut guard, 30, now);
        assert_eq!(went, 30);
        assert!(asked >= 19, "approval does not replace the question whether it is really gone");
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
