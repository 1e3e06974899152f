//! The guard against mass changes.
//!
//! A mistake affects many objects at once: after an etcd restore or with a wrong kubeconfig remote objects are missing, a typo
//! in the selector lets all pairs go, and another cluster in the place of the local one causes local objects to be overwritten
//! and statuses to be cleared. The cache therefore reports each pair that is threatened by such a [`Harm`] as a *suspect*,
//! before the section acts on any of them. If the harm would affect more than `max(10, 10 %)` of the section's own pairs within
//! the window, or all of them (two or more), the guard holds every suspect until an operator approves.
//!
//! A live GET confirms first that a missing remote object is really gone. An approval lifts the limit for the present suspects,
//! and does not replace the GET. The guard only counts confirmations: the run that deletes sends its own GET.
//! Pure: the caller passes the time in.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::names::PairKey;
use super::plan::Harm;
use crate::job::mass_change;
use crate::state::GuardState;

/// How long a change counts (the specification's 10 minutes).
pub(crate) const WINDOW: Duration = Duration::from_mins(10);
/// Changes within this time share one entry, which keeps the stored state small.
const MOMENT: Duration = Duration::from_secs(10);

/// What the guard says to one suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ask the API server whether the object is really gone.
    Confirm,
    /// The change may be made, if this run has itself asked whether the object is really gone.
    Go,
    /// Other suspects have to be confirmed or cleared first.
    Wait,
    /// Too many pairs are affected: the guard holds all of them.
    Held,
}

/// What the limit depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How many pairs of its own the section has. Other objects of the kind don't count.
    pub own: usize,
    /// No suspect may go: it is unknown whether the cluster is still the same, or how many objects were changed in the last
    /// minutes.
    pub blocked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threat {
    pub harm: Harm,
    /// Whether it is one of the section's own pairs.
    pub own: bool,
    /// Its local object is gone. What is left is the namespace that was created for it, without an object of the kind.
    pub to_namespace_only: bool,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    threat: Threat,
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
    /// The suspects among them.
    suspects: Vec<(PairKey, Suspect)>,
}

#[derive(Debug, Default)]
pub struct Guard {
    suspects: BTreeMap<PairKey, Suspect>,
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
    /// How many further suspects are approved as they come: the rest of an approval that was given before a restart.
    approved: usize,
    /// When that approval was given or stored.
    approved_since: Option<Instant>,
    /// The local namespaces in which an approved deletion was sent within the window. The approval includes those that were created
    /// for the section's pairs, which follow when they are empty.
    emptied: BTreeMap<Arc<str>, Instant>,
}

impl Guard {
    pub fn suspect(&mut self, key: PairKey, threat: Threat, now: Instant) {
        let Threat { harm, own, to_namespace_only } = threat;
        let emptied = self.emptied.get(&key.local.namespace).filter(|_| to_namespace_only);
        let follows = emptied.is_some_and(|when| is_recent(*when, now));
        let mut was_approved = false;
        if let Some(held) = self.suspects.get(&key) {
            // The missing object may have been found alive and outside the selector.
            let is_same = held.threat.harm == harm || (held.threat.harm, harm) == (Harm::LetGo, Harm::Delete);
            let is_settled = held.approved || !follows;
            if held.threat.own == own && held.threat.to_namespace_only == to_namespace_only && is_same && is_settled {
                return;
            }
            // The object was deleted by somebody else after the approval, which includes the namespace. The other way round it does not: there
            // are objects in the namespace again.
            was_approved = to_namespace_only && held.approved && held.threat.harm == Harm::Delete;
            let _ = self.remove(&key);
        }
        // The rest of an earlier approval is one of objects.
        let rest_is_valid = self.approved > 0 && self.approved_since.is_some_and(|since| is_recent(since, now));
        let is_of_rest = !to_namespace_only && rest_is_valid;
        let approved = follows || was_approved || is_of_rest;
        self.approved -= usize::from(is_of_rest);
        self.open += usize::from(!approved);
        self.suspects.insert(key, Suspect { threat, confirmed: false, approved });
    }

    /// The pair has a remote object, which lives in its namespace: what was approved there is over.
    pub fn came_back(&mut self, key: &PairKey) {
        self.emptied.remove(&key.local.namespace);
    }

    /// Removes a suspect that is no longer threatened. Returns whether other suspects may be free now.
    pub fn clear(&mut self, key: &PairKey) -> bool {
        // Only one that is certain lets others wait or holds them.
        let certain = self.certain > 0;
        self.remove(key).is_some_and(|suspect| !suspect.approved && certain && !self.suspects.is_empty())
    }

    /// Records that the harm to a suspect is certain.
    pub fn confirm(&mut self, key: &PairKey, harm: Harm) {
        let Some(suspect) = self.suspects.get_mut(key) else { return };
        suspect.threat.harm = harm;
        if !std::mem::replace(&mut suspect.confirmed, true) && !suspect.approved {
            self.open -= 1;
            self.certain += 1;
            self.certain_own += usize::from(suspect.threat.own);
        }
    }

    pub fn verdict(&mut self, key: &PairKey, bounds: Bounds, now: Instant) -> Verdict {
        let Some(suspect) = self.suspects.get(key).copied() else { return Verdict::Confirm };
        if !suspect.approved && self.is_above(bounds, now, self.certain, self.certain_own) {
            return Verdict::Held;
        }
        if !suspect.confirmed {
            return Verdict::Confirm;
        }
        // Each suspect that is not certain may be an own pair.
        let (all, own) = (self.certain + self.open, self.certain_own + self.open);
        if suspect.approved || !self.is_above(bounds, now, all, own) { Verdict::Go } else { Verdict::Wait }
    }

    /// Counts `count` objects that are about to be changed because of one suspect. Approved changes do not count. The caller
    /// stores the result first. With `namespace`, the suspects in it are removed too, since the namespace is deleted.
    pub fn send(&mut self, key: &PairKey, count: usize, namespace: Option<&str>, now: Instant) -> Sending {
        let suspect = self.remove(key);
        let counted = if suspect.is_none_or(|suspect| !suspect.approved) { count } else { 0 };
        if counted > 0 {
            match self.sent.back_mut() {
                Some(last) if now.saturating_duration_since(last.when) < MOMENT => last.count += counted,
                _ => self.sent.push_back(Sent { when: now, count: counted }),
            }
        }
        if suspect.is_some_and(|suspect| suspect.approved && suspect.threat.harm == Harm::Delete) {
            self.emptied.insert(Arc::clone(&key.local.namespace), now);
        }
        let mut suspects: Vec<_> = suspect.map(|suspect| (key.clone(), suspect)).into_iter().collect();
        if let Some(namespace) = namespace {
            let go_along = self.waiting().into_iter().filter(|key| *key.local.namespace == *namespace);
            suspects.extend(go_along.filter_map(|key| Some((key.clone(), self.remove(&key)?))));
        }
        Sending { counted, suspects }
    }

    /// Takes back a change that was not sent, or that the API server has certainly rejected: it does not count, and an approval
    /// stays valid. Returns its suspects.
    pub fn not_sent(&mut self, sending: Sending) -> Vec<PairKey> {
        let keys: Vec<PairKey> = sending.suspects.iter().map(|(key, _)| key.clone()).collect();
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
                    self.certain_own += usize::from(suspect.threat.own);
                } else {
                    self.open += 1;
                }
            }
            self.suspects.insert(key, suspect);
        }
        keys
    }

    /// Records an operator's approval of all present suspects, and returns them.
    pub fn approve(&mut self, now: Instant) -> Vec<PairKey> {
        self.emptied.retain(|_, when| is_recent(*when, now));
        for suspect in self.suspects.values_mut() {
            suspect.approved = true;
        }
        (self.certain, self.certain_own, self.open) = (0, 0, 0);
        self.sent.clear();
        self.waiting()
    }

    /// How many suspects wait for an approval, by harm; empty if none does.
    pub fn held(&mut self, bounds: Bounds, now: Instant) -> BTreeMap<Harm, usize> {
        let mut held = BTreeMap::new();
        if self.certain > 0 && self.is_above(bounds, now, self.certain, self.certain_own) {
            for suspect in self.suspects.values().filter(|suspect| !suspect.approved) {
                *held.entry(suspect.threat.harm).or_default() += 1;
            }
        }
        held
    }

    /// The harm that threatens a suspect.
    pub fn harm_to(&self, key: &PairKey) -> Option<Harm> {
        Some(self.suspects.get(key)?.threat.harm)
    }

    /// All suspects.
    pub fn waiting(&self) -> Vec<PairKey> {
        self.suspects.keys().cloned().collect()
    }

    /// The first suspects that no operator has approved, with their harms.
    pub fn first(&self, count: usize) -> Vec<(PairKey, Harm)> {
        let waiting = self.suspects.iter().filter(|(_, suspect)| !suspect.approved);
        waiting.map(|(key, suspect)| (key.clone(), suspect.threat.harm)).take(count).collect()
    }

    /// The part of the guard that is stored beyond the process.
    pub fn remembered(&mut self, now: Instant, wall: SystemTime) -> GuardState {
        self.forget_old(now);
        let seconds = |when: SystemTime| when.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let approved = self.approved
            + self.suspects.values().filter(|suspect| suspect.approved && !suspect.threat.to_namespace_only).count();
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

    fn remove(&mut self, key: &PairKey) -> Option<Suspect> {
        let suspect = self.suspects.remove(key)?;
        if !suspect.approved {
            if suspect.confirmed {
                self.certain -= 1;
                self.certain_own -= usize::from(suspect.threat.own);
            } else {
                self.open -= 1;
            }
        }
        Some(suspect)
    }

    /// Whether so many suspects, of which `own` are own pairs, are above the limit.
    fn is_above(&mut self, bounds: Bounds, now: Instant, suspects: usize, own: usize) -> bool {
        self.forget_old(now);
        self.most = if self.sent.is_empty() { bounds.own } else { self.most.max(bounds.own) };
        let sent: usize = self.sent.iter().map(|sent| sent.count).sum();
        let all_of_them = self.most >= 2 && own > 0 && sent + own >= self.most;
        bounds.blocked && suspects > 0 || all_of_them || sent + suspects > mass_change::limit(self.most)
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
