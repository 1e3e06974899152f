//! The guard against mass changes.
//!
//! A mistake affects many objects at once: after an etcd restore or with a wrong kubeconfig remote objects are missing, a typo
//! in the selector lets all pairs go, and another cluster in the place of the local one causes local objects to be overwritten
//! and statuses to be cleared. The cache therefore reports each such [`GuardedChange`] to a pair as a [`PendingChange`], before the
//! section makes any of them. If they would affect more than `max(10, 10 %)` of the section's own pairs within the window, or all
//! of them (two or more), the guard holds every pending change until an operator approves.
//!
//! A live GET confirms first that a missing remote object is really gone. An approval lifts the limit for the changes that are pending,
//! and does not replace the GET. The guard only counts confirmations: the run that deletes sends its own GET.
//! Pure: the caller passes the time in.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::names::PairKey;
use super::next::GuardedChange;
use crate::job::mass_change;
use crate::state::GuardState;

/// How long a change counts (the specification's 10 minutes).
pub(crate) const WINDOW: Duration = Duration::from_mins(10);
/// Changes within this time share one entry, which keeps the stored state small.
const MOMENT: Duration = Duration::from_secs(10);

/// What the guard decides about one pending change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Ask the API server whether the object is really gone.
    Confirm,
    /// The change may be made, if this run has itself asked whether the object is really gone.
    Go,
    /// Other pending changes have to be confirmed or cleared first.
    Wait,
    /// Too many pairs are affected: the guard holds all of them.
    Held,
}

/// What the limit depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How many pairs of its own the section has. Other objects of the kind don't count.
    pub own: usize,
    /// No pending change may be made: it is unknown whether the cluster is still the same, or how many objects were changed in the last
    /// minutes.
    pub blocked: bool,
}

/// A guarded change that is about to be made to a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingChange {
    pub change: GuardedChange,
    /// Whether it is one of the section's own pairs.
    pub own: bool,
    /// Its local object is gone. What is left is the namespace that was created for it, without an object of the kind.
    pub to_namespace_only: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    pending: PendingChange,
    /// A live GET has returned that the object is gone, or no GET is needed.
    confirmed: bool,
    approved: bool,
}

/// The number of changes that were sent at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    when: Instant,
    count: usize,
}

/// A change that is about to be sent; [`Guard::not_sent`] takes it back.
#[derive(Debug, Default)]
pub struct Sending {
    /// How many objects count against the limit.
    pub counted: usize,
    /// The pending changes among them.
    entries: Vec<(PairKey, Entry)>,
}

#[derive(Debug, Default)]
pub struct Guard {
    entries: BTreeMap<PairKey, Entry>,
    /// How many of them are certain and not approved: what counts against the limit.
    certain: usize,
    /// How many of those are own pairs.
    certain_own: usize,
    /// How many are neither certain nor approved.
    open: usize,
    /// The changes that were sent within the window.
    sent: VecDeque<Sent>,
    /// The most own pairs that the section had since the first of these changes. The limit is a tenth of this number, so that
    /// it does not shrink with each deletion.
    most: usize,
    /// How many further changes are approved as they come: the rest of an approval that was given before a restart.
    approved: usize,
    /// When that approval was given or stored.
    approved_since: Option<Instant>,
    /// The local namespaces in which an approved deletion was sent within the window. The approval includes those that were created
    /// for the section's pairs, which follow when they are empty.
    emptied: BTreeMap<Arc<str>, Instant>,
}

impl Guard {
    pub fn register(&mut self, key: PairKey, pending: PendingChange, now: Instant) {
        let PendingChange { change, own, to_namespace_only } = pending;
        let emptied = self.emptied.get(&key.local.namespace).filter(|_| to_namespace_only);
        let follows = emptied.is_some_and(|when| is_recent(*when, now));
        let mut was_approved = false;
        if let Some(held) = self.entries.get(&key) {
            // The missing object may have been found alive and outside the selector.
            let is_same = held.pending.change == change
                || (held.pending.change, change) == (GuardedChange::LetGo, GuardedChange::Delete);
            let is_settled = held.approved || !follows;
            if held.pending.own == own && held.pending.to_namespace_only == to_namespace_only && is_same && is_settled {
                return;
            }
            // The object was deleted by somebody else after the approval, which includes the namespace. The other way round it does not: there
            // are objects in the namespace again.
            was_approved = to_namespace_only && held.approved && held.pending.change == GuardedChange::Delete;
            let _ = self.remove(&key);
        }
        // The rest of an earlier approval is one of objects.
        let rest_is_valid = self.approved > 0 && self.approved_since.is_some_and(|since| is_recent(since, now));
        let is_of_rest = !to_namespace_only && rest_is_valid;
        let approved = follows || was_approved || is_of_rest;
        self.approved -= usize::from(is_of_rest);
        self.open += usize::from(!approved);
        self.entries.insert(key, Entry { pending, confirmed: false, approved });
    }

    /// The pair has a remote object, which lives in its namespace: what was approved there is over.
    pub fn came_back(&mut self, key: &PairKey) {
        self.emptied.remove(&key.local.namespace);
    }

    /// Removes a change that is no longer pending. Returns whether the guard may allow others now.
    pub fn clear(&mut self, key: &PairKey) -> bool {
        // Only one that is certain lets others wait or holds them.
        let certain = self.certain > 0;
        self.remove(key).is_some_and(|entry| !entry.approved && certain && !self.entries.is_empty())
    }

    /// Records that a pending change is certain.
    pub fn confirm(&mut self, key: &PairKey, change: GuardedChange) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.pending.change = change;
        if !std::mem::replace(&mut entry.confirmed, true) && !entry.approved {
            self.open -= 1;
            self.certain += 1;
            self.certain_own += usize::from(entry.pending.own);
        }
    }

    pub fn decide(&mut self, key: &PairKey, bounds: Bounds, now: Instant) -> Decision {
        let Some(entry) = self.entries.get(key).copied() else { return Decision::Confirm };
        if !entry.approved && self.is_above(bounds, now, self.certain, self.certain_own) {
            return Decision::Held;
        }
        if !entry.confirmed {
            return Decision::Confirm;
        }
        // Each pair whose change is not certain may be an own one.
        let (all, own) = (self.certain + self.open, self.certain_own + self.open);
        if entry.approved || !self.is_above(bounds, now, all, own) { Decision::Go } else { Decision::Wait }
    }

    /// Counts `count` objects that one pending change is about to change. Approved changes do not count. The caller
    /// stores the result first. With `namespace`, the pending changes in it are removed too, since the namespace is deleted.
    pub fn send(&mut self, key: &PairKey, count: usize, namespace: Option<&str>, now: Instant) -> Sending {
        let entry = self.remove(key);
        let counted = if entry.is_none_or(|entry| !entry.approved) { count } else { 0 };
        if counted > 0 {
            match self.sent.back_mut() {
                Some(last) if now.saturating_duration_since(last.when) < MOMENT => last.count += counted,
                _ => self.sent.push_back(Sent { when: now, count: counted }),
            }
        }
        if entry.is_some_and(|entry| entry.approved && entry.pending.change == GuardedChange::Delete) {
            self.emptied.insert(Arc::clone(&key.local.namespace), now);
        }
        let mut entries: Vec<_> = entry.map(|entry| (key.clone(), entry)).into_iter().collect();
        if let Some(namespace) = namespace {
            let go_along = self.waiting().into_iter().filter(|key| *key.local.namespace == *namespace);
            entries.extend(go_along.filter_map(|key| Some((key.clone(), self.remove(&key)?))));
        }
        Sending { counted, entries }
    }

    /// Takes back a change that was not sent, or that the API server has certainly rejected: it does not count, and an approval
    /// stays valid. Returns the pairs that it was about.
    pub fn not_sent(&mut self, sending: Sending) -> Vec<PairKey> {
        let keys: Vec<PairKey> = sending.entries.iter().map(|(key, _)| key.clone()).collect();
        if let Some(last) = self.sent.back_mut() {
            last.count = last.count.saturating_sub(sending.counted);
        }
        for (key, entry) in sending.entries {
            if self.entries.contains_key(&key) {
                continue;
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
        keys
    }

    /// Records an operator's approval of all pending changes, and returns their pairs.
    pub fn approve(&mut self, now: Instant) -> Vec<PairKey> {
        self.emptied.retain(|_, when| is_recent(*when, now));
        for entry in self.entries.values_mut() {
            entry.approved = true;
        }
        (self.certain, self.certain_own, self.open) = (0, 0, 0);
        self.sent.clear();
        self.waiting()
    }

    /// How many changes wait for an approval, by kind; empty if none does.
    pub fn held(&mut self, bounds: Bounds, now: Instant) -> BTreeMap<GuardedChange, usize> {
        let mut held = BTreeMap::new();
        if self.certain > 0 && self.is_above(bounds, now, self.certain, self.certain_own) {
            for entry in self.entries.values().filter(|entry| !entry.approved) {
                *held.entry(entry.pending.change).or_default() += 1;
            }
        }
        held
    }

    /// The change that is pending for a pair.
    pub fn change_to(&self, key: &PairKey) -> Option<GuardedChange> {
        Some(self.entries.get(key)?.pending.change)
    }

    /// The pairs of all pending changes.
    pub fn waiting(&self) -> Vec<PairKey> {
        self.entries.keys().cloned().collect()
    }

    /// The first pending changes that no operator has approved.
    pub fn first(&self, count: usize) -> Vec<(PairKey, GuardedChange)> {
        let waiting = self.entries.iter().filter(|(_, entry)| !entry.approved);
        waiting.map(|(key, entry)| (key.clone(), entry.pending.change)).take(count).collect()
    }

    /// The part of the guard that is stored beyond the process.
    pub fn remembered(&mut self, now: Instant, wall: SystemTime) -> GuardState {
        self.forget_old(now);
        let seconds = |when: SystemTime| when.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let approved = self.approved
            + self.entries.values().filter(|entry| entry.approved && !entry.pending.to_namespace_only).count();
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

    /// Continues from the state that an earlier process has stored. Entries with a time in the future count as of now.
    pub fn recall(&mut self, remembered: &GuardState, now: Instant, wall: SystemTime) {
        let age = |seconds: u64| wall.duration_since(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default();
        let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let sent = remembered.sent.iter().filter(|(when, _)| age(**when) <= WINDOW);
        self.sent = sent
            .filter_map(|(&when, &count)| Some(Sent { when: now.checked_sub(age(when))?, count: number(count) }))
            .collect();
        self.most = number(remembered.most);
        let approved_at = remembered.approved_at.filter(|when| age(*when) < WINDOW);
        self.approved = approved_at.map_or(0, |_| number(remembered.approved));
        self.approved_since = approved_at.and_then(|when| now.checked_sub(age(when)));
    }

    fn remove(&mut self, key: &PairKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
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

    /// Whether so many pending changes, of which `own` affect own pairs, are above the limit.
    fn is_above(&mut self, bounds: Bounds, now: Instant, entries: usize, own: usize) -> bool {
        self.forget_old(now);
        self.most = if self.sent.is_empty() { bounds.own } else { self.most.max(bounds.own) };
        let sent: usize = self.sent.iter().map(|sent| sent.count).sum();
        let all_of_them = self.most >= 2 && own > 0 && sent + own >= self.most;
        bounds.blocked && entries > 0 || all_of_them || sent + entries > mass_change::limit(self.most)
    }

    fn forget_old(&mut self, now: Instant) {
        // The rest of an approval that is too old is none, nor after another restart.
        if self.approved_since.is_some_and(|since| !is_recent(since, now)) {
            (self.approved, self.approved_since) = (0, None);
        }
        while self.sent.front().is_some_and(|sent| !is_recent(sent.when, now)) {
            self.sent.pop_front();
        }
    }
}

fn is_recent(when: Instant, now: Instant) -> bool {
    now.saturating_duration_since(when) <= WINDOW
}

#[cfg(test)]
mod tests;
