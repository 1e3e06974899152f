//! Conflicts: what we write is undone again and again, most often by another client.
//!
//! No write of ours is repeated without bound, whoever makes it necessary. A write is a rewrite if the same part was written
//! before and nothing new was asked for since: neither has the remote object changed ([`order`]), nor what is copied from the
//! local side ([`Effect`]). What it was undone with, and on which object, does not count: another client may undo something else
//! each time, or make the object anew. Each part of a pair that can be undone has its own [`Rewrites`], which slow them down, so that
//! a contended part does not delay the others. It is contended for as long as they are slow; meanwhile it is known who undoes it, and
//! nobody is asked again. Pure: the caller passes the time in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::names::PairKey;
use super::observed::Observed;
use super::patch::{LocalChange, desired_metadata};
use super::policy::Policy;
use super::server_result::{of_content, of_status};
use super::step::{Contended, Step};
use crate::cluster::Object;
use crate::cluster::rewrites::{Rewrites, WITHIN};
use crate::resource_sync::metrics::Direction;

/// What a step writes, as far as it can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    pub what: Contended,
    /// Hash of what is copied, where that can change while the remote object stays as it is.
    source: u64,
    /// The tracker does not know that it was written before, and it is a rewrite all the same: the server's result has changed.
    drifted: bool,
    /// It is written for a reason of our own, and is never a rewrite.
    ours: bool,
}

impl Effect {
    /// What is written as the remote object orders it.
    pub(crate) fn of(what: Contended) -> Self {
        Self { what, source: 0, drifted: false, ours: false }
    }
}

/// The fields of the content that differ now, in words; empty where none does.
pub fn content_fields(observed: &Observed, policy: &Policy) -> String {
    let (Some(remote), Some(local)) = (observed.remote_object(), observed.local.as_ref()) else {
        return String::new();
    };
    let of = |one: &Object, other: &Object| of_content(&one.content, &other.content, &policy.local_fields);
    of(remote, local).or_else(|| of(local, remote)).map_or_else(String::new, |fields| fields.list())
}

/// The fields of a contended part that differ now, in words; empty where the part itself says it.
pub fn fields(what: &Contended, step: &Step, observed: &Observed, policy: &Policy) -> String {
    let (Some(remote), Some(_)) = (observed.remote_object(), observed.local.as_ref()) else {
        return String::new();
    };
    match (what, step) {
        (Contended::Content, _) => content_fields(observed, policy),
        (Contended::Status, _) => {
            let (written, shown) = (observed.status_to_write(policy), remote.status.as_ref());
            let of = of_status;
            let fields = of(written.as_ref(), shown).or_else(|| of(shown, written.as_ref()));
            fields.map_or_else(String::new, |fields| fields.list())
        }
        (Contended::Metadata, Step::PatchLocal(LocalChange { labels, annotations, .. })) => {
            let labels = labels.keys().map(|key| format!("label {key}"));
            labels.chain(annotations.keys().map(|key| format!("annotation {key}"))).collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hash of the labels and annotations that the remote object orders.
fn metadata(observed: &Observed, policy: &Policy) -> u64 {
    let of = |remote: &Arc<Object>| desired_metadata(remote, &observed.pair.local, policy, &observed.clusters);
    hash_of(observed.remote_object().map(of))
}

/// Hash of all that the remote object orders: what the local cluster accepts or rejects.
pub fn whole_order(observed: &Observed, policy: &Policy) -> u64 {
    hash_of((order(observed.remote_object().map(Arc::as_ref)), metadata(observed, policy)))
}

/// Hash of what the remote object orders, as the cache shows it: nothing that a section writes is in it.
pub fn order(remote: Option<&Object>) -> u64 {
    hash_of(remote.map(|remote| (&remote.uid, remote.deleting, &remote.content)))
}

pub fn effects(step: &Step, observed: &Observed, policy: &Policy) -> Vec<Effect> {
    let server_result = &observed.server_result;
    let copied = |what, source| Effect { source, ..Effect::of(what) };
    let ordered = |what| vec![Effect::of(what)];
    let uid = observed.remote_object().map(|remote| &remote.uid);
    match step {
        Step::PatchLocal(change) => {
            let Some(remote) = observed.remote_object() else { return Vec::new() };
            let content = change.content.as_ref().map(|_| Effect {
                drifted: server_result.is_rewrite(remote),
                ours: server_result.content_is_written_again(),
                ..Effect::of(Contended::Content)
            });
            let metadata = (!change.labels.is_empty() || !change.annotations.is_empty())
                .then(|| copied(Contended::Metadata, metadata(observed, policy)));
            content.into_iter().chain(metadata).collect()
        }
        Step::WriteRemoteStatus => vec![Effect {
            ours: server_result.status_is_written_again(),
            ..copied(Contended::Status, hash_of((uid, observed.status_to_write(policy))))
        }],
        Step::AddFinalizer => ordered(Contended::Finalizer),
        // The remote generation is no reason for another note: an API server may raise it because of the note.
        Step::NoteGenerations { local, .. } => vec![copied(Contended::Generations, hash_of(local))],
        Step::CreateLocal => ordered(Contended::Object),
        Step::CreateNamespace => ordered(Contended::Namespace),
        Step::AdoptLocal(_) => ordered(Contended::Adoption),
        Step::NoteError(None) => ordered(Contended::SyncError),
        Step::NoteError(Some(_)) => vec![copied(Contended::Rejection, metadata(observed, policy))],
        Step::RenewMarks(renewal) => ordered(Contended::Marks(renewal.place)),
        Step::UploadSecret(name) | Step::NoteSecretHash(name) => {
            let Some(secret) = observed.secrets.iter().find(|secret| secret.name == *name) else { return Vec::new() };
            let what = match step {
                Step::UploadSecret(_) => Contended::Secret(Arc::clone(name)),
                _ => Contended::SecretHash(Arc::clone(name)),
            };
            vec![Effect { ours: secret.is_refresh(), ..copied(what, hash_of((uid, &secret.hash))) }]
        }
        Step::RemoveFinalizer
        | Step::ReleaseLocal(_)
        | Step::DeleteLocal
        | Step::DeleteNamespace
        | Step::ReleaseNamespace => ordered(Contended::Removal(step.name())),
    }
}

/// The history of one part.
#[derive(Debug, Default)]
struct Conflict {
    /// What was copied by the last write for the present order.
    source: Option<u64>,
    rewrites: Rewrites,
    /// Since when the part is contended, and who does what, as it was told. Both count for as long as the conflict lasts.
    told: Option<(Instant, String)>,
}

impl Conflict {
    fn contention(&self, now: Instant) -> Option<&(Instant, String)> {
        self.told.as_ref().filter(|_| self.rewrites.calm_in(now, WITHIN).is_some())
    }

    fn is_rewrite(&self, effect: &Effect) -> bool {
        !effect.ours && (effect.drifted || self.source == Some(effect.source))
    }
}

/// The conflicts of one pair.
#[derive(Debug)]
pub struct ConflictTracker {
    /// What the remote object orders.
    order: u64,
    parts: BTreeMap<Contended, Conflict>,
    /// When a run last observed the pair.
    used: Instant,
}

impl ConflictTracker {
    fn new(order: u64, now: Instant) -> Self {
        Self { order, parts: BTreeMap::new(), used: now }
    }

    /// Records what the remote object orders now. Whatever another order makes necessary is no rewrite; what is copied from the
    /// local side does not depend on it.
    pub fn ordered(&mut self, order: u64) {
        if std::mem::replace(&mut self.order, order) == order {
            return;
        }
        for (what, conflict) in &mut self.parts {
            if !matches!(what, Contended::Status | Contended::Secret(_) | Contended::SecretHash(_)) {
                conflict.source = None;
            }
        }
    }

    /// How long a write has to wait; `None` if it may be sent.
    pub fn wait(&mut self, effect: &Effect, now: Instant) -> Option<Duration> {
        let conflict = self.parts.get_mut(&effect.what)?;
        if conflict.is_rewrite(effect) { conflict.rewrites.wait(now, WITHIN) } else { None }
    }

    /// Whether the part becomes contended if the write is sent now, and that was not told yet.
    pub fn would_contend(&mut self, effect: &Effect, now: Instant) -> bool {
        let conflict = self.parts.get_mut(&effect.what).filter(|conflict| conflict.is_rewrite(effect));
        conflict
            .is_some_and(|conflict| conflict.contention(now).is_none() && conflict.rewrites.would_contend(now, WITHIN))
    }

    /// Records that a write is sent. `None` if it is no rewrite; otherwise whether the part is contended by now.
    pub fn sent(&mut self, effect: &Effect, now: Instant) -> Option<bool> {
        let conflict = self.parts.entry(effect.what.clone()).or_default();
        conflict.is_rewrite(effect).then(|| conflict.rewrites.sent(now, WITHIN))
    }

    /// Records that a write was acknowledged.
    pub fn wrote(&mut self, effect: &Effect) {
        self.parts.entry(effect.what.clone()).or_default().source = Some(effect.source);
    }
}

/// The conflicts of all pairs that were written lately.
#[derive(Debug, Default)]
pub struct Conflicts {
    trackers: HashMap<PairKey, ConflictTracker>,
    /// The few of them with a part that was contended: what is looked up for every pair is mostly answered by that.
    told: HashSet<PairKey>,
}

impl Conflicts {
    /// Records what the remote object of a pair orders now, of which a run takes care.
    pub fn ordered(&mut self, key: &PairKey, order: impl FnOnce() -> u64, now: Instant) {
        if let Some(tracker) = self.trackers.get_mut(key) {
            tracker.used = now;
            tracker.ordered(order());
        }
    }

    /// How long a write has to wait; `None` if it may be sent.
    pub fn wait(&mut self, key: &PairKey, effect: &Effect, now: Instant) -> Option<Duration> {
        self.trackers.get_mut(key)?.wait(effect, now)
    }

    /// Whether the part becomes contended if the write is sent now, and that was not told yet.
    pub fn would_contend(&mut self, key: &PairKey, effect: &Effect, now: Instant) -> bool {
        self.trackers.get_mut(key).is_some_and(|tracker| tracker.would_contend(effect, now))
    }

    /// The conflicts of a pair that is written.
    pub fn of(&mut self, key: &PairKey, order: impl FnOnce() -> u64, now: Instant) -> &mut ConflictTracker {
        let tracker = self.trackers.entry(key.clone()).or_insert_with(|| ConflictTracker::new(order(), now));
        tracker.used = now;
        tracker
    }

    /// Records who does what with a part of the pair that becomes contended with the write that is sent now.
    pub fn told(&mut self, key: &PairKey, what: &Contended, cause: String, now: Instant) {
        if let Some(conflict) = self.trackers.get_mut(key).and_then(|tracker| tracker.parts.get_mut(what)) {
            conflict.told = Some((now, cause));
            self.told.insert(key.clone());
        }
    }

    /// All pairs with a part that is contended, and perhaps some others.
    pub fn contended(&self) -> impl Iterator<Item = &PairKey> {
        self.told.iter()
    }

    fn parts(&self, key: &PairKey) -> impl Iterator<Item = (&Contended, &Conflict)> {
        self.trackers.get(key).into_iter().flat_map(|tracker| &tracker.parts)
    }

    /// Since when a part of the pair is contended; with a direction, one that is written in it.
    pub fn contended_since(&self, key: &PairKey, direction: Option<Direction>, now: Instant) -> Option<Instant> {
        if !self.told.contains(key) {
            return None;
        }
        let is_meant = |what: &Contended| direction.is_none_or(|direction| what.direction() == direction);
        let contended = self.parts(key).filter(|(what, _)| is_meant(what));
        contended.filter_map(|(_, conflict)| Some(conflict.contention(now)?.0)).min()
    }

    /// Who does what with the contended parts of the pair, in one sentence; `None` if none is.
    pub fn cause(&self, key: &PairKey, now: Instant) -> Option<String> {
        let told = self.parts(key).filter_map(|(_, conflict)| Some(conflict.contention(now)?.1.as_str()));
        let told: Vec<&str> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// When no part of the pair is contended any more, unless one has to be written again; `None` if none is.
    pub fn calm_in(&self, key: &PairKey, now: Instant) -> Option<Duration> {
        self.parts(key).filter_map(|(_, conflict)| conflict.rewrites.calm_in(now, WITHIN)).max()
    }

    /// Forgets pairs of which no run took care for so long that the rewrites before it do not count any more.
    pub fn forget_old(&mut self, now: Instant) {
        self.trackers.retain(|_, tracker| now.saturating_duration_since(tracker.used) <= WITHIN);
        self.told.retain(|key| self.trackers.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(what: Contended, source: u64) -> Effect {
        Effect { source, ..Effect::of(what) }
    }

    fn tracker() -> (ConflictTracker, Instant) {
        let now = Instant::now();
        (ConflictTracker::new(0, now), now)
    }

    /// Another client undoes every write at once. Returns the seconds of our writes.
    fn contend(
        conflicts: &mut ConflictTracker,
        what: &Contended,
        begun: Instant,
        seconds: std::ops::Range<u64>,
    ) -> Vec<u64> {
        let effect = effect(what.clone(), 7);
        seconds
            .filter(|second| {
                let now = begun + Duration::from_secs(*second);
                let goes = conflicts.wait(&effect, now).is_none();
                if goes {
                    conflicts.sent(&effect, now);
                    conflicts.wrote(&effect);
                }
                goes
            })
            .collect()
    }

    #[test]
    fn the_first_write_is_no_rewrite_and_the_third_rewrite_is_the_last_that_goes_at_once() {
        let (mut conflicts, begun) = tracker();
        assert_eq!(contend(&mut conflicts, &Contended::Status, begun, 0..60), [0, 1, 2, 3, 33]);
    }

    #[test]
    fn parts_that_are_not_contended_are_written() {
        let (mut conflicts, begun) = tracker();
        contend(&mut conflicts, &Contended::Status, begun, 0..10);
        let now = begun + Duration::from_secs(10);
        assert!(conflicts.wait(&effect(Contended::Status, 7), now).is_some());
        assert_eq!(conflicts.wait(&effect(Contended::Status, 8), now), None, "a new status is no rewrite");
        for other in [Contended::Content, Contended::Generations, Contended::Secret("one".into())] {
            assert_eq!(conflicts.wait(&effect(other, 7), now), None);
        }
    }

    #[test]
    fn what_is_made_and_removed_in_turns_is_no_conflict_by_order_and_one_without() {
        let turns = |order: fn(u64) -> u64| -> Vec<Option<bool>> {
            let (mut conflicts, now) = tracker();
            let (made, removed) = (effect(Contended::Object, 0), effect(Contended::Removal("delete_local"), 0));
            (0..8)
                .map(|turn| {
                    conflicts.ordered(order(turn));
                    let effect = if turn % 2 == 0 { &made } else { &removed };
                    let found = conflicts.sent(effect, now);
                    conflicts.wrote(effect);
                    found
                })
                .collect()
        };
        assert_eq!(turns(|turn| turn % 2), [None; 8], "another order before each");
        let again = Some(false);
        assert_eq!(turns(|_| 7), [None, None, again, again, again, again, Some(true), Some(true)]);
    }

    #[test]
    fn another_order_and_what_we_write_for_a_reason_of_our_own_are_no_rewrites() {
        let (mut conflicts, now) = tracker();
        conflicts.wrote(&effect(Contended::Status, 1));
        for order in 1..9 {
            for what in [Contended::Content, Contended::Metadata, Contended::Rejection] {
                let effect = effect(what, 1);
                conflicts.ordered(order);
                assert_eq!((conflicts.wait(&effect, now), conflicts.sent(&effect, now)), (None, None));
                conflicts.wrote(&effect);
            }
        }
        assert_eq!(
            conflicts.sent(&effect(Contended::Status, 1), now),
            Some(false),
            "no order is a reason for a status"
        );
        let hourly = Effect { ours: true, drifted: true, ..effect(Contended::Content, 1) };
        for _ in 0..5 {
            assert_eq!((conflicts.wait(&hourly, now), conflicts.sent(&hourly, now)), (None, None));
            conflicts.wrote(&hourly);
        }
        let drifted = Effect { drifted: true, ..effect(Contended::Object, 1) };
        assert_eq!(conflicts.sent(&drifted, now), Some(false), "what was written before");
    }
    #[test]
    fn a_pair_is_forgotten_a_minute_after_its_last_run() {
        let (mut conflicts, begun) = (Conflicts::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let [calm, contended] = ["calm", "contended"].map(|name| PairKey::alike("n", name));
        for key in [&calm, &contended] {
            conflicts.of(key, || 1, at(0)).wrote(&effect(Contended::Status, 7));
        }
        conflicts.ordered(&contended, || 1, at(59));
        conflicts.forget_old(at(61));
        let mut is_rewrite = |key| conflicts.of(key, || 1, at(61)).sent(&effect(Contended::Status, 7), at(61));
        assert_eq!((is_rewrite(&calm), is_rewrite(&contended)), (None, Some(false)));
    }
}
