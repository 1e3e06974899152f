//! The guard against mass changes (rule 3).
//!
//! What a mistake does, it does to many objects at once: a restored etcd and a wrong kubeconfig make remote objects vanish,
//! a typo lets all pairs go, another cluster in the place of the local one has strangers overwritten and statuses cleared.
//! So whoever would suffer such a [`Harm`] is noted as a *suspect* when the cache observes it, before any of them is acted
//! upon. If more than `max(10, 10 %)` of the section's own pairs would suffer it within the window, or all of them (two or
//! more), nobody does until an operator approves. A missing remote object is confirmed by a live GET first; approval lifts
//! the limit for those that wait, never the GET. A confirmation counts here; it is not kept: the run that deletes asks again.
//! Pure: time is passed in.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::names::PairKey;
use super::plan::Harm;
use crate::state::GuardState;

/// How long a change counts (the specification's 10 minutes).
pub(crate) const WINDOW: Duration = Duration::from_mins(10);
/// So many may always go.
const ALWAYS: usize = 10;
/// Changes within this count as one moment: what is remembered stays small.
const MOMENT: Duration = Duration::from_secs(10);

/// What the guard says to one suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ask the API server whether it is really gone.
    Confirm,
    /// It may be done, where this very run has asked whether the object is really gone.
    Go,
    /// Others have to be confirmed or cleared first.
    Wait,
    /// Too many would suffer it: nobody does.
    Held,
}

/// What the limit depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How many pairs of its own the section has: strangers of the kind don't count.
    pub own: usize,
    /// Not one may go: the cluster behind the section's name is not known to be the same, or what went in the last minutes
    /// is not known.
    pub blocked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    harm: Harm,
    /// It is one of the section's own pairs.
    own: bool,
    /// It is certain: a live GET said that the object is gone, or no GET is needed.
    confirmed: bool,
    /// An operator let it go.
    approved: bool,
}

/// So many changes were sent at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    when: Instant,
    count: usize,
}

/// What is about to be sent, to be taken back where it is not.
#[derive(Debug, Default)]
pub struct Sending {
    /// So many objects count against the limit.
    pub counted: usize,
    /// The suspects that they were.
    suspects: Vec<(PairKey, Suspect)>,
}

/// The guard of one section.
#[derive(Debug, Default)]
pub struct Guard {
    suspects: BTreeMap<PairKey, Suspect>,
    /// How many of them are certain and not approved: what counts against the limit.
    certain: usize,
    /// How many of those are own pairs.
    certain_own: usize,
    /// How many are neither certain nor approved.
    open: usize,
    /// What was sent within the window.
    sent: VecDeque<Sent>,
    /// The most own pairs that the section had since the first of them: what went is some of a tenth of all.
    most: usize,
    /// So many more suspects are approved as they come: what an operator approved before a restart.
    approved: usize,
}

impl Guard {
    /// Somebody would suffer a harm. `own`: it is one of the section's own pairs.
    pub fn suspect(&mut self, key: PairKey, harm: Harm, own: bool) {
        match self.suspects.get(&key) {
            // A missing object may have been found to live and to be let go.
            Some(held) if held.own == own && (held.harm, harm) == (Harm::LetGo, Harm::Delete) => return,
            Some(held) if held.own == own && held.harm == harm => return,
            Some(_) => drop(self.remove(&key)),
            None => {}
        }
        let approved = self.approved > 0;
        self.approved = self.approved.saturating_sub(1);
        self.open += usize::from(!approved);
        self.suspects.insert(key, Suspect { harm, own, confirmed: false, approved });
    }

    /// Nothing threatens it any more. Returns whether that may free others.
    pub fn clear(&mut self, key: &PairKey) -> bool {
        self.remove(key).is_some_and(|suspect| !suspect.approved && !self.suspects.is_empty())
    }

    /// It is certain that a suspect would suffer this.
    pub fn confirm(&mut self, key: &PairKey, harm: Harm) {
        let Some(suspect) = self.suspects.get_mut(key) else { return };
        suspect.harm = harm;
        if !std::mem::replace(&mut suspect.confirmed, true) && !suspect.approved {
            self.open -= 1;
            self.certain += 1;
            self.certain_own += usize::from(suspect.own);
        }
    }

    /// What is to be done with a suspect.
    pub fn verdict(&mut self, key: &PairKey, bounds: Bounds, now: Instant) -> Verdict {
        let Some(suspect) = self.suspects.get(key).copied() else { return Verdict::Confirm };
        if !suspect.approved && self.is_above(bounds, now, self.certain, self.certain_own) {
            return Verdict::Held;
        }
        if !suspect.confirmed {
            return Verdict::Confirm;
        }
        // Of those that are not certain, any may be own pairs.
        let (all, own) = (self.certain + self.open, self.certain_own + self.open);
        if suspect.approved || !self.is_above(bounds, now, all, own) { Verdict::Go } else { Verdict::Wait }
    }

    /// So many objects, which a suspect is one of, are about to be changed. What an operator approved does not count; all
    /// else is to be remembered. Suspects in this namespace go with it.
    pub fn send(&mut self, key: &PairKey, count: usize, namespace: Option<&str>, now: Instant) -> Sending {
        let suspect = self.remove(key);
        let counted = if suspect.is_none_or(|suspect| !suspect.approved) { count } else { 0 };
        if counted > 0 {
            match self.sent.back_mut() {
                Some(last) if now.saturating_duration_since(last.when) < MOMENT => last.count += counted,
                _ => self.sent.push_back(Sent { when: now, count: counted }),
            }
        }
        let mut suspects: Vec<_> = suspect.map(|suspect| (key.clone(), suspect)).into_iter().collect();
        if let Some(namespace) = namespace {
            let go_along = self.waiting().into_iter().filter(|key| *key.local.namespace == *namespace);
            suspects.extend(go_along.filter_map(|key| Some((key.clone(), self.remove(&key)?))));
        }
        Sending { counted, suspects }
    }

    /// What was about to be sent was not, or was refused for certain: it does not count, and what was approved still is.
    /// Returns the suspects that it was about.
    pub fn not_sent(&mut self, sending: Sending) -> Vec<PairKey> {
        let keys = sending.suspects.iter().map(|(key, _)| key.clone()).collect();
        if let Some(last) = self.sent.back_mut() {
            last.count = last.count.saturating_sub(sending.counted);
        }
        for (key, suspect) in sending.suspects {
            if self.suspects.contains_key(&key) {
                continue;
            }
            if !suspect.approved {
                if suspect.confirmed {
                    self.certain += 1;
                    self.certain_own += usize::from(suspect.own);
                } else {
                    self.open += 1;
                }
            }
            self.suspects.insert(key, suspect);
        }
        keys
    }

    /// An operator lets those that wait go; returns them.
    pub fn approve(&mut self) -> Vec<PairKey> {
        for suspect in self.suspects.values_mut() {
            suspect.approved = true;
        }
        (self.certain, self.certain_own, self.open) = (0, 0, 0);
        self.sent.clear();
        self.waiting()
    }

    /// How many wait for an approval, by what they would suffer; empty: none does.
    pub fn held(&mut self, bounds: Bounds, now: Instant) -> BTreeMap<Harm, usize> {
        let mut held = BTreeMap::new();
        if self.certain > 0 && self.is_above(bounds, now, self.certain, self.certain_own) {
            for suspect in self.suspects.values().filter(|suspect| !suspect.approved) {
                *held.entry(suspect.harm).or_default() += 1;
            }
        }
        held
    }

    /// What a suspect would suffer.
    pub fn harm_to(&self, key: &PairKey) -> Option<Harm> {
        Some(self.suspects.get(key)?.harm)
    }

    /// Everyone who waits for a verdict.
    pub fn waiting(&self) -> Vec<PairKey> {
        self.suspects.keys().cloned().collect()
    }

    /// The first suspects that no operator has approved, each with what it would suffer.
    pub fn first(&self, count: usize) -> Vec<(PairKey, Harm)> {
        let waiting = self.suspects.iter().filter(|(_, suspect)| !suspect.approved);
        waiting.map(|(key, suspect)| (key.clone(), suspect.harm)).take(count).collect()
    }

    /// What is to outlive the process.
    pub fn remembered(&mut self, now: Instant, wall: SystemTime) -> GuardState {
        self.forget_old(now);
        let seconds = |when: SystemTime| when.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let approved = self.approved + self.suspects.values().filter(|suspect| suspect.approved).count();
        let mut sent = BTreeMap::new();
        for Sent { when, count } in &self.sent {
            *sent.entry(seconds(wall - now.saturating_duration_since(*when))).or_default() += *count as u64;
        }
        GuardState {
            most: if sent.is_empty() { 0 } else { self.most as u64 },
            sent,
            approved: approved as u64,
            approved_at: (approved > 0).then(|| seconds(wall)),
        }
    }

    /// Goes on from what an earlier process remembered. What it has from the future counts as of now.
    pub fn recall(&mut self, remembered: &GuardState, now: Instant, wall: SystemTime) {
        let age = |seconds: u64| wall.duration_since(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default();
        let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let sent = remembered.sent.iter().filter(|(when, _)| age(**when) <= WINDOW);
        self.sent = sent
            .filter_map(|(&when, &count)| Some(Sent { when: now.checked_sub(age(when))?, count: number(count) }))
            .collect();
        self.most = number(remembered.most);
        self.approved = match remembered.approved_at {
            Some(when) if age(when) < WINDOW => number(remembered.approved),
            _ => 0,
        };
    }

    fn remove(&mut self, key: &PairKey) -> Option<Suspect> {
        let suspect = self.suspects.remove(key)?;
        if !suspect.approved {
            if suspect.confirmed {
                self.certain -= 1;
                self.certain_own -= usize::from(suspect.own);
            } else {
                self.open -= 1;
            }
        }
        Some(suspect)
    }

    /// Whether it would be too many, with so many suspects, of which so many are own pairs.
    fn is_above(&mut self, bounds: Bounds, now: Instant, suspects: usize, own: usize) -> bool {
        self.forget_old(now);
        self.most = if self.sent.is_empty() { bounds.own } else { self.most.max(bounds.own) };
        let sent: usize = self.sent.iter().map(|sent| sent.count).sum();
        let all_of_them = self.most >= 2 && own > 0 && sent + own >= self.most;
        bounds.blocked && suspects > 0 || all_of_them || sent + suspects > ALWAYS.max(self.most / 10)
    }

    fn forget_old(&mut self, now: Instant) {
        while self.sent.front().is_some_and(|sent| now.saturating_duration_since(sent.when) > WINDOW) {
            self.sent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> PairKey {
        PairKey::alike("n", &number.to_string())
    }

    #[test]
    fn every_harm_is_a_kind_of_the_gauge() {
        assert_eq!(Harm::ALL.map(Harm::as_str), crate::resource_sync::HELD_KINDS);
    }

    fn own(own: usize) -> Bounds {
        Bounds { own, blocked: false }
    }

    fn suspects(guard: &mut Guard, numbers: std::ops::Range<usize>, of_the_section: bool) {
        numbers.for_each(|number| guard.suspect(key(number), Harm::Delete, of_the_section));
    }

    /// Lets every suspect ask until nobody gets an answer other than wait or held; returns who went and how many asked.
    fn settle(guard: &mut Guard, bounds: Bounds, now: Instant) -> (usize, usize) {
        let (mut went, mut asked) = (0, 0);
        loop {
            let mut moved = false;
            for key in guard.waiting() {
                match guard.verdict(&key, bounds, now) {
                    Verdict::Confirm => {
                        asked += 1;
                        guard.confirm(&key, Harm::Delete);
                        moved = true;
                    }
                    Verdict::Go => {
                        guard.send(&key, 1, None, now);
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
        for (objects, missing, goes) in [(1, 1, 1), (6, 5, 5), (50, 10, 10), (50, 11, 0), (500, 50, 50), (500, 51, 0)] {
            let mut guard = Guard::default();
            suspects(&mut guard, 0..missing, true);
            let (went, asked) = settle(&mut guard, own(objects), Instant::now());
            assert_eq!(went, goes, "{missing} of {objects}");
            assert!(asked <= ALWAYS.max(objects / 10) + 1, "asked {asked} times");
            let held = guard.held(own(objects), Instant::now());
            assert_eq!(held.get(&Harm::Delete).copied(), (goes == 0).then_some(missing));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_of_two_or_more_never_go_at_once() {
        for objects in 2..=10 {
            let mut guard = Guard::default();
            let now = Instant::now();
            suspects(&mut guard, 0..objects, true);
            assert_eq!(settle(&mut guard, own(objects), now).0, 0, "{objects}");
            assert!(!guard.held(own(objects), now).is_empty());
            // All but one may go, and the last one not while they count.
            guard.clear(&key(0));
            assert_eq!(settle(&mut guard, own(objects), now).0, objects - 1);
            suspects(&mut guard, 0..1, true);
            assert_eq!(settle(&mut guard, own(1), now).0, 0);
            assert_eq!(settle(&mut guard, own(1), now + WINDOW + Duration::from_secs(1)).0, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_neither_raise_the_limit_nor_count_as_all() {
        let mut guard = Guard::default();
        let now = Instant::now();
        // Three hundred strangers of the kind are no pairs of the section.
        suspects(&mut guard, 0..25, true);
        assert_eq!(settle(&mut guard, own(25), now).0, 0);
        let mut guard = Guard::default();
        suspects(&mut guard, 0..3, false);
        assert_eq!(settle(&mut guard, own(3), now).0, 3, "three unclaimed objects are not all of the three own pairs");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_goes_while_it_is_blocked() {
        let mut guard = Guard::default();
        let now = Instant::now();
        suspects(&mut guard, 0..1, true);
        let blocked = Bounds { own: 500, blocked: true };
        assert_eq!(settle(&mut guard, blocked, now).0, 0);
        assert_eq!(guard.held(blocked, now), BTreeMap::from([(Harm::Delete, 1)]));
        assert_eq!(settle(&mut guard, own(500), now).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tenth_is_of_all_that_there_were_before_the_first_went() {
        let mut guard = Guard::default();
        let start = Instant::now();
        suspects(&mut guard, 0..20, true);
        for number in 0..20 {
            assert_eq!(guard.verdict(&key(number), own(200), start), Verdict::Confirm, "{number}");
            guard.confirm(&key(number), Harm::Delete);
        }
        for number in 0..20 {
            assert_eq!(guard.verdict(&key(number), own(200 - number), start), Verdict::Go, "{number}");
            assert_eq!(guard.send(&key(number), 1, None, start).counted, 1);
        }
        suspects(&mut guard, 20..21, true);
        assert_eq!(guard.verdict(&key(20), own(180), start), Verdict::Confirm);
        guard.confirm(&key(20), Harm::Delete);
        assert_eq!(guard.verdict(&key(20), own(180), start), Verdict::Held, "the 21st of 200");
    }

    #[tokio::test(start_paused = true)]
    async fn what_went_counts_for_ten_minutes_also_in_the_next_process() {
        let start = Instant::now();
        let wall = SystemTime::now();
        let mut guard = Guard::default();
        suspects(&mut guard, 0..10, true);
        assert_eq!(settle(&mut guard, own(20), start).0, 10);
        let later = Duration::from_mins(4);
        let text = serde_json::to_string(&guard.remembered(start + later, wall + later)).unwrap();
        let mut guard = Guard::default();
        guard.recall(&serde_json::from_str(&text).unwrap(), start + later, wall + later);
        suspects(&mut guard, 10..11, true);
        assert_eq!(settle(&mut guard, own(10), start + WINDOW / 2).0, 0);
        assert_eq!(settle(&mut guard, own(10), start + WINDOW + Duration::from_secs(2)).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_of_a_namespace_count_each() {
        let mut guard = Guard::default();
        let now = Instant::now();
        suspects(&mut guard, 0..1, true);
        guard.confirm(&key(0), Harm::Delete);
        guard.send(&key(0), 8, None, now);
        suspects(&mut guard, 1..4, true);
        assert_eq!(settle(&mut guard, own(50), now).0, 0, "eleven of fifty");
        guard.clear(&key(1));
        assert_eq!(settle(&mut guard, own(50), now).0, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn approval_frees_those_that_wait_and_nobody_else() {
        let mut guard = Guard::default();
        let now = Instant::now();
        suspects(&mut guard, 0..30, true);
        assert_eq!(settle(&mut guard, own(30), now).0, 0);
        let freed = guard.approve();
        assert_eq!(freed.len(), 30);
        assert!(guard.held(own(30), now).is_empty());
        let (went, asked) = settle(&mut guard, own(30), now);
        assert_eq!(went, 30);
        assert!(asked >= 19, "approval does not replace the question whether it is really gone");
        suspects(&mut guard, 100..130, true);
        assert_eq!(settle(&mut guard, own(30), now).0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_approval_survives_a_restart_half_way_for_as_many_as_were_left() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut guard = Guard::default();
        suspects(&mut guard, 0..30, true);
        settle(&mut guard, own(30), now);
        guard.approve();
        for number in 0..12 {
            guard.confirm(&key(number), Harm::Delete);
            assert_eq!(guard.send(&key(number), 1, None, now).counted, 0, "what was approved does not count");
        }
        let remembered = guard.remembered(now, wall);
        let mut next = Guard::default();
        next.recall(&remembered, now, wall + Duration::from_secs(30));
        suspects(&mut next, 12..45, true);
        assert_eq!(settle(&mut next, own(50), now).0, 18, "those that nobody approved are left");
        let mut late = Guard::default();
        late.recall(&remembered, now, wall + WINDOW);
        suspects(&mut late, 12..30, true);
        assert_eq!(settle(&mut late, own(18), now).0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_approved_and_not_sent_is_approved_still_and_takes_nothing_out_of_the_count() {
        let mut guard = Guard::default();
        let now = Instant::now();
        suspects(&mut guard, 0..10, true);
        assert_eq!(settle(&mut guard, own(50), now).0, 10);
        suspects(&mut guard, 10..30, true);
        assert_eq!(settle(&mut guard, own(40), now).0, 0);
        guard.approve();
        guard.confirm(&key(10), Harm::Delete);
        let sending = guard.send(&key(10), 1, None, now);
        guard.not_sent(sending);
        assert_eq!(guard.verdict(&key(10), own(40), now), Verdict::Go);
        assert_eq!(settle(&mut guard, own(40), now).0, 20);
        // What counted, counts no more when it was refused; a namespace's other suspects are suspects again.
        suspects(&mut guard, 30..33, true);
        guard.confirm(&key(30), Harm::Delete);
        let namespace = key(30).local.namespace;
        let sending = guard.send(&key(30), 3, Some(&namespace), now);
        assert_eq!((sending.counted, guard.waiting().len()), (3, 0));
        guard.not_sent(sending);
        assert_eq!(guard.waiting().len(), 3);
        assert_eq!(settle(&mut guard, own(20), now).0, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_come_back_lift_the_hold() {
        let mut guard = Guard::default();
        let now = Instant::now();
        suspects(&mut guard, 0..30, true);
        settle(&mut guard, own(30), now);
        assert!(!guard.held(own(30), now).is_empty());
        (0..30).for_each(|number| {
            guard.clear(&key(number));
        });
        assert!(guard.held(own(30), now).is_empty());
        assert!(guard.waiting().is_empty());
    }
}
