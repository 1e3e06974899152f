//! The membership view: what this replica has observed of all Leases of its election, and the plan that follows from it.
//!
//! The watch of the Leases writes it, the electors read it. While the watch is broken nothing is decided, and when it is
//! live again every record counts as changed just now: a section is only acquired from a replica that did not renew for
//! a whole duration during which this one was watching. So an API server that was unreachable leaves every section with its
//! holder.
//!
//! Its actor evaluates the plan for all electors at once, when a record says something new and when a deadline passes, and
//! wakes those that have something to do. So a renewal costs the same however many sections there are. The actor has no
//! mailbox; restarted, it evaluates again.
//!
//! The state is behind a lock, and not owned by the actor, because an elector must decide on the newest records, and a
//! handover is answered once: with messages, an answer could be out of date when the elector reads it. The lock is held for
//! one synchronous call and never over an `await`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::handovers::Handover;
use super::plan::{Next, Plan};
use super::record::{self, Record, ReplicaRecord, SectionRecord};
use crate::actor::{BoxError, Scope};
use crate::cluster::{Follower, ObjectKey, Watch, WatchSpec};

/// The membership view of one election.
pub(super) struct MembershipView {
    me: Arc<str>,
    /// How long a new replica waits before it acquires anything.
    start_delay: Duration,
    state: Mutex<State>,
    /// A record said something new.
    changed: Notify,
    watch: Arc<Watch>,
}

struct State {
    plan: Plan,
    /// By section.
    electors: BTreeMap<String, Elector>,
    /// Changes may have been missed.
    is_stale: bool,
}

/// What the view knows of an elector.
#[derive(Default)]
struct Elector {
    /// Counts how often it was woken.
    wake: watch::Sender<u64>,
    /// The last answer to its question what to do next.
    answered: Option<Next>,
    /// The section's record has said something new since.
    is_changed: bool,
}

/// While the watch is broken, the view evaluates again after this.
const STALE_INTERVAL: Duration = Duration::from_millis(100);
/// The view evaluates at least this often, to notice that the watch is broken.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Records that change together are evaluated together: a replica releases or acquires its sections within a few
/// milliseconds of each other.
const BATCH_DELAY: Duration = Duration::from_millis(10);

impl Elector {
    /// Whether it has to learn of this, because it waits for something later.
    fn waits_longer_than(&self, next: Next) -> bool {
        match (self.answered, next) {
            // It has not asked yet, or is acquiring the section.
            (None | Some(Next::Acquire), _) | (Some(Next::Wait(_)), Next::Wait(None)) => false,
            (Some(Next::Wait(_)), Next::Acquire) => true,
            (Some(Next::Wait(until)), Next::Wait(Some(next))) => until.is_none_or(|until| next < until),
        }
    }
}

impl MembershipView {
    /// A view that follows the watch.
    pub(super) fn new(me: Arc<str>, start_delay: Duration, watch: &Arc<Watch>) -> Arc<Self> {
        Arc::new(Self {
            me,
            start_delay,
            state: Mutex::new(State { plan: Plan::default(), electors: BTreeMap::new(), is_stale: true }),
            changed: Notify::new(),
            watch: Arc::clone(watch),
        })
    }

    /// What the view requires of the watch.
    pub(super) fn follows(self: &Arc<Self>) -> WatchSpec {
        WatchSpec::followed_by(Arc::new(LeaseFollower(Arc::clone(self))))
    }

    /// The body of the actor.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        loop {
            let deadline = self.evaluate();
            tokio::select! {
                () = scope.draining() => return Ok(()),
                () = self.changed.notified() => sleep(BATCH_DELAY).await,
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Evaluates the plan for all electors, and returns when to do so again.
    fn evaluate(&self) -> Instant {
        let now = Instant::now();
        let mut state = self.state.lock();
        if !self.is_current(&mut state, now) {
            return now + STALE_INTERVAL;
        }
        let State { plan, electors, .. } = &mut *state;
        let to_hand_over = plan.section_to_hand_over(&self.me, now).map(str::to_owned);
        for (section, elector) in electors {
            let is_changed = std::mem::take(&mut elector.is_changed);
            let is_to_hand_over = to_hand_over.as_ref() == Some(section);
            if is_changed || is_to_hand_over || elector.waits_longer_than(plan.next(&self.me, section, now)) {
                elector.wake.send_modify(|count| *count += 1);
            }
        }
        let latest = now + LONGEST_INTERVAL;
        plan.valid_until(&self.me, now).map_or(latest, |until| until.min(latest))
    }

    /// Whether the watch is live. When it is live again, every record counts as changed just now.
    fn is_current(&self, state: &mut State, now: Instant) -> bool {
        if !self.watch.is_live() {
            state.is_stale = true;
        } else if std::mem::take(&mut state.is_stale) {
            state.plan.reset_ages(now);
        }
        !state.is_stale
    }

    /// Wakes the section's elector when there may be something to do.
    pub(super) fn wakes(&self, section: &str) -> watch::Receiver<u64> {
        self.state.lock().electors.entry(section.to_owned()).or_default().wake.subscribe()
    }

    /// What to do about a section that this replica does not hold, and its record. `own` is when this process acquired it,
    /// as the record says it: a record that is still in our name may be acquired at once.
    pub(super) fn next(&self, section: &str, own: &[Arc<str>]) -> (Next, Option<SectionRecord>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_current = self.is_current(&mut state, now);
        let State { plan, electors, .. } = &mut *state;
        let record = plan.section(section).cloned();
        let is_ours = record.as_ref().is_some_and(|record| {
            record.holder.as_ref() == Some(&self.me)
                && record.acquired.as_ref().is_some_and(|acquired| own.contains(acquired))
        });
        let next = if is_ours {
            Next::Acquire
        } else if is_current {
            plan.next(&self.me, section, now)
        } else {
            Next::Wait(None)
        };
        if let Some(elector) = electors.get_mut(section) {
            elector.answered = Some(next);
        }
        (next, record)
    }

    /// Starts to hand this section over, if this replica should do so now. The answer is given once.
    pub(super) fn start_handover(&self, section: &str) -> Option<Handover> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if self.is_current(&mut state, now) { state.plan.start_handover(&self.me, section, now) } else { None }
    }

    /// Which replica should acquire a section that this one releases because the process ends.
    pub(super) fn preferred_holder_on_shutdown(&self, section: &str) -> Option<Arc<str>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if self.is_current(&mut state, now) {
            state.plan.preferred_holder_on_shutdown(&self.me, section, now)
        } else {
            None
        }
    }

    /// Which replica holds a section, as far as this one can see.
    pub(super) fn holder(&self, section: &str) -> Option<Arc<str>> {
        self.state.lock().plan.holder(section, Instant::now()).cloned()
    }

    /// Whether this replica has seen the records, its own among them.
    pub(super) fn has_joined(&self) -> bool {
        self.state.lock().plan.has_joined()
    }

    /// How many replicas are alive.
    pub(super) fn replicas_alive(&self) -> usize {
        self.state.lock().plan.replicas_alive(&self.me, Instant::now())
    }

    /// Other replicas whose records have not changed for so long that they can be deleted.
    pub(super) fn abandoned(&self) -> Vec<ReplicaRecord> {
        let mut abandoned = self.state.lock().plan.abandoned(Instant::now());
        abandoned.retain(|record| record.identity != self.me);
        abandoned
    }

    /// Takes in what the watch's cache holds under this key now.
    fn observe(&self, key: &ObjectKey, state: &mut State) {
        let now = Instant::now();
        let State { plan, electors, .. } = state;
        let mut section_changed = |section: &str| {
            if let Some(elector) = electors.get_mut(section) {
                elector.is_changed = true;
            }
        };
        let is_new = match self.watch.store().get(key).as_deref().map(record::read) {
            Some(Some(Record::Section(section, record))) => {
                let is_new = plan.section_changed(&section, record, now);
                if is_new {
                    section_changed(&section);
                }
                is_new
            }
            Some(Some(Record::Replica(record))) => plan.replica_changed(record, now),
            Some(None) => false,
            None => {
                if let Some(section) = key.name.strip_prefix(record::SECTION_PREFIX) {
                    plan.section_deleted(section);
                    section_changed(section);
                }
                let is_deleted = |identity: &&Arc<str>| record::replica_lease_name(identity) == *key.name;
                let deleted = plan.identities().find(is_deleted).cloned();
                if let Some(identity) = deleted {
                    plan.replica_deleted(&identity);
                }
                true
            }
        };
        // A replica that has seen its own record has seen those of all replicas that were there before.
        if !plan.has_joined() && plan.knows(&self.me) {
            plan.start_at(now + self.start_delay);
        }
        if is_new {
            self.changed.notify_one();
        }
    }
}

/// Passes what the watch of the Leases shows to the view.
struct LeaseFollower(Arc<MembershipView>);

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
            {
                let mut state = view.state.lock();
                watch.store().keys().iter().chain(&vanished).for_each(|key| view.observe(key, &mut state));
                state.plan.reset_ages(Instant::now());
            }
            view.changed.notify_one();
        })
    }
}

#[cfg(test)]
mod tests;
