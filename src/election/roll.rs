//! The roll: what this replica has seen of all Leases of its election, for whoever decides.
//!
//! Written by the watch of the Leases, read by the electors. When the watch had to list again, changes may have gone
//! unseen, so every record counts as just seen: a section is taken from a replica that is silent for the whole of a
//! duration in which we listened.

use std::sync::Arc;
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
}

impl Roll {
    pub(super) fn new(me: Arc<str>, settle: Duration) -> Arc<Self> {
        Arc::new(Self { me, settle, view: Mutex::default(), seen: watch::Sender::new(0) })
    }

    /// Follows what is seen.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    /// What to do about a section that this replica does not hold, and its record. `own` is when this process took it last,
    /// in the words of the record: what still is in our name we may take at once.
    pub(super) fn next(&self, section: &str, own: Option<&Arc<str>>) -> (Next, Option<SeatRecord>) {
        let view = self.view.lock();
        let record = view.seats.get(section).map(|seat| seat.record.clone());
        let is_ours = record.as_ref().is_some_and(|record| {
            record.holder.as_ref() == Some(&self.me) && own.is_some() && record.acquired.as_ref() == own
        });
        let next = if is_ours { Next::Take } else { view.next(&self.me, section, Instant::now()) };
        (next, record)
    }

    /// Whether this replica is to give the section up, now; and when to ask again, should nothing be seen. A yes is given
    /// once.
    pub(super) fn gives_up(&self, section: &str) -> Option<Offer> {
        let mut view = self.view.lock();
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

    fn see(&self, watch: &Watch, key: &ObjectKey) {
        let now = Instant::now();
        let mut view = self.view.lock();
        match watch.store().get(key).as_deref().map(record::read) {
            Some(Some(Record::Seat(section, record))) => view.see_seat(&section, record, now),
            Some(Some(Record::Replica(record))) => view.see_replica(record, now),
            Some(None) => {}
            None => lose(&mut view, key),
        }
        self.begin(&mut view, now);
        drop(view);
        self.seen.send_modify(|seen| *seen += 1);
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
pub(super) struct Listening(pub(super) Arc<Roll>);

impl Follower for Listening {
    fn wants(&self, _: &ObjectKey) -> bool {
        true
    }

    fn changed<'a>(&'a self, watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.0.see(watch, key) })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for key in watch.store().keys().iter().chain(&vanished) {
                self.0.see(watch, key);
            }
            self.0.view.lock().look_anew(Instant::now());
            self.0.seen.send_modify(|seen| *seen += 1);
        })
    }
}
