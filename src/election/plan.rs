//! Who takes which section, and who gives one up: pure, from the records that this replica has seen and from when, by its
//! own clock, it saw them change.
//!
//! - A section is free when its record names nobody, or has not changed for its own duration.
//! - A replica lives while its record changes. One whose section ran out is taken for dead until it says something, and one that is late
//!   with its renewal comes after all others: the records of a process that was killed run out one after the other, and it
//!   must not count as the least loaded in between.
//! - Every free section has an heir: free sections are dealt out in order of their names, each to the living replica with
//!   the fewest. All replicas deal alike, so that each takes its own at once and they don't meet; should an heir not take
//!   what is its own, others do after a while, the less loaded first.
//! - One section at a time is given up, while none is free: by the most loaded replica, if it has at least two more than
//!   the least loaded. So loads end within one of each other, and then nothing moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::record::{ReplicaRecord, SeatRecord};

/// An heir has this part of the lease's duration to take what is its own before others do.
const HEIRS_PART: u32 = 5;
/// Others come one after the other, this part of the duration apart.
const QUEUE_PART: u32 = 25;
/// A replica whose record is older than this part of its duration is late.
const LATE_AFTER: (u32, u32) = (2, 3);
/// A replica whose record has not changed for so many durations is forgotten.
const FORGOTTEN_AFTER: u32 = 4;
/// After an offer that nobody took, the next is made after so many durations: a replica that lives and takes nothing must
/// not keep a section going round.
const NEXT_OFFER_AFTER: u32 = 10;

/// A record, and when it was seen to change.
#[derive(Clone, Debug)]
pub(super) struct Seen<T> {
    pub(super) record: T,
    pub(super) changed: Instant,
}

/// A section that was given up for somebody.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) section: String,
    pub(super) heir: Arc<str>,
    pub(super) made: Instant,
}

/// What a replica has seen of an election.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) seats: BTreeMap<String, Seen<SeatRecord>>,
    pub(super) replicas: BTreeMap<Arc<str>, Seen<ReplicaRecord>>,
    /// Since when this replica may take part: it has seen the records, and its own is among them.
    pub(super) since: Option<Instant>,
    /// The last section that this replica gave up for another.
    pub(super) offer: Option<Offer>,
}

/// What to do about a section that this replica does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Take it, now.
    Take,
    /// Nothing before this moment, unless a record changes; `None`: nothing.
    Look(Option<Instant>),
}

/// Takes a record in; one that is not a new version has not changed.
fn see<K: Ord, T>(seen: &mut BTreeMap<K, Seen<T>>, key: K, record: T, now: Instant, version: fn(&T) -> &Arc<str>) {
    match seen.get_mut(&key) {
        Some(held) if version(&held.record) == version(&record) => {}
        Some(held) => *held = Seen { record, changed: now },
        None => {
            seen.insert(key, Seen { record, changed: now });
        }
    }
}

impl Seen<SeatRecord> {
    /// When it is free if nothing changes.
    fn free_at(&self) -> Instant {
        if self.record.holder.is_some() { self.changed + self.record.duration } else { self.changed }
    }
}

impl View {
    /// Who holds a section, as far as this replica can see.
    pub(super) fn holder(&self, section: &str, now: Instant) -> Option<&Arc<str>> {
        let seat = self.seats.get(section)?;
        if now < seat.free_at() { seat.record.holder.as_ref() } else { None }
    }

    /// The replicas that live, with how many sections each has.
    pub(super) fn loads(&self, now: Instant) -> BTreeMap<&Arc<str>, usize> {
        let ran_out = |seat: &&Seen<SeatRecord>| seat.record.holder.is_some() && now >= seat.free_at();
        let overdue: Vec<&Seen<SeatRecord>> = self.seats.values().filter(ran_out).collect();
        let lives = |seen: &&Seen<ReplicaRecord>| {
            // What it has said since its section ran out counts.
            let lost_one = |seat: &&Seen<SeatRecord>| {
                seat.record.holder.as_ref() == Some(&seen.record.identity) && seen.changed < seat.free_at()
            };
            now < seen.changed + seen.record.duration && !overdue.iter().any(lost_one)
        };
        let mut loads: BTreeMap<&Arc<str>, usize> =
            self.replicas.values().filter(lives).map(|seen| (&seen.record.identity, 0)).collect();
        for section in self.seats.keys() {
            if let Some(load) = self.holder(section, now).and_then(|holder| loads.get_mut(holder)) {
                *load += 1;
            }
        }
        loads
    }

    /// The sections that living replicas run for and nobody holds.
    fn free(&self, loads: &BTreeMap<&Arc<str>, usize>, now: Instant) -> BTreeSet<&str> {
        let candidates = loads.keys().filter_map(|identity| self.replicas.get(*identity));
        candidates
            .flat_map(|seen| seen.record.sections.iter().map(String::as_str))
            .filter(|section| self.holder(section, now).is_none())
            .collect()
    }

    /// Those of the living that run for a section: who is not late first, and of those the least loaded.
    fn queue<'a>(&self, section: &str, loads: &BTreeMap<&'a Arc<str>, usize>, now: Instant) -> Vec<&'a Arc<str>> {
        let runs_for = |identity: &Arc<str>| {
            self.replicas.get(identity).is_some_and(|seen| seen.record.sections.contains(section))
        };
        let mut queue: Vec<_> = loads.iter().filter(|(identity, _)| runs_for(identity)).collect();
        queue.sort_by_key(|(identity, load)| (self.is_late(identity, now), **load, **identity));
        queue.into_iter().map(|(identity, _)| *identity).collect()
    }

    fn is_late(&self, identity: &Arc<str>, now: Instant) -> bool {
        let (part, whole) = LATE_AFTER;
        self.replicas.get(identity).is_none_or(|seen| now >= seen.changed + seen.record.duration * part / whole)
    }

    /// Who is to take a free section.
    fn heir(&self, section: &str, now: Instant) -> Option<Arc<str>> {
        let mut loads = self.loads(now);
        for free in self.free(&loads, now) {
            let heir = self.queue(free, &loads, now).first().copied();
            if free == section {
                return heir.cloned();
            }
            if let Some(load) = heir.and_then(|heir| loads.get_mut(heir)) {
                *load += 1;
            }
        }
        None
    }

    /// What to do about a section that `me` does not hold.
    pub(super) fn next(&self, me: &Arc<str>, section: &str, now: Instant) -> Next {
        let Some(since) = self.since else { return Next::Look(None) };
        if now < since {
            return Next::Look(Some(since));
        }
        let seat = self.seats.get(section);
        let free_at = seat.map_or(since, Seen::free_at);
        if now < free_at {
            return Next::Look(Some(free_at));
        }
        let loads = self.loads(now);
        if !loads.contains_key(me) {
            // Slow, or stopped for a while: whoever looks dead to others does not take anything.
            return Next::Look(None);
        }
        if self.heir(section, now).as_ref() == Some(me) {
            return Next::Take;
        }
        let duration = seat.map_or_else(|| self.duration_of(me), |seat| seat.record.duration);
        let place = self.queue(section, &loads, now).iter().position(|identity| *identity == me);
        let place = place.and_then(|place| u32::try_from(place).ok()).unwrap_or_default();
        let turn = free_at.max(since) + duration / HEIRS_PART + duration / QUEUE_PART * place;
        if now < turn { Next::Look(Some(turn)) } else { Next::Take }
    }

    fn duration_of(&self, identity: &Arc<str>) -> Duration {
        self.replicas.get(identity).map(|seen| seen.record.duration).unwrap_or_default()
    }

    /// For whom `me` is to give one of its sections up, and which.
    pub(super) fn gives_up(&self, me: &Arc<str>, now: Instant) -> Option<Offer> {
        self.since.filter(|since| now >= *since)?;
        let loads = self.loads(now);
        if !self.free(&loads, now).is_empty() {
            return None;
        }
        // Of equals the first: all replicas see the same one.
        let (giver, most) = loads.iter().max_by_key(|(identity, load)| (**load, std::cmp::Reverse(**identity)))?;
        if *giver != me || !self.may_offer(me, now) {
            return None;
        }
        let mine: Vec<&String> = self.seats.keys().filter(|section| self.holder(section, now) == Some(me)).collect();
        mine.into_iter().rev().find_map(|section| {
            let heir = self.queue(section, &loads, now).first().copied()?;
            let least = loads.get(heir).copied()?;
            (least + 2 <= *most && !self.is_late(heir, now)).then(|| Offer {
                section: section.clone(),
                heir: Arc::clone(heir),
                made: now,
            })
        })
    }

    /// The last offer was taken, or was long ago.
    fn may_offer(&self, me: &Arc<str>, now: Instant) -> bool {
        self.offer.as_ref().is_none_or(|offer| now >= offer.made + self.duration_of(me) * NEXT_OFFER_AFTER)
    }

    /// A section's record, as it is now.
    pub(super) fn see_seat(&mut self, section: &str, record: SeatRecord, now: Instant) {
        if self
            .offer
            .as_ref()
            .is_some_and(|offer| offer.section == section && record.holder.as_ref() == Some(&offer.heir))
        {
            self.offer = None;
        }
        see(&mut self.seats, section.to_owned(), record, now, |record| &record.version);
    }

    /// A replica's record, as it is now.
    pub(super) fn see_replica(&mut self, record: ReplicaRecord, now: Instant) {
        see(&mut self.replicas, Arc::clone(&record.identity), record, now, |record| &record.version);
    }

    /// A replica's record is gone.
    pub(super) fn lose_replica(&mut self, identity: &str) {
        self.replicas.remove(identity);
        self.offer.take_if(|offer| *offer.heir == *identity);
    }

    /// Changes may have gone unseen: every record counts as just seen.
    pub(super) fn look_anew(&mut self, now: Instant) {
        self.seats.values_mut().for_each(|seat| seat.changed = now);
        self.replicas.values_mut().for_each(|replica| replica.changed = now);
    }

    /// Replicas that have been silent for so long that their records are only in the way.
    pub(super) fn forgotten(&self, now: Instant) -> Vec<ReplicaRecord> {
        let is_forgotten = |seen: &&Seen<ReplicaRecord>| now >= seen.changed + seen.record.duration * FORGOTTEN_AFTER;
        self.replicas.values().filter(is_forgotten).map(|seen| seen.record.clone()).collect()
    }
}
