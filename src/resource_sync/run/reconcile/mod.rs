//! The reconciler of one pair: observes both sides, asks the plan for the next step, carries it out, and repeats this until
//! the plan has no further step.
//!
//! State it owns: how often it had to rewrite what another writer undid, which may be lost. Everything else that it learns
//! goes to the section's index at once, and it keeps no copy: its own writes that the caches do not show yet, unknown
//! outcomes, the state of the pair. Who sends to it: the dispatcher, one request at a time. What it sends: requests to the
//! two clusters, and Events. It is dropped when idle and created again on demand, since all that matters is in the index and
//! the caches.

mod acknowledged;
mod confirm_status;
mod conflicts;
mod execute;
mod finish;
mod missing;
mod notices;
mod rejected;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::actor::{Outcome, Reconciler, ReconcilerFactory};
use crate::cluster::{Error, Identification};
use crate::resource_sync::metrics::SyncMetrics;
use crate::resource_sync::plan::conflicts::{ConflictTracker, Contended, effects, order};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::next::{Absence, Namespace, Next, Observed, Remote, Rest, Step};
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::index::expectations::PairExpectations;
use crate::resource_sync::run::index::phase::Mode;
use crate::resource_sync::run::section::Section;
use crate::telemetry::ObjectState as PairState;
use execute::execute;
use missing::{LISTING_RECHECK, is_selected};

/// A pair that waits for another one to create or delete the namespace checks again after this, should its watch not show it
/// before.
const NAMESPACE_PENDING: Duration = Duration::from_secs(1);
/// No pair needs the same step more often than this in one run; one that takes it again does not converge. The number of
/// different steps has no bound: a pair may have any number of secrets.
const MOST_REPETITIONS: usize = 5;

/// Makes the reconcilers of one section.
pub struct PairReconcilers {
    section: Arc<Section>,
    metrics: Arc<SyncMetrics>,
}

impl PairReconcilers {
    pub fn new(section: Arc<Section>, metrics: Arc<SyncMetrics>) -> Self {
        Self { section, metrics }
    }
}

impl ReconcilerFactory<PairKey> for PairReconcilers {
    type Reconciler = PairReconciler;

    fn create(&self, key: &PairKey) -> PairReconciler {
        PairReconciler {
            section: Arc::clone(&self.section),
            metrics: Arc::clone(&self.metrics),
            key: key.clone(),
            permissions: 0,
            observed_at: Instant::now(),
            conflicts: ConflictTracker::default(),
            failed: Vec::new(),
        }
    }
}

pub struct PairReconciler {
    section: Arc<Section>,
    pub(crate) metrics: Arc<SyncMetrics>,
    pub(crate) key: PairKey,
    /// How many denied permissions had been granted when this run began.
    permissions: u64,
    /// When this run observed the caches.
    observed_at: Instant,
    pub(crate) conflicts: ConflictTracker,
    /// The failures of this run that have not stopped it, the first of each step.
    pub(crate) failed: Vec<(&'static str, Error)>,
}

/// How one reconcile ended.
pub(crate) enum End {
    Rest(Rest),
    Held,
    /// Waits for an event, or runs again after this.
    Later(PairState, Option<Duration>),
    Failed(&'static str, Error),
    /// Parts of it are contended, the first of them for this long.
    Contended(Duration),
    /// It took the same step too often.
    Circles,
}

impl Reconciler for PairReconciler {
    async fn reconcile(&mut self) -> Outcome {
        let section = Arc::clone(&self.section);
        self.permissions = section.permissions();
        self.failed.clear();
        // The end of the last list requests every pair.
        if !section.is_listed() {
            return Outcome::Wait;
        }
        if !section.is_available() {
            section.park(self.key.clone());
            // The cluster may have come back just before the pair was parked.
            if !section.is_available() {
                return Outcome::Wait;
            }
        }
        if !section.caches_match_sessions() {
            return Outcome::RetryAfter(LISTING_RECHECK);
        }
        if let Some(outcome) = self.check_identity(&section) {
            return outcome;
        }
        if section.mode() == Mode::DetachingLocalGone {
            self.expect(&section, PairExpectations::forget_local);
        }
        if let Some(left) = section.wait_for_caches(&self.key) {
            return Outcome::RetryAfter(left);
        }
        if let Some(end) = self.confirm_status(&section).await {
            return self.finish(&section, &section.observe(&self.key), end);
        }
        self.observed_at = Instant::now();
        let mut observed = section.observe(&self.key);
        self.conflicts.ordered(order(&observed));
        if let Err(error) = self.resolve_unknown(&section, &mut observed).await {
            return self.finish(&section, &observed, End::Failed("read_after_unknown_outcome", error));
        }
        let (end, observed) = self.carry_out(&section, observed).await;
        self.finish(&section, &observed, end)
    }
}

impl PairReconciler {
    /// Parks the pair while the section may not act on its clusters: their identities are unknown, or raise an objection.
    fn check_identity(&self, section: &Section) -> Option<Outcome> {
        let waits = match section.identification() {
            Identification::Clear => return None,
            Identification::Unread | Identification::Undecided => None,
            Identification::Held(objection) => Some(Waits::kept_back(objection.to_string(), section.config())),
            Identification::Refused(objection) => Some(Waits::refused(objection.to_string())),
        };
        let state = if waits.is_some() { PairState::Held } else { PairState::Pending };
        section.index(|index| index.table.ended(&self.key, state, self.observed_at, waits, Instant::now()));
        section.park(self.key.clone());
        // The identification may have changed just before the pair was parked.
        Some(if section.identification() == Identification::Clear { Outcome::Retry } else { Outcome::Wait })
    }

    /// A write whose outcome is unknown is followed by a live GET before the next decision about that object.
    async fn resolve_unknown(&self, section: &Section, observed: &mut Observed) -> Result<(), Error> {
        let (remote_is_unknown, local_is_unknown) = section.index(|index| {
            let expected = index.expectations.of(&self.key);
            expected.map_or((false, false), |expected| (expected.remote.unknown, expected.local.unknown))
        });
        if remote_is_unknown && let Some(kind) = section.remote_kind() {
            let live = section.remote_cluster().get_portable(&kind, &observed.pair.remote).await?;
            let moment = section.watches().remote.store().moment();
            let held = match &observed.remote {
                Remote::Present(held) => Some(held),
                Remote::Absent(_) => None,
            };
            // The cache does not count before it has come as far as the answer.
            self.expect(section, |expected| match (&live, held) {
                (Some(live), _) if is_selected(section, live) => {
                    expected.remote.restart_at(&live.resource_version, moment);
                }
                (None, Some(held)) => expected.remote.restart_without(&held.uid),
                _ => expected.remote.clear(),
            });
            observed.remote = match (live, &observed.remote) {
                (Some(live), _) if is_selected(section, &live) => Remote::Present(Arc::new(live)),
                (Some(live), _) => Remote::Absent(Absence::LeftSelector(Arc::new(live))),
                (None, Remote::Present(held)) if held.deleting => Remote::Absent(Absence::SeenTerminating),
                (None, Remote::Present(_)) => Remote::Absent(Absence::Unexplained),
                (None, Remote::Absent(absence)) => Remote::Absent(absence.clone()),
            };
        }
        if local_is_unknown
            && section.mode() != Mode::DetachingLocalGone
            && let Some(kind) = section.local_kind()
        {
            let live = section.local_cluster().get_portable(&kind, &self.key.local).await?;
            let moment = section.watches().local.store().moment();
            self.expect(section, |expected| match (&live, &observed.local) {
                (Some(live), _) => expected.local.restart_at(&live.resource_version, moment),
                (None, Some(held)) => expected.local.restart_without(&held.uid),
                (None, None) => expected.local.clear(),
            });
            observed.local = live.map(Arc::new);
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of step")]
    async fn carry_out(&mut self, section: &Section, mut observed: Observed) -> (End, Observed) {
        let mut absence_confirmed = false;
        // The shortest wait of the parts that another writer keeps undoing.
        let mut contended: Option<Duration> = None;
        let mut taken = BTreeMap::new();
        loop {
            if !taken.is_empty() && section.mode() == Mode::Syncing {
                section.look_at_namespace_again(&mut observed);
            }
            let next = next(section, &observed);
            if recurs(&mut taken, &next) {
                return (End::Circles, observed);
            }
            let step = match next {
                Next::Rest(rest) if self.may_have_left_the_selector(section, &observed, rest) => {
                    match self.look_behind_the_selector(section, &mut observed).await {
                        Ok(ControlFlow::Continue(())) => continue,
                        Ok(ControlFlow::Break(end)) => return (end, observed),
                        Err(error) => return (End::Failed("look_behind_selector", error), observed),
                    }
                }
                Next::Rest(rest) => return (self.end_at(rest, contended), observed),
                Next::ConfirmAbsence => {
                    match self.confirm_absence(section, &mut observed, &mut absence_confirmed).await {
                        Ok(ControlFlow::Continue(())) => continue,
                        Ok(ControlFlow::Break(end)) => return (end, observed),
                        Err(error) => return (End::Failed("confirm_absence", error), observed),
                    }
                }
                Next::AskGuard(change) => match self.ask_guard(section, change, &mut observed) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(end) => return (end, observed),
                },
                Next::Do(step) => step,
            };
            if let Some(end) = self.may_not_send(section, &step, &observed) {
                return (end, observed);
            }
            let effects = effects(&step, &observed, section.policy());
            if let Some(is_stuck) = self.leave_out_conflicts(&effects, &mut observed, &mut contended) {
                if is_stuck {
                    return (self.end_at(Rest::Contended, contended), observed);
                }
                continue;
            }
            let asked_at = Instant::now();
            let contenders = self.contenders(section, &step, &effects, &observed, asked_at).await;
            let sending = match section.guarded_change_of(&step, &observed) {
                None => None,
                Some((_, count)) => match section.count_guarded_change(&self.key, count, &observed).await {
                    Ok(sending) => Some(sending),
                    Err(error) => {
                        let section = section.name();
                        tracing::debug!(%section, key = %self.key, %error, "waiting until the guard's count can be stored");
                        return (End::Later(PairState::Held, Some(LISTING_RECHECK)), observed);
                    }
                },
            };
            // The question who undoes it takes its time, and so does the count.
            if !section.caches_match_sessions() {
                section.not_sent(sending);
                return (End::Later(PairState::Pending, Some(LISTING_RECHECK)), observed);
            }
            self.will_send(section, &step);
            self.count_rewrites(section, &effects, &observed, contenders, asked_at);
            // If this run ends before the answer comes, the next run has to know that a write was sent.
            self.expect(section, |expected| expected.set_unknown(&step, true));
            let result = execute(section, &step, &observed).await;
            let is_unknown = result.as_ref().is_err_and(Error::outcome_is_unknown);
            self.expect(section, |expected| expected.set_unknown(&step, is_unknown));
            match result {
                Ok(written) => match self.acknowledged(section, &step, &effects, &written, observed).await {
                    (None, after) => observed = after,
                    (Some(end), after) => return (end, after),
                },
                Err(Error::Forbidden { .. }) if is_optional(&step) => {
                    observed.contended.push(Contended::Marks(RenewedObject::Namespace));
                }
                // A failing secret stops neither the other secrets nor the spec.
                Err(error) if matches!(step, Step::UploadSecret(_) | Step::NoteSecretHash(_)) => {
                    if let Step::UploadSecret(name) | Step::NoteSecretHash(name) = &step
                        && let Some(secret) = observed.secrets.iter_mut().find(|secret| secret.name == *name)
                    {
                        secret.fail();
                    }
                    if let Step::UploadSecret(name) = &step {
                        // The retry is left to the back-off, and not to the refresh.
                        section.index(|index| index.uploaded(&self.key, name, Instant::now()));
                    }
                    self.failed_without_end(&step, error);
                }
                // The remote has answered, and its answer stays the same until a person acts: the spec does not wait for that.
                Err(error) if step == Step::WriteRemoteStatus && error.is_refusal() => {
                    section.not_sent(sending);
                    observed.contended.push(Contended::Status);
                    self.failed_without_end(&step, error);
                }
                Err(error) => {
                    if !error.outcome_is_unknown() {
                        section.not_sent(sending);
                    }
                    if step == Step::WriteRemoteStatus && matches!(error, Error::NotServed { .. }) {
                        // The kind may have lost its subresource: then discovery makes the watch list everything again.
                        let _ = section.watches().remote.confirm_kind().await;
                    }
                    self.refused(section, &step, &error, &observed);
                    self.note_rejection(section, &step, &error, &observed).await;
                    return (End::Failed(step.name(), error), observed);
                }
            }
        }
    }

    /// How a run ends that has no further step: with the first failure that did not end it, or with the shortest wait of a
    /// contended part.
    fn end_at(&mut self, rest: Rest, contended: Option<Duration>) -> End {
        if !self.failed.is_empty() {
            let (step, error) = self.failed.remove(0);
            return End::Failed(step, error);
        }
        contended.map_or(End::Rest(rest), End::Contended)
    }

    fn failed_without_end(&mut self, step: &Step, error: Error) {
        if self.failed.iter().all(|(failed, _)| *failed != step.name()) {
            self.failed.push((step.name(), error));
        }
    }

    /// Records what the index has to know even if the answer to a step is lost.
    fn will_send(&self, section: &Section, step: &Step) {
        if *step == Step::AddFinalizer {
            section.index(|index| index.table.pair(&self.key, Instant::now()).holds_remote = true);
        }
    }

    /// A step failed: records what the caches have to show first, and lets other pairs try what this one could not do.
    fn refused(&self, section: &Section, step: &Step, error: &Error, observed: &Observed) {
        if matches!(error, Error::Conflict { .. } | Error::NotFound { .. }) {
            self.expect(section, |expected| expected.refused(step, observed));
        }
        if *step == Step::CreateLocal && matches!(error, Error::Conflict { exists: true, .. }) {
            section.index(|index| index.table.pair(&self.key, Instant::now()).local_was_there = true);
        }
        match (step, &observed.namespace) {
            (Step::CreateNamespace, _) => section.namespace_was_not_made(&self.key.local.namespace),
            (Step::DeleteNamespace, Namespace::Present { object, .. }) => {
                section.namespace_was_not_deleted(object);
            }
            _ => {}
        }
    }

    /// How the run ends if the step must not be sent now; `None`: it may.
    fn may_not_send(&mut self, section: &Section, step: &Step, observed: &Observed) -> Option<End> {
        if section.config().dry_run {
            section.index(|index| index.table.planned(step.name()));
            tracing::info!(section = %section.name(), key = %self.key, step = step.name(), "dry run");
            return Some(End::Later(PairState::Pending, None));
        }
        // Credentials may have changed since the last step.
        if !section.caches_match_sessions() {
            return Some(End::Later(PairState::Pending, Some(LISTING_RECHECK)));
        }
        if *step == Step::CreateNamespace && !section.may_create_namespace(&self.key.local.namespace) {
            return Some(End::Later(PairState::Pending, Some(NAMESPACE_PENDING)));
        }
        if let (Step::DeleteNamespace, Namespace::Present { object, .. }) = (step, &observed.namespace)
            && !section.may_delete_namespace(object, observed)
        {
            return Some(End::Later(PairState::Deleting, Some(NAMESPACE_PENDING)));
        }
        None
    }
}

/// Counts what a run does next. Returns whether it did that too often, so that it does not converge.
fn recurs(taken: &mut BTreeMap<(&'static str, Option<Arc<str>>), usize>, next: &Next) -> bool {
    let repetitions = taken.entry(next.name()).or_default();
    *repetitions += 1;
    *repetitions > MOST_REPETITIONS
}

/// Whether the run continues if the step is forbidden.
fn is_optional(step: &Step) -> bool {
    matches!(step, Step::RenewMarks(renewal) if renewal.place == RenewedObject::Namespace)
}

/// What the plan makes of the observation, in the section's mode.
fn next(section: &Section, observed: &Observed) -> Next {
    match section.mode() {
        Mode::Syncing => next::next(observed, section.policy()),
        Mode::Detaching => next::detach(observed, section.policy(), false),
        Mode::DetachingLocalGone => next::detach(observed, section.policy(), true),
    }
}
