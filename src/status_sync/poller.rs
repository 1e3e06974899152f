//! The poller of a family: an actor.
//!
//! It owns the family's [`Table`] and is woken by the clock, by keys that watches show (its mailbox: keys merge, a full
//! one makes the watch wait, and it is read in every pause of a pass), by notifications of the database, by an approval,
//! and by a change of the hub's standing. It sends requests to the hub's API server in tasks of its own, each under a
//! permit that all families share and take in turns. Restarted, it knows nothing, and compares everything anew. Drained,
//! it reads no further and finishes the writes in hand.

mod reporting;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use self::reporting::Term;
use super::config::StatusFamily;
use super::family::{Facts, facts};
use super::guard::Guard;
use super::metrics::StatusSyncMetrics;
use super::pace::{GATHER, Pace};
use super::pass::Stopped;
use super::plan;
use super::report::FamilyReport;
use super::row_id::RowId;
use super::standing::{HubStanding, Standing};
use super::table::Table;
use crate::actor::{Backoff, BoxError, KeyInbox, Scope};
use crate::cluster::{Availability, Cluster, Demand, Fence, Identity, Listed, ObjectKey, Watch};
use crate::db::Database;

/// Back-off of a pass that failed; a pass that works is never waited for longer than the interval.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// A list that goes on has no bell: whether it has ended is looked at so often.
const LOOK: Duration = Duration::from_millis(200);

/// What the pollers of a section share.
pub struct Shared {
    /// The database.
    pub database: Database,
    /// Bounds the writes of all families; who waits gets the next permit.
    pub permits: Arc<Semaphore>,
    /// Between passes.
    pub interval: Duration,
    /// Only this namespace; empty: all.
    pub namespace: String,
    /// Whether any family has seen a row of `status`: else the database may be one that is being filled.
    pub any_rows: watch::Sender<bool>,
    /// Counts the approvals.
    pub approvals: watch::Sender<u64>,
    /// Nothing is written, and nothing listed, while it is closed; where the section is elected.
    pub fence: Option<Fence>,
    /// Whether the section may write to this hub.
    pub standing: Arc<HubStanding>,
}

/// A poller: what outlives its instances.
pub struct Poller {
    pub(super) family: StatusFamily,
    pub(super) facts: Facts,
    pub(super) detection: String,
    pub(super) rows: String,
    pub(super) shared: Arc<Shared>,
    /// The kind that is written.
    pub(super) target: Arc<Watch>,
    /// The kind of the hub objects, where it is another.
    pub(super) owner: Option<Arc<Watch>>,
    pub(super) report: watch::Sender<FamilyReport>,
    pub(super) metrics: StatusSyncMetrics,
    hints: watch::Sender<u64>,
}

impl Poller {
    /// A poller that is not started.
    pub fn new(family: StatusFamily, shared: Arc<Shared>, target: Arc<Watch>, owner: Option<Arc<Watch>>) -> Self {
        let facts = facts(family);
        Self {
            family,
            facts,
            detection: facts.detection(),
            rows: facts.rows(),
            shared,
            target,
            owner,
            report: watch::Sender::new(FamilyReport::default()),
            metrics: StatusSyncMetrics::new(family.as_str(), &plan::Waiting::ALL.map(plan::Waiting::as_str)),
            hints: watch::Sender::new(0),
        }
    }

    /// The family.
    pub fn family(&self) -> StatusFamily {
        self.family
    }

    /// Says that the database has something new: the next pass is as soon as the pace allows.
    pub fn hint(&self) {
        self.hints.send_modify(|hints| *hints += 1);
    }

    /// The watches that it decides from.
    pub fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        std::iter::once(&self.target).chain(&self.owner)
    }

    /// The cluster, for writes: under the fence, where there is one.
    pub(super) fn cluster(&self) -> Cluster {
        let cluster = self.target.cluster();
        self.shared.fence.as_ref().map_or_else(|| cluster.clone(), |fence| cluster.under(fence))
    }

    /// The watch of the hub objects.
    pub(super) fn hub(&self) -> &Watch {
        self.owner.as_ref().unwrap_or(&self.target)
    }

    /// Runs until it is drained.
    pub async fn run(self: Arc<Self>, scope: Scope, inbox: KeyInbox<ObjectKey>) -> Result<(), BoxError> {
        let _term = Term::begin(&self.report);
        // What another term has seen says nothing of the database that there is now.
        self.shared.any_rows.send_replace(false);
        let mut wakes = Wakes {
            approvals: self.shared.approvals.subscribe(),
            hints: self.hints.subscribe(),
            standing: self.shared.standing.changes(),
            identity: self.shared.standing.identities(),
        };
        let demands = self.watches().map(|watch| watch.demand(self.shared.fence.as_ref())).collect();
        let mut life = Life::new(inbox, demands, self.report.clone());
        let mut failures = 0;
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                () = self.wait_until_ready(&scope, &mut life) => {}
            }
            scope.set_state("pass");
            let begun = Instant::now();
            // What is told from here on may be too late for this pass.
            wakes.hints.mark_unchanged();
            let outcome = self.pass(&scope, &mut life).await;
            let ended = Instant::now();
            let mut pace = match outcome {
                Ok(()) => {
                    failures = 0;
                    life.first_pass = false;
                    life.ended = Ended::Whole;
                    self.metrics.pass(ended - begun);
                    let pace = Pace::after_pass(begun, ended, life.detection, self.shared.interval);
                    life.table.next_retry().map_or(pace, |at| pace.retried(ended, at))
                }
                Err(Stopped::Draining) => return Ok(()),
                // It waits until that is settled, and begins anew.
                Err(Stopped::Doubt) => continue,
                Err(Stopped::Held(objection)) => {
                    failures = 0;
                    life.ended = Ended::Held;
                    self.held(&objection);
                    Pace::after_pass(begun, ended, life.detection, self.shared.interval)
                }
                Err(Stopped::Failed(error)) => {
                    life.ended = Ended::Failed;
                    self.failed(&error, failures);
                    self.shared.standing.cannot_compare(self.family);
                    let delay = RETRY.next_delay(failures);
                    failures = failures.saturating_add(1);
                    Pace::after_failure(ended, delay)
                }
            };
            self.publish(&life, ended - begun);
            scope.set_state(if life.ended == Ended::Held { "held" } else { "waiting" });
            self.rest(&scope, &mut life, &mut pace, &mut wakes).await;
        }
    }

    /// Until the next pass, an approval, a change of the hub's standing or a drain: what watches show to be otherwise than it
    /// should be is mended at once.
    /// None of them cuts off what is being mended.
    async fn rest(&self, scope: &Scope, life: &mut Life, pace: &mut Pace, wakes: &mut Wakes) {
        let interval = self.shared.interval;
        loop {
            let now = Instant::now();
            let soonest = if self.may_act(life) { now } else { now + LOOK };
            let unrest = life.table.next_unrest(now, interval).map(|at| tokio::time::sleep_until(at.max(soonest)));
            tokio::select! {
                () = scope.draining() => return,
                () = tokio::time::sleep_until(pace.next()) => return,
                Ok(()) = wakes.approvals.changed() => {
                    life.guard.approve();
                    return;
                }
                Ok(()) = wakes.hints.changed() => {
                    *pace = pace.hinted(Instant::now());
                    continue;
                }
                Ok(()) = wakes.standing.changed() => {
                    if self.standing_asks_for_a_pass(life) {
                        return;
                    }
                    continue;
                }
                Ok(()) = wakes.identity.changed() => {
                    if self.standing_asks_for_a_pass(life) {
                        return;
                    }
                    continue;
                }
                Some(()) = OptionFuture::from(unrest) => {}
                key = life.inbox.next() => {
                    let Some(key) = key else { return };
                    self.note(life, &key);
                }
            }
            tokio::time::sleep(GATHER).await;
            while let Some(key) = life.inbox.try_next() {
                self.note(life, &key);
            }
            if !self.may_act(life) {
                self.become_current();
                continue;
            }
            let unrest = life.table.take_unrest(Instant::now(), interval);
            if unrest.is_empty() {
                continue;
            }
            let outcome = self.look_again(scope, life, &unrest).await;
            let ended = Instant::now();
            let again = match outcome {
                Ok(needs_pass) => {
                    if needs_pass {
                        *pace = pace.hinted(ended);
                    }
                    life.table.next_retry()
                }
                Err(Stopped::Draining | Stopped::Doubt | Stopped::Held(_)) => return,
                Err(Stopped::Failed(error)) => {
                    self.failed(&error, 0);
                    Some(ended)
                }
            };
            *pace = again.map_or(*pace, |at| pace.retried(ended, at));
            self.show(life);
        }
    }

    /// Takes news of an object in.
    pub(super) fn note(&self, life: &mut Life, shown: &ObjectKey) {
        let maker = self.maker_of(shown);
        life.table.note(shown, maker.as_ref(), self.hub().store(), self.target.store());
    }

    /// The hub object that a shown object says it was made for: by its controlling owner's name.
    fn maker_of(&self, shown: &ObjectKey) -> Option<ObjectKey> {
        self.owner.as_ref()?;
        let held = self.target.store().get(shown)?;
        let controller = held.controller.as_ref()?;
        Some(ObjectKey { namespace: Arc::clone(&shown.namespace), name: Arc::clone(&controller.name) })
    }

    fn is_ready(&self) -> bool {
        self.target.cluster().is_available() && self.watches().all(|watch| watch.is_current())
    }

    /// Whether the caches are whole, of the cluster that answers now, and listed since this instance began.
    pub(super) fn can_decide(&self, life: &Life) -> bool {
        self.is_ready() && life.is_listed()
    }

    /// The same, and the hub is the cluster of before.
    fn may_act(&self, life: &Life) -> bool {
        self.can_decide(life) && self.shared.standing.of(self.family) == Standing::Clear
    }

    /// Whether a pass would come to another end than the last one, since something is known of the hub that was not. One
    /// that failed is followed by the next when its back-off says so.
    fn standing_asks_for_a_pass(&self, life: &Life) -> bool {
        match (self.shared.standing.of(self.family), life.ended) {
            (Standing::Unread, _) | (_, Ended::Failed) => false,
            (Standing::Undecided, _) => true,
            (Standing::Clear, ended) => ended == Ended::Held,
            (Standing::Held(_), ended) => ended == Ended::Whole,
        }
    }

    /// A watch that was resumed after a lost connection lists again for those who ask.
    fn become_current(&self) {
        self.watches().for_each(|watch| watch.become_current());
    }

    /// A pass begins only when the cluster answers, its identity has been read, and both kinds are listed: comparing with
    /// nothing decides nothing.
    async fn wait_until_ready(&self, scope: &Scope, life: &mut Life) {
        let mut standing = self.shared.standing.changes();
        let mut identity = self.shared.standing.identities();
        while !self.can_decide(life) || self.shared.standing.standing() == Standing::Unread {
            scope.set_state("waiting for the cluster");
            let reason = self.not_ready_because();
            self.report.send_modify(|report| report.waits_for = reason.map(|(reason, _)| reason));
            self.become_current();
            if self.cannot_list() {
                self.shared.standing.cannot_compare(self.family);
            }
            let mut availability = self.target.cluster().availability();
            let mut listed = self.target.store().listed();
            let mut owner_listed = self.owner.as_ref().map(|watch| watch.store().listed());
            tokio::select! {
                _ = availability.changed() => {}
                _ = listed.changed() => {}
                _ = standing.changed() => {}
                _ = identity.changed() => {}
                Some(_) = OptionFuture::from(owner_listed.as_mut().map(watch::Receiver::changed)) => {}
                // What stays unknown to the pass, such as an object that nobody needs any more, is noted after it.
                key = life.inbox.next() => life.noted.extend(key),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        self.report.send_modify(|report| report.waits_for = None);
    }

    /// Whether a kind can't be listed though the cluster answers: it is not served, or a permission is missing.
    fn cannot_list(&self) -> bool {
        let fails =
            |watch: &Arc<Watch>| matches!(&*watch.store().listed().borrow(), Listed::No { reason: Some(_), .. });
        self.target.cluster().is_available() && self.watches().any(fails)
    }

    /// Why no pass can begin, and whether it is because the cluster does not answer.
    pub fn not_ready_because(&self) -> Option<(String, bool)> {
        if let Availability::Unavailable { reason } = &*self.target.cluster().availability().borrow() {
            return Some((reason.clone(), true));
        }
        for watch in self.watches() {
            if let Listed::No { reason, unreachable } = &*watch.store().listed().borrow() {
                let reason = reason.clone().unwrap_or_else(|| "the first list goes on".to_owned());
                return Some((format!("{}: {reason}", watch.id().resource), *unreachable));
            }
        }
        let goes_on = || (!self.is_ready()).then(|| ("a list goes on".to_owned(), false));
        self.shared.standing.unread_because().or_else(goes_on)
    }

    /// The rows that are served, by name; the others are noted as waiting.
    pub(super) fn choose(&self, life: &mut Life, names: Vec<(ObjectKey, Vec<RowId>)>) -> Vec<RowId> {
        let mut chosen = Vec::new();
        for (key, ids) in names {
            let hub_object = self.hub().store().get(&key);
            let id = hub_object.as_ref().and_then(|hub_object| plan::whose(&ids, hub_object.uid.parse().ok()));
            let waits = match (&hub_object, id) {
                (None, _) => Some(plan::Waiting::Absent),
                (Some(_), None) => Some(plan::Waiting::Ambiguous),
                (Some(_), Some(_)) => None,
            };
            for other in ids {
                let Some(entry) = life.table.get_mut(other) else { continue };
                if Some(other) == id {
                    if matches!(entry.waiting, Some(plan::Waiting::Absent | plan::Waiting::Ambiguous)) {
                        entry.waiting = None;
                    }
                    life.table.check(other, self.hub().store(), self.target.store());
                    chosen.push(other);
                } else {
                    entry.waiting = waits;
                    entry.settled = None;
                    if waits.is_none() {
                        entry.shadow();
                    }
                }
            }
        }
        chosen
    }
}

/// What ends a poller's rest.
struct Wakes {
    approvals: watch::Receiver<u64>,
    hints: watch::Receiver<u64>,
    standing: watch::Receiver<u64>,
    identity: watch::Receiver<Identity>,
}

/// How a pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It has done all that there was to do.
    Whole,
    /// It has compared, and may not write.
    Held,
    /// The database has not told everything. No pass has ended so far, either.
    Failed,
}

/// What an instance knows.
pub(super) struct Life {
    pub(super) table: Table,
    pub(super) guard: Guard<RowId>,
    pub(super) inbox: KeyInbox<ObjectKey>,
    /// Keys that came in during a pass, or while none could begin.
    pub(super) noted: HashSet<ObjectKey>,
    pub(super) first_pass: bool,
    /// How the last pass has ended.
    pub(super) ended: Ended,
    /// How long the last change detection took.
    pub(super) detection: Duration,
    /// When the last pass began that could agree to a clearing that is held.
    counted: Option<Instant>,
    /// That it needs its watches, with lists that are not from before it began.
    demands: Vec<Demand>,
    /// The poller's.
    report: watch::Sender<FamilyReport>,
}

impl Life {
    fn new(inbox: KeyInbox<ObjectKey>, demands: Vec<Demand>, report: watch::Sender<FamilyReport>) -> Self {
        Self {
            table: Table::default(),
            guard: Guard::default(),
            inbox,
            noted: HashSet::new(),
            first_pass: true,
            ended: Ended::Failed,
            detection: Duration::ZERO,
            counted: None,
            demands,
            report,
        }
    }

    /// The database is waited for, from now on where it has answered before.
    pub(super) fn unanswered_since_now(&self) {
        self.report.send_modify(|report| _ = report.unanswered_since.get_or_insert_with(Instant::now));
    }

    /// The database has answered.
    pub(super) fn answered(&self) {
        self.report.send_modify(|report| report.unanswered_since = None);
    }

    /// Whether a pass that begins now can be one of those that agree: they are at least an interval apart.
    pub(super) fn counts(&mut self, now: Instant, interval: Duration) -> bool {
        let counts = self.counted.is_none_or(|before| now.saturating_duration_since(before) >= interval);
        if counts {
            self.counted = Some(now);
        }
        counts
    }

    fn is_listed(&self) -> bool {
        self.demands.iter().all(Demand::is_met)
    }
}

#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
