//! The roll: what this replica has seen of all Leases of its election, for whoever decides.
//!
//! Written by the watch of the Leases, read by the electors. While the watch is broken nothing is decided, and when it is
//! whole again every record counts as just seen: a section is taken from a replica that is silent for the whole of a
//! duration in which we listened. So an API server that was away leaves sections with those who had them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::plan::{Next, Offer, View};
use super::record::{self, Record, ReplicaRecord, SeatRecord};
use crate::cluster::{Follower, ObjectKey, Watch};

/// The roll of one election.
pub(super) struct Roll {
    me: Arc<str>,
    /// How long a replica that just came looks on.
    settle: Duration,
    view: Mutex<View>,
    /// Counts what was seen.
    seen: watch::Sender<u64>,
    watch: Arc<Watch>,
    /// Something may have gone unseen.
    is_deaf: AtomicBool,
}

/// While nothing is heard, it is looked again after this.
const DEAF_LOOK: Duration = Duration::from_millis(100);

impl Roll {
    /// A roll that follows the watch.
    pub(super) fn new(me: Arc<str>, settle: Duration, watch: &Arc<Watch>) -> Arc<Self> {
        let roll = Arc::new(Self {
            me,
            settle,
            view: Mutex::default(),
            seen: watch::Sender::new(0),
            watch: Arc::clone(watch),
            is_deaf: AtomicBool::new(true),
        });
        watch.follow(Arc::new(Listening(Arc::clone(&roll))));
        roll
    }

    /// Whether what happens is heard; after a time in which it was not, everything counts as just seen.
    fn listens(&self, view: &mut View) -> bool {
        if !self.watch.is_live() {
            self.is_deaf.store(true, Ordering::Relaxed);
        } else if self.is_deaf.swap(false, Ordering::Relaxed) {
            view.look_anew(Instant::now());
        }
        !self.is_deaf.load(Ordering::Relaxed)
    }

    /// Follows what is seen.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    /// What to do about a section that this replica does not hold, and its record. `own` is when this process took it, in
    /// the words of the record: what still is in our name we may take at once.
    pub(super) fn next(&self, section: &str, own: &[Arc<str>]) -> (Next, Option<SeatRecord>) {
        let mut view = self.view.lock();
        let listens = self.listens(&mut view);
        let record = view.seats.get(section).map(|seat| seat.record.clone());
        let is_ours = record.as_ref().is_some_and(|record| {
            record.holder.as_ref() == Some(&self.me)
                && record.acquired.as_ref().is_some_and(|acquired| own.contains(acquired))
        });
        let next = if is_ours {
            Next::Take
        } else if listens {
            view.next(&self.me, section, Instant::now())
        } else {
            Next::Look(Some(Instant::now() + DEAF_LOOK))
        };
        (next, record)
    }

    /// For whom this replica is to give the section up, now. A yes is given once.
    pub(super) fn gives_up(&self, section: &str) -> Option<Offer> {
        let mut view = self.view.lock();
        if !self.listens(&mut view) {
            return None;
        }
        let offer = view.gives_up(&self.me, Instant::now()).filter(|offer| offer.section == section)?;
        view.offer = Some(offer.clone());
        Some(offer)
    }

    /// Who holds a section, as far as can be seen.
    pub(super) fn holder(&self, section: &str) -> Option<Arc<str>> {
        self.view.lock().holder(section, Instant::now()).cloned()
    }

    /// Whether this replica has seen the records, and its own among them.
    pub(super) fn takes_part(&self) -> bool {
        self.view.lock().since.is_some()
    }

    /// The living replicas.
    pub(super) fn replicas(&self) -> usize {
        self.view.lock().loads(Instant::now()).len()
    }

    /// Replicas whose records are only in the way.
    pub(super) fn forgotten(&self) -> Vec<ReplicaRecord> {
        let mut forgotten = self.view.lock().forgotten(Instant::now());
        forgotten.retain(|record| record.identity != self.me);
        forgotten
    }

    fn see(&self, key: &ObjectKey, view: &mut View) {
        let now = Instant::now();
        match self.watch.store().get(key).as_deref().map(record::read) {
            Some(Some(Record::Seat(section, record))) => view.see_seat(&section, record, now),
            Some(Some(Record::Replica(record))) => view.see_replica(record, now),
            Some(None) => {}
            None => lose(view, key),
        }
        self.begin(view, now);
    }

    /// From when on this replica takes part: when it has seen itself, it has seen whoever was there before.
    fn begin(&self, view: &mut View, now: Instant) {
        if view.since.is_none() && view.replicas.contains_key(&self.me) {
            view.since = Some(now + self.settle);
        }
    }
}

fn lose(view: &mut View, key: &ObjectKey) {
    view.seats.retain(|section, _| format!("{}{section}", record::SECTION_PREFIX) != *key.name);
    let gone = view.replicas.keys().find(|identity| record::replica_lease(identity) == *key.name).cloned();
    if let Some(identity) = gone {
        view.lose_replica(&identity);
    }
}

/// The roll's ear at the watch of the Leases.
struct Listening(Arc<Roll>);

impl Follower for Listening {
    fn wants(&self, _: &ObjectKey) -> bool {
        true
    }

    fn changed<'a>(&'a self, _: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Self(roll) = self;
            roll.see(key, &mut roll.view.lock());
            roll.seen.send_modify(|seen| *seen += 1);
        })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Self(roll) = self;
            {
                let mut view = roll.view.lock();
                watch.store().keys().iter().chain(&vanished).for_each(|key| roll.see(key, &mut view));
                view.look_anew(Instant::now());
            }
            roll.seen.send_modify(|seen| *seen += 1);
        })
    }
}
