//! The roll: what this replica has seen of all Leases of its election, for whoever decides.
//!
//! Written by the watch of the Leases, read by the electors. While the watch is broken nothing is decided, and when it is
//! whole again every record counts as just seen: a section is taken from a replica that is silent for the whole of a
//! duration in which we listened. So an API server that was away leaves sections with those who had them.
//!
//! Its actor looks for all electors at once, when a record says something new and when time makes a difference, and wakes
//! those for which there is something to do. So a renewal costs the same however many sections there are. Nobody sends to
//! it; restarted, it looks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::offers::Offer;
use super::plan::{Next, View};
use super::record::{self, Record, ReplicaRecord, SeatRecord};
use crate::actor::{BoxError, Scope};
use crate::cluster::{Follower, ObjectKey, Watch, WatchSpec};

/// The roll of one election.
pub(super) struct Roll {
    me: Arc<str>,
    /// How long a replica that just came looks on.
    settle: Duration,
    state: Mutex<State>,
    /// A record said something new.
    news: Notify,
    watch: Arc<Watch>,
}

struct State {
    view: View,
    /// By section.
    electors: BTreeMap<String, Elector>,
    /// Something may have gone unseen.
    is_deaf: bool,
}

/// What the roll knows of an elector.
#[derive(Default)]
struct Elector {
    /// Counts how often it was to look.
    wake: watch::Sender<u64>,
    /// What it was told last.
    told: Option<Next>,
    /// The section's record says something new since.
    is_written: bool,
}

/// While nothing is heard, it is looked again after this.
const DEAF_LOOK: Duration = Duration::from_millis(100);
/// That nothing is heard any more shows within this.
const LOOK: Duration = Duration::from_secs(1);
/// Records that change together are looked at together: a replica gives its sections up, or takes them, within a few
/// milliseconds of each other.
const TOGETHER: Duration = Duration::from_millis(10);

impl Elector {
    /// Whether it has to know that this is next, for it waits for something later.
    fn waits_past(&self, next: Next) -> bool {
        match (self.told, next) {
            // Nobody asked yet, or it is about to take what it was told to.
            (None | Some(Next::Take), _) | (Some(Next::Look(_)), Next::Look(None)) => false,
            (Some(Next::Look(_)), Next::Take) => true,
            (Some(Next::Look(told)), Next::Look(Some(next))) => told.is_none_or(|told| next < told),
        }
    }
}

impl Roll {
    /// A roll that follows the watch.
    pub(super) fn new(me: Arc<str>, settle: Duration, watch: &Arc<Watch>) -> Arc<Self> {
        Arc::new(Self {
            me,
            settle,
            state: Mutex::new(State { view: View::default(), electors: BTreeMap::new(), is_deaf: true }),
            news: Notify::new(),
            watch: Arc::clone(watch),
        })
    }

    /// What it requires of the watch.
    pub(super) fn follows(self: &Arc<Self>) -> WatchSpec {
        WatchSpec::followed_by(Arc::new(Listening(Arc::clone(self))))
    }

    /// The actor's body.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        loop {
            let look = self.look();
            tokio::select! {
                () = scope.draining() => return Ok(()),
                () = self.news.notified() => sleep(TOGETHER).await,
                () = sleep_until(look) => {}
            }
        }
    }

    /// Looks for all electors, and returns when to look again.
    fn look(&self) -> Instant {
        let now = Instant::now();
        let mut state = self.state.lock();
        if !self.listens(&mut state, now) {
            return now + DEAF_LOOK;
        }
        let State { view, electors, .. } = &mut *state;
        let offered = view.offered(&self.me, now).map(str::to_owned);
        for (section, elector) in electors {
            let is_written = std::mem::take(&mut elector.is_written);
            let is_offered = offered.as_ref() == Some(section);
            if is_written || is_offered || elector.waits_past(view.next(&self.me, section, now)) {
                elector.wake.send_modify(|count| *count += 1);
            }
        }
        let latest = now + LOOK;
        view.settled_until(&self.me, now).map_or(latest, |until| until.min(latest))
    }

    /// Whether what happens is heard; after a time in which it was not, everything counts as just seen.
    fn listens(&self, state: &mut State, now: Instant) -> bool {
        if !self.watch.is_live() {
            state.is_deaf = true;
        } else if std::mem::take(&mut state.is_deaf) {
            state.view.look_anew(now);
        }
        !state.is_deaf
    }

    /// Tells the section's elector when to look.
    pub(super) fn wakes(&self, section: &str) -> watch::Receiver<u64> {
        self.state.lock().electors.entry(section.to_owned()).or_default().wake.subscribe()
    }

    /// What to do about a section that this replica does not hold, and its record. `own` is when this process took it, in
    /// the words of the record: what still is in our name we may take at once.
    pub(super) fn next(&self, section: &str, own: &[Arc<str>]) -> (Next, Option<SeatRecord>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let listens = self.listens(&mut state, now);
        let State { view, electors, .. } = &mut *state;
        let record = view.seat(section).cloned();
        let is_ours = record.as_ref().is_some_and(|record| {
            record.holder.as_ref() == Some(&self.me)
                && record.acquired.as_ref().is_some_and(|acquired| own.contains(acquired))
        });
        let next = if is_ours {
            Next::Take
        } else if listens {
            view.next(&self.me, section, now)
        } else {
            Next::Look(None)
        };
        if let Some(elector) = electors.get_mut(section) {
            elector.told = Some(next);
        }
        (next, record)
    }

    /// For whom this replica is to give the section up, now. A yes is given once.
    pub(super) fn gives_up(&self, section: &str) -> Option<Offer> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if self.listens(&mut state, now) { state.view.gives_up(&self.me, section, now) } else { None }
    }

    /// Who is to take a section that this replica gives up because its process ends.
    pub(super) fn heir_after(&self, section: &str) -> Option<Arc<str>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if self.listens(&mut state, now) { state.view.heir_after(&self.me, section, now) } else { None }
    }

    /// Who holds a section, as far as can be seen.
    pub(super) fn holder(&self, section: &str) -> Option<Arc<str>> {
        self.state.lock().view.holder(section, Instant::now()).cloned()
    }

    /// Whether this replica has seen the records, and its own among them.
    pub(super) fn takes_part(&self) -> bool {
        self.state.lock().view.since().is_some()
    }

    /// The living replicas.
    pub(super) fn replicas(&self) -> usize {
        self.state.lock().view.living(&self.me, Instant::now())
    }

    /// Replicas whose records are only in the way.
    pub(super) fn forgotten(&self) -> Vec<ReplicaRecord> {
        let mut forgotten = self.state.lock().view.forgotten(Instant::now());
        forgotten.retain(|record| record.identity != self.me);
        forgotten
    }

    fn see(&self, key: &ObjectKey, state: &mut State) {
        let now = Instant::now();
        let State { view, electors, .. } = state;
        let mut written = |section: &str| {
            if let Some(elector) = electors.get_mut(section) {
                elector.is_written = true;
            }
        };
        let is_news = match self.watch.store().get(key).as_deref().map(record::read) {
            Some(Some(Record::Seat(section, record))) => {
                let is_news = view.see_seat(&section, record, now);
                if is_news {
                    written(&section);
                }
                is_news
            }
            Some(Some(Record::Replica(record))) => view.see_replica(record, now),
            Some(None) => false,
            None => {
                if let Some(section) = key.name.strip_prefix(record::SECTION_PREFIX) {
                    view.lose_seat(section);
                    written(section);
                }
                let gone = view.identities().find(|identity| record::replica_lease(identity) == *key.name).cloned();
                if let Some(identity) = gone {
                    view.lose_replica(&identity);
                }
                true
            }
        };
        // When it has seen itself, it has seen whoever was there before.
        if view.since().is_none() && view.knows(&self.me) {
            view.begin(now + self.settle);
        }
        if is_news {
            self.news.notify_one();
        }
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
            roll.see(key, &mut roll.state.lock());
        })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Self(roll) = self;
            {
                let mut state = roll.state.lock();
                watch.store().keys().iter().chain(&vanished).for_each(|key| roll.see(key, &mut state));
                state.view.look_anew(Instant::now());
            }
            roll.news.notify_one();
        })
    }
}

#[cfg(test)]
mod tests;
