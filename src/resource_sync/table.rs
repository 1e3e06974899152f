//! What a section knows of each of its pairs beyond the caches, and what it reports of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::contention::Contended;
use super::names::PairKey;
use super::pairs::Pairs;
use super::settled::Settled;
use super::unkept::Unkept;
use super::waits::Waits;
use crate::cluster::ObjectKey;
use crate::telemetry::{Direction, ObjectState as PairState};

/// As many failures are kept for the report.
const FAILURES: usize = 20;
/// As many objects with fields that were not kept are named in the report ...
const UNKEPT_NAMED: usize = 20;
/// ... and told of in Events and in the log, over the time of a run: more are counted.
const UNKEPT_TOLD: usize = 100;
/// What a server did not keep is written again after between half of this and all of it. Which, the key decides: the
/// objects that were written together after a start are not written together for ever.
const WRITE_AGAIN: Duration = Duration::from_hours(1);
/// No look asks for more pairs than this; looks come once a minute. The rest is due at the next one.
const WRITE_AGAIN_AT_ONCE: usize = 500;

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
    /// How it stands; [`Pair::shown`] is what is told of it.
    pub state: PairState,
    /// Since when.
    pub state_since: Instant,
    /// What it waits for, where that is known.
    pub waits: Option<Box<Waits>>,
    /// When the remote changed something that the local object does not show yet.
    pub spec_since: Option<Instant>,
    /// When the local side changed something that the remote does not show yet.
    pub status_since: Option<Instant>,
    /// The failure that was last told in an Event: a step and a kind of error.
    pub told_failure: Option<(&'static str, &'static str)>,
    /// The rejection that was last told on the remote object: a hash of what was ordered, the step and the status code.
    pub told_rejection: Option<(u64, &'static str, u16)>,
    /// The contentions that were told in an Event.
    pub told_contended: BTreeSet<Contended>,
    /// Our finalizer may be on the remote object: it was seen there or put there, and not taken off since.
    pub holds_remote: bool,
    /// A local object was there when one was to be made: whatever the remote one says, the pair was not in step before.
    pub local_was_there: bool,
    /// When each secret was last written to the remote, by name.
    pub uploads: BTreeMap<Arc<str>, Instant>,
    /// When the fields that a server did not keep are written again; set by the first look that finds them.
    again_at: Option<Instant>,
    /// Hash of the fields that were told last.
    told_unkept: Option<u64>,
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            settled: Settled::default(),
            state: PairState::Pending,
            state_since: Instant::now(),
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
}

impl Pair {
    /// The state to tell, and since when: what was in step and has changed since is so no more.
    pub fn shown(&self) -> (PairState, Instant) {
        let changed = self.spec_since.into_iter().chain(self.status_since).min();
        match (self.state, changed) {
            (PairState::InStep, Some(changed)) => (PairState::Pending, changed),
            (state, _) => (state, self.state_since),
        }
    }
}

/// Fields of one object that one of the two servers does not keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnkeptFields {
    /// The local key.
    pub key: ObjectKey,
    /// Which way they were written.
    pub direction: Direction,
    /// The fields.
    pub fields: Unkept,
}

/// All fields that are not kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnkeptTotals {
    /// How many objects have any.
    pub objects: usize,
    /// How many fields there are, down and up.
    pub spec: usize,
    /// The same of statuses.
    pub status: usize,
}

/// All pairs of a section.
#[derive(Debug, Default)]
pub struct Table {
    pairs: Pairs<Pair>,
    failures: VecDeque<(Instant, Failure)>,
    planned: BTreeMap<&'static str, u64>,
    /// How many objects were told of for fields that were not kept.
    told_unkept: usize,
    /// Names that were taken out of `secret_names` since the last run.
    pub left_secrets: Vec<String>,
    /// Pointers that were taken out of `local_fields`, while their objects have not been written since.
    pub left_fields: Vec<String>,
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
    pub fn pair(&mut self, key: &PairKey) -> &mut Pair {
        self.pairs.get_or_default(key)
    }

    /// The record of a pair, where there is one.
    pub fn get(&mut self, key: &PairKey) -> Option<&mut Pair> {
        self.pairs.get_mut(key)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &PairKey> {
        self.pairs.iter().map(|(key, _)| key)
    }

    /// The keys of one local namespace.
    pub fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.pairs.keys_in(namespace)
    }

    /// The pairs whose remote object may bear our finalizer.
    pub fn holding(&self) -> Vec<PairKey> {
        self.pairs.iter().filter(|(_, pair)| pair.holds_remote).map(|(key, _)| key.clone()).collect()
    }

    /// The pair is gone on both sides.
    pub fn forget(&mut self, key: &PairKey) {
        self.pairs.remove(key);
        self.mended(&key.local);
    }

    /// A change was written to the local side; how long after it arrived.
    pub fn spec_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get(key)?.spec_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A status was written to the remote; how long after it arrived.
    pub fn status_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get(key)?.status_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// A reconcile that had looked at that moment ended in this state. In step, nothing waits any more: what had arrived
    /// was an echo of our own writes. What has arrived since is for the next one.
    pub fn ended(&mut self, key: &PairKey, state: PairState, looked: Instant, waits: Option<Waits>) {
        let pair = self.pair(key);
        if pair.state != state {
            pair.state = state;
            pair.state_since = Instant::now();
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
    pub fn with_uploads_before(&self, now: Instant, interval: Duration) -> Vec<PairKey> {
        let is_due = |uploaded: &Instant| now.saturating_duration_since(*uploaded) >= interval;
        self.pairs.iter().filter(|(_, pair)| pair.uploads.values().any(is_due)).map(|(key, _)| key.clone()).collect()
    }

    /// The pairs whose fields that a server did not keep are to be written again now; from here on they are not settled.
    pub fn due_again(&mut self, now: Instant) -> Vec<PairKey> {
        let mut due = Vec::new();
        for (key, pair) in self.pairs.iter_mut() {
            if pair.settled.unkept() == [None, None] {
                pair.again_at = None;
                continue;
            }
            let at = *pair.again_at.get_or_insert_with(|| now + spread(&key.local));
            if at <= now && due.len() < WRITE_AGAIN_AT_ONCE {
                pair.again_at = None;
                pair.settled.write_again();
                due.push(key.clone());
            }
        }
        due
    }

    /// The definition of the kind may have changed: all fields that a server did not keep are to be written again.
    pub fn all_again(&mut self) -> Vec<PairKey> {
        let again = self.pairs.iter_mut().filter_map(|(key, pair)| pair.settled.write_again().then(|| key.clone()));
        again.collect()
    }

    /// Whether there is a content that is still to be written once more.
    pub fn writes_content_again(&self) -> bool {
        self.pairs.values().any(|pair| pair.settled.content_is_written_again())
    }

    /// The kind is served in another way: all statuses are compared anew.
    pub fn forget_statuses(&mut self) {
        self.pairs.iter_mut().for_each(|(_, pair)| pair.settled.forget_status());
    }

    /// How many fields are not kept.
    pub fn unkept_totals(&self) -> UnkeptTotals {
        let mut totals = UnkeptTotals::default();
        for pair in self.pairs.values() {
            let [spec, status] = pair.settled.unkept().map(|fields| fields.map_or(0, |fields| fields.count));
            totals.objects += usize::from(spec + status > 0);
            totals.spec += spec;
            totals.status += status;
        }
        totals
    }

    /// The first objects with fields that are not kept, by key.
    pub fn unkept(&self) -> Vec<UnkeptFields> {
        let mut all: Vec<_> = self.pairs.iter().flat_map(|(key, pair)| fields_of(key, pair)).collect();
        all.sort_by(|one, other| one.key.cmp(&other.key));
        all.truncate(UNKEPT_NAMED);
        all
    }

    /// The fields of a pair that are not kept and have not been told of, or other ones; from here on they have.
    pub fn untold_unkept(&mut self, key: &PairKey) -> Vec<UnkeptFields> {
        let told = self.told_unkept;
        let Some(pair) = self.get(key) else { return Vec::new() };
        let fields: Vec<_> = fields_of(key, pair).collect();
        if fields.is_empty() || told >= UNKEPT_TOLD {
            return Vec::new();
        }
        let mut hasher = DefaultHasher::new();
        for unkept in &fields {
            unkept.fields.hash(&mut hasher);
        }
        let hash = hasher.finish();
        if pair.told_unkept.replace(hash) == Some(hash) {
            return Vec::new();
        }
        self.told_unkept += 1;
        fields
    }

    /// Notes a failure.
    pub fn failed(&mut self, failure: Failure, now: Instant) {
        // A step that failed before has either been carried out since, or will be told again.
        self.mended(&failure.key);
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
    pub fn states(&self) -> BTreeMap<PairState, usize> {
        let mut states: BTreeMap<_, _> = PairState::ALL.into_iter().map(|state| (state, 0)).collect();
        for pair in self.pairs.values() {
            *states.entry(pair.shown().0).or_default() += 1;
        }
        states
    }

    /// The pairs that fail or have waited for too long, with the age of their state: the most urgent and oldest first, so
    /// many at most.
    pub fn not_in_step(&self, now: Instant, most: usize) -> Vec<(&PairKey, &Pair, PairState, Duration)> {
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

fn fields_of(key: &PairKey, pair: &Pair) -> impl Iterator<Item = UnkeptFields> {
    let of = |direction, fields: Option<&Unkept>| {
        fields.map(|fields| UnkeptFields { key: key.local.clone(), direction, fields: fields.clone() })
    };
    let [spec, status] = pair.settled.unkept();
    [of(Direction::Spec, spec), of(Direction::Status, status)].into_iter().flatten()
}

/// Between half of the interval and all of it, the same for a key each time.
fn spread(key: &ObjectKey) -> Duration {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
    WRITE_AGAIN / 2 + WRITE_AGAIN / 2_000 * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Written;
    use crate::cluster::object::Decoded;
    use crate::resource_sync::plan::Policy;

    #[tokio::test(start_paused = true)]
    async fn a_lag_runs_from_the_first_change_to_its_write() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.pair(&key).spec_since = Some(start);
        table.ended(&key, PairState::Failing, start, None);
        assert_eq!(table.oldest_pending(start + Duration::from_secs(2)).spec, Some(Duration::from_secs(2)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(4)), None, "an echo is no change");
        table.pair(&key).status_since = Some(start);
        table.ended(&key, PairState::InStep, start, None);
        assert_eq!(table.oldest_pending(start), Lags::default());
        assert_eq!(table.states()[&PairState::InStep], 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_changed_is_pending_until_a_reconcile_has_looked_at_it() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.ended(&key, PairState::InStep, start, None);
        let changed = start + Duration::from_secs(1);
        table.pair(&key).spec_since = Some(changed);
        assert_eq!(table.pair(&key).shown(), (PairState::Pending, changed));
        // One that had looked before does not know of it.
        table.ended(&key, PairState::InStep, start, None);
        assert_eq!(table.states()[&PairState::Pending], 1);
        table.ended(&key, PairState::InStep, changed, None);
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
            table.ended(&PairKey::alike("n", name), state, start, None);
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
            table.ended(&PairKey::alike("n", &number.to_string()), state, Instant::now(), None);
            table.failures(Instant::now()).len()
        };
        assert_eq!(left(29, PairState::Pending), 20, "it is tried again");
        assert_eq!(left(29, PairState::InStep), 19);
        assert_eq!(left(28, PairState::Deleting), 18);
        table.forget(&PairKey::alike("n", "27"));
        assert_eq!(table.failures(Instant::now()).len(), 17);
    }

    /// A pair of which the local server prunes a field.
    fn lossy(table: &mut Table, name: &str) {
        let object = |spec: &str| {
            let text = format!(r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"7"}},"spec":{spec}}}"#);
            serde_json::from_str::<Decoded>(&text).unwrap().into_object()
        };
        let written = Written { uid: "u".into(), resource_version: "7".into(), generation: 0 };
        let settled = &mut table.pair(&PairKey::alike("n", name)).settled;
        settled.wrote_content(&object(r#"{"a":1,"pruned":2}"#), &written);
        let policy = Policy::new(&crate::resource_sync::stage::config("databases", "databases", ""));
        settled.observe(None, Some(&object(r#"{"a":1}"#)), &policy);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_kept_is_due_again_within_the_hour_spread_over_half_of_it_and_bounded() {
        let mut table = Table::default();
        for number in 0..2_000 {
            lossy(&mut table, &number.to_string());
        }
        table.pair(&PairKey::alike("n", "in step"));
        let start = Instant::now();
        let (mut due, mut most, mut first, mut last) = (0, 0, None, None);
        for minute in 0..=60 {
            let found = table.due_again(start + Duration::from_mins(minute)).len();
            due += found;
            most = most.max(found);
            if found > 0 {
                first = first.or(Some(minute));
                last = Some(minute);
            }
        }
        assert_eq!((due, first), (2_000, Some(30)));
        assert!(last >= Some(59) && most < 120, "{most} in one minute, the last in minute {last:?}");
        assert_eq!(table.unkept_totals(), UnkeptTotals::default(), "until the servers have told again");
        // Everything at once is bounded, and nothing of it is lost.
        for number in 0..2_000 {
            lossy(&mut table, &number.to_string());
        }
        assert!(table.due_again(start).is_empty());
        let later = start + Duration::from_hours(2);
        let looks: Vec<usize> = (0..5).map(|_| table.due_again(later).len()).collect();
        assert_eq!(looks, [500, 500, 500, 500, 0]);
    }

    #[test]
    fn fields_that_were_not_kept_are_told_once_and_of_so_many_objects() {
        let mut table = Table::default();
        let told: usize = (0..UNKEPT_TOLD + 50)
            .map(|number| {
                let name = number.to_string();
                lossy(&mut table, &name);
                let key = PairKey::alike("n", &name);
                let told = table.untold_unkept(&key).len();
                assert!(table.untold_unkept(&key).is_empty(), "once");
                told
            })
            .sum();
        assert_eq!(told, UNKEPT_TOLD);
        assert_eq!(
            table.unkept_totals(),
            UnkeptTotals { objects: UNKEPT_TOLD + 50, spec: UNKEPT_TOLD + 50, status: 0 }
        );
        assert_eq!(table.unkept().len(), UNKEPT_NAMED);
    }
}
