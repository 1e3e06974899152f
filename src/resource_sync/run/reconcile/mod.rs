//! One run of one pair: observes both sides, asks the plan for the next step, sends it, and repeats this until the plan has no
//! further step.
//!
//! The dispatcher calls [`Section::reconcile`], never twice at once for one pair. A run keeps nothing beyond its end: everything
//! that it learns goes to the section's index at once, so that a run which ends early, or panics, loses nothing.
//!
//! In the order of a run: `observe` reads the caches and the index, which is locked once for it; the plan decides ([`next()`]);
//! `missing` asks for objects that the caches lack, and the guard for its permission; `conflicts` keeps back what another writer
//! undoes again and again; `send` sends the request of a step and records its answer, with one lock for each; `finish` records
//! how the run ended.

mod conflicts;
mod finish;
mod missing;
mod observe;
mod send;

use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::actor::{Outcome, Reconcile};
use crate::cluster::{Error, Object};
use crate::guard::Sending;
use crate::resource_sync::plan::conflicts::effects;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Namespace, Observed};
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::plan::step::{Contended, Next, Rest, Step};
use crate::resource_sync::run::section::{Mode, Section};
use crate::status::ObjectState;
use conflicts::Way;
use missing::LISTING_RECHECK;
use observe::Seen;

/// A pair that waits for another one to create or delete the namespace checks again after this, should its watch not show it
/// before.
const NAMESPACE_PENDING: Duration = Duration::from_secs(1);
/// No pair needs the same step more often than this in one run; one that takes it again does not converge. The number of
/// different steps has no bound: a pair may have any number of secrets.
const MOST_REPETITIONS: usize = 5;

pub(crate) struct PairRun<'s> {
    section: &'s Section,
    key: &'s PairKey,
    /// What is known of the pair by now.
    observed: Observed,
    /// When this run observed the caches.
    observed_at: Instant,
    /// The remote object that the cache showed then.
    shown: Option<Arc<Object>>,
    /// How many denied permissions had been granted when this run began.
    permissions: u64,
    /// The failures that have not stopped the run, the first of each step.
    failed: Vec<(&'static str, Error)>,
    /// The shortest wait of the parts that another writer keeps undoing.
    contended: Option<Duration>,
    /// A live GET has found no remote object.
    absence_confirmed: bool,
}

/// How a run ended.
pub(crate) enum End {
    Rest(Rest),
    Held,
    /// Waits for an event, or runs again after this.
    Later(ObjectState, Option<Duration>),
    Failed(&'static str, Error),
    /// Parts of it are contended, the first of them for this long.
    Contended(Duration),
    /// It took the same step too often.
    Circles,
}

impl Reconcile<PairKey> for Section {
    async fn reconcile(&self, key: &PairKey) -> Outcome {
        let permissions = self.permissions();
        if let Some(outcome) = self.may_not_run(key) {
            return outcome;
        }
        let observed_at = Instant::now();
        let Seen { observed, unknown } = match self.observe(key) {
            Ok(seen) => seen,
            Err(behind) => return Outcome::RetryAfter(behind),
        };
        let mut run = PairRun {
            section: self,
            key,
            shown: observed.remote_object().cloned(),
            observed,
            observed_at,
            permissions,
            failed: Vec::new(),
            contended: None,
            absence_confirmed: false,
        };
        let end = match run.resolve(unknown).await {
            Continue(()) => run.carry_out().await,
            Break(end) => end,
        };
        run.finish(end)
    }
}

impl PairRun<'_> {
    async fn carry_out(&mut self) -> End {
        let mut taken = BTreeMap::new();
        loop {
            if !taken.is_empty() && self.section.mode() == Mode::Syncing {
                self.section.look_at_namespace_again(&mut self.observed);
            }
            let next = self.next();
            if recurs(&mut taken, &next) {
                return End::Circles;
            }
            let done = match next {
                Next::Do(step) => self.take(step).await,
                Next::Rest(rest) if self.may_have_left_the_selector(rest) => self.look_behind_the_selector().await,
                Next::Rest(rest) => Break(self.end_at(rest)),
                Next::ConfirmAbsence => self.confirm_absence().await,
                Next::AskGuard(change) => self.ask_guard(change),
            };
            if let Break(end) = done {
                return end;
            }
        }
    }

    /// What the plan makes of the observation, in the section's mode.
    fn next(&self) -> Next {
        let policy = self.section.policy();
        match self.section.mode() {
            Mode::Syncing => next::next(&self.observed, policy),
            Mode::Detaching => next::detach(&self.observed, policy, false),
            Mode::DetachingLocalGone => next::detach(&self.observed, policy, true),
        }
    }

    /// Takes a step, unless something speaks against it now, and folds it into the observation. The plan goes on, or the run ends.
    async fn take(&mut self, step: Step) -> ControlFlow<End> {
        if let Some(end) = self.may_not_send(&step) {
            return Break(end);
        }
        let section = self.section;
        let effects = effects(&step, &self.observed, section.policy());
        let asked_at = Instant::now();
        let contenders = match self.way(&effects, asked_at) {
            Way::Free(conflicts) => self.contenders(&step, conflicts).await,
            Way::LeftOut => return Continue(()),
            Way::Stuck => return Break(self.end_at(Rest::Contended)),
        };
        let sending = match section.guarded_change_of(&step, &self.observed) {
            None => None,
            Some((_, count)) => match section.count_guarded_change(self.key, count, &self.observed).await {
                Ok(sending) => Some(sending),
                Err(error) => {
                    tracing::debug!(section = %section.name(), key = %self.key, %error, "waiting until the guard's count can be stored");
                    return Break(End::Later(ObjectState::Held, Some(LISTING_RECHECK)));
                }
            },
        };
        // The question who undoes it takes its time, and so does the count.
        if !section.caches_match_sessions() {
            section.not_sent(sending);
            return Break(End::Later(ObjectState::Pending, Some(LISTING_RECHECK)));
        }
        match self.send(&step, &effects, contenders, asked_at).await {
            Err(error) => self.step_failed(step, error, sending).await,
            Ok(written) => {
                self.observed.apply(&step, &written, section.policy());
                let end = if step == Step::WriteRemoteStatus { self.confirm_status().await } else { None };
                end.map_or(Continue(()), Break)
            }
        }
    }

    /// How the run ends if the step must not be sent now; `None`: it may.
    fn may_not_send(&self, step: &Step) -> Option<End> {
        let (section, key) = (self.section, self.key);
        if section.config().dry_run {
            section.index(|index| index.table.planned(step.name()));
            tracing::info!(section = %section.name(), %key, step = step.name(), "dry run");
            return Some(End::Later(ObjectState::Pending, None));
        }
        // Credentials may have changed since the last step.
        if !section.caches_match_sessions() {
            return Some(End::Later(ObjectState::Pending, Some(LISTING_RECHECK)));
        }
        if *step == Step::CreateNamespace && !section.may_create_namespace(&key.local.namespace) {
            return Some(End::Later(ObjectState::Pending, Some(NAMESPACE_PENDING)));
        }
        if let (Step::DeleteNamespace, Namespace::Present { object, .. }) = (step, &self.observed.namespace)
            && !section.may_delete_namespace(object, &self.observed)
        {
            return Some(End::Later(ObjectState::Deleting, Some(NAMESPACE_PENDING)));
        }
        None
    }

    /// A step failed. The run ends, unless the failure does not concern the steps after it.
    async fn step_failed(&mut self, step: Step, error: Error, sending: Option<Sending<PairKey>>) -> ControlFlow<End> {
        match (&step, &error) {
            (Step::RenewMarks(renewal), Error::Forbidden { .. }) if renewal.place == RenewedObject::Namespace => {
                self.observed.contended.push(Contended::Marks(RenewedObject::Namespace));
                return Continue(());
            }
            // A failing secret stops neither the other secrets nor the spec.
            (Step::UploadSecret(name) | Step::NoteSecretHash(name), _) => {
                if let Some(secret) = self.observed.secrets.iter_mut().find(|secret| secret.name == *name) {
                    secret.fail();
                }
                self.failed_without_end(&step, error);
                return Continue(());
            }
            // The remote has answered, and its answer stays the same until a person acts: the spec does not wait for that.
            (Step::WriteRemoteStatus, _) if error.is_refusal() => {
                self.section.not_sent(sending);
                self.observed.contended.push(Contended::Status);
                self.failed_without_end(&step, error);
                return Continue(());
            }
            // The kind may have lost its subresource: then discovery makes the watch list everything again.
            (Step::WriteRemoteStatus, Error::NotServed { .. }) => {
                let _ = self.section.watches().remote.confirm_kind().await;
            }
            _ => {}
        }
        if !error.outcome_is_unknown() {
            self.section.not_sent(sending);
        }
        self.note_rejection(&step, &error).await;
        Break(End::Failed(step.name(), error))
    }

    fn failed_without_end(&mut self, step: &Step, error: Error) {
        if self.failed.iter().all(|(failed, _)| *failed != step.name()) {
            self.failed.push((step.name(), error));
        }
    }

    /// How a run ends that has no further step: with the first failure that did not end it, or with the shortest wait of a
    /// contended part.
    fn end_at(&mut self, rest: Rest) -> End {
        if !self.failed.is_empty() {
            let (step, error) = self.failed.remove(0);
            return End::Failed(step, error);
        }
        self.contended.map_or(End::Rest(rest), End::Contended)
    }
}

/// Counts what a run does next. Returns whether it did that too often, so that it does not converge.
fn recurs(taken: &mut BTreeMap<(&'static str, Option<Arc<str>>), usize>, next: &Next) -> bool {
    let repetitions = taken.entry(next.name()).or_default();
    *repetitions += 1;
    *repetitions > MOST_REPETITIONS
}
