//! What a section knows of each of its pairs beyond the caches, and what it reports of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::pairs::Pairs;
use crate::cluster::ObjectKey;
use crate::resource_sync::rules::conflicts::Contended;
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::rules::server_result::ServerResult;
use crate::resource_sync::rules::waits::Waits;
use crate::telemetry::ObjectState as PairState;

/// As many failures are kept for the report.
const FAILURES: usize = 20;
/// A failed step, for the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// The local key.
    pub(crate) key: ObjectKey,
    /// The step.
    pub(crate) step: &'static str,
    /// The kind of error.
    pub(crate) kind: &'static str,
    /// The error.
    pub(crate) reason: String,
}

/// One pair.
#[derive(Debug)]
pub(crate) struct Pair {
    /// What the servers made of our writes.
    pub(crate) server_result: ServerResult,
    /// How it stands; [`Pair::shown`] is what is told of it.
    pub(crate) state: PairState,
    /// Since when.
    pub(crate) state_since: Instant,
    /// What it waits for, where that is known.
    pub(crate) waits: Option<Box<Waits>>,
    /// When the remote changed something that the local object does not show yet.
    pub(crate) spec_since: Option<Instant>,
    /// When the local side changed something that the remote does not show yet.
    pub(crate) status_since: Option<Instant>,
    /// The failure that was last told in an Event: a step and a kind of error.
    pub(crate) told_failure: Option<(&'static str, &'static str)>,
    /// The rejection that was last told on the remote object: a hash of what was ordered, the step and the status code.
    pub(crate) told_rejection: Option<(u64, &'static str, u16)>,
    /// The contentions that were told in an Event.
    pub(crate) told_contended: BTreeSet<Contended>,
    /// Our finalizer may be on the remote object: it was seen there or put there, and not taken off since.
    pub(crate) holds_remote: bool,
    /// A local object was there when one was to be made: whatever the remote one says, the pair was not in step before.
    pub(crate) local_was_there: bool,
    /// When each secret was last written to the remote, by name.
    pub(crate) uploads: BTreeMap<Arc<str>, Instant>,
    /// When the fields that a server did not keep are written again; set by the first look that finds them.
    pub(super) again_at: Option<Instant>,
    /// Hash of the fields that were told last.
    pub(super) told_unkept: Option<u64>,
}

impl Pair {
    /// A pair of which nothing is known yet.
    fn new(now: Instant) -> Self {
        Self {
            server_result: ServerResult::default(),
            state: PairState::Pending,
            state_since: now,
            waits: None,
            spec_since: None,
            status_since: None,
            told_failure: None,
            told_rejection: None,
            told_contended: BTreeSet::new(),
            holds_remote: false,
            local_was_there: false,
            uploads: BTreeMap::new(),
            again_at: None,
            told_unkept: None,
        }
    }

    /// The state to tell, and since when: what was in step and has changed since is so no more.
    pub(crate) fn shown(&self) -> (PairState, Instant) {
        let changed = self.spec_since.into_iter().chain(self.status_since).min();
        match (self.state, changed) {
            (PairState::InStep, Some(changed)) => (PairState::Pending, changed),
            (state, _) => (state, self.state_since),
        }
    }
}

/// All pairs of a section.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(super) pairs: Pairs<Pair>,
    failures: VecDeque<(Instant, Failure)>,
    planned: BTreeMap<&'static str, u64>,
    /// How many objects were told of for fields that were not kept.
    pub(super) told_unkept: usize,
}

/// How long changes wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lags {
    /// From the remote's change to the local object.
    pub(crate) spec: Option<Duration>,
    /// From the local status to the remote.
    pub(crate) status: Option<Duration>,
}

impl Table {
    /// The record of a pair, made on first use.
    pub(crate) fn pair(&mut self, key: &PairKey, now: Instant) -> &mut Pair {
        self.pairs.get_or_insert_with(key, || Pair::new(now))
    }

    /// The record of a pair, where there is one.
    pub(crate) fn get(&mut self, key: &PairKey) -> Option<&mut Pair> {
        self.pairs.get_mut(key)
    }

    /// All keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &PairKey> {
        self.pairs.iter().map(|(key, _)| key)
    }

    /// The keys of one local namespace.
    pub(crate) fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.pairs.keys_in(namespace)
    }

    /// The pairs whose remote object may bear our finalizer.
    pub(crate) fn holding(&self) -> Vec<PairKey> {
        self.pairs.iter().filter(|(_, pair)| pair.holds_remote).map(|(key, _)| key.clone()).collect()
    }

    /// The pair is gone on both sides.
    pub(crate) fn forget(&mut self, key: &PairKey) {
        self.pairs.remove(key);
        self.mended(&key.local);
    }

    /// A change was written to the local side; how long after it arrived.
    pub(crate) fn spec_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get(key)?.spec_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A status was written to the remote; how long after it arrived.
    pub(crate) fn status_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get(key)?.status_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A reconcile that had looked at that moment ended in this state. In step, nothing waits any more: what had arrived
    /// was an echo of our own writes. What has arrived since is for the next one.
    pub(crate) fn ended(
        &mut self,
        key: &PairKey,
        state: PairState,
        looked: Instant,
        waits: Option<Waits>,
        now: Instant,
    ) {
        let pair = self.pair(key, now);
        if pair.state != state {
            pair.state = state;
            pair.state_since = now;
        }
        pair.waits = waits.map(Box::new);
        if state == PairState::InStep {
            for since in [&mut pair.spec_since, &mut pair.status_since] {
                *since = since.filter(|since| *since > looked);
            }
        }
        if !matches!(state, PairState::Failing | PairState::Pending) {
            self.mended(&key.local);
        }
    }

    /// What failed does not fail any more.
    fn mended(&mut self, key: &ObjectKey) {
        self.failures.retain(|(_, failure)| failure.key != *key);
    }

    /// The pairs with a secret whose last upload is at least that old.
    pub(crate) fn with_uploads_before(&self, now: Instant, interval: Duration) -> Vec<PairKey> {
        let is_due = |uploaded: &Instant| now.saturating_duration_since(*uploaded) >= interval;
        self.pairs.iter().filter(|(_, pair)| pair.uploads.values().any(is_due)).map(|(key, _)| key.clone()).collect()
    }

    /// The kind is served in another way: all statuses are compared anew.
    pub(crate) fn forget_statuses(&mut self) {
        self.pairs.iter_mut().for_each(|(_, pair)| pair.server_result.forget_status());
    }

    /// Notes a failure.
    pub(crate) fn failed(&mut self, failure: Failure, now: Instant) {
        // A step that failed before has either been carried out since, or will be told again.
        self.mended(&failure.key);
        if self.failures.len() == FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back((now, failure));
    }

    /// Counts a step that a dry run would have taken.
    pub(crate) fn planned(&mut self, step: &'static str) {
        *self.planned.entry(step).or_default() += 1;
    }

    /// How many pairs are in each state.
    pub(crate) fn states(&self) -> BTreeMap<PairState, usize> {
        let mut states: BTreeMap<_, _> = PairState::ALL.into_iter().map(|state| (state, 0)).collect();
        for pair in self.pairs.values() {
            *states.entry(pair.shown().0).or_default() += 1;
        }
        states
    }

    /// The pairs that fail or have waited for too long, with the age of their state: the most urgent and oldest first, so
    /// many at most.
    pub(crate) fn not_in_step(&self, now: Instant, most: usize) -> Vec<(&PairKey, &Pair, PairState, Duration)> {
        let mut found: Vec<_> = self
            .pairs
            .iter()
            .filter_map(|(key, pair)| {
                let (state, since) = pair.shown();
                let age = now.saturating_duration_since(since);
                let (rank, after) = state.listed_after()?;
                (age >= after).then_some((rank, age, key, pair, state))
            })
            .collect();
        found.sort_by(|one, other| (one.0, other.1, one.2).cmp(&(other.0, one.1, other.2)));
        found.truncate(most);
        found.into_iter().map(|(_, age, key, pair, state)| (key, pair, state, age)).collect()
    }

    /// How long the oldest change waits, down and up.
    pub(crate) fn oldest_pending(&self, now: Instant) -> Lags {
        let oldest = |since: fn(&Pair) -> Option<Instant>| {
            self.pairs
                .values()
                .filter(|pair| pair.state != PairState::Paused)
                .filter_map(since)
                .min()
                .map(|since| now.saturating_duration_since(since))
        };
        Lags { spec: oldest(|pair| pair.spec_since), status: oldest(|pair| pair.status_since) }
    }

    /// The last failures, newest first, with their age.
    pub(crate) fn failures(&self, now: Instant) -> Vec<(Duration, Failure)> {
        self.failures
            .iter()
            .rev()
            .map(|(when, failure)| (now.saturating_duration_since(*when), failure.clone()))
            .collect()
    }

    /// The steps of a dry run, by name.
    pub(crate) fn planned_steps(&self) -> BTreeMap<&'static str, u64> {
        self.planned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lag_runs_from_the_first_change_to_its_write() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.pair(&key, start).spec_since = Some(start);
        table.ended(&key, PairState::Failing, start, None, start);
        assert_eq!(table.oldest_pending(start + Duration::from_secs(2)).spec, Some(Duration::from_secs(2)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(4)), None, "an echo is no change");
        table.pair(&key, start).status_since = Some(start);
        table.ended(&key, PairState::InStep, start, None, start);
        assert_eq!(table.oldest_pending(start), Lags::default());
        assert_eq!(table.states()[&PairState::InStep], 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_changed_is_pending_until_a_reconcile_has_looked_at_it() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.ended(&key, PairState::InStep, start, None, start);
        let changed = start + Duration::from_secs(1);
        table.pair(&key, start).spec_since = Some(changed);
        assert_eq!(table.pair(&key, start).shown(), (PairState::Pending, changed));
        // One that had looked before does not know of it.
        table.ended(&key, PairState::InStep, start, None, start);
        assert_eq!(table.states()[&PairState::Pending], 1);
        table.ended(&key, PairState::InStep, changed, None, changed);
        assert_eq!((table.states()[&PairState::Pending], table.states()[&PairState::InStep]), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_or_waits_is_listed_the_most_urgent_and_oldest_first_and_healthy_ones_never() {
        let mut table = Table::default();
        let start = Instant::now();
        let states = [
            ("step", PairState::InStep),
            ("going", PairState::Deleting),
            ("paused", PairState::Paused),
            ("failing", PairState::Failing),
            ("held", PairState::Held),
            ("moving", PairState::Pending),
        ];
        for (name, state) in states {
            table.ended(&PairKey::alike("n", name), state, start, None, start);
        }
        let listed = |table: &Table, after: u64, most: usize| -> Vec<String> {
            let found = table.not_in_step(start + Duration::from_secs(after), most);
            found.into_iter().map(|(key, ..)| key.local.name.to_string()).collect()
        };
        assert_eq!(listed(&table, 0, 9), ["held", "failing"]);
        assert_eq!(listed(&table, 10, 9), ["held", "failing", "moving"]);
        assert_eq!(listed(&table, 60, 9), ["held", "failing", "going", "moving"]);
        assert_eq!(listed(&table, 60, 2), ["held", "failing"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_twenty_failures_are_kept_one_for_each_key_until_they_are_mended() {
        let mut table = Table::default();
        let failure = |number: usize, reason: &str| Failure {
            key: ObjectKey::new("n", number.to_string()),
            step: "create_local",
            kind: "rejected",
            reason: reason.into(),
        };
        for number in 0..30 {
            table.failed(failure(number, "first"), Instant::now());
        }
        table.failed(failure(29, "again"), Instant::now());
        let failures = table.failures(Instant::now());
        assert_eq!(failures.len(), 20);
        assert_eq!(failures[0].1.reason, "again");
        assert_eq!(failures[19].1.key, ObjectKey::new("n", "10"));
        let mut left = |number: usize, state| {
            table.ended(&PairKey::alike("n", &number.to_string()), state, Instant::now(), None, Instant::now());
            table.failures(Instant::now()).len()
        };
        assert_eq!(left(29, PairState::Pending), 20, "it is tried again");
        assert_eq!(left(29, PairState::InStep), 19);
        assert_eq!(left(28, PairState::Deleting), 18);
        table.forget(&PairKey::alike("n", "27"));
        assert_eq!(table.failures(Instant::now()).len(), 17);
    }
}
