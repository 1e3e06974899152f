//! The actor: when passes begin, and what happens between them.
//!
//! It wakes up by the clock, by keys from its watches, by notifications of the database, by an approval, and when it
//! may become known whether the section may write to the hub. Its mailbox holds keys: equal keys merge, a full mailbox
//! makes the watch wait, and it is read in every pause of a pass. Requests to the hub are tasks of its own. After a
//! restart it knows nothing, and compares everything anew. When it is drained, it reads no further and finishes the
//! writes under way.

use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use tokio::sync::watch;
use tokio::time::Instant;

use super::context::{Context, Shared};
use super::family_report::FamilyReport;
use super::hub_view::HubView;
use super::pass::{self, Stopped};
use super::reporter::Reporter;
use super::state::{Ended, PollerState};
use crate::actor::{Backoff, BoxError, KeyInbox, Scope};
use crate::cluster::{Identity, ObjectKey, Watch};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::database::Statements;
use crate::status_sync::rules::{GATHER, Pace, family_spec};
use crate::status_sync::standing::Standing;
use crate::telemetry::NotReady;

/// Back-off of a pass that failed.
pub(super) const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// How often the poller checks whether a list has ended, since nothing notifies it of that.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A poller: what all its runs have in common.
pub struct Poller {
    pub(super) context: Context,
    /// Counts the notifications of the database.
    hints: watch::Sender<u64>,
}

impl Poller {
    /// A poller that is not started.
    pub fn new(family: StatusFamily, shared: Arc<Shared>, target: Arc<Watch>, owner: Option<Arc<Watch>>) -> Self {
        let spec = family_spec(family);
        let hub = HubView { target, owner, fence: shared.fence.clone() };
        let (statements, reporter) = (Statements::of(&spec), Reporter::new(family));
        Self { context: Context { family, spec, statements, shared, hub, reporter }, hints: watch::Sender::new(0) }
    }

    /// The family.
    pub fn family(&self) -> StatusFamily {
        self.context.family
    }

    /// The counter of the database's notifications. When it changes, the next pass begins as soon as the pace allows.
    pub fn hints(&self) -> watch::Sender<u64> {
        self.hints.clone()
    }

    /// The watches that it decides from.
    pub fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.context.hub.watches()
    }

    /// The report, as it is now.
    pub fn report(&self) -> FamilyReport {
        self.context.reporter.report()
    }

    /// Refreshes the gauges, before a scrape.
    pub fn refresh(&self) {
        self.context.reporter.refresh();
    }

    /// Why no pass can begin.
    pub fn not_ready_because(&self) -> Option<NotReady> {
        self.context.not_ready_because()
    }

    /// Runs until it is drained.
    pub async fn run(self: Arc<Self>, scope: Scope, inbox: KeyInbox<ObjectKey>) -> Result<(), BoxError> {
        let Context { family, shared, hub, reporter, .. } = &self.context;
        let _report = reporter.begin();
        // Rows that an earlier run has seen prove nothing about the database that answers now.
        shared.any_rows.send_replace(false);
        let mut wakes = Wakes {
            approvals: shared.approvals.subscribe(),
            hints: self.hints.subscribe(),
            standing: shared.standing.changes(),
            identity: shared.standing.identities(),
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
            // A notification that arrives from here on may be too late for this pass.
            wakes.hints.mark_unchanged();
            let outcome = pass::whole(&self.context, &scope, &mut state).await;
            let ended = Instant::now();
            let mut pace = match outcome {
                Ok(()) => {
                    failures = 0;
                    state.is_first_pass = false;
                    state.ended = Ended::Complete;
                    let pace = Pace::after_pass(begun, ended, state.detection, shared.interval);
                    state.table.next_retry().map_or(pace, |at| pace.retried(ended, at))
                }
                Err(Stopped::Draining) => return Ok(()),
                // It waits until the hub is known, and begins anew.
                Err(Stopped::HubUnknown) => continue,
                Err(Stopped::Held(objection)) => {
                    failures = 0;
                    state.ended = Ended::Held;
                    reporter.held(&objection);
                    Pace::after_pass(begun, ended, state.detection, shared.interval)
                }
                Err(Stopped::Failed(error)) => {
                    state.ended = Ended::Failed;
                    reporter.failed(&error, failures);
                    shared.standing.cannot_compare(*family);
                    let delay = RETRY.next_delay(failures);
                    failures = failures.saturating_add(1);
                    Pace::after_failure(ended, delay)
                }
            };
            reporter.ended(&state, ended - begun);
            scope.set_state(if state.ended == Ended::Held { "held" } else { "waiting" });
            rest(&self.context, &scope, &mut state, &mut pace, &mut wakes).await;
        }
    }
}

/// What ends the rest between two passes.
struct Wakes {
    approvals: watch::Receiver<u64>,
    hints: watch::Receiver<u64>,
    standing: watch::Receiver<u64>,
    identity: watch::Receiver<Identity>,
}

/// Waits until the next pass is due, or an approval, a change of the hub's standing or a drain ends the rest. Meanwhile
/// it corrects what the watches show otherwise than applied. None of these interrupts a correction.
async fn rest(context: &Context, scope: &Scope, state: &mut PollerState, pace: &mut Pace, wakes: &mut Wakes) {
    let Context { family, shared, hub, reporter, .. } = context;
    let standing = || shared.standing.of(*family);
    let may_write = |state: &PollerState| state.can_decide(hub) && standing() == Standing::Clear;
    loop {
        let now = Instant::now();
        let soonest = if may_write(state) { now } else { now + CHECK_EVERY };
        let next_requeue = state.table.next_requeue(now, shared.interval);
        let requeue = next_requeue.map(|at| tokio::time::sleep_until(at.max(soonest)));
        tokio::select! {
            () = scope.draining() => return,
            () = tokio::time::sleep_until(pace.next()) => return,
            Ok(()) = wakes.approvals.changed() => {
                state.guard.approve();
                return;
            }
            Ok(()) = wakes.hints.changed() => {
                *pace = pace.hinted(Instant::now());
                continue;
            }
            Ok(()) = wakes.standing.changed() => {
                if state.needs_pass(&standing()) {
                    return;
                }
                continue;
            }
            Ok(()) = wakes.identity.changed() => {
                if state.needs_pass(&standing()) {
                    return;
                }
                continue;
            }
            Some(()) = OptionFuture::from(requeue) => {}
            key = state.inbox.next() => {
                let Some(key) = key else { return };
                state.note(&key, hub);
            }
        }
        tokio::time::sleep(GATHER).await;
        while let Some(key) = state.inbox.try_next() {
            state.note(&key, hub);
        }
        if !may_write(state) {
            hub.become_current();
            continue;
        }
        let requeued = state.table.take_requeued(Instant::now(), shared.interval);
        if requeued.is_empty() {
            continue;
        }
        let outcome = pass::look_again(context, scope, state, &requeued).await;
        let ended = Instant::now();
        let retry = match outcome {
            Ok(needs_pass) => {
                if needs_pass {
                    *pace = pace.hinted(ended);
                }
                state.table.next_retry()
            }
            Err(Stopped::Draining | Stopped::HubUnknown | Stopped::Held(_)) => return,
            Err(Stopped::Failed(error)) => {
                reporter.failed(&error, 0);
                Some(ended)
            }
        };
        *pace = retry.map_or(*pace, |at| pace.retried(ended, at));
        reporter.show(state);
    }
}

/// Waits until the cluster answers, its identity has been read, and the kinds have been listed: incomplete caches prove
/// nothing.
pub(super) async fn wait_until_ready(context: &Context, scope: &Scope, state: &mut PollerState) {
    let Context { family, shared, hub, reporter, .. } = context;
    let mut standing = shared.standing.changes();
    let mut identity = shared.standing.identities();
    while !state.can_decide(hub) || shared.standing.standing() == Standing::Unread {
        scope.set_state("waiting for the cluster");
        reporter.waits_for(context.not_ready_because().map(|not_ready| not_ready.reason));
        hub.become_current();
        if hub.cannot_list() {
            shared.standing.cannot_compare(*family);
        }
        let mut availability = hub.target.cluster().availability();
        let mut listed = hub.target.store().listed();
        let mut owner_listed = hub.owner.as_ref().map(|watch| watch.store().listed());
        tokio::select! {
            _ = availability.changed() => {}
            _ = listed.changed() => {}
            _ = standing.changed() => {}
            _ = identity.changed() => {}
            Some(_) = OptionFuture::from(owner_listed.as_mut().map(watch::Receiver::changed)) => {}
            // The keys are recorded after the next pass, which does not look at objects that no row needs any more.
            key = state.inbox.next() => state.noted.extend(key),
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
    reporter.waits_for(None);
}
