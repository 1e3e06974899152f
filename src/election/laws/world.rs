//! Simulated replicas: each has a view of its own, which lags behind by as much as it likes, and acts on it through writes
//! that only go through where nobody has written since.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::election::plan::{Next, View};
use crate::election::record::{ReplicaRecord, SeatRecord};

pub(super) const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
pub(super) const SETTLE: Duration = Duration::from_secs(1);
pub(super) const TICK: Duration = Duration::from_millis(100);
pub(super) const SECTIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// One change of a record, as a watch tells it; `None`: it is gone.
#[derive(Clone)]
enum Change {
    Seat(&'static str, SeatRecord),
    Replica(Arc<str>, Option<ReplicaRecord>),
}

pub(super) struct Replica {
    pub(super) identity: Arc<str>,
    view: View,
    /// How many changes it has seen.
    seen: usize,
    /// When the last renewal of each section that it holds was sent.
    pub(super) held: BTreeMap<&'static str, Instant>,
    renewed: Option<Instant>,
    frozen_until: Option<Instant>,
    /// It lives, and leaves everything to others.
    pub(super) takes_nothing: bool,
}

pub(super) struct World {
    pub(super) now: Instant,
    random: StdRng,
    /// The furthest that a view lags behind, in changes.
    lag: usize,
    history: Vec<Change>,
    pub(super) seats: BTreeMap<&'static str, SeatRecord>,
    pub(super) replicas: Vec<Replica>,
    started: usize,
    /// How often a section was taken.
    pub(super) taken: usize,
    pub(super) diary: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Join,
    Kill(usize),
    Leave(usize),
    Freeze(usize, u32),
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
    pub(super) fn new(seed: u64, lag: usize) -> Self {
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

    fn write_seat(&mut self, section: &'static str, holder: Option<&Arc<str>>, heir: Option<&Arc<str>>) {
        let before = self.seats.get(section);
        let is_taken = |before: &SeatRecord| holder.is_some() && before.holder.as_ref() != holder;
        let record = SeatRecord {
            holder: holder.cloned(),
            heir: heir.cloned(),
            duration: LEASE,
            transitions: before.map_or(0, |before| before.transitions + i32::from(is_taken(before))),
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

    pub(super) fn happen(&mut self, event: &Event) {
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
                    takes_nothing: false,
                });
            }
            Event::Kill(index) if count > 1 => drop(self.replicas.remove(index % count)),
            Event::Leave(index) if count > 1 => {
                let leaving = self.replicas.remove(index % count);
                self.write_replica(&leaving.identity, false);
                for section in leaving.held.keys() {
                    // Given up only where it still is its own.
                    if self.seats[section].holder.as_ref() == Some(&leaving.identity) {
                        self.write_seat(section, None, None);
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
                    self.write_seat(section, Some(&identity), None);
                    self.replicas[index].held.insert(section, now);
                } else {
                    self.replicas[index].held.remove(section);
                }
            }
        }
        let lag = self.random.random_range(0..=self.lag);
        let replica = &mut self.replicas[index];
        let until = self.history.len().saturating_sub(lag).max(replica.seen);
        let is_list = replica.seen == 0;
        for change in &self.history[replica.seen..until] {
            match change.clone() {
                Change::Seat(section, record) => drop(replica.view.see_seat(section, record, now)),
                Change::Replica(_, Some(record)) => drop(replica.view.see_replica(record, now)),
                Change::Replica(identity, None) => replica.view.lose_replica(&identity),
            }
        }
        replica.seen = until;
        if is_list {
            replica.view.look_anew(now);
        }
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
                    self.write_seat(section, None, Some(&offer.heir));
                }
            } else if replica.view.next(&identity, section, now) == Next::Take && !replica.takes_nothing {
                let known = replica.view.seat(section).map(|record| record.version.clone());
                if known == self.seats.get(section).map(|record| record.version.clone()) {
                    self.diary.push(format!("{identity} takes {section}"));
                    replica.held.insert(section, now);
                    self.taken += 1;
                    self.write_seat(section, Some(&identity), None);
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

    pub(super) fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    pub(super) fn run_until(&mut self, end: Instant) {
        while self.now < end {
            self.tick();
        }
    }

    pub(super) fn loads(&self) -> Vec<usize> {
        self.replicas.iter().map(|replica| replica.held.len()).collect()
    }
}
