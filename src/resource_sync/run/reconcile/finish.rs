//! The end of a run: the pair's state, what it waits for, and when the dispatcher runs it again.

use std::time::Duration;

use tokio::time::Instant;

use super::missing::GUARD_RECHECK;
use super::{End, PairReconciler};
use crate::actor::Outcome;
use crate::cluster::{Error, Retry};
use crate::resource_sync::plan::next::{Namespace, Observed, Remote, Rest, UPLOAD_SECRET};
use crate::resource_sync::plan::ownership::Unproven;
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::events::PairEvent;
use crate::resource_sync::run::index::phase::Mode;
use crate::resource_sync::run::index::table::Failure;
use crate::resource_sync::run::section::Section;
use crate::telemetry::ObjectState as PairState;

/// A pair that waits for the end of a terminating namespace checks again after this, should its watch not show it before.
const NAMESPACE_RECHECK: Duration = Duration::from_secs(5);

impl PairReconciler {
    /// Records how the run ended, and says when the pair runs again.
    pub(crate) fn finish(&mut self, section: &Section, observed: &Observed, end: End) -> Outcome {
        let now = Instant::now();
        let mut waits = None;
        let (state, outcome) = match end {
            End::Rest(rest) => return self.rested(section, observed, rest),
            End::Held => {
                let change = section.index(|index| index.guard.changes.change_to(&self.key));
                waits = Some(Waits::held(change, section.config()));
                (PairState::Held, Outcome::RetryAfter(GUARD_RECHECK))
            }
            End::Later(state, after) => (state, after.map_or(Outcome::Wait, Outcome::RetryAfter)),
            End::Contended(left) => {
                section.index(|index| index.table.is_still_contended(&self.key, now));
                (PairState::Pending, Outcome::RetryAfter(left))
            }
            End::Circles => {
                let reason = "the two sides do not settle".to_owned();
                waits = Some(Waits::circles(&reason));
                let failure = Failure { key: self.key.local.clone(), step: "plan", kind: "circles", reason };
                self.record_failures(section, observed, vec![failure], now);
                (PairState::Failing, Outcome::Retry)
            }
            // Not a failure: the next holder of the section begins with a list.
            End::Failed(_, Error::LeaseExpired(_)) => (PairState::Pending, Outcome::Wait),
            // Not a failure: the pair waits until the namespace is gone.
            End::Failed(_, Error::NamespaceTerminating { .. }) => {
                (PairState::Pending, Outcome::RetryAfter(NAMESPACE_RECHECK))
            }
            End::Failed(step, error) => match error.retry() {
                // The cache is behind and will catch up, which is no failure.
                Retry::Reread if !is_missing_secret(step, &error) => (PairState::Pending, Outcome::Retry),
                Retry::WhenAvailable => {
                    section.park(self.key.clone());
                    (PairState::Pending, if section.is_available() { Outcome::Retry } else { Outcome::Wait })
                }
                retry => {
                    let beside = std::mem::take(&mut self.failed);
                    waits = Some(Waits::failing(step, &error, &beside, section.config()));
                    let failure = |step, error: &Error| Failure {
                        key: self.key.local.clone(),
                        step,
                        kind: error.kind(),
                        reason: error.to_string(),
                    };
                    // The report names the newest first.
                    let failures = beside
                        .iter()
                        .map(|(step, error)| failure(step, error))
                        .chain(std::iter::once(failure(step, &error)))
                        .collect();
                    self.record_failures(section, observed, failures, now);
                    // The first of them that is tried again by itself decides. If there is none, the pair waits.
                    let outcome = std::iter::once(retry)
                        .chain(beside.iter().map(|(_, error)| error.retry()))
                        .map(|retry| self.outcome(section, retry))
                        .reduce(|one, other| if one == Outcome::Wait { other } else { one });
                    (PairState::Failing, outcome.unwrap_or(Outcome::Retry))
                }
            },
        };
        section.index(|index| index.table.ended(&self.key, state, self.observed_at, waits, now));
        outcome
    }

    /// How a pair that fails is tried again.
    fn outcome(&self, section: &Section, retry: Retry) -> Outcome {
        match retry {
            Retry::WhenAllowed => {
                section.park(self.key.clone());
                // The permission may have been granted after the refusal and before the pair was parked.
                if section.permissions() == self.permissions { Outcome::Wait } else { Outcome::Retry }
            }
            Retry::After(delay) => Outcome::RetryAfter(delay),
            Retry::WhenElected => Outcome::Wait,
            Retry::Backoff | Retry::Reread | Retry::WhenAvailable => Outcome::Retry,
        }
    }

    fn rested(&mut self, section: &Section, observed: &Observed, rest: Rest) -> Outcome {
        let now = Instant::now();
        let state = match rest {
            Rest::InStep => PairState::InStep,
            Rest::Paused => PairState::Paused,
            Rest::Contended => PairState::Pending,
            Rest::LeftOut(why) => {
                let (is_new, calm_in) = section.index(|index| index.table.leave_out(&self.key, why, now));
                if is_new {
                    tracing::info!(section = %section.name(), key = %self.key, reason = why.reason(), "the object is left out");
                }
                return calm_in.map_or(Outcome::Done, Outcome::RetryAfter);
            }
            Rest::LocalTerminating | Rest::NamespaceTerminating => PairState::Deleting,
            Rest::Existing => PairState::Stranger,
            Rest::MappingChanged => PairState::MappingChanged,
            Rest::Circle => PairState::Circle,
            Rest::OtherCluster => PairState::OtherCluster,
            Rest::Unclaimed(unproven) if unproven != Unproven::Unmarked => PairState::Unclaimed,
            Rest::Unclaimed(_) | Rest::Gone => {
                // The section has nothing left to do, but finalizers of others keep the remote object.
                let is_held =
                    rest == Rest::Gone && section.mode() == Mode::Syncing && Waits::is_held_by_others(observed);
                let waits = is_held.then(|| Waits::deleting(rest, observed, section.config()));
                let calm_in = section.index(|index| match waits {
                    Some(waits) => {
                        index.table.ended(&self.key, PairState::Deleting, self.observed_at, Some(waits), now);
                        None
                    }
                    None => index.table.forget(&self.key, now),
                });
                if matches!(observed.namespace, Namespace::Present { .. }) {
                    section.requeue_namespace_owners(&self.key);
                }
                // The namespace that was created for this pair may have to be deleted later, when no other pair lives in it.
                // Until then the cache has to remember that the object was observed terminating.
                let is_owner = matches!(&observed.namespace, Namespace::Present { object, ours: true }
                    if object.annotation(&section.policy().marks.owner) == Some(&*self.key.local.name));
                // If the object was present when this run began, the next run deals with what was observed since.
                let is_known = matches!(observed.remote, Remote::Absent(_));
                if !is_owner && is_known && (observed.remote_object().is_none() || section.mode() == Mode::Syncing) {
                    section.forget_terminated(&observed.pair.remote);
                }
                if section.index(|index| index.guard.changes.clear(&self.key)) {
                    section.requeue_pending_changes();
                }
                return calm_in.map_or(Outcome::Done, Outcome::RetryAfter);
            }
        };
        if let Some(waits) = Waits::left_alone(rest, observed, section.config(), section.policy()) {
            if section.index(|index| index.table.pair(&self.key, now).state) != state {
                let (section, cause) = (section.name(), &waits.cause);
                tracing::warn!(%section, key = %self.key, cause, "the object is left alone");
            }
            let freed = section.index(|index| {
                index.table.ended(&self.key, state, self.observed_at, Some(waits), now);
                index.guard.changes.clear(&self.key)
            });
            if freed {
                section.requeue_pending_changes();
            }
            return Outcome::Done;
        }
        let waits = match state {
            PairState::Deleting => Some(Waits::deleting(rest, observed, section.config())),
            PairState::Paused => Some(Waits::paused(observed, section.config(), section.policy())),
            _ => None,
        };
        let before = section.index(|index| index.rested(&self.key, state, self.observed_at, waits, now));
        if let Some(local) = observed.local.as_deref().filter(|_| before.local_was_there) {
            section.object_made_by_other_daemon(local);
        }
        if let (PairState::InStep, true, Some(local)) = (state, before.had_failed, &observed.local) {
            section.emit_event(PairEvent::synced(local));
        }
        if state == PairState::InStep {
            self.report_unkept_fields(section, observed);
        }
        if state == PairState::Paused && before.state != PairState::Paused {
            self.report_pause(section, observed);
        }
        Outcome::Done
    }
}

/// The remote secret is updated and never created, so a missing one is a failure, not a cache that is behind.
fn is_missing_secret(step: &str, error: &Error) -> bool {
    step == UPLOAD_SECRET && matches!(error, Error::NotFound { .. })
}
