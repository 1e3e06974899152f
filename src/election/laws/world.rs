//! Simulated replicas: each has a plan of its own, whose view lags behind by a random number of changes, and acts on it
//! through writes that succeed only if the record has not changed since.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::election::plan::{Next, Plan};
use crate::election::record::{ReplicaRecord, SectionRecord};

pub(super) const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
pub(super) const START_DELAY: Duration = Duration::from_secs(1);
pub(super) const TICK: Duration = Duration::from_millis(100);
pub(super) const SECTIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// One change of a record, as a watch shows it; `None`: it was deleted.
#[derive(Clone)]
enum Change {
    Section(&'static str, SectionRecord),
    Replica(Arc<str>, Option<ReplicaRecord>),
}

pub(super) struct Replica {
    pub(super) identity: Arc<str>,
    plan: Plan,
    /// How many changes it has seen.
    seen: usize,
    /// When the last renewal of each section that it holds was sent.
    pub(super) held: BTreeMap<&'static str, Instant>,
    renewed: Option<Instant>,
    frozen_until: Option<Instant>,
    /// It is alive and acquires no section.
    pub(super) acquires_nothing: bool,
}

pub(super) struct World {
    pub(super) now: Instant,
    random: StdRng,
    /// The largest number of changes that a view lags behind.
    lag: usize,
    history: Vec<Change>,
    pub(super) sections: BTreeMap<&'static str, SectionRecord>,
    pub(super) replicas: Vec<Replica>,
    started: usize,
    /// How often a section was acquired.
    pub(super) acquisitions: usize,
    pub(super) log: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Join,
    Kill(usize),
    Leave(usize),
    Freeze(usize, u32),
}

impl World {
    pub(super) fn new(seed: u64, lag: usize) -> Self {
        Self {
            now: Instant::now(),
            random: StdRng::seed_from_u64(seed),
            lag,
            history: Vec::new(),
            sections: BTreeMap::new(),
            replicas: Vec::new(),
            started: 0,
            acquisitions: 0,
            log: Vec::new(),
        }
    }

    fn version(&self) -> Arc<str> {
        self.history.len().to_string().into()
    }

    fn write_section(&mut self, section: &'static str, holder: Option<&Arc<str>>, preferred: Option<&Arc<str>>) {
        let before = self.sections.get(section);
        let is_acquired = |before: &SectionRecord| holder.is_some() && before.holder.as_ref() != holder;
        let record = SectionRecord {
            holder: holder.cloned(),
            preferred_holder: preferred.cloned(),
            duration: LEASE,
            transitions: before.map_or(0, |before| before.transitions + i32::from(is_acquired(before))),
            acquired: None,
            uid: section.into(),
            version: self.version(),
        };
        self.sections.insert(section, record.clone());
        self.history.push(Change::Section(section, record));
    }

    fn write_replica(&mut self, identity: &Arc<str>, is_alive: bool) {
        let record = is_alive.then(|| ReplicaRecord {
            identity: Arc::clone(identity),
            duration: LEASE,
            sections: SECTIONS.iter().map(|section| (*section).to_owned()).collect(),
            version: self.version(),
        });
        self.history.push(Change::Replica(Arc::clone(identity), record));
    }

    pub(super) fn happen(&mut self, event: &Event) {
        self.log.push(format!("{event:?}"));
        let count = self.replicas.len();
        match event {
            Event::Join => {
                let identity: Arc<str> = format!("r{}", self.started).into();
                self.started += 1;
                self.replicas.push(Replica {
                    identity,
                    plan: Plan::default(),
                    seen: 0,
                    held: BTreeMap::new(),
                    renewed: None,
                    frozen_until: None,
                    acquires_nothing: false,
                });
            }
            Event::Kill(index) if count > 1 => drop(self.replicas.remove(index % count)),
            Event::Leave(index) if count > 1 => {
                let leaving = self.replicas.remove(index % count);
                self.write_replica(&leaving.identity, false);
                for section in leaving.held.keys() {
                    // Released only if the replica still holds it.
                    if self.sections[section].holder.as_ref() == Some(&leaving.identity) {
                        let preferred = leaving.plan.preferred_holder_on_shutdown(&leaving.identity, section, self.now);
                        self.write_section(section, None, preferred.as_ref());
                    }
                }
            }
            Event::Freeze(index, ticks) if count > 0 => {
                self.replicas[index % count].frozen_until = Some(self.now + TICK * *ticks);
            }
            Event::Kill(_) | Event::Leave(_) | Event::Freeze(..) => {}
        }
    }

    /// One replica sees some of the changes that it has not seen, and acts.
    fn act(&mut self, index: usize) {
        let now = self.now;
        let due = self.replicas[index].renewed.is_none_or(|renewed| now >= renewed + RENEW);
        let identity = Arc::clone(&self.replicas[index].identity);
        // A replica that was frozen for too long has lost its sections.
        self.replicas[index].held.retain(|_, sent| now < *sent + LEASE);
        if due {
            self.replicas[index].renewed = Some(now);
            self.write_replica(&identity, true);
            for section in self.replicas[index].held.keys().copied().collect::<Vec<_>>() {
                if self.sections[section].holder.as_ref() == Some(&identity) {
                    self.write_section(section, Some(&identity), None);
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
                Change::Section(section, record) => drop(replica.plan.section_changed(section, record, now)),
                Change::Replica(_, Some(record)) => drop(replica.plan.replica_changed(record, now)),
                Change::Replica(identity, None) => replica.plan.replica_deleted(&identity),
            }
        }
        replica.seen = until;
        if is_list {
            replica.plan.reset_ages(now);
        }
        if !replica.plan.has_joined() && replica.plan.knows(&identity) {
            replica.plan.start_at(now + START_DELAY);
        }
        self.replicas[index].plan.check_kept(&identity, now);
        for section in SECTIONS {
            let replica = &mut self.replicas[index];
            if replica.held.contains_key(section) {
                if let Some(handover) = replica.plan.start_handover(&identity, section, now) {
                    self.log.push(format!("{identity} hands {section} over to {}", handover.preferred_holder));
                    replica.held.remove(section);
                    self.write_section(section, None, Some(&handover.preferred_holder));
                }
            } else if replica.plan.next(&identity, section, now) == Next::Acquire && !replica.acquires_nothing {
                let known = replica.plan.section(section).map(|record| record.version.clone());
                if known == self.sections.get(section).map(|record| record.version.clone()) {
                    self.log.push(format!("{identity} acquires {section}"));
                    replica.held.insert(section, now);
                    self.acquisitions += 1;
                    self.write_section(section, Some(&identity), None);
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
            assert!(holders.len() <= 1, "{section} is held by {holders:?}: {:#?}", self.log);
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
