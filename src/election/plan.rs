//! Who takes which section, and who gives one up: pure, from the records that this replica has seen and from when, by its
//! own clock, it saw them change.
//!
//! - A section is free when its record names nobody, or has not changed for its own duration.
//! - A replica lives while its record changes. One whose section ran out is taken for dead until it says something, and one
//!   that is late with its renewal comes after all others: the records of a process that was killed run out one after the
//!   other, and it must not count as the least loaded in between. So does, for a section that ran out, who came too late to
//!   see it do so.
//! - Every free section has an heir. What was given up for somebody is that one's; the others are dealt out so that all end
//!   with as many (`shares`). All replicas deal alike, so that each takes its own at once and they don't meet; should an
//!   heir not take what is its own, others do after a while, the less loaded first.
//! - One section at a time is given up, while none is free: by the most loaded replica, if it has at least two more than
//!   the least loaded, and for that one, if it was heard of. So loads end within one of each other, and then nothing moves.
//!
//! What follows for all sections together (a [`Deal`]) is worked out once, and again only when a record says something
//! new or time makes a difference: a renewal that comes in time changes nothing for anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::offers::{Offer, Offers};
use super::record::{ReplicaRecord, SeatRecord};
use super::seen::Seen;
use super::shares::Shares;

/// An heir has this part of the lease's duration to take what is its own before others do.
const HEIRS_PART: u32 = 5;
/// Others come one after the other, this part of the duration apart.
const QUEUE_PART: u32 = 25;
/// A replica whose record has not changed for so many durations is forgotten.
const FORGOTTEN_AFTER: u32 = 4;

/// Who lives with how much, who gets what is free, and what this replica is to give up.
#[derive(Clone, Debug)]
pub(super) struct Deal {
    /// The replicas that live, with how many sections each has.
    loads: BTreeMap<Arc<str>, usize>,
    /// Who is to take each free section.
    heirs: BTreeMap<String, Arc<str>>,
    /// What is to be given up, and for whom.
    offer: Option<Offer>,
    /// Time alone changes nothing of this before; `None`: never.
    until: Option<Instant>,
}

/// What a replica has seen of an election.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    seats: BTreeMap<String, Seen<SeatRecord>>,
    replicas: BTreeMap<Arc<str>, Seen<ReplicaRecord>>,
    /// Since when this replica may take part: it has seen the records, and its own is among them.
    since: Option<Instant>,
    /// What this replica has given up for others.
    offers: Offers,
    /// What follows from all this, where it has been worked out and still holds.
    deal: Option<Deal>,
    /// How often it was worked out.
    #[cfg(test)]
    pub(super) deals: u64,
}

/// What to do about a section that this replica does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Take it, now.
    Take,
    /// Nothing before this moment, unless a record changes; `None`: nothing.
    Look(Option<Instant>),
}

impl View {
    /// This replica takes part from then on.
    pub(super) fn begin(&mut self, since: Instant) {
        self.since = Some(since);
        self.deal = None;
    }

    /// Since when this replica takes part.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
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
    pub(super) fn seat(&self, section: &str) -> Option<&SeatRecord> {
        self.seats.get(section).map(|seat| &seat.record)
    }

    /// Who holds a section, as far as this replica can see.
    pub(super) fn holder(&self, section: &str, now: Instant) -> Option<&Arc<str>> {
        let seat = self.seats.get(section)?;
        if now < seat.free_at() { seat.record.holder.as_ref() } else { None }
    }

    /// What was worked out is to be worked out again.
    #[cfg(test)]
    pub(super) fn forget_deal(&mut self) {
        self.deal = None;
    }

    /// How many replicas live.
    pub(super) fn living(&mut self, me: &Arc<str>, now: Instant) -> usize {
        self.dealt(me, now).loads.len()
    }

    /// When time alone makes a difference; `None`: never.
    pub(super) fn settled_until(&mut self, me: &Arc<str>, now: Instant) -> Option<Instant> {
        self.dealt(me, now).until
    }

    /// What follows from what was seen, at this moment.
    fn dealt(&mut self, me: &Arc<str>, now: Instant) -> &Deal {
        let kept = self.deal.take().filter(|deal| deal.until.is_none_or(|until| now < until));
        let deal = kept.unwrap_or_else(|| {
            #[cfg(test)]
            {
                self.deals += 1;
            }
            self.deal(me, now)
        });
        self.deal.insert(deal)
    }

    /// The same, worked out anew.
    fn deal(&self, me: &Arc<str>, now: Instant) -> Deal {
        let loads = self.loads(now);
        let heirs = self.heirs(&loads, now);
        let offer = if heirs.is_empty() { self.find_offer(me, &loads, now) } else { None };
        Deal { loads, heirs, offer, until: self.next_difference(now) }
    }

    /// Who is to take each of the free sections: who it was given up for, else who is to have more.
    fn heirs(&self, loads: &BTreeMap<Arc<str>, usize>, now: Instant) -> BTreeMap<String, Arc<str>> {
        let sections = self.sections(loads);
        let free = || sections.iter().enumerate().filter(|(_, section)| self.holder(section, now).is_none());
        let named = |section: &str| Some((section.to_owned(), self.named_heir(section, loads, now)?));
        let mut heirs: BTreeMap<String, Arc<str>> = free().filter_map(|(_, section)| named(section)).collect();
        let mut dealt = loads.clone();
        for heir in heirs.values() {
            *dealt.entry(Arc::clone(heir)).or_default() += 1;
        }
        let mut in_time = dealt.clone();
        in_time.retain(|identity, _| !self.is_late(identity, now));
        let is_in_time = |holder: &Arc<str>| in_time.contains_key(holder);
        let is_open =
            |section: &str| !heirs.contains_key(section) && !self.holder(section, now).is_some_and(is_in_time);
        let open = sections.iter().filter(|section| is_open(section)).count();
        let mut shares = Shares::new(&in_time, open);
        for (place, section) in free() {
            if heirs.contains_key(*section) {
                continue;
            }
            let can_take =
                |identity: &Arc<str>| self.runs_for(identity, section) && !self.came_late(identity, section, now);
            let least_loaded = || self.queue(section, &dealt, now).first().map(|heir| Arc::clone(heir));
            if let Some(heir) = shares.take(place, can_take).or_else(least_loaded) {
                *dealt.entry(Arc::clone(&heir)).or_default() += 1;
                heirs.insert((*section).to_owned(), heir);
            }
        }
        heirs
    }

    /// Who a free section was given up for, where that one can take it.
    fn named_heir(&self, section: &str, loads: &BTreeMap<Arc<str>, usize>, now: Instant) -> Option<Arc<str>> {
        let heir = self.seats.get(section)?.record.heir.as_ref()?;
        let can_take = loads.contains_key(heir) && self.runs_for(heir, section) && !self.is_late(heir, now);
        can_take.then(|| Arc::clone(heir))
    }

    /// The next moment at which a section is free, a replica late or dead, or this one may do more than before.
    fn next_difference(&self, now: Instant) -> Option<Instant> {
        let free = self.seats.values().filter(|seat| seat.record.holder.is_some()).map(Seen::free_at);
        let replicas = self.replicas.values().flat_map(|seen| [seen.late_at(), seen.dead_at()]);
        free.chain(replicas).chain(self.offers.differences()).chain(self.since).filter(|moment| *moment > now).min()
    }

    /// The replicas that live, with how many sections each has.
    fn loads(&self, now: Instant) -> BTreeMap<Arc<str>, usize> {
        let ran_out = |seat: &&Seen<SeatRecord>| seat.record.holder.is_some() && now >= seat.free_at();
        let overdue: Vec<&Seen<SeatRecord>> = self.seats.values().filter(ran_out).collect();
        let lives = |seen: &&Seen<ReplicaRecord>| {
            // What it has said since its section ran out counts.
            let lost_one = |seat: &&Seen<SeatRecord>| {
                seat.record.holder.as_ref() == Some(&seen.record.identity) && seen.changed < seat.free_at()
            };
            now < seen.dead_at() && !overdue.iter().any(lost_one)
        };
        let mut loads: BTreeMap<Arc<str>, usize> =
            self.replicas.values().filter(lives).map(|seen| (Arc::clone(&seen.record.identity), 0)).collect();
        for section in self.seats.keys() {
            if let Some(load) = self.holder(section, now).and_then(|holder| loads.get_mut(holder)) {
                *load += 1;
            }
        }
        loads
    }

    /// The sections that living replicas run for.
    fn sections(&self, loads: &BTreeMap<Arc<str>, usize>) -> BTreeSet<&str> {
        let living = loads.keys().filter_map(|identity| self.replicas.get(identity));
        living.flat_map(|seen| seen.record.sections.iter().map(String::as_str)).collect()
    }

    /// Those of the living that run for a section: who is in time first, and of those the least loaded.
    fn queue<'a>(&self, section: &str, loads: &'a BTreeMap<Arc<str>, usize>, now: Instant) -> Vec<&'a Arc<str>> {
        let mut queue: Vec<_> = loads.iter().filter(|(identity, _)| self.runs_for(identity, section)).collect();
        let is_last = |identity| self.is_late(identity, now) || self.came_late(identity, section, now);
        queue.sort_by_key(|(identity, load)| (is_last(identity), **load, *identity));
        queue.into_iter().map(|(identity, _)| identity).collect()
    }

    /// Whether a section ran out that this replica has not listened to for long enough to take it in time.
    fn came_late(&self, identity: &Arc<str>, section: &str, now: Instant) -> bool {
        let ran_out = |seat: &&Seen<SeatRecord>| seat.record.holder.is_some() && now >= seat.free_at();
        let in_time =
            self.seats.get(section).filter(ran_out).map(|seat| seat.changed + seat.record.duration / HEIRS_PART);
        in_time.is_some_and(|in_time| self.replicas.get(identity).is_some_and(|seen| seen.first > in_time))
    }

    fn runs_for(&self, identity: &Arc<str>, section: &str) -> bool {
        self.replicas.get(identity).is_some_and(|seen| seen.record.sections.contains(section))
    }

    fn is_heard(&self, identity: &Arc<str>) -> bool {
        self.replicas.get(identity).is_some_and(|seen| seen.is_heard)
    }

    fn is_late(&self, identity: &Arc<str>, now: Instant) -> bool {
        self.replicas.get(identity).is_none_or(|seen| now >= seen.late_at())
    }

    /// What to do about a section that `me` does not hold.
    pub(super) fn next(&mut self, me: &Arc<str>, section: &str, now: Instant) -> Next {
        let Some(since) = self.since else { return Next::Look(None) };
        // What is given up for somebody does not have to wait until that one has seen who else there is.
        let is_mine = self.seat(section).is_some_and(|seat| seat.heir.as_ref() == Some(me));
        if now < since && !is_mine {
            return Next::Look(Some(since));
        }
        let free_at = self.seats.get(section).map_or(since, Seen::free_at);
        if now < free_at {
            return Next::Look(Some(free_at));
        }
        let deal = self.dealt(me, now);
        if !deal.loads.contains_key(me) {
            // Slow, or stopped for a while: whoever looks dead to others does not take anything.
            return Next::Look(None);
        }
        if deal.heirs.get(section) == Some(me) {
            return Next::Take;
        }
        let seat = self.seats.get(section);
        let duration = seat.map_or_else(|| self.duration_of(me), |seat| seat.record.duration);
        let queue = self.deal.as_ref().map(|deal| self.queue(section, &deal.loads, now)).unwrap_or_default();
        let place = queue.iter().position(|identity| *identity == me);
        let place = place.and_then(|place| u32::try_from(place).ok()).unwrap_or_default();
        let turn = free_at.max(since) + duration / HEIRS_PART + duration / QUEUE_PART * place;
        if now < turn { Next::Look(Some(turn)) } else { Next::Take }
    }

    fn duration_of(&self, identity: &Arc<str>) -> Duration {
        self.replicas.get(identity).map(|seen| seen.record.duration).unwrap_or_default()
    }

    /// The section that `me` is to give up now.
    pub(super) fn offered(&mut self, me: &Arc<str>, now: Instant) -> Option<&str> {
        self.dealt(me, now).offer.as_ref().map(|offer| offer.section.as_str())
    }

    /// For whom `me` is to give the section up, now. A yes is given once.
    pub(super) fn gives_up(&mut self, me: &Arc<str>, section: &str, now: Instant) -> Option<Offer> {
        let offer = self.dealt(me, now).offer.clone().filter(|offer| offer.section == section)?;
        let before = self.seat(section).cloned()?;
        self.offers.make(offer.clone(), before, now);
        self.deal = None;
        Some(offer)
    }

    fn find_offer(&self, me: &Arc<str>, loads: &BTreeMap<Arc<str>, usize>, now: Instant) -> Option<Offer> {
        self.since.filter(|since| now >= *since)?;
        // Of equals the first: all replicas see the same one.
        let (giver, most) = loads.iter().max_by_key(|(identity, load)| (**load, std::cmp::Reverse(*identity)))?;
        if giver != me || self.offers.is_under_way(now) {
            return None;
        }
        let mine: Vec<&String> = self.seats.keys().filter(|section| self.holder(section, now) == Some(me)).collect();
        mine.into_iter().rev().find_map(|section| {
            let queue = self.queue(section, loads, now);
            let heir = queue.into_iter().find(|heir| self.is_heard(heir) && !self.offers.passes_over(heir, now))?;
            let least = loads.get(heir).copied()?;
            let is_fairer = least + 2 <= *most && !self.is_late(heir, now);
            is_fairer.then(|| Offer { section: section.clone(), heir: Arc::clone(heir) })
        })
    }

    /// A section's record, as it is now; returns whether that decides anything: a renewal in time does not.
    pub(super) fn see_seat(&mut self, section: &str, record: SeatRecord, now: Instant) -> bool {
        self.offers.see_seat(section, &record, now);
        let is_news = match self.seats.get_mut(section) {
            Some(seen) if seen.record.version == record.version => return false,
            Some(seen) => {
                let is_news = now >= seen.free_at() || !seen.record.says_the_same(&record);
                seen.change(record, now);
                is_news
            }
            None => {
                self.seats.insert(section.to_owned(), Seen::new(record, now));
                true
            }
        };
        self.deal.take_if(|_| is_news);
        is_news
    }

    /// A replica's record, as it is now; returns whether that decides anything: that it lives on does not.
    pub(super) fn see_replica(&mut self, record: ReplicaRecord, now: Instant) -> bool {
        let is_news = match self.replicas.get_mut(&record.identity) {
            Some(seen) if seen.record.version == record.version => return false,
            Some(seen) => {
                let counted = self.deal.as_ref().is_some_and(|deal| deal.loads.contains_key(&record.identity));
                let is_revived = !counted || !seen.is_heard || now >= seen.late_at();
                let is_news = is_revived || !seen.record.says_the_same(&record);
                if now >= seen.dead_at() {
                    self.offers.forgive(&record.identity);
                }
                seen.change(record, now);
                is_news
            }
            None => {
                self.replicas.insert(Arc::clone(&record.identity), Seen::new(record, now));
                true
            }
        };
        self.deal.take_if(|_| is_news);
        is_news
    }

    /// A section's record is gone.
    pub(super) fn lose_seat(&mut self, section: &str) {
        self.seats.remove(section);
        self.offers.lose_seat(section);
        self.deal = None;
    }

    /// A replica's record is gone.
    pub(super) fn lose_replica(&mut self, identity: &str) {
        self.replicas.remove(identity);
        self.offers.lose_replica(identity);
        self.deal = None;
    }

    /// Changes may have gone unseen: every record counts as just seen.
    pub(super) fn look_anew(&mut self, now: Instant) {
        self.deal = None;
        self.seats.values_mut().for_each(|seat| seat.look_anew(now));
        self.replicas.values_mut().for_each(|replica| replica.look_anew(now));
    }

    /// Replicas that have been silent for so long that their records are only in the way.
    pub(super) fn forgotten(&self, now: Instant) -> Vec<ReplicaRecord> {
        let is_forgotten = |seen: &&Seen<ReplicaRecord>| now >= seen.changed + seen.record.duration * FORGOTTEN_AFTER;
        self.replicas.values().filter(is_forgotten).map(|seen| seen.record.clone()).collect()
    }
}
