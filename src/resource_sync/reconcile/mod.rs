//! The reconciler of one pair: observe, plan, do, until the plan has nothing left to do.
//!
//! State it owns: how often it had to rewrite what somebody else undid, which may be forgotten. Everything else that it learns
//! is in the section's index at once, and it keeps no copy: which of its own writes the caches have not shown yet, which
//! outcomes are unknown, how the pair stands. Who sends to it: the dispatcher, one request at a time. What it sends: requests
//! to the two clusters, Events. Passivated when idle and made again on demand: all that matters is then found with the
//! section and in the caches.

mod acknowledged;
mod confirm_status;
mod conflicts;
mod execute;
mod missing;
mod rejected;
mod telling;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::execute::execute;
use self::missing::{GUARD_LOOK, LISTING_LOOK, is_selected};
use crate::actor::{Outcome, Reconciler, ReconcilerFactory};
use crate::cluster::{Error, Retry};
use crate::resource_sync::index::expectations::PairExpectations;
use crate::resource_sync::index::phase::Mode;
use crate::resource_sync::index::table::Failure;
use crate::resource_sync::metrics::SyncMetrics;
use crate::resource_sync::report::events::PairEvent;
use crate::resource_sync::rules::conflicts::{ConflictTracker, Contended, effects};
use crate::resource_sync::rules::former::Place;
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::rules::ownership::Unproven;
use crate::resource_sync::rules::plan::{
    self, Absence, Namespace, Next, Observed, Policy, Remote, Rest, Step, UPLOAD_SECRET,
};
use crate::resource_sync::rules::waits::Waits;
use crate::resource_sync::section::Section;
use crate::resource_sync::section::standing::Standing;
use crate::telemetry::ObjectState as PairState;

/// A namespace that is going is looked at again after this, should its watch not tell before.
const NAMESPACE_TERMINATES: Duration = Duration::from_secs(5);
/// A namespace that another pair makes or deletes is looked for after this, should its watch not tell before.
const NAMESPACE_MADE: Duration = Duration::from_secs(1);
/// No pair needs more steps than this in one go; one that does goes round in circles.
const MOST_STEPS: usize = 40;

/// Makes the reconcilers of one section.
pub struct PairReconcilers {
    section: Arc<Section>,
    metrics: Arc<SyncMetrics>,
}

impl PairReconcilers {
    /// The factory of a section.
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
            looked: Instant::now(),
            conflicts: ConflictTracker::default(),
        }
    }
}

/// The reconciler of one pair.
pub struct PairReconciler {
    section: Arc<Section>,
    pub(crate) metrics: Arc<SyncMetrics>,
    pub(crate) key: PairKey,
    /// How many permissions had been given when this run began.
    permissions: u64,
    /// When this run looked at the caches.
    looked: Instant,
    pub(crate) conflicts: ConflictTracker,
}

fn is_missing_secret(step: &str, error: &Error) -> bool {
    step == UPLOAD_SECRET && matches!(error, Error::NotFound { .. })
}

/// How one reconcile ended.
pub(crate) enum End {
    Rest(Rest),
    Held,
    /// Waits for news, or looks again after this.
    Later(PairState, Option<Duration>),
    Failed(&'static str, Error),
    /// Too many steps.
    Circles,
}

impl Reconciler for PairReconciler {
    async fn reconcile(&mut self) -> Outcome {
        let section = Arc::clone(&self.section);
        self.permissions = section.permissions();
        // When the last cache has listed, every pair is asked for.
        if !section.is_listed() {
            return Outcome::Wait;
        }
        if !section.is_available() {
            section.park(self.key.clone());
            // The attendant may have looked just before this was parked.
            if !section.is_available() {
                return Outcome::Wait;
            }
        }
        if !section.is_of_sessions() {
            return Outcome::RetryAfter(LISTING_LOOK);
        }
        if let Some(outcome) = self.is_kept_back(&section) {
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
        self.looked = Instant::now();
        let mut observed = section.observe(&self.key);
        if let Err(error) = self.resolve_unknown(&section, &mut observed).await {
            return self.finish(&section, &observed, End::Failed("read_after_unknown_outcome", error));
        }
        let (end, observed) = self.carry_out(&section, observed).await;
        self.finish(&section, &observed, end)
    }
}

impl PairReconciler {
    /// Waits while the section may not act: on which clusters is not known, or speaks against it.
    fn is_kept_back(&self, section: &Section) -> Option<Outcome> {
        let cause = match section.standing() {
            Standing::Clear => return None,
            Standing::Unread => None,
            Standing::Held(objection) | Standing::Refused(objection) => Some(objection.to_string()),
        };
        let state = if cause.is_some() { PairState::Held } else { PairState::Pending };
        let waits = cause.map(|cause| Waits::kept_back(cause, section.config()));
        section.index(|index| index.table.ended(&self.key, state, self.looked, waits, Instant::now()));
        section.park(self.key.clone());
        // The attendant may have looked just before this was parked.
        Some(if section.standing() == Standing::Clear { Outcome::Retry } else { Outcome::Wait })
    }

    /// A write whose outcome is unknown is followed by a live GET before the next decision about that object.
    async fn resolve_unknown(&self, section: &Section, observed: &mut Observed) -> Result<(), Error> {
        let (remote_is_unknown, local_is_unknown) = section.index(|index| {
            let expected = index.expectations.of(&self.key);
            expected.map_or((false, false), |expected| (expected.remote.unknown, expected.local.unknown))
        });
        if remote_is_unknown && let Some(kind) = section.remote_kind() {
            let live = section.remote_cluster().get(&kind, &observed.pair.remote).await?;
            let moment = section.watches().remote.store().moment();
            let held = match &observed.remote {
                Remote::Present(held) => Some(held),
                Remote::Absent(_) => None,
            };
            // The cache is not to be trusted before it has come as far.
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
            let live = section.local_cluster().get(&kind, &self.key.local).await?;
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

    async fn carry_out(&mut self, section: &Section, mut observed: Observed) -> (End, Observed) {
        let mut secret_failure = None;
        let mut asked = false;
        // How long the first of what somebody else keeps undoing has to wait.
        let mut contended: Option<Duration> = None;
        for number in 0..MOST_STEPS {
            if number > 0 && section.mode() == Mode::Syncing {
                section.look_at_namespace_again(&mut observed);
            }
            let next = match section.mode() {
                Mode::Syncing => plan::next(&observed, section.policy()),
                Mode::Detaching => plan::detach(&observed, section.policy(), false),
                Mode::DetachingLocalGone => plan::detach(&observed, section.policy(), true),
            };
            let step = match next {
                Next::Rest(rest) if self.may_have_left_the_selector(section, &observed, rest) => {
                    match self.look_behind_the_selector(section, &mut observed).await {
                        Ok(None) => continue,
                        Ok(Some(end)) => return (end, observed),
                        Err(error) => return (End::Failed("look_behind_selector", error), observed),
                    }
                }
                Next::Rest(rest) => {
                    let end = match (secret_failure, contended) {
                        (Some((step, error)), _) => End::Failed(step, error),
                        (None, Some(left)) => End::Later(PairState::Pending, Some(left)),
                        (None, None) => End::Rest(rest),
                    };
                    return (end, observed);
                }
                Next::ConfirmAbsence => match self.confirm_absence(section, &mut observed, &mut asked).await {
                    Ok(None) => continue,
                    Ok(Some(end)) => return (end, observed),
                    Err(error) => return (End::Failed("confirm_absence", error), observed),
                },
                Next::AskGuard(harm) => match self.ask_guard(section, harm, &mut observed) {
                    None => continue,
                    Some(end) => return (end, observed),
                },
                Next::Do(step) => step,
            };
            if let Some(end) = self.may_not_send(section, &step, &observed) {
                return (end, observed);
            }
            let effects = effects(&step, &observed);
            if let Some(left) = self.leave_out_conflicts(&effects, &mut observed) {
                contended = Some(contended.map_or(left, |earlier| earlier.min(left)));
                continue;
            }
            self.count_rewrites(section, &effects, &observed);
            self.will_send(section, &step);
            let sending = match section.harm_of(&step, &observed) {
                None => None,
                Some((_, count)) => match section.count_harm(&self.key, count, &observed).await {
                    Ok(sending) => Some(sending),
                    Err(error) => {
                        let section = section.name();
                        tracing::debug!(%section, key = %self.key, %error, "waits until it can be remembered");
                        return (End::Later(PairState::Held, Some(LISTING_LOOK)), observed);
                    }
                },
            };
            // Should this run end before the answer comes, the next one knows that a write was sent.
            self.expect(section, |expected| expected.set_unknown(&step, true));
            let result = execute(section, &step, &observed).await;
            let is_unknown = result.as_ref().is_err_and(Error::outcome_is_unknown);
            self.expect(section, |expected| expected.set_unknown(&step, is_unknown));
            match result {
                Ok(written) => match self.acknowledged(section, &step, &effects, &written, observed).await {
                    (None, after) => observed = after,
                    (Some(end), after) => return (end, after),
                },
                Err(Error::Forbidden { .. }) if is_optional(&step, section.policy()) => {
                    observed.contended.push(Contended::Marks(Place::Namespace));
                }
                // One failing secret stops neither the others nor the spec.
                Err(error) if matches!(step, Step::UploadSecret(_) | Step::NoteSecretHash(_)) => {
                    if let Step::UploadSecret(name) | Step::NoteSecretHash(name) = &step
                        && let Some(secret) = observed.secrets.iter_mut().find(|secret| secret.name == *name)
                    {
                        secret.fail();
                    }
                    if let Step::UploadSecret(name) = &step {
                        // Not due again before it is tried again with back-off.
                        section.index(|index| index.uploaded(&self.key, name, Instant::now()));
                    }
                    secret_failure = Some((step.name(), error));
                }
                Err(error) => {
                    if !error.outcome_is_unknown() {
                        section.not_sent(sending);
                    }
                    if step == Step::WriteRemoteStatus && matches!(error, Error::NotServed { .. }) {
                        // The kind may have lost its subresource: where it has, the watch begins anew and asks for all.
                        let _ = section.watches().remote.confirm_kind().await;
                    }
                    self.refused(section, &step, &error, &observed);
                    self.tell_rejection(section, &step, &error, &observed).await;
                    return (End::Failed(step.name(), error), observed);
                }
            }
        }
        (End::Circles, observed)
    }

    /// What is known of the pair before a step's answer comes, whatever that is.
    fn will_send(&self, section: &Section, step: &Step) {
        if *step == Step::AddFinalizer {
            section.index(|index| index.table.pair(&self.key, Instant::now()).holds_remote = true);
        }
    }

    /// A step was not carried out: what has to be seen, and what is free again.
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

    /// Why a step is not taken now; `None`: it is.
    fn may_not_send(&mut self, section: &Section, step: &Step, observed: &Observed) -> Option<End> {
        if section.config().dry_run {
            section.index(|index| index.table.planned(step.name()));
            tracing::info!(section = %section.name(), key = %self.key, step = step.name(), "dry run");
            return Some(End::Later(PairState::Pending, None));
        }
        // Credentials may have changed since the last step.
        if !section.is_of_sessions() {
            return Some(End::Later(PairState::Pending, Some(LISTING_LOOK)));
        }
        if *step == Step::CreateNamespace && !section.may_create_namespace(&self.key.local.namespace) {
            return Some(End::Later(PairState::Pending, Some(NAMESPACE_MADE)));
        }
        if let (Step::DeleteNamespace, Namespace::Present { object, .. }) = (step, &observed.namespace)
            && !section.may_delete_namespace(object, observed)
        {
            return Some(End::Later(PairState::Deleting, Some(NAMESPACE_MADE)));
        }
        None
    }

    fn finish(&mut self, section: &Section, observed: &Observed, end: End) -> Outcome {
        let now = Instant::now();
        let mut waits = None;
        let (state, outcome) = match end {
            End::Rest(rest) => return self.rested(section, observed, rest),
            End::Held => {
                let harm = section.index(|index| index.guard.harm_to(&self.key));
                waits = Some(Waits::held(harm, section.config()));
                (PairState::Held, Outcome::RetryAfter(GUARD_LOOK))
            }
            End::Later(state, after) => (state, after.map_or(Outcome::Wait, Outcome::RetryAfter)),
            End::Circles => {
                let reason = "the two sides do not settle".to_owned();
                waits = Some(Waits::circles(&reason));
                self.failed(
                    section,
                    observed,
                    Failure { key: self.key.local.clone(), step: "plan", kind: "circles", reason },
                    now,
                );
                (PairState::Failing, Outcome::Retry)
            }
            // Nobody's failure: whoever holds the section next begins with a list.
            End::Failed(_, Error::LeaseExpired(_)) => (PairState::Pending, Outcome::Wait),
            // Not a failure: the namespace goes first.
            End::Failed(_, Error::NamespaceTerminating { .. }) => {
                (PairState::Pending, Outcome::RetryAfter(NAMESPACE_TERMINATES))
            }
            End::Failed(step, error) => match error.retry() {
                // The cache catches up; that is no failure. A secret that the remote lacks is one: it is not made here.
                Retry::Reread if !is_missing_secret(step, &error) => (PairState::Pending, Outcome::Retry),
                Retry::WhenAvailable => {
                    section.park(self.key.clone());
                    (PairState::Pending, if section.is_available() { Outcome::Retry } else { Outcome::Wait })
                }
                retry => {
                    waits = Some(Waits::failing(step, &error, section.config()));
                    let failure =
                        Failure { key: self.key.local.clone(), step, kind: error.kind(), reason: error.to_string() };
                    self.failed(section, observed, failure, now);
                    let outcome = match retry {
                        Retry::WhenAllowed => {
                            section.park(self.key.clone());
                            // It may have been given between the answer and this.
                            if section.permissions() == self.permissions { Outcome::Wait } else { Outcome::Retry }
                        }
                        Retry::After(delay) => Outcome::RetryAfter(delay),
                        Retry::WhenElected => Outcome::Wait,
                        Retry::Backoff | Retry::Reread | Retry::WhenAvailable => Outcome::Retry,
                    };
                    (PairState::Failing, outcome)
                }
            },
        };
        section.index(|index| index.table.ended(&self.key, state, self.looked, waits, now));
        outcome
    }

    fn rested(&mut self, section: &Section, observed: &Observed, rest: Rest) -> Outcome {
        let now = Instant::now();
        let state = match rest {
            Rest::InStep => PairState::InStep,
            Rest::Paused => PairState::Paused,
            Rest::Contended => PairState::Pending,
            Rest::LocalTerminating | Rest::NamespaceTerminating => PairState::Deleting,
            Rest::Stranger => PairState::Stranger,
            Rest::MappingChanged => PairState::MappingChanged,
            Rest::Circle => PairState::Circle,
            Rest::OtherCluster => PairState::OtherCluster,
            Rest::Unclaimed(unproven) if unproven != Unproven::Unmarked => PairState::Unclaimed,
            Rest::Unclaimed(_) | Rest::Gone => {
                // Nothing is left to do, but the remote object is not gone yet.
                let is_held =
                    rest == Rest::Gone && section.mode() == Mode::Syncing && Waits::is_held_by_others(observed);
                let waits = is_held.then(|| Waits::deleting(rest, observed, section.config()));
                section.index(|index| match waits {
                    Some(waits) => index.table.ended(&self.key, PairState::Deleting, self.looked, Some(waits), now),
                    None => index.table.forget(&self.key),
                });
                if matches!(observed.namespace, Namespace::Present { .. }) {
                    section.last_one_went(&self.key);
                }
                // The namespace that was made for it may have to go later, when others no longer live in it: that the
                // object went the regular way is known until then.
                let is_owner = matches!(&observed.namespace, Namespace::Present { object, ours: true }
                    if section.policy().marks.value_of(object, &section.policy().marks.owner) == Some(&*self.key.local.name));
                // Where it was there when this run began, what has been seen since is for the run that follows.
                let is_known = matches!(observed.remote, Remote::Absent(_));
                if !is_owner && is_known && (observed.remote_object().is_none() || section.mode() == Mode::Syncing) {
                    section.forget_terminated(&observed.pair.remote);
                }
                section.index(|index| index.guard.clear(&self.key));
                return Outcome::Done;
            }
        };
        if let Some(waits) = Waits::left_alone(rest, observed, section.config(), section.policy()) {
            if section.index(|index| index.table.pair(&self.key, now).state) != state {
                let (section, cause) = (section.name(), &waits.cause);
                tracing::warn!(%section, key = %self.key, cause, "the object is left alone");
            }
            let freed = section.index(|index| {
                index.table.ended(&self.key, state, self.looked, Some(waits), now);
                index.guard.clear(&self.key)
            });
            if freed {
                section.suspects_may_go();
            }
            return Outcome::Done;
        }
        let waits = (state == PairState::Deleting).then(|| Waits::deleting(rest, observed, section.config()));
        let before = section.index(|index| index.rested(&self.key, state, self.looked, waits, now));
        if let Some(local) = observed.local.as_deref().filter(|_| before.local_was_there) {
            section.made_by_another(local);
        }
        if let (PairState::InStep, true, Some(local)) = (state, before.had_failed, &observed.local) {
            section.tell(PairEvent::synced(local));
        }
        if state == PairState::InStep {
            self.tell_unkept(section, observed);
        }
        if state == PairState::Paused && before.state != PairState::Paused {
            self.tell_pause(section, observed);
        }
        Outcome::Done
    }
}

/// Whether everything else goes on without the step.
fn is_optional(step: &Step, policy: &Policy) -> bool {
    matches!(step, Step::RenewMarks(renewal) if renewal.is_only_source(policy))
}
