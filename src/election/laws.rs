//! The laws of sharing out, on simulated replicas: each has a view of its own, which lags behind by as much as it likes,
//! and acts on it through writes that only go through where nobody has written since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::plan::{Next, View};
use super::record::{ReplicaRecord, SeatRecord};

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const SECTIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// One change of a record, as a watch tells it; `None`: it is gone.
#[derive(Clone)]
enum Change {
    Seat(&'static str, SeatRecord),
    Replica(Arc<str>, Option<ReplicaRecord>),
}

struct Replica {
    identity: Arc<str>,
    view: View,
    /// How many changes it has seen.
    seen: usize,
    /// When the last renewal of each section that it holds was sent.
    held: BTreeMap<&'static str, Instant>,
    renewed: Option<Instant>,
    frozen_until: Option<Instant>,
}

struct World {
    now: Instant,
    random: StdRng,
    /// The furthest that a view lags behind, in changes.
    lag: usize,
    history: Vec<Change>,
    seats: BTreeMap<&'static str, SeatRecord>,
    replicas: Vec<Replica>,
    started: usize,
    /// How often a section was taken.
    taken: usize,
    diary: Vec<String>,
}

#[derive(Clone, Debug)]
enum Event {
    Join,
    Kill(usize),
    Leave(usize),
    Freeze(usize, u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Join),
        1 => any::<usize>().prop_map(Event::Kill),
        1 => any::<usize>().prop_map(Event::Leave),
        1 => (any::<usize>(), 1..400_u32).prop_map(|(index, ticks)| Event::Freeze(index, ticks)),
    ]
}

impl Replica {
    /// What was worked out earlier, and is kept as long as nothing makes a difference, is what would be worked out now.
    fn check_deal(&self, now: Instant) {
        let me = &self.identity;
        let (mut kept, mut anew) = (self.view.clone(), self.view.clone());
        anew.forget_deal();
        assert_eq!(kept.living(me, now), anew.living(me, now));
        assert_eq!(kept.offered(me, now), anew.offered(me, now));
        for section in SECTIONS {
            assert_eq!(kept.next(me, section, now), anew.next(me, section, now), "{section}");
        }
    }
}

impl World {
    fn new(seed: u64, lag: usize) -> Self {
        Self {
            now: Instant::now(),
            random: StdRng::seed_from_u64(seed),
            lag,
            history: Vec::new(),
            seats: BTreeMap::new(),
            replicas: Vec::new(),
            started: 0,
            taken: 0,
            diary: Vec::new(),
        }
    }

    fn version(&self) -> Arc<str> {
        self.history.len().to_string().into()
    }

    fn write_seat(&mut self, section: &'static str, holder: Option<&Arc<str>>) {
        let before = self.seats.get(section);
        let record = SeatRecord {
            holder: holder.cloned(),
            duration: LEASE,
            transitions: before.map_or(0, |before| before.transitions + 1),
            acquired: None,
            uid: section.into(),
            version: self.version(),
        };
        self.seats.insert(section, record.clone());
        self.history.push(Change::Seat(section, record));
    }

    fn write_replica(&mut self, identity: &Arc<str>, lives: bool) {
        let record = lives.then(|| ReplicaRecord {
            identity: Arc::clone(identity),
            duration: LEASE,
            sections: SECTIONS.iter().map(|section| (*section).to_owned()).collect(),
            version: self.version(),
        });
        self.history.push(Change::Replica(Arc::clone(identity), record));
    }

    fn happen(&mut self, event: &Event) {
        self.diary.push(format!("{event:?}"));
        let count = self.replicas.len();
        match event {
            Event::Join => {
                let identity: Arc<str> = format!("r{}", self.started).into();
                self.started += 1;
                self.replicas.push(Replica {
                    identity,
                    view: View::default(),
                    seen: 0,
                    held: BTreeMap::new(),
                    renewed: None,
                    frozen_until: None,
                });
            }
            Event::Kill(index) if count > 1 => drop(self.replicas.remove(index % count)),
            Event::Leave(index) if count > 1 => {
                let leaving = self.replicas.remove(index % count);
                self.write_replica(&leaving.identity, false);
                for section in leaving.held.keys() {
                    // Given up only where it still is its own.
                    if self.seats[section].holder.as_ref() == Some(&leaving.identity) {
                        self.write_seat(section, None);
                    }
                }
            }
            Event::Freeze(index, ticks) if count > 0 => {
                self.replicas[index % count].frozen_until = Some(self.now + TICK * *ticks);
            }
            Event::Kill(_) | Event::Leave(_) | Event::Freeze(..) => {}
        }
    }

    /// One replica sees some of what it has not seen, and acts.
    fn act(&mut self, index: usize) {
        let now = self.now;
        let due = self.replicas[index].renewed.is_none_or(|renewed| now >= renewed + RENEW);
        let identity = Arc::clone(&self.replicas[index].identity);
        // Who was frozen for too long has lost what it held.
        self.replicas[index].held.retain(|_, sent| now < *sent + LEASE);
        if due {
            self.replicas[index].renewed = Some(now);
            self.write_replica(&identity, true);
            for section in self.replicas[index].held.keys().copied().collect::<Vec<_>>() {
                if self.seats[section].holder.as_ref() == Some(&identity) {
                    self.write_seat(section, Some(&identity));
                    self.replicas[index].held.insert(section, now);
                } else {
                    self.replicas[index].held.remove(section);
                }
            }
        }
        let lag = self.random.random_range(0..=self.lag);
        let replica = &mut self.replicas[index];
        let until = self.history.len().saturating_sub(lag).max(replica.seen);
        for change in &self.history[replica.seen..until] {
            match change.clone() {
                Change::Seat(section, record) => drop(replica.view.see_seat(section, record, now)),
                Change::Replica(_, Some(record)) => drop(replica.view.see_replica(record, now)),
                Change::Replica(identity, None) => replica.view.lose_replica(&identity),
            }
        }
        replica.seen = until;
        if replica.view.since().is_none() && replica.view.knows(&identity) {
            replica.view.begin(now + SETTLE);
        }
        self.replicas[index].check_deal(now);
        for section in SECTIONS {
            let replica = &mut self.replicas[index];
            if replica.held.contains_key(section) {
                if let Some(offer) = replica.view.gives_up(&identity, section, now) {
                    self.diary.push(format!("{identity} gives {section} up for {}", offer.heir));
                    replica.held.remove(section);
                    self.write_seat(section, None);
                }
            } else if replica.view.next(&identity, section, now) == Next::Take {
                let known = replica.view.seat(section).map(|record| record.version.clone());
                if known == self.seats.get(section).map(|record| record.version.clone()) {
                    self.diary.push(format!("{identity} takes {section}"));
                    replica.held.insert(section, now);
                    self.taken += 1;
                    self.write_seat(section, Some(&identity));
                }
            }
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.random.random_range(0..=index));
        }
        for index in order {
            if self.replicas[index].frozen_until.is_none_or(|until| self.now >= until) {
                self.act(index);
            }
        }
        for section in SECTIONS {
            let holds = |replica: &&Replica| replica.held.get(section).is_some_and(|sent| self.now < *sent + LEASE);
            let holders: Vec<&Arc<str>> = self.replicas.iter().filter(holds).map(|replica| &replica.identity).collect();
            assert!(holders.len() <= 1, "{section} is held by {holders:?}: {:#?}", self.diary);
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick();
        }
    }

    fn loads(&self) -> Vec<usize> {
        self.replicas.iter().map(|replica| replica.held.len()).collect()
    }

    fn check_settled(&mut self) {
        // The longest freeze, then what it takes to find out, and the offers that nobody took.
        self.run(TICK * 400 + LEASE * 16);
        let (loads, diary) = (self.loads(), &self.diary);
        assert_eq!(loads.iter().sum::<usize>(), SECTIONS.len(), "{loads:?}: {diary:#?}");
        let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
        assert!(most - least <= 1, "{loads:?}: {diary:#?}");
        let taken = self.taken;
        self.run(LEASE * 12);
        assert_eq!(self.taken, taken, "it does not come to rest: {:#?}", self.diary);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_joins_leaves_or_freezes_loads_end_within_one_and_then_nothing_moves(
        seed in any::<u64>(),
        lag in 0..6_usize,
        events in prop::collection::vec((event(), 0..200_u32), 1..12),
    ) {
        let mut world = World::new(seed, lag);
        world.happen(&Event::Join);
        for (event, ticks) in &events {
            world.happen(event);
            world.run(TICK * *ticks);
        }
        world.check_settled();
        // Each event moves each section at most once, and once back.
        let most = SECTIONS.len() * (1 + 2 * events.len());
        prop_assert!(world.taken <= most, "{} moves for {} events: {:#?}", world.taken, events.len(), world.diary);
    }
}

#[test]
fn three_that_start_together_share_out_without_a_single_move_and_a_fourth_gets_its_share_once() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        (0..3).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        assert_eq!((world.loads(), world.taken), (vec![2, 2, 2], 6), "{:#?}", world.diary);
        world.happen(&Event::Join);
        world.run(LEASE * 4);
        let mut loads = world.loads();
        assert_eq!((loads.pop(), world.taken), (Some(1), 7), "{:#?}", world.diary);
        loads.sort_unstable();
        assert_eq!(loads, [1, 2, 2]);
    }
}

#[test]
fn what_one_replica_has_alone_is_dealt_out_one_by_one_to_those_who_come() {
    let mut world = World::new(7, 2);
    world.happen(&Event::Join);
    world.run(LEASE);
    assert_eq!(world.loads(), [6]);
    (0..2).for_each(|_| world.happen(&Event::Join));
    world.run(LEASE * 2);
    assert_eq!((world.loads(), world.taken), (vec![2, 2, 2], 10), "{:#?}", world.diary);
}

#[test]
fn the_sections_of_one_that_was_killed_go_to_the_others_as_soon_as_they_run_out() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        (0..3).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        world.happen(&Event::Kill(1));
        world.run(LEASE + Duration::from_secs(2));
        assert_eq!((world.loads(), world.taken), (vec![3, 3], 8), "{:#?}", world.diary);
    }
}

#[test]
fn what_is_given_up_by_one_that_leaves_is_taken_within_a_second_and_nobody_takes_too_much() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        (0..4).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        world.happen(&Event::Leave(2));
        let taken = world.taken;
        world.run(Duration::from_secs(1));
        let held: BTreeSet<&str> = world.replicas.iter().flat_map(|replica| replica.held.keys().copied()).collect();
        assert_eq!(held.len(), SECTIONS.len(), "{:#?}", world.diary);
        world.run(LEASE * 2);
        assert_eq!(world.loads(), [2, 2, 2], "{:#?}", world.diary);
        assert!(world.taken - taken <= 2, "{:#?}", world.diary);
    }
}
