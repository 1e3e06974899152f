//! What this replica has observed of the sections' Leases, and when it may acquire one.
//!
//! A section is free when its Lease names no holder, or has not changed for its own duration by this replica's clock. A
//! replica acquires a free section after a delay that grows with the share of the sections that it holds already
//! ([`Observed::delay`]), so replicas that start together, and those that outlive another one, share sections without a word
//! between them. Nothing moves that is held.
//!
//! While the watch of the Leases is broken nothing is decided, and when it is live again every record counts as changed just
//! now: a section is only acquired from a replica that did not renew for a whole duration during which this one was watching.
//! So an API server that was unreachable leaves every section with its holder.
//!
//! [`Observed`] is pure. It is behind a lock, and not owned by an actor, because an elector must decide on the newest records. The lock is
//! held for one synchronous call and never over an `await`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::record::{self, SectionRecord};
use crate::actor::{BoxError, Scope};
use crate::cluster::{Follower, ObjectKey, Watch, WatchSpec};
use crate::config::SectionName;

/// Who holds all sections waits for this part of a lease's duration, but not longer than [`LONGEST_DELAY`]; who holds none for nothing.
const LONGEST_DELAY_PART: u32 = 5;
/// It only has to be longer than what a write takes until other replicas see it.
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// Replicas that hold as many sections are at most this part of a lease's duration apart.
const LARGEST_SPREAD_PART: u32 = 60;
/// How often the view checks whether the watch is live.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);
/// If it has not been so for this part of a lease's duration, in which any holder would have renewed, a list is asked for.
const BLIND_PART: u32 = 2;

/// The Leases of one election, as this replica sees them.
pub(super) struct LeaseView {
    state: Mutex<LeaseRecords>,
    watch: Arc<Watch>,
    lease_duration: Duration,
}

struct LeaseRecords {
    observed: Observed,
    /// Woken when the record of their section says something new.
    electors: BTreeMap<String, watch::Sender<()>>,
}

/// What has been observed, and what follows from it.
struct Observed {
    me: Arc<str>,
    /// Of the Leases that this replica writes.
    lease_duration: Duration,
    /// The sections that this replica is configured with.
    configured: BTreeSet<String>,
    sections: BTreeMap<String, Seen>,
    /// Sections that this replica holds or is about to acquire.
    mine: BTreeSet<String>,
    /// Since when the watch has been live; none while it is not.
    live_since: Option<Instant>,
}

/// A section's record, and when this replica last saw it change, by its own clock.
struct Seen {
    /// None: the Lease was deleted.
    record: Option<SectionRecord>,
    changed: Instant,
    /// How long the section may run in another replica without a further change. Whoever ran it before the Lease was deleted, or the holder
    /// struck out, still does so for as long.
    held_for: Duration,
}

impl Seen {
    /// When the section is free, unless the record changes first.
    fn free_at(&self) -> Instant {
        self.changed + self.held_for
    }

    fn holder(&self) -> Option<&Arc<str>> {
        self.record.as_ref()?.holder.as_ref()
    }
}

/// What to do about a section that this replica does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Acquire,
    /// Ask again at this time, or when the elector is woken.
    Wait(Option<Instant>),
}

impl Observed {
    fn new(me: Arc<str>, lease_duration: Duration, sections: &[SectionName]) -> Self {
        Self {
            me,
            lease_duration,
            configured: sections.iter().map(ToString::to_string).collect(),
            sections: BTreeMap::new(),
            mine: BTreeSet::new(),
            live_since: None,
        }
    }

    /// A section's record is this now; none: it was deleted. Returns whether that is more than a renewal.
    fn changed(&mut self, section: &str, record: Option<SectionRecord>, now: Instant) -> bool {
        if !self.configured.contains(section) {
            return false;
        }
        let before = self.sections.get(section);
        let record_before = before.and_then(|seen| seen.record.as_ref());
        if record_before.map(|record| &record.version) == record.as_ref().map(|record| &record.version) {
            return false;
        }
        let is_new = match (&record, record_before) {
            (Some(record), Some(before)) => !record.only_renews(before),
            _ => true,
        };
        let held_for = match &record {
            Some(record) => record.held_for(),
            None => before.map(|seen| seen.held_for).unwrap_or_default(),
        };
        self.sections.insert(section.to_owned(), Seen { record, changed: now, held_for });
        is_new
    }

    /// The watch is live or not. When it is live again, every record counts as changed just now. Returns whether it is.
    fn set_live(&mut self, is_live: bool, now: Instant) -> bool {
        let is_again = is_live && self.live_since.is_none();
        if is_again {
            self.sections.values_mut().for_each(|seen| seen.changed = now);
        }
        self.live_since = is_live.then(|| self.live_since.unwrap_or(now));
        is_again
    }

    /// What to do about a section that this replica does not hold. `own` is when this process acquired it, as the record
    /// says it: a record that is still in our name may be acquired at once.
    fn next(&mut self, section: &str, own: &[Arc<str>], now: Instant) -> Next {
        let record = self.sections.get(section).and_then(|seen| seen.record.as_ref());
        let is_ours = record.is_some_and(|record| {
            record.holder.as_ref() == Some(&self.me)
                && record.acquired.as_ref().is_some_and(|acquired| own.contains(acquired))
        });
        let turn = match self.live_since {
            _ if is_ours => now,
            None => return Next::Wait(None),
            Some(live_since) => {
                let free_at = self.sections.get(section).map_or(live_since, Seen::free_at);
                if now < free_at { free_at } else { free_at + self.delay(section) }
            }
        };
        if now < turn {
            return Next::Wait(Some(turn));
        }
        self.mine.insert(section.to_owned());
        Next::Acquire
    }

    /// How long after a section has become free this replica acquires it: the longest delay times the share that it holds.
    fn delay(&self, section: &str) -> Duration {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let longest = (self.lease_duration / LONGEST_DELAY_PART).min(LONGEST_DELAY);
        let step = longest / number(self.configured.len()).max(1);
        // Replicas that hold as many each begin with another section.
        let mut hasher = DefaultHasher::new();
        (&self.me, section).hash(&mut hasher);
        let place = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
        step * number(self.mine.len()) + step.min(self.lease_duration / LARGEST_SPREAD_PART) * place / 1_000
    }

    fn holder(&self, section: &str, now: Instant) -> Option<&Arc<str>> {
        let seen = self.sections.get(section)?;
        seen.holder().filter(|_| now < seen.free_at())
    }
}

impl LeaseView {
    /// A view that follows the watch.
    pub(super) fn new(
        me: Arc<str>,
        lease_duration: Duration,
        sections: &[SectionName],
        watch: &Arc<Watch>,
    ) -> Arc<Self> {
        let observed = Observed::new(me, lease_duration, sections);
        let state = Mutex::new(LeaseRecords { observed, electors: BTreeMap::new() });
        Arc::new(Self { state, watch: Arc::clone(watch), lease_duration })
    }

    /// What the view requires of the watch.
    pub(super) fn follows(self: &Arc<Self>) -> WatchSpec {
        WatchSpec::followed_by(Arc::new(LeaseFollower(Arc::clone(self))))
    }

    /// The body of the actor: notices that the watch breaks, and that it is live again.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut blind_since = None;
        loop {
            self.check_liveness(&mut self.state.lock());
            if self.is_live() {
                blind_since = None;
            } else if blind_since.get_or_insert_with(Instant::now).elapsed() >= self.lease_duration / BLIND_PART {
                // Where nobody renews anything, only a list shows that a resumed watch goes on.
                self.watch.become_live();
                blind_since = None;
            }
            tokio::select! {
                () = scope.draining() => return Ok(()),
                () = tokio::time::sleep(LIVENESS_INTERVAL) => {}
            }
        }
    }

    fn check_liveness(&self, state: &mut LeaseRecords) {
        if state.observed.set_live(self.watch.is_live(), Instant::now()) {
            state.electors.values().for_each(|elector| elector.send_replace(()));
        }
    }

    /// The section's elector, which does not hold it, waits for its turn: it is woken when the record says something new.
    pub(super) fn waits(&self, section: &str) -> watch::Receiver<()> {
        let mut state = self.state.lock();
        state.observed.mine.remove(section);
        state.electors.entry(section.to_owned()).or_default().subscribe()
    }

    /// What to do about a section that this replica does not hold ([`Observed::next`]), and its record. After
    /// [`Next::Acquire`] the section counts as held here, until [`Self::not_acquired`] or [`Self::waits`].
    pub(super) fn next(&self, section: &str, own: &[Arc<str>]) -> (Next, Option<SectionRecord>) {
        let mut state = self.state.lock();
        self.check_liveness(&mut state);
        let next = state.observed.next(section, own, Instant::now());
        (next, state.observed.sections.get(section).and_then(|seen| seen.record.clone()))
    }

    /// The attempt to acquire a section has failed.
    pub(super) fn not_acquired(&self, section: &str) {
        self.state.lock().observed.mine.remove(section);
    }

    /// Which replica holds a section, as far as this one can see.
    pub(super) fn holder(&self, section: &str) -> Option<Arc<str>> {
        self.state.lock().observed.holder(section, Instant::now()).cloned()
    }

    /// Whether this replica sees the Leases.
    pub(super) fn is_live(&self) -> bool {
        self.state.lock().observed.live_since.is_some()
    }

    /// Takes in what the watch's cache holds under this key now.
    fn observe(&self, key: &ObjectKey, state: &mut LeaseRecords) {
        let (section, record) = match self.watch.store().get(key).as_deref().map(record::read) {
            Some(Some((section, record))) => (section, Some(record)),
            Some(None) => return,
            None => {
                let Some(section) = key.name.strip_prefix(record::PREFIX) else { return };
                (section.to_owned(), None)
            }
        };
        self.check_liveness(state);
        let is_new = state.observed.changed(&section, record, Instant::now());
        if is_new && let Some(elector) = state.electors.get(&section) {
            elector.send_replace(());
        }
    }
}

/// Passes what the watch of the Leases shows to the view.
struct LeaseFollower(Arc<LeaseView>);

impl Follower for LeaseFollower {
    fn wants(&self, _: &ObjectKey) -> bool {
        true
    }

    fn changed<'a>(&'a self, _: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Self(view) = self;
            view.observe(key, &mut view.state.lock());
        })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Self(view) = self;
            let mut state = view.state.lock();
            watch.store().keys().iter().chain(&vanished).for_each(|key| view.observe(key, &mut state));
            // Changes may have been missed.
            state.observed.live_since = None;
            view.check_liveness(&mut state);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);
    const RENEW: Duration = Duration::from_secs(5);
    const TICK: Duration = Duration::from_millis(1);

    /// Replicas that see each other's writes after some time, and a write fails if the record has changed since it was seen.
    struct World {
        now: Instant,
        names: Vec<String>,
        records: BTreeMap<String, SectionRecord>,
        replicas: Vec<Observed>,
        /// What each replica has not seen yet, and when it will.
        unseen: Vec<(usize, Instant, String)>,
        version: u64,
        conflicts: usize,
        /// Until when a replica does not try again after a conflict, by replica and section.
        paused: BTreeMap<(usize, usize), Instant>,
    }

    impl World {
        fn new(sections: usize) -> Self {
            let names = (0..sections).map(|number| format!("s{number:04}")).collect();
            let now = Instant::now();
            let (records, replicas, unseen) = (BTreeMap::new(), Vec::new(), Vec::new());
            Self { now, names, records, replicas, unseen, version: 0, conflicts: 0, paused: BTreeMap::new() }
        }

        fn join(&mut self, name: &str) {
            let sections: Vec<SectionName> = self.names.iter().map(|name| name.parse().unwrap()).collect();
            let mut replica = Observed::new(name.into(), LEASE, &sections);
            for (section, record) in &self.records {
                replica.changed(section, Some(record.clone()), self.now);
            }
            replica.set_live(true, self.now);
            self.replicas.push(replica);
        }

        fn write(&mut self, section: &str, holder: Option<Arc<str>>) {
            self.version += 1;
            let acquired = holder.as_ref().map(|_| "then".into());
            let version = self.version.to_string().into();
            let record = SectionRecord { holder, duration: LEASE, transitions: 0, acquired, version };
            self.records.insert(section.to_owned(), record);
            let seen_at = self.now + Duration::from_millis(20);
            self.unseen.extend((0..self.replicas.len()).map(|replica| (replica, seen_at, section.to_owned())));
        }

        /// Replicas renew what they hold, and acquire what they may.
        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            let mut renewal = self.now + RENEW;
            let names = self.names.clone();
            while self.now < end {
                self.now += TICK;
                for (replica, _, section) in self.unseen.extract_if(.., |(_, seen_at, _)| *seen_at <= self.now) {
                    if let Some(replica) = self.replicas.get_mut(replica) {
                        replica.changed(&section, self.records.get(&section).cloned(), self.now);
                    }
                }
                if self.now >= renewal {
                    renewal += RENEW;
                    let living: BTreeSet<Arc<str>> = self.replicas.iter().map(|replica| replica.me.clone()).collect();
                    let held = self.records.iter().filter_map(|(name, record)| Some((name, record.holder.as_ref()?)));
                    let held: Vec<(String, Arc<str>)> = held
                        .filter(|(_, holder)| living.contains(*holder))
                        .map(|(name, holder)| (name.clone(), Arc::clone(holder)))
                        .collect();
                    for (name, holder) in held {
                        self.write(&name, Some(holder));
                    }
                }
                for number in 0..self.replicas.len() {
                    for (place, name) in names.iter().enumerate() {
                        let replica = &mut self.replicas[number];
                        let me = Arc::clone(&replica.me);
                        let is_held = |record: &SectionRecord| record.holder.as_ref() == Some(&me);
                        if self.records.get(name).is_some_and(is_held)
                            || self.paused.get(&(number, place)).is_some_and(|until| self.now < *until)
                            || replica.next(name, &[], self.now) != Next::Acquire
                        {
                            continue;
                        }
                        let version = |record: &SectionRecord| Arc::clone(&record.version);
                        let seen = replica.sections.get(name).and_then(|seen| seen.record.as_ref()).map(version);
                        if seen == self.records.get(name).map(version) {
                            self.write(name, Some(me));
                        } else {
                            replica.mine.remove(name);
                            self.conflicts += 1;
                            self.paused.insert((number, place), self.now + Duration::from_millis(100));
                        }
                    }
                }
            }
        }

        fn shares(&self) -> BTreeMap<&str, usize> {
            let mut shares = BTreeMap::new();
            for holder in self.records.values().filter_map(|record| record.holder.as_deref()) {
                *shares.entry(holder).or_default() += 1;
            }
            shares
        }
    }

    #[test]
    fn a_replica_that_is_alone_has_all_sections_within_a_fifth_of_a_lease_and_the_first_at_once() {
        for sections in [1, 6, 100] {
            let mut world = World::new(sections);
            world.join("a");
            world.run(LEASE / LARGEST_SPREAD_PART);
            assert!(world.shares()["a"] >= 1);
            world.run(LEASE / LONGEST_DELAY_PART);
            assert_eq!((world.shares()["a"], world.conflicts), (sections, 0));
        }
    }

    #[test]
    fn replicas_that_start_together_or_outlive_another_share_about_evenly() {
        let mut world = World::new(60);
        for name in ["a", "b", "c"] {
            world.join(name);
        }
        world.run(LEASE);
        let about = |share: usize, expected: usize| share.abs_diff(expected) <= expected / 5;
        let shares = world.shares();
        assert!(shares.len() == 3 && shares.values().all(|share| about(*share, 20)), "{shares:?}");
        // One joins that has nothing, and one dies between two renewals: the other one takes nearly all of what becomes free.
        world.join("d");
        world.run(RENEW + RENEW / 2);
        assert!(world.unseen.is_empty());
        world.replicas.remove(0);
        let before = world.now;
        world.run(LEASE + LEASE / LONGEST_DELAY_PART + RENEW);
        let shares = world.shares();
        assert!(!shares.contains_key("a"), "{shares:?} after {:?}", world.now - before);
        assert!(shares["d"] >= 14, "{shares:?}");
        assert!(world.conflicts <= 60, "{}", world.conflicts);
    }

    #[test]
    fn while_the_watch_is_broken_and_for_a_lease_after_nothing_is_acquired_from_another_replica() {
        let mut world = World::new(1);
        world.join("a");
        world.run(LEASE);
        world.join("b");
        let (name, now) = (world.names[0].clone(), world.now);
        let b = &mut world.replicas[1];
        b.set_live(false, now);
        assert_eq!(b.next(&name, &[], now + LEASE * 3), Next::Wait(None));
        assert!(b.set_live(true, now + LEASE * 3));
        assert_eq!(b.next(&name, &[], now + LEASE * 3), Next::Wait(Some(now + LEASE * 4)));
        assert_eq!(b.next(&name, &[], now + LEASE * 4 + LEASE / LONGEST_DELAY_PART), Next::Acquire);
    }

    #[test]
    fn what_this_process_acquired_is_its_own_also_when_an_earlier_process_had_the_same_name() {
        let now = Instant::now();
        let mut me = Observed::new("me".into(), LEASE, &["s".parse().unwrap()]);
        me.set_live(true, now);
        let record = |acquired: &str| SectionRecord {
            holder: Some("me".into()),
            duration: LEASE,
            transitions: 0,
            acquired: Some(acquired.into()),
            version: acquired.into(),
        };
        me.changed("s", Some(record("before")), now);
        assert_eq!(me.next("s", &["now".into()], now), Next::Wait(Some(now + LEASE)));
        me.changed("s", Some(record("now")), now);
        assert_eq!(me.next("s", &["now".into()], now), Next::Acquire);
    }

    #[test]
    fn a_renewal_says_nothing_new_and_whatever_else_changes_does() {
        let now = Instant::now();
        let mut me = Observed::new("me".into(), LEASE, &["s".parse().unwrap()]);
        let record = SectionRecord {
            holder: Some("them".into()),
            duration: LEASE,
            transitions: 0,
            acquired: Some("then".into()),
            version: "1".into(),
        };
        assert!(me.changed("s", Some(record.clone()), now));
        assert!(!me.changed("s", Some(record.clone()), now + RENEW), "the same version");
        assert_eq!(me.next("s", &[], now), Next::Wait(None), "the watch is not live yet");
        let renewed = SectionRecord { version: "2".into(), ..record.clone() };
        assert!(!me.changed("s", Some(renewed), now + RENEW));
        assert_eq!(me.sections["s"].free_at(), now + RENEW + LEASE);
        let released = SectionRecord { version: "3".into(), holder: None, acquired: None, ..record };
        assert!(me.changed("s", Some(released), now + RENEW));
        assert_eq!(me.holder("s", now + RENEW), None);
        assert!(me.changed("s", None, now + RENEW));
    }

    #[test]
    fn what_was_held_stays_so_for_a_lease_when_somebody_deletes_the_record_or_strikes_out_its_holder() {
        let now = Instant::now();
        let held = SectionRecord {
            holder: Some("them".into()),
            duration: LEASE * 2,
            transitions: 0,
            acquired: Some("then".into()),
            version: "1".into(),
        };
        let struck_out = SectionRecord { holder: None, version: "2".into(), ..held.clone() };
        let released = SectionRecord { acquired: None, ..struck_out.clone() };
        for (after, free_after) in [(None, LEASE * 2), (Some(struck_out), LEASE * 2), (Some(released), Duration::ZERO)]
        {
            let mut me = Observed::new("me".into(), LEASE, &["s".parse().unwrap()]);
            me.set_live(true, now);
            me.changed("s", Some(held.clone()), now);
            let is_deleted = after.is_none();
            assert!(me.changed("s", after, now + RENEW));
            assert_eq!(me.sections["s"].free_at(), now + RENEW + free_after);
            // Deleted once more, and nothing changes any more.
            assert_eq!(me.changed("s", None, now + RENEW * 2), !is_deleted);
        }
        let mut me = Observed::new("me".into(), LEASE, &["s".parse().unwrap()]);
        assert!(!me.changed("another daemon's", Some(held), now));
        assert!(me.sections.is_empty());
    }
}
