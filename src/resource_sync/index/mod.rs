//! What a section knows: one synchronous index, which the section owns.
//!
//! What was observed, expected, requeued, failed and guarded is in here, and nothing that is done about it. Everything is
//! pure: no I/O, no `await`, no clock but the [`Instant`] that is passed in, and the caches are read only where one is an
//! argument. [`Section::index`](crate::resource_sync::section::Section) hands it out for one call at a time.
//!
//! - `table` has a record for each pair, found by `pairs`, and `unkept` what it says of fields that a server does not keep;
//!   `expectations` what the caches have yet to show of our own writes;
//! - the guard ([`crate::resource_sync::rules::guard`]) which mass changes wait for an approval;
//! - `requests` which pairs the attendant is to request (each kind a `requeue_set`), and what it is to look for;
//! - `namespaces` which local namespaces are being made or deleted, and by which pair;
//! - `clusters` which two clusters the section may act on; `twin` what another daemon has made in its name;
//! - `phase` what the section is about, and how far its run has come.

pub(crate) mod clusters;
pub(crate) mod expectations;
pub(crate) mod namespaces;
mod pairs;
pub(crate) mod phase;
pub(crate) mod requests;
mod requeue_set;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod twin;
pub(crate) mod unkept;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::rules::guard::Guard;
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::rules::plan::{Harm, Policy};
use crate::resource_sync::rules::server_result::ServerResult;
use crate::resource_sync::rules::waits::Waits;
use crate::resource_sync::section::left_behind::LeftBehind;
use crate::state::{GuardState, Identities};
use crate::telemetry::ObjectState;

use self::clusters::KnownClusters;
use self::expectations::Expectations;
use self::namespaces::NamespaceWork;
use self::phase::Phase;
use self::requests::Requests;
use self::table::Table;
use self::twin::Twin;

/// A number of pairs is counted again after this.
const COUNTED_FOR: Duration = Duration::from_secs(1);

/// What earlier settings have left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Objects with marks that no section owns any more.
    pub(crate) objects: Vec<LeftBehind>,
    /// States of sections that are no longer configured.
    pub(crate) states: Vec<String>,
    /// Names that were taken out of `secret_names` since the last run.
    pub(crate) secrets: Vec<String>,
    /// Pointers that were taken out of `local_fields`, while their objects have not been written since.
    pub(crate) fields: Vec<String>,
}

/// What a watch event shows of a pair.
pub(crate) struct Shown<'o> {
    /// The remote object, as the cache has it.
    pub(crate) remote: Option<&'o Object>,
    /// The local one.
    pub(crate) local: Option<&'o Object>,
    /// What threatens the pair, where many at once may suffer it, and whether it is one of the section's own.
    pub(crate) threat: Option<(Harm, bool)>,
    /// Which way the change is to travel.
    pub(crate) direction: Direction,
}

/// The state of a pair before a run ended, and what is to be told now that it has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// How it stood.
    pub(crate) state: ObjectState,
    /// It had failed, and that was told.
    pub(crate) had_failed: bool,
    /// Its local object had been found there when it was to be made.
    pub(crate) local_was_there: bool,
}

/// What a section knows.
#[derive(Default)]
pub(crate) struct Index {
    /// The pairs.
    pub(crate) table: Table,
    /// The guard against mass changes.
    pub(crate) guard: Guard,
    /// What the caches have yet to show.
    pub(crate) expectations: Expectations,
    /// What the attendant is to do.
    pub(crate) requests: Requests,
    /// Namespaces that are being made or deleted.
    pub(crate) namespaces: NamespaceWork,
    /// The two clusters.
    pub(crate) clusters: KnownClusters,
    /// What the section is about.
    pub(crate) phase: Phase,
    /// Another daemon that runs the section, too.
    pub(crate) twin: Twin,
    /// What earlier settings have left.
    pub(crate) left: Left,
    /// How many pairs of its own the section has, and when they were counted.
    own_pairs: Option<(Instant, usize)>,
}

impl Index {
    /// A run begins, with nothing but what the clusters are known to be and what the section is about.
    pub(crate) fn begin(&mut self) {
        let (mut clusters, mode) = (std::mem::take(&mut self.clusters), self.phase.mode);
        clusters.begin();
        *self = Self { clusters, phase: Phase { mode, ..Phase::default() }, ..Self::default() };
    }

    /// What was remembered of the clusters and of what the guard has counted is known now.
    pub(crate) fn recall(&mut self, identities: Identities, guard: &GuardState, now: Instant, wall: SystemTime) {
        self.clusters.identities = identities;
        self.guard.recall(guard, now, wall);
    }

    /// A watch shows something of a pair. Returns whether other suspects may be free now.
    pub(crate) fn shown(&mut self, key: &PairKey, shown: &Shown<'_>, policy: &Policy, now: Instant) -> bool {
        let freed = self.suspect(key, shown.threat);
        // What was written before is compared at the very event that shows it.
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

    /// Notes what threatens a pair, or that nothing does any more. Returns whether that may free others.
    pub(crate) fn suspect(&mut self, key: &PairKey, threat: Option<(Harm, bool)>) -> bool {
        let Some((harm, own)) = threat else { return self.guard.clear(key) };
        self.guard.suspect(key.clone(), harm, own);
        false
    }

    /// A reconcile looks at its pair: what the servers made of earlier writes, and whether a local object was found there when
    /// one was to be made.
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
        // What is gone is made anew.
        pair.local_was_there &= local.is_some();
        pair.server_result.observe(remote, local, policy);
        (pair.server_result.clone(), pair.local_was_there)
    }

    /// A run that had looked at the caches at that moment has ended with the pair at rest.
    pub(crate) fn rested(
        &mut self,
        key: &PairKey,
        state: ObjectState,
        looked: Instant,
        waits: Option<Waits>,
        now: Instant,
    ) -> Before {
        let pair = self.table.pair(key, now);
        let had_failed = pair.told_failure.take().is_some();
        let mut before = Before { state: pair.state, had_failed, local_was_there: false };
        if state == ObjectState::InStep {
            before.local_was_there = std::mem::take(&mut pair.local_was_there);
            pair.told_rejection = None;
            pair.server_result.in_step();
        }
        self.table.ended(key, state, looked, waits, now);
        before
    }

    /// Our finalizer is off the remote object.
    pub(crate) fn released(&mut self, key: &PairKey, now: Instant) {
        self.table.pair(key, now).holds_remote = false;
        self.guard.clear(key);
    }

    /// How many pairs of its own the section has; `None`: that has to be counted anew.
    pub(crate) fn own_pairs(&self, now: Instant) -> Option<usize> {
        let (when, count) = self.own_pairs?;
        (now.saturating_duration_since(when) < COUNTED_FOR).then_some(count)
    }

    /// So many there are.
    pub(crate) fn counted_own_pairs(&mut self, count: usize, now: Instant) {
        self.own_pairs = Some((now, count));
    }

    /// What they are has changed: they are counted anew.
    pub(crate) fn forget_count(&mut self) {
        self.own_pairs = None;
    }

    /// A secret was written to the remote.
    pub(crate) fn uploaded(&mut self, key: &PairKey, secret: &Arc<str>, now: Instant) {
        self.table.pair(key, now).uploads.insert(Arc::clone(secret), now);
    }
}
