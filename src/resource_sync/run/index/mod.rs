//! The state of a section: one synchronous index, which the section owns.
//!
//! It holds what was observed, expected, requeued, failed and guarded; the section and the runs of pairs act on it. Everything is
//! pure: no I/O, no `await`, no clock but the [`Instant`] that the caller passes in, and no cache that is not an argument.
//! [`Section::index`](crate::resource_sync::run::section::Section) hands it out for one call at a time.
//!
//! - `table` has a record for each pair, and the conflicts ([`crate::resource_sync::plan::conflicts`]), which count what other writers
//!   undo; `unkept` evaluates the fields in it that a server does not keep; `expectations` are our
//!   own writes that the caches do not show yet;
//! - of the plan, the guard ([`crate::resource_sync::plan::guard`]) holds mass changes until an operator approves;
//! - `requests` has the pairs that the requeue actor has to request, and its searches;
//! - `clusters` decides whether the section may act on its two clusters;
//! - in this file: how far the section's run has come, the local namespaces that are being created or deleted, and signs of another
//!   daemon that runs the section.

pub(crate) mod clusters;
pub(crate) mod expectations;
pub(crate) mod requests;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod unkept;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::cluster::{Object, ObjectKey};
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::guard::{PairChange, PairGuard};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::plan::server_result::ServerResult;
use crate::resource_sync::plan::waits::Waits;
use crate::state::{GuardState, Identities};
use crate::status::ObjectState;

use clusters::KnownClusters;
use expectations::Expectations;
use requests::Requests;
use table::{Failure, Table};
use unkept::UnkeptFields;

/// How long the number of own pairs is reused before it is counted again.
const COUNTED_FOR: Duration = Duration::from_secs(1);

/// Leftovers of earlier configurations.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Keys with another value than in the last run, where that decided which objects had the section's marks.
    pub(crate) settings: Vec<String>,
    /// Names that were removed from `secret_names` since the last run.
    pub(crate) secrets: Vec<String>,
    /// Pointers that were removed from `local_fields`, as long as their objects have not been written since.
    pub(crate) fields: Vec<String>,
}

/// A pair as a watch event shows it.
pub(crate) struct ChangedPair<'o> {
    /// The remote object in the cache.
    pub(crate) remote: Option<&'o Object>,
    /// The local object in the cache.
    pub(crate) local: Option<&'o Object>,
    /// The guarded change that is pending for the pair, if any.
    pub(crate) pending: Option<PairChange>,
    /// The direction in which the change has to be synced.
    pub(crate) direction: Direction,
}

/// The state of a pair before a run ended, and what has to be reported now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) state: ObjectState,
    /// It had failed, and that was reported.
    pub(crate) had_failed: bool,
    /// Its local object existed already when the section was about to create it.
    pub(crate) local_was_there: bool,
    /// The fields that an API server does not keep, if they were not reported yet.
    pub(crate) unkept: Vec<UnkeptFields>,
}

#[derive(Default)]
pub(crate) struct Index {
    pub(crate) table: Table,
    pub(crate) guard: PairGuard,
    /// Our own writes that the caches do not show yet.
    pub(crate) expectations: Expectations,
    /// The requeue actor's work.
    pub(crate) requests: Requests,
    /// Namespaces that are being created or deleted.
    pub(crate) namespaces: NamespaceWork,
    pub(crate) clusters: KnownClusters,
    /// The progress of the section's run.
    pub(crate) phase: Phase,
    /// Signs of another daemon that runs the section.
    pub(crate) duplicate: Duplicate,
    pub(crate) left: Left,
    /// How many pairs of its own the section has, and when they were counted.
    own_pairs: Option<(Instant, usize)>,
}

impl Index {
    /// Begins a run. Only the identities of the clusters are kept.
    pub(crate) fn begin(&mut self) {
        let mut clusters = std::mem::take(&mut self.clusters);
        clusters.begin();
        *self = Self { clusters, ..Self::default() };
    }

    /// Takes up the stored identities of the clusters and the stored counts of the guard.
    pub(crate) fn recall(&mut self, identities: Identities, guard: &GuardState, now: Instant, wall: SystemTime) {
        self.clusters.identities = identities;
        self.guard.changes.recall(guard, now, wall);
    }

    /// Records a watch event of a pair. Returns whether the guard may allow other changes now.
    pub(crate) fn shown(&mut self, key: &PairKey, shown: &ChangedPair<'_>, policy: &Policy, now: Instant) -> bool {
        let freed = self.register(key, shown.pending, now);
        if shown.remote.is_some() {
            self.guard.came_back(key);
        }
        // The event that shows our own write is the one to compare with it.
        if let Some(pair) = self.table.get_mut(key) {
            pair.server_result.observe(shown.remote, shown.local, policy);
        }
        let pair = self.table.pair(key, now);
        let since = match shown.direction {
            Direction::Spec => &mut pair.spec_since,
            Direction::Status => &mut pair.status_since,
        };
        since.get_or_insert(now);
        freed
    }

    /// Records the change that is pending for a pair, or that none is any more. Returns whether the guard may allow other changes now.
    pub(crate) fn register(&mut self, key: &PairKey, pending: Option<PairChange>, now: Instant) -> bool {
        let Some(pending) = pending else { return self.guard.changes.clear(key) };
        self.guard.register(key.clone(), pending, now);
        false
    }

    /// Records what a reconcile observes. Returns the API servers' results of earlier writes, and whether the local object existed
    /// already when the section was about to create it.
    pub(crate) fn observe(
        &mut self,
        key: &PairKey,
        remote: Option<&Object>,
        local: Option<&Object>,
        policy: &Policy,
        now: Instant,
    ) -> (ServerResult, bool) {
        let pair = self.table.pair(key, now);
        pair.holds_remote |= remote.is_some_and(|remote| policy.marks.holds(remote));
        // An object that is gone is created anew.
        pair.local_was_there &= local.is_some();
        pair.server_result.observe(remote, local, policy);
        (pair.server_result.clone(), pair.local_was_there)
    }

    /// Records that a run has ended with the pair at rest; it read the caches at `looked`.
    pub(crate) fn rested(
        &mut self,
        key: &PairKey,
        state: ObjectState,
        looked: Instant,
        waits: Option<Waits>,
        now: Instant,
    ) -> Before {
        let pair = self.table.pair(key, now);
        let had_failed = !std::mem::take(&mut pair.told_failures).is_empty();
        let mut before = Before { state: pair.state, had_failed, local_was_there: false, unkept: Vec::new() };
        if state == ObjectState::InStep {
            before.local_was_there = std::mem::take(&mut pair.local_was_there);
            pair.told_rejection = None;
            pair.server_result.in_step();
            before.unkept = self.table.untold_unkept(key);
        }
        self.table.ended(key, state, looked, waits, now);
        before
    }

    /// Records the failed steps of a run. Returns those in which the run before did not fail in the same way.
    pub(crate) fn failed(&mut self, key: &PairKey, failures: Vec<Failure>, now: Instant) -> Vec<Failure> {
        let reasons = failures.iter().map(|failure| (failure.step, failure.kind)).collect();
        let told = std::mem::replace(&mut self.table.pair(key, now).told_failures, reasons);
        let is_told = |failure: &&Failure| told.contains(&(failure.step, failure.kind));
        failures.into_iter().filter(|failure| !is_told(&failure)).collect()
    }

    /// Records that our finalizer is removed from the remote object.
    pub(crate) fn released(&mut self, key: &PairKey, now: Instant) {
        self.table.pair(key, now).holds_remote = false;
        self.guard.changes.clear(key);
    }

    /// How many pairs of its own the section has; `None` if they have to be counted anew.
    pub(crate) fn own_pairs(&self, now: Instant) -> Option<usize> {
        let (when, count) = self.own_pairs?;
        (now.saturating_duration_since(when) < COUNTED_FOR).then_some(count)
    }

    /// Records the number of own pairs.
    pub(crate) fn counted_own_pairs(&mut self, count: usize, now: Instant) {
        self.own_pairs = Some((now, count));
    }

    /// Requests a new count of own pairs.
    pub(crate) fn forget_count(&mut self) {
        self.own_pairs = None;
    }

    /// Records that a secret was written to the remote.
    pub(crate) fn uploaded(&mut self, key: &PairKey, secret: &Arc<str>, now: Instant) {
        self.table.pair(key, now).uploads.insert(Arc::clone(secret), now);
    }
}

/// How far a run has come. By default no run has begun.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    pub(crate) began: Option<Instant>,
    /// All pairs have been requested once.
    pub(crate) has_begun: bool,
    /// The stored state has just become known, and the pending changes that follow from it are being recorded.
    pub(crate) is_noting: bool,
    /// How many changes are under way after which changes of other pairs may be pending.
    pub(crate) changes: usize,
}

impl Phase {
    /// Begins a run; `is_noting`: the stored state is not known yet.
    pub(crate) fn begin(&mut self, is_noting: bool, now: Instant) {
        *self = Self { began: Some(now), is_noting, ..Self::default() };
    }

    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Makes the run decide anew, once the guard knows the pending changes.
    pub(crate) fn decide_anew(&mut self) {
        (self.has_begun, self.is_noting) = (false, true);
    }

    /// Whether the run can decide for the first time.
    pub(crate) fn begins_now(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Whether the guard does not know all pending changes yet.
    pub(crate) fn is_noting(&self) -> bool {
        self.is_noting || self.changes > 0
    }

    /// Whether the run began within this time.
    pub(crate) fn is_younger_than(&self, window: Duration, now: Instant) -> bool {
        self.began.is_some_and(|began| now.saturating_duration_since(began) < window)
    }
}

/// The cache shows a created or deleted namespace within this time. Otherwise another pair tries.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// A deletion of a namespace by this section.
struct Deletion {
    uid: Arc<str>,
    since: Instant,
    /// The pair that has deleted it, if it keeps our finalizer on its remote object until the namespace is gone.
    waits: Option<PairKey>,
}

/// The work on namespaces, by name.
#[derive(Default)]
pub(crate) struct NamespaceWork {
    creating: HashMap<Arc<str>, Instant>,
    deleting: HashMap<Arc<str>, Deletion>,
}

impl NamespaceWork {
    /// Whether the asking pair has to create the namespace. The others are requested when the watch shows it.
    pub(crate) fn may_create(&mut self, namespace: &Arc<str>, now: Instant) -> bool {
        self.creating.retain(|_, since| now.saturating_duration_since(*since) < SHOWN_WITHIN);
        if self.creating.contains_key(namespace) {
            return false;
        }
        self.creating.insert(Arc::clone(namespace), now);
        true
    }

    /// Records that it could not be created, so that another pair may try.
    pub(crate) fn was_not_made(&mut self, namespace: &Arc<str>) {
        self.creating.remove(namespace);
    }

    /// Whether the asking pair has to delete the namespace. The others are requested when the watch shows it. `waits`: the pair
    /// keeps its finalizer until the namespace is gone.
    pub(crate) fn may_delete(&mut self, namespace: &Object, waits: Option<&PairKey>, now: Instant) -> bool {
        if let Some(deletion) = self.deleting.get(&namespace.key.name)
            && deletion.uid == namespace.uid
            && now.saturating_duration_since(deletion.since) < SHOWN_WITHIN
        {
            return false;
        }
        let deletion = Deletion { uid: Arc::clone(&namespace.uid), since: now, waits: waits.cloned() };
        self.deleting.insert(Arc::clone(&namespace.key.name), deletion);
        true
    }

    /// Forgets a deletion that has failed or whose outcome is unknown, so that another pair may try, or that is complete.
    pub(crate) fn forget_deletion(&mut self, namespace: &str) {
        self.deleting.remove(namespace);
    }

    /// Whether another pair of this run has deleted the namespace and waits until it is gone.
    pub(crate) fn another_awaits_end_of(&self, namespace: &Object, pair: &PairKey) -> bool {
        let deletion = self.deleting.get(&namespace.key.name).filter(|_| namespace.deleting);
        deletion.is_some_and(|deletion| {
            deletion.uid == namespace.uid && deletion.waits.as_ref().is_some_and(|waits| waits != pair)
        })
    }
}

/// This many objects of another daemon are no coincidence.
const COINCIDENCES: u64 = 3;

/// Local objects with this section's marks that it has not created.
#[derive(Debug, Default)]
pub(crate) struct Duplicate {
    made: u64,
    first: Option<ObjectKey>,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.as_ref().map(|key| format!(", the first {key}")).unwrap_or_default();
        write!(
            formatter,
            "another daemon seems to run this section: {} objects were created with its field manager, but not by this daemon{first}",
            self.made
        )
    }
}

impl Duplicate {
    /// Records an object that another daemon has created. Returns the message, once it is no coincidence any more.
    pub(crate) fn made_another(&mut self, key: &ObjectKey) -> Option<String> {
        self.made += 1;
        self.first.get_or_insert_with(|| key.clone());
        (self.made == COINCIDENCES).then(|| self.to_string())
    }

    /// The message about another daemon, if there seems to be one.
    pub(crate) fn seen(&self) -> Option<String> {
        (self.made >= COINCIDENCES).then(|| self.to_string())
    }
}
