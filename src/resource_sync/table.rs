//! What a section knows of each of its pairs beyond the caches, and what it reports of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::settled::Settled;
use crate::cluster::ObjectKey;
use crate::telemetry::ObjectState as PairState;

/// As many failures are kept for the report.
const FAILURES: usize = 20;

/// A failed step, for the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The local key.
    pub key: ObjectKey,
    /// The step.
    pub step: &'static str,
    /// The kind of error.
    pub kind: &'static str,
    /// The error.
    pub reason: String,
}

/// One pair.
#[derive(Debug)]
pub struct Pair {
    /// What our writes settled on.
    pub settled: Settled,
    /// How it stands.
    pub state: PairState,
    /// When the remote changed something that the local object does not show yet.
    pub spec_since: Option<Instant>,
    /// When the local side changed something that the remote does not show yet.
    pub status_since: Option<Instant>,
    /// The failure that was last told in an Event: a step and a kind of error.
    pub told_failure: Option<(&'static str, &'static str)>,
    /// Contention was told in an Event.
    pub told_contended: bool,
    /// Our finalizer may be on the remote object: it was seen there or put there, and not taken off since.
    pub holds_remote: bool,
    /// When each secret was last written to the remote, by name.
    pub uploads: BTreeMap<Arc<str>, Instant>,
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            settled: Settled::default(),
            state: PairState::Pending,
            spec_since: None,
            status_since: None,
            told_failure: None,
            told_contended: false,
            holds_remote: false,
            uploads: BTreeMap::new(),
        }
    }
}

/// All pairs of a section.
#[derive(Debug, Default)]
pub struct Table {
    pairs: HashMap<ObjectKey, Pair>,
    failures: VecDeque<(Instant, Failure)>,
    planned: BTreeMap<&'static str, u64>,
}

/// How long changes wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lags {
    /// From the remote's change to the local object.
    pub spec: Option<Duration>,
    /// From the local status to the remote.
    pub status: Option<Duration>,
}

impl Table {
    /// The record of a pair, made on first use.
    pub fn pair(&mut self, key: &ObjectKey) -> &mut Pair {
        if !self.pairs.contains_key(key) {
            self.pairs.insert(key.clone(), Pair::default());
        }
        self.pairs.entry(key.clone()).or_default()
    }

    /// The record of a pair, where there is one.
    pub fn get(&mut self, key: &ObjectKey) -> Option<&mut Pair> {
        self.pairs.get_mut(key)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.pairs.keys()
    }

    /// The pairs whose remote object may bear our finalizer.
    pub fn holding(&self) -> Vec<ObjectKey> {
        self.pairs.iter().filter(|(_, pair)| pair.holds_remote).map(|(key, _)| key.clone()).collect()
    }

    /// The pair is gone on both sides.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.pairs.remove(key);
    }

    /// A change was written to the local side; how long after it arrived.
    pub fn spec_written(&mut self, key: &ObjectKey, now: Instant) -> Option<Duration> {
        self.get(key)?.spec_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A status was written to the remote; how long after it arrived.
    pub fn status_written(&mut self, key: &ObjectKey, now: Instant) -> Option<Duration> {
        self.get(key)?.status_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A reconcile ended in this state. In step, nothing waits any more: what arrived was an echo of our own writes.
    pub fn ended(&mut self, key: &ObjectKey, state: PairState) {
        let pair = self.pair(key);
        pair.state = state;
        if state == PairState::InStep {
            pair.spec_since = None;
            pair.status_since = None;
        }
    }

    /// The pairs with a secret whose last upload is at least that old.
    pub fn with_uploads_before(&self, now: Instant, interval: Duration) -> Vec<ObjectKey> {
        let is_due = |uploaded: &Instant| now.saturating_duration_since(*uploaded) >= interval;
        self.pairs.iter().filter(|(_, pair)| pair.uploads.values().any(is_due)).map(|(key, _)| key.clone()).collect()
    }

    /// Notes a failure.
    pub fn failed(&mut self, failure: Failure, now: Instant) {
        self.failures.retain(|(_, earlier)| (&earlier.key, earlier.step) != (&failure.key, failure.step));
        if self.failures.len() == FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back((now, failure));
    }

    /// Counts a step that a dry run would have taken.
    pub fn planned(&mut self, step: &'static str) {
        *self.planned.entry(step).or_default() += 1;
    }

    /// How many pairs are in each state.
    pub fn states(&self) -> BTreeMap<&'static str, usize> {
        let mut states: BTreeMap<_, _> = PairState::ALL.into_iter().map(|state| (state.as_str(), 0)).collect();
        for pair in self.pairs.values() {
            *states.entry(pair.state.as_str()).or_default() += 1;
        }
        states
    }

    /// How long the oldest change waits, down and up.
    pub fn oldest_pending(&self, now: Instant) -> Lags {
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
    pub fn failures(&self, now: Instant) -> Vec<(Duration, Failure)> {
        self.failures
            .iter()
            .rev()
            .map(|(when, failure)| (now.saturating_duration_since(*when), failure.clone()))
            .collect()
    }

    /// The steps of a dry run, by name.
    pub fn planned_steps(&self) -> BTreeMap<&'static str, u64> {
        self.planned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lag_runs_from_the_first_change_to_its_write() {
        let mut table = Table::default();
        let key = ObjectKey::new("n", "a");
        let start = Instant::now();
        table.pair(&key).spec_since = Some(start);
        table.ended(&key, PairState::Failing);
        assert_eq!(table.oldest_pending(start + Duration::from_secs(2)).spec, Some(Duration::from_secs(2)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(4)), None, "an echo is no change");
        table.pair(&key).status_since = Some(start);
        table.ended(&key, PairState::InStep);
        assert_eq!(table.oldest_pending(start), Lags::default());
        assert_eq!(table.states()["in_step"], 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_twenty_failures_are_kept_one_for_each_key_and_step() {
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
    }
}
