//! The records of a section's pairs: what the caches do not hold, what other writers undo, and what is reported.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::ObjectKey;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::conflicts::Conflicts;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::server_result::ServerResult;
use crate::resource_sync::plan::step::LeftOut;
use crate::resource_sync::plan::waits::Waits;
use crate::status::ObjectState;

/// A failed step, as it is reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The local key.
    pub(crate) key: ObjectKey,
    pub(crate) step: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) reason: String,
}

/// When each secret of a pair was last written to the remote, by name.
pub(crate) type Uploads = BTreeMap<Arc<str>, Instant>;

#[derive(Debug)]
pub(crate) struct Pair {
    /// The API servers' results of our writes.
    pub(crate) server_result: ServerResult,
    /// Its state after the last run; [`Table::shown`] is the state to report.
    pub(crate) state: ObjectState,
    /// Since when it is in this state.
    pub(crate) state_since: Instant,
    /// Why it is not in step, where that is known.
    pub(crate) waits: Option<Box<Waits>>,
    /// Since when the remote has had a change that is not written to the local object.
    pub(crate) spec_since: Option<Instant>,
    /// Since when the local side has had a change that is not written to the remote.
    pub(crate) status_since: Option<Instant>,
    /// The failures of the last run, which were reported in Events: steps and kinds of errors.
    pub(crate) told_failures: Vec<(&'static str, &'static str)>,
    /// The rejection that was last reported on the remote object: a hash of its content, the step and the status code.
    pub(crate) told_rejection: Option<(u64, &'static str, u16)>,
    /// Since when it has failed again and again.
    failing_since: Option<Instant>,
    /// Our finalizer may be on the remote object: it was seen or added, and has not been removed since.
    pub(crate) holds_remote: bool,
    /// The local object existed already when the section was about to create it, so that the pair was not in step before, whatever
    /// the remote object says.
    pub(crate) local_was_there: bool,
    pub(crate) uploads: Uploads,
    /// When the fields that a server did not keep are written again. The first check that finds them sets it.
    pub(super) again_at: Option<Instant>,
    /// Hash of the fields that were reported last.
    pub(super) told_unkept: Option<u64>,
}

impl Pair {
    /// A pair that was not observed yet.
    fn new(now: Instant) -> Self {
        Self {
            server_result: ServerResult::default(),
            state: ObjectState::Pending,
            state_since: now,
            waits: None,
            spec_since: None,
            status_since: None,
            told_failures: Vec::new(),
            told_rejection: None,
            failing_since: None,
            holds_remote: false,
            local_was_there: false,
            uploads: Uploads::new(),
            again_at: None,
            told_unkept: None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(super) pairs: Pairs<Pair>,
    /// What other writers undo again and again.
    pub(crate) conflicts: Conflicts,
    /// Why objects are never synced, by their local key.
    left_out: BTreeMap<ObjectKey, &'static str>,
    planned: BTreeMap<&'static str, u64>,
    /// How many objects were reported because of fields that were not kept.
    pub(super) told_unkept: usize,
}

/// How long changes wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lags {
    /// Of changes on the remote.
    pub(crate) spec: Option<Duration>,
    /// Of local statuses.
    pub(crate) status: Option<Duration>,
}

impl Table {
    /// The record of a pair, created on first use.
    pub(crate) fn pair(&mut self, key: &PairKey, now: Instant) -> &mut Pair {
        self.pairs.get_or_insert_with(key, || Pair::new(now))
    }

    /// The record of a pair to change, if there is one.
    pub(crate) fn get_mut(&mut self, key: &PairKey) -> Option<&mut Pair> {
        self.pairs.get_mut(key)
    }

    /// The state to report of a pair, and since when. A pair that was in step and has changed since is pending, and so is one that is in
    /// step only until another client undoes the last write.
    pub(crate) fn shown(&self, key: &PairKey, pair: &Pair, now: Instant) -> (ObjectState, Instant) {
        let changed = pair.spec_since.into_iter().chain(pair.status_since).min();
        match (pair.state, self.conflicts.contended_since(key, None, now), changed) {
            (ObjectState::InStep | ObjectState::Pending, Some(contended), _) => (ObjectState::Pending, contended),
            (ObjectState::InStep, None, Some(changed)) => (ObjectState::Pending, changed),
            (state, ..) => (state, pair.state_since),
        }
    }

    /// The record of a pair, if there is one.
    pub(crate) fn get(&self, key: &PairKey) -> Option<&Pair> {
        self.pairs.get(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &PairKey> {
        self.pairs.iter().map(|(key, _)| key)
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&PairKey, &Pair)> {
        self.pairs.iter()
    }

    /// The keys of one local namespace.
    pub(crate) fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.pairs.keys_in(namespace)
    }

    /// The pairs whose remote object may have our finalizer.
    pub(crate) fn holding(&self) -> Vec<PairKey> {
        self.pairs.iter().filter(|(_, pair)| pair.holds_remote).map(|(key, _)| key.clone()).collect()
    }

    /// Removes a pair that is gone on both sides. One that another client makes anew again and again stays as long as it is
    /// contended, and for so long is returned.
    pub(crate) fn forget(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.pairs.remove(key);
        self.left_out.remove(&key.local);
        let calm_in = self.conflicts.calm_in(key, now)?;
        self.pair(key, now);
        Some(calm_in)
    }

    /// Records that a change was written to the local side. Returns how long that took since it arrived.
    pub(crate) fn spec_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get_mut(key)?.spec_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// Records that a status was written to the remote. Returns how long that took since it arrived.
    pub(crate) fn status_written(&mut self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.get_mut(key)?.status_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// Records that a reconcile which read the caches at `looked` has ended in this state. If the pair is in step, changes that
    /// had arrived until then were echoes of our own writes; later ones are for the next reconcile.
    pub(crate) fn ended(
        &mut self,
        key: &PairKey,
        state: ObjectState,
        looked: Instant,
        waits: Option<Waits>,
        now: Instant,
    ) {
        let pair = self.pair(key, now);
        // Between two failures a pair may wait for a cache, for example, which does not make the failure younger.
        pair.failing_since = match state {
            ObjectState::Failing => Some(pair.failing_since.unwrap_or(now)),
            ObjectState::Pending => pair.failing_since,
            _ => None,
        };
        if pair.state != state {
            pair.state = state;
            pair.state_since = pair.failing_since.unwrap_or(now);
        }
        pair.waits = waits.map(Box::new);
        if state == ObjectState::InStep {
            for since in [&mut pair.spec_since, &mut pair.status_since] {
                *since = since.filter(|since| *since > looked);
            }
        }
    }

    /// The pairs with a secret whose last upload is at least that old.
    pub(crate) fn with_uploads_before(&self, now: Instant, interval: Duration) -> Vec<PairKey> {
        let is_due = |uploaded: &Instant| now.saturating_duration_since(*uploaded) >= interval;
        self.pairs.iter().filter(|(_, pair)| pair.uploads.values().any(is_due)).map(|(key, _)| key.clone()).collect()
    }

    /// Has all statuses compared anew, because the kind is served in another way.
    pub(crate) fn forget_statuses(&mut self) {
        self.pairs.iter_mut().for_each(|(_, pair)| pair.server_result.forget_status());
    }

    /// Counts a step that a dry run would have carried out.
    pub(crate) fn planned(&mut self, step: &'static str) {
        *self.planned.entry(step).or_default() += 1;
    }

    /// How long the oldest change has waited, in each direction.
    pub(crate) fn oldest_pending(&self, now: Instant) -> Lags {
        let waits = |pair: &Pair| pair.state != ObjectState::Paused;
        let oldest = |direction: Direction| {
            let changed = self.pairs.values().filter(|pair| waits(pair)).filter_map(|pair| match direction {
                Direction::Spec => pair.spec_since,
                Direction::Status => pair.status_since,
            });
            let contended = self.conflicts.contended().filter(|key| self.pairs.get(key).is_some_and(waits));
            let contended = contended.filter_map(|key| self.conflicts.contended_since(key, Some(direction), now));
            changed.chain(contended).min().map(|since| now.saturating_duration_since(since))
        };
        Lags { spec: oldest(Direction::Spec), status: oldest(Direction::Status) }
    }

    /// For how long the pair that has failed for the longest time has done so.
    pub(crate) fn longest_failing(&self, now: Instant) -> Option<Duration> {
        let since = self.pairs.values().filter_map(|pair| pair.failing_since).min();
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Records that an object is never synced. Returns whether that is new, and for how long it stays contended.
    pub(crate) fn leave_out(&mut self, key: &PairKey, why: LeftOut, now: Instant) -> (bool, Option<Duration>) {
        let was_known = self.left_out.contains_key(&key.local);
        let calm_in = self.forget(key, now);
        self.left_out.insert(key.local.clone(), why.reason());
        (!was_known, calm_in)
    }

    /// The objects that are never synced, and why: the first `most` of them, and how many there are.
    pub(crate) fn left_out(&self, most: usize) -> (Vec<(ObjectKey, &'static str)>, usize) {
        let first = self.left_out.iter().take(most).map(|(key, why)| (key.clone(), *why)).collect();
        (first, self.left_out.len())
    }

    /// The steps of a dry run, by name.
    pub(crate) fn planned_steps(&self) -> BTreeMap<&'static str, u64> {
        self.planned.clone()
    }
}

/// A map by key, grouped by namespace.
#[derive(Debug)]
pub(super) struct Pairs<P>(HashMap<Arc<str>, HashMap<PairKey, P>>);

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P> Pairs<P> {
    pub(crate) fn get(&self, key: &PairKey) -> Option<&P> {
        self.0.get(&key.local.namespace)?.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &PairKey) -> Option<&mut P> {
        self.0.get_mut(&key.local.namespace)?.get_mut(key)
    }

    /// The pair of a key, created on first use.
    pub(crate) fn get_or_insert_with(&mut self, key: &PairKey, make: impl FnOnce() -> P) -> &mut P {
        self.0.entry(Arc::clone(&key.local.namespace)).or_default().entry(key.clone()).or_insert_with(make)
    }

    pub(crate) fn remove(&mut self, key: &PairKey) {
        if let Some(pairs) = self.0.get_mut(&key.local.namespace) {
            pairs.remove(key);
            if pairs.is_empty() {
                self.0.remove(&key.local.namespace);
            }
        }
    }

    /// The keys of one namespace, in no order.
    pub(crate) fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.0.get(namespace).into_iter().flat_map(HashMap::keys)
    }

    /// All pairs, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PairKey, &P)> {
        self.0.values().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&PairKey, &mut P)> {
        self.0.values_mut().flatten()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &P> {
        self.iter().map(|(_, pair)| pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::rewrites::WITHIN;
    use crate::resource_sync::plan::conflicts::Effect;
    use crate::resource_sync::plan::step::Contended;

    /// The state that is shown of a pair, and since when.
    fn shown(table: &mut Table, key: &PairKey, now: Instant) -> (ObjectState, Instant) {
        table.pair(key, now);
        table.shown(key, table.get(key).unwrap(), now)
    }

    /// Writes a part again that somebody has undone. Returns whether it has to be told who does that.
    fn rewrite(table: &mut Table, key: &PairKey, what: &Contended, now: Instant) -> bool {
        let tracker = table.conflicts.of(key, || 0, now);
        let effect = Effect::of(what.clone());
        tracker.wrote(&effect);
        let is_new = tracker.would_contend(&effect, now);
        assert!(tracker.sent(&effect, now).is_some());
        if is_new {
            table.conflicts.told(key, what, "kubectl keeps changing spec.size".to_owned(), now);
        }
        is_new
    }

    /// Writes it so often that somebody has to be told of.
    fn contend(table: &mut Table, key: &PairKey, what: &Contended, now: Instant) -> [bool; 4] {
        [(); 4].map(|()| rewrite(table, key, what, now))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lag_runs_from_the_first_change_to_its_write() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.pair(&key, start).spec_since = Some(start);
        table.ended(&key, ObjectState::Failing, start, None, start);
        assert_eq!(table.oldest_pending(start + Duration::from_secs(2)).spec, Some(Duration::from_secs(2)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(table.spec_written(&key, start + Duration::from_secs(4)), None, "an echo is no change");
        table.pair(&key, start).status_since = Some(start);
        table.ended(&key, ObjectState::InStep, start, None, start);
        assert_eq!(table.oldest_pending(start), Lags::default());
        assert_eq!(shown(&mut table, &key, start).0, ObjectState::InStep);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_changed_is_pending_until_a_reconcile_has_looked_at_it() {
        let mut table = Table::default();
        let key = PairKey::alike("n", "a");
        let start = Instant::now();
        table.ended(&key, ObjectState::InStep, start, None, start);
        let changed = start + Duration::from_secs(1);
        table.pair(&key, start).spec_since = Some(changed);
        assert_eq!(shown(&mut table, &key, start), (ObjectState::Pending, changed));
        // One that had looked before does not know of it.
        table.ended(&key, ObjectState::InStep, start, None, start);
        assert_eq!(shown(&mut table, &key, start).0, ObjectState::Pending);
        table.ended(&key, ObjectState::InStep, changed, None, changed);
        assert_eq!(shown(&mut table, &key, start).0, ObjectState::InStep);
    }

    #[tokio::test(start_paused = true)]
    async fn a_contended_pair_is_pending_from_the_first_contended_write_until_a_calm_minute() {
        let (mut table, key, start) = (Table::default(), PairKey::alike("n", "a"), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let told_once = [false, false, true, false];
        assert_eq!(contend(&mut table, &key, &Contended::Content, at(0)), told_once);
        for round in 1..5 {
            // The write puts the pair in step until the other client undoes it.
            assert!(!rewrite(&mut table, &key, &Contended::Content, at(30 * round)), "it is told once");
            table.ended(&key, ObjectState::InStep, at(30 * round), None, at(30 * round));
            let seen = at(30 * round + 20);
            assert_eq!(shown(&mut table, &key, seen), (ObjectState::Pending, start));
            assert_eq!(table.oldest_pending(seen).spec, Some(seen - start));
            assert_eq!(table.oldest_pending(seen).status, None);
            // Left out until half a minute is over.
            table.ended(&key, ObjectState::Pending, seen, None, seen);
        }
        // Another part, which comes later and lasts longer.
        assert_eq!(contend(&mut table, &key, &Contended::Status, at(140)), told_once);
        let cause = table.conflicts.cause(&key, at(140));
        assert_eq!(cause.as_deref(), Some("kubectl keeps changing spec.size; kubectl keeps changing spec.size"));
        assert_eq!(shown(&mut table, &key, at(179)), (ObjectState::Pending, start));
        table.ended(&key, ObjectState::InStep, at(180), None, at(180));
        assert_eq!(shown(&mut table, &key, at(180)), (ObjectState::Pending, at(140)));
        assert_eq!(table.conflicts.cause(&key, at(180)).as_deref(), Some("kubectl keeps changing spec.size"));
        assert_eq!(table.oldest_pending(at(180)), Lags { spec: None, status: Some(at(180) - at(140)) });
        assert_eq!(shown(&mut table, &key, at(199)).0, ObjectState::Pending);
        assert_eq!(shown(&mut table, &key, at(200)).0, ObjectState::InStep);
        assert_eq!(table.conflicts.cause(&key, at(200)), None);
        assert_eq!(contend(&mut table, &key, &Contended::Content, at(300)), told_once, "told again");
        assert_eq!(shown(&mut table, &key, at(301)), (ObjectState::Pending, at(300)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_contended_pair_that_is_gone_is_remembered_until_a_calm_minute() {
        let (mut table, key, start) = (Table::default(), PairKey::alike("n", "a"), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let deletion = Contended::Removal("delete_local");
        contend(&mut table, &key, &deletion, at(0));
        for round in 0..5 {
            table.pair(&key, at(30 * round)).status_since = Some(at(30 * round));
            assert_eq!(
                table.forget(&key, at(30 * round + 1)),
                Some(WITHIN.checked_sub(Duration::from_secs(1)).unwrap())
            );
            assert_eq!(shown(&mut table, &key, at(30 * round + 1)), (ObjectState::Pending, start));
            assert_eq!(table.oldest_pending(at(30 * round + 1)).status, None, "nothing is left to write");
            assert!(!rewrite(&mut table, &key, &deletion, at(30 * round + 30)), "it is told once");
        }
        assert_eq!(table.forget(&key, at(210)), None);
        assert_eq!(table.keys().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_pair_keeps_its_age_over_what_happens_between_two_failures() {
        let (mut table, key, start) = (Table::default(), PairKey::alike("n", "a"), Instant::now());
        for second in 1..20 {
            let state = if second % 3 == 0 { ObjectState::Pending } else { ObjectState::Failing };
            let now = start + Duration::from_secs(second);
            table.ended(&key, state, now, None, now);
            assert_eq!(shown(&mut table, &key, now), (state, start + Duration::from_secs(1)));
            assert_eq!(table.longest_failing(now), Some(Duration::from_secs(second - 1)));
        }
        table.ended(&key, ObjectState::InStep, start, None, start);
        assert_eq!(table.longest_failing(start), None);
    }

    #[test]
    fn a_namespace_without_pairs_leaves_nothing_behind() {
        let mut pairs = Pairs::<u8>::default();
        for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one")] {
            *pairs.get_or_insert_with(&PairKey::alike(namespace, name), u8::default) += 1;
        }
        pairs.remove(&PairKey::alike("a", "one"));
        assert_eq!(pairs.keys_in("a").collect::<Vec<_>>(), [&PairKey::alike("a", "two")]);
        pairs.remove(&PairKey::alike("a", "two"));
        pairs.remove(&PairKey::alike("c", "none"));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(&PairKey::alike("b", "one"), &1)]);
        assert_eq!(pairs.0.len(), 1);
    }
}
