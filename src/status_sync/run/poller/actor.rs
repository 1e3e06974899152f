//! The actor: begins passes, and corrects edits of other writers between them.
//!
//! Five things wake it: the clock, keys from its watches, notifications of the database, an approval, and a change of the
//! hub's identification. Its mailbox holds keys. Equal keys merge, and a full mailbox blocks the watch; so a pass takes keys
//! whenever it waits. Requests to the hub run in tasks that belong to the actor. After a restart it compares everything
//! again. When it is drained, it stops reading and finishes the writes in progress.

use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::family_guard::FamilyGuard;
use super::hub_watches::HubWatches;
use super::pass::{self, Stopped};
use super::report::{FamilyReport, Reporter};
use super::state::{FamilyContext, PassOutcome, PollerState, SectionContext};
use crate::actor::{Backoff, BoxError, KeyInbox, Scope};
use crate::cluster::{Identification, Identity, ObjectKey, Watch};
use crate::guard::GuardedChange;
use crate::status::{ListedObject, NotReady};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::{GATHER, PassSchedule, family_spec};
use crate::status_sync::run::database::Statements;

/// Back-off of a pass that failed.
pub(super) const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// How often the poller checks whether a list has ended, since nothing notifies it of that.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A poller, across the runs of its actor.
pub struct Poller {
    pub(super) context: FamilyContext,
    /// Counts the notifications of the database.
    hints: watch::Sender<u64>,
}

impl Poller {
    /// A poller that is not started.
    pub fn new(
        family: StatusFamily,
        shared: Arc<SectionContext>,
        target: Arc<Watch>,
        owner: Option<Arc<Watch>>,
    ) -> Self {
        let spec = family_spec(family);
        let hub = HubWatches { target, owner, fence: shared.fence.clone() };
        let (statements, reporter) = (Statements::of(&spec), Reporter::new(family, shared.interval));
        let guard = FamilyGuard::new(shared.identification.section().clone(), family);
        Self {
            context: FamilyContext { family, spec, statements, shared, hub, reporter, guard, table: Mutex::default() },
            hints: watch::Sender::new(0),
        }
    }

    pub fn family(&self) -> StatusFamily {
        self.context.family
    }

    /// The counter of the database's notifications. When it changes, the next pass begins as soon as the schedule allows.
    pub fn hints(&self) -> watch::Sender<u64> {
        self.hints.clone()
    }

    /// The watches whose caches it decides from.
    pub fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.context.hub.watches()
    }

    /// The report, as it is now.
    pub fn report(&self) -> FamilyReport {
        FamilyReport { held: self.context.guard.held(), ..self.context.reporter.report() }
    }

    /// The objects whose clearing is held.
    pub fn held(&self) -> Vec<(ObjectKey, GuardedChange)> {
        self.context.guard.held_objects()
    }

    /// What is known of an object of the hub; none if no row is about it, or none has been read yet.
    pub fn explain(&self, key: &ObjectKey) -> Option<ListedObject> {
        let FamilyContext { family, hub, guard, table, .. } = &self.context;
        let held = guard.held_objects().into_iter().map(|(held, _)| held).collect();
        let mut explained = table.lock().explained(family.as_str(), key, &held, hub.hub_objects())?;
        let cluster = hub.target.cluster();
        let side = match hub.targets().get(key).or_else(|| hub.hub_objects().get(key)) {
            None => json!({"cluster": cluster.name(), "object": key, "exists": false}),
            Some(object) => {
                json!({"cluster": cluster.name(), "object": key, "exists": true, "deleting": object.deleting,
                "generation": object.generation, "resource_version": object.resource_version})
            }
        };
        explained.also.insert("sides".to_owned(), json!({"hub": side}));
        Some(explained)
    }

    /// Approves what is held. Returns how many objects that are.
    pub fn approve(&self) -> usize {
        self.context.guard.approve()
    }

    /// Why no pass can begin.
    pub fn not_ready_because(&self) -> Option<NotReady> {
        self.context.not_ready_because()
    }

    pub async fn run(self: Arc<Self>, scope: Scope, inbox: KeyInbox<ObjectKey>) -> Result<(), BoxError> {
        let FamilyContext { family, shared, hub, reporter, guard, table, .. } = &self.context;
        let _report = reporter.begin(guard, table);
        // An earlier run may have seen rows of another database.
        shared.any_rows.send_replace(false);
        let mut wakes = WakeSources {
            approvals: shared.approvals.subscribe(),
            hints: self.hints.subscribe(),
            identification: shared.identification.changes(),
            identity: shared.identification.identities(),
        };
        let mut state = PollerState::new(inbox, hub.demand());
        let mut failures = 0;
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                () = wait_until_ready(&self.context, &scope, &mut state) => {}
            }
            scope.set_state("pass");
            let begun = Instant::now();
            // Change detection may miss a change whose notification arrives from here on.
            wakes.hints.mark_unchanged();
            let outcome = pass::run(&self.context, &scope, &mut state).await;
            let ended = Instant::now();
            let mut schedule = match outcome {
                Ok(()) => {
                    failures = 0;
                    state.is_first_pass = false;
                    state.last_pass = PassOutcome::Complete;
                    let schedule = PassSchedule::after_pass(begun, ended, state.detection, shared.interval);
                    table.lock().next_retry().map_or(schedule, |at| schedule.retried(ended, at))
                }
                Err(Stopped::Draining) => return Ok(()),
                // The loop waits until the hub is identified, and begins another pass.
                Err(Stopped::HubUnknown) => continue,
                Err(Stopped::Held(objection)) => {
                    failures = 0;
                    state.last_pass = PassOutcome::Held;
                    reporter.held(&objection);
                    PassSchedule::after_pass(begun, ended, state.detection, shared.interval)
                }
                Err(Stopped::Failed(error)) => {
                    state.last_pass = PassOutcome::Failed;
                    reporter.failed(&error, failures);
                    shared.identification.cannot_compare(*family);
                    let delay = RETRY.next_delay(failures);
                    failures = failures.saturating_add(1);
                    PassSchedule::after_failure(ended, delay)
                }
            };
            reporter.update(&table.lock(), guard);
            if state.last_pass == PassOutcome::Complete {
                reporter.completed(ended - begun);
            }
            scope.set_state(if state.last_pass == PassOutcome::Held { "held" } else { "waiting" });
            wait_for_next_pass(&self.context, &scope, &mut state, &mut schedule, &mut wakes).await;
        }
    }
}

/// The events that can end the wait for the next pass.
struct WakeSources {
    approvals: watch::Receiver<u64>,
    hints: watch::Receiver<u64>,
    identification: watch::Receiver<u64>,
    identity: watch::Receiver<Identity>,
}

/// Waits until the next pass is due, or until an approval, a change of the hub's identification or a drain ends the wait.
/// Meanwhile it corrects objects that other writers have changed. No event interrupts a correction.
async fn wait_for_next_pass(
    context: &FamilyContext,
    scope: &Scope,
    state: &mut PollerState,
    schedule: &mut PassSchedule,
    wakes: &mut WakeSources,
) {
    let FamilyContext { family, shared, hub, reporter, guard, table, .. } = context;
    let identification = || shared.identification.of(*family);
    let may_write = |state: &PollerState| state.can_decide(hub) && identification() == Identification::Clear;
    loop {
        let now = Instant::now();
        let soonest = if may_write(state) { now } else { now + CHECK_EVERY };
        let next_requeue = table.lock().next_requeue(now, shared.interval);
        let requeue = next_requeue.map(|at| tokio::time::sleep_until(at.max(soonest)));
        tokio::select! {
            () = scope.draining() => return,
            () = tokio::time::sleep_until(schedule.next()) => return,
            Ok(()) = wakes.approvals.changed() => return,
            Ok(()) = wakes.hints.changed() => {
                *schedule = schedule.hinted(Instant::now());
                continue;
            }
            Ok(()) = wakes.identification.changed() => {
                if state.needs_pass(&identification()) {
                    return;
                }
                continue;
            }
            Ok(()) = wakes.identity.changed() => {
                if state.needs_pass(&identification()) {
                    return;
                }
                continue;
            }
            Some(()) = OptionFuture::from(requeue) => {}
            key = state.inbox.next() => {
                let Some(key) = key else { return };
                context.record_change(&key);
            }
        }
        tokio::time::sleep(GATHER).await;
        while let Some(key) = state.inbox.try_next() {
            context.record_change(&key);
        }
        if !may_write(state) {
            hub.become_current();
            continue;
        }
        let requeued = table.lock().take_requeued(Instant::now(), shared.interval);
        if requeued.is_empty() {
            continue;
        }
        let outcome = pass::recheck(context, scope, state, &requeued).await;
        let ended = Instant::now();
        let retry = match outcome {
            Ok(needs_pass) => {
                if needs_pass {
                    *schedule = schedule.hinted(ended);
                }
                table.lock().next_retry()
            }
            Err(Stopped::Draining | Stopped::HubUnknown | Stopped::Held(_)) => return,
            Err(Stopped::Failed(error)) => {
                reporter.failed(&error, 0);
                Some(ended)
            }
        };
        *schedule = retry.map_or(*schedule, |at| schedule.retried(ended, at));
        reporter.update(&table.lock(), guard);
    }
}

/// Waits until the cluster answers, its identity has been read, and the kinds have been listed. An object that is missing
/// from an incomplete cache may exist.
pub(super) async fn wait_until_ready(context: &FamilyContext, scope: &Scope, state: &mut PollerState) {
    let FamilyContext { family, shared, hub, reporter, .. } = context;
    let mut identification = shared.identification.changes();
    let mut identity = shared.identification.identities();
    while !state.can_decide(hub) || shared.identification.current() == Identification::Unread {
        scope.set_state("waiting for the cluster");
        reporter.waits_for(context.not_ready_because().map(|not_ready| not_ready.reason));
        hub.become_current();
        if hub.cannot_list() {
            shared.identification.cannot_compare(*family);
        }
        let mut availability = hub.target.cluster().availability();
        let mut listed = hub.target.store().listed();
        let mut owner_listed = hub.owner.as_ref().map(|watch| watch.store().listed());
        tokio::select! {
            _ = availability.changed() => {}
            _ = listed.changed() => {}
            _ = identification.changed() => {}
            _ = identity.changed() => {}
            Some(_) = OptionFuture::from(owner_listed.as_mut().map(watch::Receiver::changed)) => {}
            // The next pass does not cover objects that no row needs any more, so the keys are recorded after it.
            key = state.inbox.next() => state.changed_keys.extend(key),
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
    reporter.waits_for(None);
}
