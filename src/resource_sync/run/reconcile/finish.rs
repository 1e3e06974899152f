//! The end of a run: the pair's state, what it waits for, when the dispatcher runs it again, and what its users are told, in
//! Events and in the log: once for each change of state.

use std::time::Duration;

use tokio::time::Instant;

use super::missing::GUARD_RECHECK;
use super::{End, PairRun};
use crate::actor::Outcome;
use crate::cluster::{Error, Retry};
use crate::resource_sync::plan::marks::Pause;
use crate::resource_sync::plan::observed::{Namespace, Remote};
use crate::resource_sync::plan::ownership::Unproven;
use crate::resource_sync::plan::step::{Rest, UPLOAD_SECRET};
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::index::table::Failure;
use crate::resource_sync::run::index::unkept::UnkeptFields;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::events::PairEvent;
use crate::status::ObjectState;

/// A pair that waits for the end of a terminating namespace checks again after this, should its watch not show it before.
const NAMESPACE_RECHECK: Duration = Duration::from_secs(5);

impl PairRun<'_> {
    /// Records how the run ended, and says when the pair runs again.
    pub(super) fn finish(mut self, end: End) -> Outcome {
        let (section, key, now) = (self.section, self.key, Instant::now());
        let mut waits = None;
        let (state, outcome) = match end {
            End::Rest(rest) => return self.rested(rest),
            End::Held => {
                let change = section.index(|index| index.guard.changes.change_to(key));
                waits = Some(Waits::held(change, section.config()));
                (ObjectState::Held, Outcome::RetryAfter(GUARD_RECHECK))
            }
            End::Later(state, after) => (state, after.map_or(Outcome::Wait, Outcome::RetryAfter)),
            End::Contended(left) => (ObjectState::Pending, Outcome::RetryAfter(left)),
            End::Circles => {
                let reason = "the two sides do not settle".to_owned();
                waits = Some(Waits::circles(&reason));
                self.record_failures(vec![Failure { key: key.local.clone(), step: "plan", kind: "circles", reason }]);
                (ObjectState::Failing, Outcome::Retry)
            }
            // Not a failure: the next holder of the section begins with a list.
            End::Failed(_, Error::LeaseExpired(_)) => (ObjectState::Pending, Outcome::Wait),
            // Not a failure: the pair waits until the namespace is gone.
            End::Failed(_, Error::NamespaceTerminating { .. }) => {
                (ObjectState::Pending, Outcome::RetryAfter(NAMESPACE_RECHECK))
            }
            End::Failed(step, error) => match error.retry() {
                // The cache is behind and will catch up, which is no failure.
                Retry::Reread if !is_missing_secret(step, &error) => (ObjectState::Pending, Outcome::Retry),
                Retry::WhenAvailable => {
                    section.park(key.clone());
                    (ObjectState::Pending, if section.is_available() { Outcome::Retry } else { Outcome::Wait })
                }
                retry => {
                    let beside = std::mem::take(&mut self.failed);
                    waits = Some(Waits::failing(step, &error, &beside, section.config()));
                    let failure = |step, error: &Error| Failure {
                        key: key.local.clone(),
                        step,
                        kind: error.kind(),
                        reason: error.to_string(),
                    };
                    let failures = beside
                        .iter()
                        .map(|(step, error)| failure(step, error))
                        .chain(std::iter::once(failure(step, &error)))
                        .collect();
                    self.record_failures(failures);
                    // The first of them that is tried again by itself decides. If there is none, the pair waits.
                    let outcome = std::iter::once(retry)
                        .chain(beside.iter().map(|(_, error)| error.retry()))
                        .map(|retry| self.outcome(retry))
                        .reduce(|one, other| if one == Outcome::Wait { other } else { one });
                    (ObjectState::Failing, outcome.unwrap_or(Outcome::Retry))
                }
            },
        };
        section.index(|index| index.table.ended(key, state, self.observed_at, waits, now));
        outcome
    }

    /// How a pair that fails is tried again.
    fn outcome(&self, retry: Retry) -> Outcome {
        match retry {
            Retry::WhenAllowed => {
                self.section.park(self.key.clone());
                // The permission may have been granted after the refusal and before the pair was parked.
                if self.section.permissions() == self.permissions { Outcome::Wait } else { Outcome::Retry }
            }
            Retry::After(delay) => Outcome::RetryAfter(delay),
            Retry::WhenElected => Outcome::Wait,
            Retry::Backoff | Retry::Reread | Retry::WhenAvailable => Outcome::Retry,
        }
    }

    fn rested(&self, rest: Rest) -> Outcome {
        let (section, key, observed, now) = (self.section, self.key, &self.observed, Instant::now());
        let state = match rest {
            Rest::InStep => ObjectState::InStep,
            Rest::Paused => ObjectState::Paused,
            Rest::Contended => ObjectState::Pending,
            Rest::LeftOut(why) => {
                let (is_new, calm_in) = section.index(|index| index.table.leave_out(key, why, now));
                if is_new {
                    tracing::info!(section = %section.name(), %key, reason = why.reason(), "the object is left out");
                }
                return calm_in.map_or(Outcome::Done, Outcome::RetryAfter);
            }
            Rest::LocalTerminating | Rest::NamespaceTerminating => ObjectState::Deleting,
            Rest::Existing => ObjectState::Existing,
            Rest::MappingChanged => ObjectState::MappingChanged,
            Rest::Circle => ObjectState::Circle,
            Rest::OtherCluster => ObjectState::OtherCluster,
            Rest::Unclaimed(unproven) if unproven != Unproven::Unmarked => ObjectState::Unclaimed,
            Rest::Unclaimed(_) | Rest::Gone => return self.gone(rest),
        };
        if let Some(waits) = Waits::left_alone(rest, observed, section.config(), section.policy()) {
            let cause = waits.cause.clone();
            let (is_new, is_freed) = section.index(|index| {
                let is_new = index.table.pair(key, now).state != state;
                index.table.ended(key, state, self.observed_at, Some(waits), now);
                (is_new, index.guard.changes.clear(key))
            });
            if is_new {
                tracing::warn!(section = %section.name(), %key, cause, "the object is left alone");
            }
            if is_freed {
                section.requeue_pending_changes();
            }
            return Outcome::Done;
        }
        let waits = match state {
            ObjectState::Deleting => Some(Waits::deleting(rest, observed, section.config())),
            ObjectState::Paused => Some(Waits::paused(observed, section.config(), section.policy())),
            _ => None,
        };
        let before = section.index(|index| index.rested(key, state, self.observed_at, waits, now));
        if let Some(local) = observed.local.as_deref().filter(|_| before.local_was_there) {
            section.object_made_by_other_daemon(local);
        }
        if let (ObjectState::InStep, true, Some(local)) = (state, before.had_failed, &observed.local) {
            section.emit_event(PairEvent::synced(local));
        }
        self.report_unkept_fields(&before.unkept);
        if state == ObjectState::Paused && before.state != ObjectState::Paused {
            self.report_pause();
        }
        Outcome::Done
    }

    /// The section has nothing to do for the pair any more.
    fn gone(&self, rest: Rest) -> Outcome {
        let (section, key, observed, now) = (self.section, self.key, &self.observed, Instant::now());
        let is_syncing = section.mode() == Mode::Syncing;
        // Finalizers of others may keep the remote object.
        let is_held = rest == Rest::Gone && is_syncing && Waits::is_held_by_others(observed);
        let waits = is_held.then(|| Waits::deleting(rest, observed, section.config()));
        let (calm_in, is_freed) = section.index(|index| {
            let calm_in = if waits.is_some() {
                index.table.ended(key, ObjectState::Deleting, self.observed_at, waits, now);
                None
            } else {
                index.table.forget(key, now)
            };
            (calm_in, index.guard.changes.clear(key))
        });
        if matches!(observed.namespace, Namespace::Present { .. }) {
            section.requeue_namespace_owners(key);
        }
        // The namespace that was created for this pair may have to be deleted later, when no other pair lives in it.
        // Until then the cache has to remember that the object was observed terminating.
        let is_owner = matches!(&observed.namespace, Namespace::Present { object, ours: true }
            if object.annotation(&section.policy().marks.owner) == Some(&*key.local.name));
        // If the object was present when this run began, the next run deals with what was observed since.
        let is_known = matches!(observed.remote, Remote::Absent(_));
        if !is_owner && is_known && (observed.remote_object().is_none() || is_syncing) {
            section.forget_terminated(&key.remote);
        }
        if is_freed {
            section.requeue_pending_changes();
        }
        calm_in.map_or(Outcome::Done, Outcome::RetryAfter)
    }

    /// Reports fields that an API server does not keep, each set of them once.
    fn report_unkept_fields(&self, untold: &[UnkeptFields]) {
        for unkept in untold {
            let cluster = self.section.written_to(unkept.direction);
            let fields = unkept.fields.list();
            tracing::warn!(section = %self.section.name(), key = %self.key, %cluster, fields, "the API server does not keep fields as they were written");
            if let Some(local) = &self.observed.local {
                self.section.emit_event(PairEvent::fields_not_kept(local, cluster, &unkept.fields));
            }
        }
    }

    /// Reports a pause. An Event needs an object, or at least a namespace to be in; an annotation with an invalid value is
    /// logged in any case.
    fn report_pause(&self) {
        let (section, key, observed) = (self.section, self.key, &self.observed);
        let marks = &section.policy().marks;
        let sides =
            [(observed.remote_object(), &section.config().remote), (observed.local.as_ref(), &section.config().local)];
        let unclear = sides.into_iter().find_map(|(object, cluster)| match marks.pause(object?) {
            Pause::Unclear(value) => Some(format!(
                "annotation {} on cluster {cluster} is {value:?}, which is neither true nor false",
                marks.paused
            )),
            Pause::No | Pause::Yes => None,
        });
        if let Some(problem) = &unclear {
            tracing::warn!(section = %section.name(), %key, problem, "the pair is paused by an annotation with an invalid value");
        }
        let local = observed.local.as_deref();
        if local.is_some() || (unclear.is_some() && observed.namespace != Namespace::Missing) {
            section.emit_event(PairEvent::paused(&key.local, local, unclear.as_deref()));
        }
    }

    /// Records the failed steps of a run, and reports those in which the run before did not fail in the same way.
    fn record_failures(&self, failures: Vec<Failure>) {
        let (section, observed) = (self.section, &self.observed);
        let untold = section.index(|index| index.failed(self.key, failures, Instant::now()));
        for failure in untold {
            tracing::warn!(
                section = %section.name(), remote = %section.config().remote, local = %section.config().local,
                key = %failure.key, step = failure.step, reason = failure.reason, "sync failed"
            );
            // The object may not exist, but an Event needs a namespace to be in.
            if observed.local.is_some() || observed.namespace != Namespace::Missing {
                let local = observed.local.as_deref();
                section.emit_event(PairEvent::failed(&failure.key, local, failure.step, &failure.reason));
            }
        }
    }
}

/// The remote secret is updated and never created, so a missing one is a failure, not a cache that is behind.
fn is_missing_secret(step: &str, error: &Error) -> bool {
    step == UPLOAD_SECRET && matches!(error, Error::NotFound { .. })
}
