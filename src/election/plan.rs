//! Which replica runs which section. The plan is pure: it decides from the records that this replica has observed, and from
//! when, by its own clock, it saw them change.
//!
//! - A section is free when its Lease names no holder, or has not changed for its own duration (it has expired).
//! - A replica is alive while its Lease changes. If one of its sections has expired, it counts as dead until its own Lease
//!   changes again: the Leases of a killed process expire one after the other, and the process must not count as the least
//!   loaded replica in between. A replica whose renewal is late comes after all others. So does, for an expired section, a
//!   replica that joined too late to see it expire when the others do.
//! - Every free section is assigned to one replica: to the preferred holder that its Lease names, otherwise so that all
//!   replicas end up with the same number of sections (`shares`). All replicas compute the same assignment, so each acquires
//!   its own at once and they don't conflict. If a replica does not acquire what is assigned to it, others do after a while,
//!   the least loaded first.
//! - While no section is free, the most loaded replica hands over one section at a time, if it has at least two more than
//!   the least loaded one, and to that one, provided that it was confirmed to be alive. So the loads end up within one of
//!   each other, and then nothing moves.
//!
//! The result for all sections together (a [`Distribution`]) is computed once, and again only when a record says something
//! new or a deadline passes: a renewal that comes in time changes nothing for any replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::handovers::{Handover, Handovers};
use super::record::{ReplicaRecord, SectionRecord};
use super::seen::Seen;
use super::shares::Shares;

/// A replica has this part of the lease's duration to acquire what is assigned to it before others do.
const ASSIGNED_PART: u32 = 5;
/// A replica that joined at most so long after a section's last renewal still sees it expire in time: it sees it expire by
/// that much later than the others.
const IN_TIME: Duration = Duration::from_secs(1);
/// The other replicas follow one after the other, this part of the duration apart.
const QUEUE_PART: u32 = 25;
/// The Lease of a replica is deleted when it has not changed for so many durations.
const ABANDONED_AFTER: u32 = 4;

/// Which replicas are alive with how many sections, which one should acquire each free section, and what this replica
/// should hand over.
#[derive(Clone, Debug)]
struct Distribution {
    /// The replicas that are alive, with how many sections each has.
    loads: BTreeMap<Arc<str>, usize>,
    /// Which replica should acquire each free section.
    assignments: BTreeMap<String, Arc<str>>,
    /// What this replica should hand over now.
    handover: Option<Handover>,
    /// Until when this holds, unless a record changes; `None`: for ever.
    valid_until: Option<Instant>,
}

/// What a replica has observed of an election, and what follows from it.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    sections: BTreeMap<String, Seen<SectionRecord>>,
    replicas: BTreeMap<Arc<str>, Seen<ReplicaRecord>>,
    /// From when on this replica may acquire sections: it has seen the records, its own among them.
    starts_at: Option<Instant>,
    /// What this replica has handed over.
    handovers: Handovers,
    /// What follows from all this, if it has been computed and may still hold.
    distribution: Option<Distribution>,
    /// How often it was computed.
    #[cfg(test)]
    pub(super) computations: u64,
}

/// What to do about a section that this replica does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Acquire it now.
    Acquire,
    /// Nothing before this moment, unless a record changes; `None`: nothing until then.
    Wait(Option<Instant>),
}

impl Plan {
    /// This replica may acquire sections from this moment on.
    pub(super) fn start_at(&mut self, moment: Instant) {
        self.starts_at = Some(moment);
        self.distribution = None;
    }

    /// Whether this replica has seen the records, its own among them.
    pub(super) fn has_joined(&self) -> bool {
        self.starts_at.is_some()
    }

    /// Whether the replica's record was seen.
    pub(super) fn knows(&self, identity: &str) -> bool {
        self.replicas.contains_key(identity)
    }

    /// The replicas whose records were seen.
    pub(super) fn identities(&self) -> impl Iterator<Item = &Arc<str>> {
        self.replicas.keys()
    }

    /// The record of a section.
    pub(super) fn section(&self, section: &str) -> Option<&SectionRecord> {
        self.sections.get(section).map(|seen| &seen.record)
    }

    /// Which replica holds a section, as far as this one can see.
    pub(super) fn holder(&self, section: &str, now: Instant) -> Option<&Arc<str>> {
        let seen = self.sections.get(section)?;
        if now < seen.free_at() { seen.record.holder.as_ref() } else { None }
    }

    /// How many replicas are alive.
    pub(super) fn replicas_alive(&mut self, me: &Arc<str>, now: Instant) -> usize {
        self.distribution(me, now).loads.len()
    }

    /// When the passing of time alone changes something; `None`: never.
    pub(super) fn valid_until(&mut self, me: &Arc<str>, now: Instant) -> Option<Instant> {
        self.distribution(me, now).valid_until
    }

    /// What follows from the records at this moment.
    fn distribution(&mut self, me: &Arc<str>, now: Instant) -> &Distribution {
        let kept = self.distribution.take().filter(|kept| kept.valid_until.is_none_or(|until| now < until));
        let distribution = kept.unwrap_or_else(|| {
            #[cfg(test)]
            {
                self.computations += 1;
            }
            self.compute(me, now)
        });
        self.distribution.insert(distribution)
    }

    fn compute(&self, me: &Arc<str>, now: Instant) -> Distribution {
        let loads = self.loads(now);
        let assignments = self.assignments(&loads, None, now);
        let handover = if assignments.is_empty() { self.find_handover(me, &loads, now) } else { None };
        Distribution { loads, assignments, handover, valid_until: self.next_deadline(now) }
    }

    /// That a kept distribution says what a new computation would.
    #[cfg(test)]
    pub(super) fn check_kept(&self, me: &Arc<str>, now: Instant) {
        let is_valid = |kept: &&Distribution| kept.valid_until.is_none_or(|until| now < until);
        if let Some(kept) = self.distribution.as_ref().filter(is_valid) {
            let computed = self.compute(me, now);
            assert_eq!(kept.loads, computed.loads);
            assert_eq!(kept.assignments, computed.assignments);
            assert_eq!(kept.handover, computed.handover);
        }
    }

    /// Which replica should acquire a section that `me` releases because it shuts down, with all its sections. The leaving
    /// replica names it in the Lease, so that all others agree on it, even one that has just started and still counts dead
    /// replicas as alive.
    pub(super) fn preferred_holder_on_shutdown(&self, me: &Arc<str>, section: &str, now: Instant) -> Option<Arc<str>> {
        let mut loads = self.loads(now);
        loads.remove(me);
        self.assignments(&loads, Some(me), now).remove(section)
    }

    /// Which replica should acquire each free section and each of those of a leaving replica: the preferred holder, else one
    /// that should have more.
    fn assignments(
        &self,
        loads: &BTreeMap<Arc<str>, usize>,
        leaving: Option<&Arc<str>>,
        now: Instant,
    ) -> BTreeMap<String, Arc<str>> {
        let sections = self.served_sections(loads);
        let is_free = |section: &str| self.holder(section, now).is_none_or(|holder| Some(holder) == leaving);
        let free = || sections.iter().enumerate().filter(|(_, section)| is_free(section));
        if free().next().is_none() {
            return BTreeMap::new();
        }
        let preferred =
            |section: &str| Some((section.to_owned(), self.available_preferred_holder(section, loads, now)?));
        let mut assignments: BTreeMap<String, Arc<str>> =
            free().filter_map(|(_, section)| preferred(section)).collect();
        let mut future_loads = loads.clone();
        for identity in assignments.values() {
            *future_loads.entry(Arc::clone(identity)).or_default() += 1;
        }
        let mut in_time = future_loads.clone();
        in_time.retain(|identity, _| !self.is_late(identity, now));
        let is_in_time = |holder: &Arc<str>| in_time.contains_key(holder);
        let is_open =
            |section: &str| !assignments.contains_key(section) && !self.holder(section, now).is_some_and(is_in_time);
        let open = sections.iter().filter(|section| is_open(section)).count();
        let mut shares = Shares::new(&in_time, open);
        for (position, section) in free() {
            if assignments.contains_key(*section) {
                continue;
            }
            let can_acquire =
                |identity: &Arc<str>| self.serves(identity, section) && !self.joined_too_late(identity, section, now);
            let least_loaded = || self.queue(section, &future_loads, now).first().map(|identity| Arc::clone(identity));
            if let Some(identity) = shares.assign(position, can_acquire).or_else(least_loaded) {
                *future_loads.entry(Arc::clone(&identity)).or_default() += 1;
                assignments.insert((*section).to_owned(), identity);
            }
        }
        assignments
    }

    /// The preferred holder of a section, if it can acquire it.
    fn available_preferred_holder(
        &self,
        section: &str,
        loads: &BTreeMap<Arc<str>, usize>,
        now: Instant,
    ) -> Option<Arc<str>> {
        let preferred = self.sections.get(section)?.record.preferred_holder.as_ref()?;
        let can_acquire =
            loads.contains_key(preferred) && self.serves(preferred, section) && !self.is_late(preferred, now);
        can_acquire.then(|| Arc::clone(preferred))
    }

    /// The next moment at which a section becomes free, a replica late or dead, or this replica may do more than before.
    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let free = self.sections.values().filter(|seen| seen.record.holder.is_some()).map(Seen::free_at);
        let replicas = self.replicas.values().flat_map(|seen| [seen.late_at(), seen.dead_at()]);
        let deadlines = free.chain(replicas).chain(self.handovers.deadlines()).chain(self.starts_at);
        deadlines.filter(|moment| *moment > now).min()
    }

    /// The replicas that are alive, with how many sections each has.
    fn loads(&self, now: Instant) -> BTreeMap<Arc<str>, usize> {
        let expired: Vec<&Seen<SectionRecord>> =
            self.sections.values().filter(|section| section.has_expired(now)).collect();
        let is_alive = |seen: &&Seen<ReplicaRecord>| {
            // A change of its own record after the section expired shows that it is alive.
            let lost_one = |section: &&Seen<SectionRecord>| {
                section.record.holder.as_ref() == Some(&seen.record.identity) && seen.changed < section.free_at()
            };
            now < seen.dead_at() && !expired.iter().any(lost_one)
        };
        let mut loads: BTreeMap<Arc<str>, usize> =
            self.replicas.values().filter(is_alive).map(|seen| (Arc::clone(&seen.record.identity), 0)).collect();
        for section in self.sections.keys() {
            if let Some(load) = self.holder(section, now).and_then(|holder| loads.get_mut(holder)) {
                *load += 1;
            }
        }
        loads
    }

    /// The sections that at least one of these replicas serves.
    fn served_sections(&self, loads: &BTreeMap<Arc<str>, usize>) -> BTreeSet<&str> {
        let alive = loads.keys().filter_map(|identity| self.replicas.get(identity));
        alive.flat_map(|seen| seen.record.sections.iter().map(String::as_str)).collect()
    }

    /// The replicas that serve a section: those that are in time first, and of those the least loaded first.
    fn queue<'a>(&self, section: &str, loads: &'a BTreeMap<Arc<str>, usize>, now: Instant) -> Vec<&'a Arc<str>> {
        let mut queue: Vec<_> = loads.iter().filter(|(identity, _)| self.serves(identity, section)).collect();
        let is_last = |identity| self.is_late(identity, now) || self.joined_too_late(identity, section, now);
        queue.sort_by_key(|(identity, load)| (is_last(identity), **load, *identity));
        queue.into_iter().map(|(identity, _)| identity).collect()
    }

    /// Whether a section has expired, and this replica joined so long after its last renewal that it sees it expire much
    /// later than the others.
    fn joined_too_late(&self, identity: &Arc<str>, section: &str, now: Instant) -> bool {
        let Some(expired) = self.sections.get(section).filter(|section| section.has_expired(now)) else { return false };
        let in_time = expired.changed + IN_TIME.min(expired.record.duration / ASSIGNED_PART);
        self.replicas.get(identity).is_some_and(|seen| seen.appeared > in_time)
    }

    /// Whether the section is one of those that the replica is configured with.
    fn serves(&self, identity: &Arc<str>, section: &str) -> bool {
        self.replicas.get(identity).is_some_and(|seen| seen.record.sections.contains(section))
    }

    fn is_confirmed(&self, identity: &Arc<str>) -> bool {
        self.replicas.get(identity).is_some_and(|seen| seen.is_confirmed)
    }

    fn is_late(&self, identity: &Arc<str>, now: Instant) -> bool {
        self.replicas.get(identity).is_none_or(|seen| now >= seen.late_at())
    }

    /// What to do about a section that `me` does not hold.
    pub(super) fn next(&mut self, me: &Arc<str>, section: &str, now: Instant) -> Next {
        let Some(starts_at) = self.starts_at else { return Next::Wait(None) };
        // The preferred holder does not have to wait until it knows all other replicas.
        let prefers_me = self.section(section).is_some_and(|record| record.preferred_holder.as_ref() == Some(me));
        if now < starts_at && !prefers_me {
            return Next::Wait(Some(starts_at));
        }
        let free_at = self.sections.get(section).map_or(starts_at, Seen::free_at);
        if now < free_at {
            return Next::Wait(Some(free_at));
        }
        let distribution = self.distribution(me, now);
        if !distribution.loads.contains_key(me) {
            // This replica was slow, or stopped for a while. While others count it as dead it acquires nothing.
            return Next::Wait(None);
        }
        if distribution.assignments.get(section) == Some(me) {
            return Next::Acquire;
        }
        let duration = self.section(section).map_or_else(|| self.duration_of(me), |record| record.duration);
        let loads = self.distribution.as_ref().map(|distribution| &distribution.loads);
        let queue = loads.map(|loads| self.queue(section, loads, now)).unwrap_or_default();
        let position = queue.iter().position(|identity| *identity == me);
        let position = position.and_then(|position| u32::try_from(position).ok()).unwrap_or_default();
        let turn = free_at.max(starts_at) + duration / ASSIGNED_PART + duration / QUEUE_PART * position;
        if now < turn { Next::Wait(Some(turn)) } else { Next::Acquire }
    }

    fn duration_of(&self, identity: &Arc<str>) -> Duration {
        self.replicas.get(identity).map(|seen| seen.record.duration).unwrap_or_default()
    }

    /// The section that `me` should hand over now.
    pub(super) fn section_to_hand_over(&mut self, me: &Arc<str>, now: Instant) -> Option<&str> {
        self.distribution(me, now).handover.as_ref().map(|handover| handover.section.as_str())
    }

    /// Starts to hand this section over, if `me` should do so now. The answer is given once.
    pub(super) fn start_handover(&mut self, me: &Arc<str>, section: &str, now: Instant) -> Option<Handover> {
        let handover = self.distribution(me, now).handover.clone().filter(|handover| handover.section == section)?;
        let before = self.section(section).cloned()?;
        self.handovers.start(handover.clone(), before, now);
        self.distribution = None;
        Some(handover)
    }

    fn find_handover(&self, me: &Arc<str>, loads: &BTreeMap<Arc<str>, usize>, now: Instant) -> Option<Handover> {
        self.starts_at.filter(|starts_at| now >= *starts_at)?;
        // Of equally loaded replicas the first by name: all replicas choose the same one.
        let (most_loaded, most) = loads.iter().max_by_key(|(identity, load)| (**load, std::cmp::Reverse(*identity)))?;
        if most_loaded != me || self.handovers.is_pending(now) {
            return None;
        }
        let mine: Vec<&String> = self.sections.keys().filter(|section| self.holder(section, now) == Some(me)).collect();
        mine.into_iter().rev().find_map(|section| {
            let queue = self.queue(section, loads, now);
            let can_receive = |identity: &Arc<str>| self.is_confirmed(identity) && !self.handovers.skips(identity, now);
            let receiver = queue.into_iter().find(|identity| can_receive(identity))?;
            let least = loads.get(receiver).copied()?;
            let is_fairer = least + 2 <= *most && !self.is_late(receiver, now);
            is_fairer.then(|| Handover { section: section.clone(), preferred_holder: Arc::clone(receiver) })
        })
    }

    /// A section's record is this now. Returns whether it says something new, which a renewal in time does not.
    pub(super) fn section_changed(&mut self, section: &str, record: SectionRecord, now: Instant) -> bool {
        self.handovers.section_changed(section, &record, now);
        let is_new = match self.sections.get_mut(section) {
            Some(seen) if seen.record.version == record.version => return false,
            Some(seen) => {
                let is_new = now >= seen.free_at() || !record.only_renews(&seen.record);
                seen.change(record, now);
                is_new
            }
            None => {
                self.sections.insert(section.to_owned(), Seen::new(record, now));
                true
            }
        };
        self.distribution.take_if(|_| is_new);
        is_new
    }

    /// A replica's record is this now. Returns whether it says something new, which a renewal in time does not.
    pub(super) fn replica_changed(&mut self, record: ReplicaRecord, now: Instant) -> bool {
        let is_new = match self.replicas.get_mut(&record.identity) {
            Some(seen) if seen.record.version == record.version => return false,
            Some(seen) => {
                let counted = self.distribution.as_ref().is_some_and(|kept| kept.loads.contains_key(&record.identity));
                let is_back = !counted || !seen.is_confirmed || now >= seen.late_at();
                let is_new = is_back || !record.only_renews(&seen.record);
                if now >= seen.dead_at() {
                    self.handovers.forget_declined(&record.identity);
                }
                seen.change(record, now);
                is_new
            }
            None => {
                self.replicas.insert(Arc::clone(&record.identity), Seen::new(record, now));
                true
            }
        };
        self.distribution.take_if(|_| is_new);
        is_new
    }

    /// A section's record was deleted.
    pub(super) fn section_deleted(&mut self, section: &str) {
        self.sections.remove(section);
        self.handovers.section_deleted(section);
        self.distribution = None;
    }

    /// A replica's record was deleted.
    pub(super) fn replica_deleted(&mut self, identity: &str) {
        self.replicas.remove(identity);
        self.handovers.replica_deleted(identity);
        self.distribution = None;
    }

    /// Changes may have been missed: every record counts as changed just now.
    pub(super) fn reset_ages(&mut self, now: Instant) {
        self.distribution = None;
        self.sections.values_mut().for_each(|section| section.reset_age(now));
        self.replicas.values_mut().for_each(|replica| replica.reset_age(now));
    }

    /// Replicas whose records have not changed for so long that they can be deleted.
    pub(super) fn abandoned(&self, now: Instant) -> Vec<ReplicaRecord> {
        let is_abandoned = |seen: &&Seen<ReplicaRecord>| now >= seen.changed + seen.record.duration * ABANDONED_AFTER;
        self.replicas.values().filter(is_abandoned).map(|seen| seen.record.clone()).collect()
    }
}
