//! The state of a section: one synchronous index, which the section owns.
//!
//! It holds what was observed, expected, requeued, failed and guarded; the section and the reconcilers act on it. Everything is
//! pure: no I/O, no `await`, no clock but the [`Instant`] that the caller passes in, and no cache that is not an argument.
//! [`Section::index`](crate::resource_sync::run::section::Section) hands it out for one call at a time.
//!
//! - `table` has a record for each pair, kept in `pairs`; `unkept` evaluates the fields in it that a server does not keep;
//!   `expectations` are our own writes that the caches do not show yet;
//! - the guard ([`crate::resource_sync::plan::guard`]) holds mass changes until an operator approves;
//! - `requests` has the pairs that the requeue actor has to request (each kind in a `requeue_set`), and its searches;
//! - `namespaces` has the local namespaces that are being created or deleted, and by which pair;
//! - `clusters` decides whether the section may act on its two clusters; `duplicate` notices another daemon that runs the section;
//! - `phase` has the section's mode, and how far its run has come.

pub(crate) mod clusters;
pub(crate) mod duplicate;
pub(crate) mod expectations;
pub(crate) mod namespaces;
mod pairs;
pub(crate) mod phase;
pub(crate) mod requests;
mod requeue_set;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod unkept;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::guard::{PairChange, PairGuard};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next::Policy;
use crate::resource_sync::plan::server_result::ServerResult;
use crate::resource_sync::plan::waits::Waits;
use crate::state::{GuardState, Identities};
use crate::telemetry::ObjectState;

use clusters::KnownClusters;
use duplicate::Duplicate;
use expectations::Expectations;
use namespaces::NamespaceWork;
use phase::Phase;
use requests::Requests;
use table::Table;

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
pub(crate) struct Shown<'o> {
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
    /// The section's mode and the progress of its run.
    pub(crate) phase: Phase,
    /// Signs of another daemon that runs the section.
    pub(crate) duplicate: Duplicate,
    pub(crate) left: Left,
    /// How many pairs of its own the section has, and when they were counted.
    own_pairs: Option<(Instant, usize)>,
}

impl Index {
    /// Begins a run. Only the identities of the clusters and the mode are kept.
    pub(crate) fn begin(&mut self) {
        let (mut clusters, mode) = (std::mem::take(&mut self.clusters), self.phase.mode);
        clusters.begin();
        *self = Self { clusters, phase: Phase { mode, ..Phase::default() }, ..Self::default() };
    }

    /// Takes up the stored identities of the clusters and the stored counts of the guard.
    pub(crate) fn recall(&mut self, identities: Identities, guard: &GuardState, now: Instant, wall: SystemTime) {
        self.clusters.identities = identities;
        self.guard.changes.recall(guard, now, wall);
    }

    /// Records a watch event of a pair. Returns whether the guard may allow other changes now.
    pub(crate) fn shown(&mut self, key: &PairKey, shown: &Shown<'_>, policy: &Policy, now: Instant) -> bool {
        let freed = self.register(key, shown.pending, now);
        if shown.remote.is_some() {
            self.guard.came_back(key);
        }
        // The event that shows our own write is the one to compare with it.
        if let Some(pair) = self.table.get(key) {
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
        let mut before = Before { state: pair.state, had_failed, local_was_there: false };
        if state == ObjectState::InStep {
            before.local_was_there = std::mem::take(&mut pair.local_was_there);
            pair.told_rejection = None;
            pair.server_result.in_step();
        }
        self.table.ended(key, state, looked, waits, now);
        before
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
