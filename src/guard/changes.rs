//! The pending changes of a section, which it counts before it makes any of them. Pure: the caller passes the time in.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{GuardedChange, HeldChanges, WINDOW, limit};
use crate::state::GuardState;

/// Seconds in which changes share one entry of the stored state, which keeps that small.
const MOMENT: u64 = 10;

/// What the guard decides about one pending change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Find out whether the change is really to be made.
    Confirm,
    /// The change may be made.
    Go,
    /// Other pending changes have to be confirmed or cleared first.
    Wait,
    /// Too many objects are affected: the guard holds all of them.
    Held,
}

/// What the limit depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How many objects of its own the section has. Other objects of the kind don't count.
    pub own: usize,
    /// No pending change may be made: it is unknown whether the cluster is still the same, or how many objects were changed in the last
    /// minutes.
    pub blocked: bool,
}

/// A guarded change that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingChange {
    pub change: GuardedChange,
    /// Whether it is made to one of the section's own objects.
    pub own: bool,
    /// Its object is gone, and this is the end of what was made for it. No approval is spent on it.
    pub follows: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    pending: PendingChange,
    /// It is known that the change is to be made.
    confirmed: bool,
    approved: bool,
    /// It was sent already and is to be sent again. Meanwhile its object counts once: as pending.
    again: bool,
}

/// How many objects a change was to, and when it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    when: Instant,
    count: usize,
}

/// A change that is about to be sent; [`Guard::not_sent`] takes it back.
#[derive(Debug)]
pub struct Sending<K> {
    key: K,
    /// What was counted for the key before; [`Guard::not_sent`] restores it.
    before: Option<Sent>,
    /// The pending changes among them.
    entries: Vec<(K, Entry)>,
}

/// The guard of a section's changes, by the key of what they are made to.
#[derive(Debug)]
pub struct Guard<K> {
    entries: BTreeMap<K, Entry>,
    /// How many of them are certain and not approved: what counts against the limit.
    certain: usize,
    /// How many of those are made to own objects.
    certain_own: usize,
    /// How many are neither certain nor approved.
    open: usize,
    /// The changes that were sent within the window. A change that is sent again counts once.
    sent: BTreeMap<K, Sent>,
    /// Those of an earlier process.
    recalled: Vec<Sent>,
    /// How many objects all of these were to.
    counted: usize,
    /// When the first of these was sent.
    oldest: Option<Instant>,
    /// The most objects of its own that the section had since the first of these changes. The limit is a tenth of this number,
    /// so that it does not shrink with each deletion.
    most: usize,
    /// How many further changes are approved as they come: the rest of an approval that was given before a restart.
    approved: usize,
    /// When that approval was given or stored.
    approved_since: Option<Instant>,
}

impl<K> Default for Guard<K> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            certain: 0,
            certain_own: 0,
            open: 0,
            sent: BTreeMap::new(),
            recalled: Vec::new(),
            counted: 0,
            oldest: None,
            most: 0,
            approved: 0,
            approved_since: None,
        }
    }
}

impl<K: Ord + Clone> Guard<K> {
    /// Takes all changes that a decision would make to own objects, and returns those that may be made now. They are counted, and the
    /// caller stores the result before it makes them. What was pending and is no longer wanted is forgotten, with its approval;
    /// `is_later`: it is, and can't be made now.
    pub fn admit(
        &mut self,
        wanted: BTreeMap<K, GuardedChange>,
        is_later: impl Fn(&K) -> bool,
        bounds: Bounds,
        now: Instant,
    ) -> Vec<(K, Sending<K>)> {
        for key in self.waiting().into_iter().filter(|key| !wanted.contains_key(key) && !is_later(key)) {
            self.clear(&key);
        }
        for (key, change) in &wanted {
            self.register(key.clone(), PendingChange { change: *change, own: true, follows: false }, false, now);
            self.confirm(key, *change);
        }
        let mut admitted = Vec::new();
        for key in wanted.into_keys() {
            if self.decide(&key, bounds, now) == Decision::Go {
                let sending = self.send(&key, 1, |_| false, now);
                admitted.push((key, sending));
            }
        }
        admitted
    }

    /// Records that a change is pending. `is_approved`: an approval of something else includes it.
    pub fn register(&mut self, key: K, pending: PendingChange, is_approved: bool, now: Instant) {
        if let Some(held) = self.entries.get(&key) {
            // The missing object may have been found alive and outside the selector.
            let is_same = held.pending.change == pending.change
                || (held.pending.change, pending.change) == (GuardedChange::LetGo, GuardedChange::Delete);
            let is_settled = held.approved || !is_approved;
            if (held.pending.own, held.pending.follows) == (pending.own, pending.follows) && is_same && is_settled {
                return;
            }
            let _ = self.remove(&key);
        }
        let rest_is_valid = self.approved > 0 && self.approved_since.is_some_and(|since| is_recent(since, now));
        let is_of_rest = !pending.follows && rest_is_valid;
        let approved = is_approved || is_of_rest;
        self.approved -= usize::from(is_of_rest);
        self.insert(key, Entry { pending, confirmed: false, approved, again: false });
    }

    /// Removes a change that is no longer pending. Returns whether the guard may allow others now.
    pub fn clear(&mut self, key: &K) -> bool {
        // Only one that is certain lets others wait or holds them.
        let certain = self.certain > 0;
        self.remove(key).is_some_and(|entry| !entry.approved && certain && !self.entries.is_empty())
    }

    /// Records that a pending change is certain. An approval to let an object go, which keeps it, does not cover its deletion.
    pub fn confirm(&mut self, key: &K, change: GuardedChange) {
        let Some(mut entry) = self.remove(key) else { return };
        entry.approved &= (entry.pending.change, change) != (GuardedChange::LetGo, GuardedChange::Delete);
        entry.pending.change = change;
        entry.confirmed = true;
        self.insert(key.clone(), entry);
    }

    pub fn decide(&mut self, key: &K, bounds: Bounds, now: Instant) -> Decision {
        let Some(entry) = self.entries.get(key).copied() else { return Decision::Confirm };
        if !entry.approved && self.is_above(bounds, now, self.certain, self.certain_own) {
            return Decision::Held;
        }
        if !entry.confirmed {
            return Decision::Confirm;
        }
        // Each object whose change is not certain may be an own one.
        let (all, own) = (self.certain + self.open, self.certain_own + self.open);
        if entry.approved || !self.is_above(bounds, now, all, own) { Decision::Go } else { Decision::Wait }
    }

    /// Counts `count` objects that one pending change is about to change. Approved changes do not count. The caller
    /// stores the result first. The pending changes that are made along with it are removed, too.
    pub fn send(&mut self, key: &K, count: usize, goes_along: impl Fn(&K) -> bool, now: Instant) -> Sending<K> {
        let entry = self.remove(key);
        let counted = if entry.is_none_or(|entry| !entry.approved) { count } else { 0 };
        let before = self.take_back(key);
        let earlier = before.map_or(0, |before| before.count);
        // A change that follows the deletion of its object counts beside it. One that is sent again may have been carried out the first
        // time, when it was to more objects.
        let follows = entry.is_some_and(|entry| entry.pending.follows);
        let count = if follows { counted + earlier } else { counted.max(earlier) };
        if count > 0 {
            self.count(key.clone(), Sent { when: now, count });
        }
        let mut entries: Vec<_> = entry.map(|entry| (key.clone(), entry)).into_iter().collect();
        let along = self.entries.keys().filter(|key| goes_along(key)).cloned().collect::<Vec<_>>();
        entries.extend(along.into_iter().filter_map(|key| Some((key.clone(), self.remove(&key)?))));
        Sending { key: key.clone(), before, entries }
    }

    /// Takes back a change that was not sent, or that the API server has certainly rejected: it does not count, and an approval
    /// stays valid, also if the same change has been registered again meanwhile. Returns the keys that it was about.
    pub fn not_sent(&mut self, sending: Sending<K>) -> Vec<K> {
        // A change that was registered meanwhile is added again when the count is as it was.
        let newer = self.remove(&sending.key);
        self.take_back(&sending.key);
        if let Some(before) = sending.before {
            self.count(sending.key.clone(), before);
        }
        if let Some(newer) = newer {
            self.insert(sending.key, newer);
        }
        let keys: Vec<K> = sending.entries.iter().map(|(key, _)| key.clone()).collect();
        for (key, entry) in sending.entries {
            let is_older = |newer: &Entry| !entry.approved || newer.pending != entry.pending;
            if !self.entries.get(&key).is_some_and(is_older) {
                let _ = self.remove(&key);
                self.insert(key, entry);
            }
        }
        keys
    }

    /// Takes a change out of the count whose effect was undone.
    pub fn undone(&mut self, key: &K) {
        self.take_back(key);
    }

    /// Records an operator's approval of all pending changes, and returns their keys.
    pub fn approve(&mut self) -> Vec<K> {
        for entry in self.entries.values_mut() {
            (entry.approved, entry.again) = (true, false);
        }
        (self.certain, self.certain_own, self.open) = (0, 0, 0);
        self.sent.clear();
        self.recalled.clear();
        (self.counted, self.oldest) = (0, None);
        self.waiting()
    }

    /// How many changes wait for an approval, by kind; empty if none does.
    pub fn held(&mut self, bounds: Bounds, now: Instant) -> HeldChanges {
        let mut held = HeldChanges::new();
        if self.certain > 0 && self.is_above(bounds, now, self.certain, self.certain_own) {
            for entry in self.entries.values().filter(|entry| !entry.approved) {
                *held.entry(entry.pending.change).or_default() += 1;
            }
        }
        held
    }

    /// The change that is pending for a key.
    pub fn change_to(&self, key: &K) -> Option<GuardedChange> {
        Some(self.entries.get(key)?.pending.change)
    }

    /// The change that is pending for a key, if it is approved.
    pub fn approved_change_to(&self, key: &K) -> Option<GuardedChange> {
        self.entries.get(key).filter(|entry| entry.approved).map(|entry| entry.pending.change)
    }

    /// The keys of all pending changes.
    pub fn waiting(&self) -> Vec<K> {
        self.entries.keys().cloned().collect()
    }

    /// The first pending changes that no operator has approved.
    pub fn first(&self, count: usize) -> Vec<(K, GuardedChange)> {
        let waiting = self.entries.iter().filter(|(_, entry)| !entry.approved);
        waiting.map(|(key, entry)| (key.clone(), entry.pending.change)).take(count).collect()
    }

    /// The part of the guard that is stored beyond the process.
    pub fn remembered(&mut self, now: Instant, wall: SystemTime) -> GuardState {
        self.forget_old(now);
        let seconds = |when: SystemTime| when.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let waiting = self.entries.values().filter(|entry| entry.approved && !entry.pending.follows).count();
        // The rest of an approval alone gets no younger by being stored.
        let rest_age = self
            .approved_since
            .filter(|_| waiting == 0)
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let approved = self.approved + waiting;
        let mut sent = BTreeMap::new();
        let once = |key: &K| Some(Sent { count: 1, ..*self.sent.get(key)? });
        let again = self.entries.iter().filter(|(_, entry)| entry.again).filter_map(|(key, _)| once(key));
        for Sent { when, count } in self.sent.values().chain(&self.recalled).copied().chain(again) {
            if count == 0 {
                continue;
            }
            let when = seconds(wall - now.saturating_duration_since(when));
            *sent.entry(when.next_multiple_of(MOMENT)).or_default() += count as u64;
        }
        GuardState {
            most: if sent.is_empty() { 0 } else { self.most as u64 },
            sent,
            approved: approved as u64,
            approved_at: (approved > 0).then(|| seconds(wall - rest_age)),
        }
    }

    /// Continues from the state that an earlier process has stored. Entries with a time in the future count as of now.
    pub fn recall(&mut self, remembered: &GuardState, now: Instant, wall: SystemTime) {
        let age = |seconds: u64| wall.duration_since(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default();
        // Numbers that were edited add up without an overflow, which would let everything through.
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX) as usize;
        let sent = remembered.sent.iter().filter(|(when, _)| age(**when) <= WINDOW);
        self.recalled = sent
            .filter_map(|(&when, &count)| Some(Sent { when: now.checked_sub(age(when))?, count: number(count) }))
            .collect();
        self.sent.clear();
        self.counted = self.recalled.iter().map(|sent| sent.count).sum();
        self.oldest = self.recalled.iter().map(|sent| sent.when).min();
        self.most = number(remembered.most);
        let approved_at = remembered.approved_at.filter(|when| age(*when) < WINDOW);
        self.approved = approved_at.map_or(0, |_| number(remembered.approved));
        self.approved_since = approved_at.and_then(|when| now.checked_sub(age(when)));
    }

    fn count(&mut self, key: K, sent: Sent) {
        self.counted += sent.count;
        self.oldest = Some(self.oldest.map_or(sent.when, |oldest| oldest.min(sent.when)));
        self.sent.insert(key, sent);
    }

    fn take_back(&mut self, key: &K) -> Option<Sent> {
        let sent = self.sent.remove(key)?;
        self.counted -= sent.count;
        Some(sent)
    }

    /// Adds a change to a key that has none.
    fn insert(&mut self, key: K, mut entry: Entry) {
        // A change that follows the deletion of its object counts beside it.
        entry.again = false;
        if let Some(sent) = self.sent.get_mut(&key).filter(|sent| sent.count > 0 && !entry.pending.follows) {
            (entry.again, sent.count) = (true, sent.count - 1);
            self.counted -= 1;
        }
        if !entry.approved {
            if entry.confirmed {
                self.certain += 1;
                self.certain_own += usize::from(entry.pending.own);
            } else {
                self.open += 1;
            }
        }
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &K) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        // Unless the window has ended meanwhile.
        if let Some(sent) = self.sent.get_mut(key).filter(|_| entry.again) {
            sent.count += 1;
            self.counted += 1;
        }
        if !entry.approved {
            if entry.confirmed {
                self.certain -= 1;
                self.certain_own -= usize::from(entry.pending.own);
            } else {
                self.open -= 1;
            }
        }
        Some(entry)
    }

    /// Whether so many pending changes, of which `own` affect own objects, are above the limit.
    fn is_above(&mut self, bounds: Bounds, now: Instant, entries: usize, own: usize) -> bool {
        self.forget_old(now);
        let sent = self.counted;
        self.most = if self.oldest.is_none() { bounds.own } else { self.most.max(bounds.own) };
        let all_of_them = self.most >= 2 && own > 0 && sent + own >= self.most;
        bounds.blocked && entries > 0 || all_of_them || sent + entries > limit(self.most)
    }

    fn forget_old(&mut self, now: Instant) {
        // The rest of an approval that is too old is none.
        if self.approved_since.is_some_and(|since| !is_recent(since, now)) {
            (self.approved, self.approved_since) = (0, None);
        }
        if self.oldest.is_some_and(|oldest| !is_recent(oldest, now)) {
            self.sent.retain(|_, sent| is_recent(sent.when, now));
            self.recalled.retain(|sent| is_recent(sent.when, now));
            let all = || self.sent.values().chain(&self.recalled);
            (self.counted, self.oldest) = (all().map(|sent| sent.count).sum(), all().map(|sent| sent.when).min());
        }
    }
}

/// Whether it happened within the window.
pub fn is_recent(when: Instant, now: Instant) -> bool {
    now.saturating_duration_since(when) <= WINDOW
}
