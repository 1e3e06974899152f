//! The state of one row of `spec`: which `status` rows were detected and read, what was written, and why something is
//! not written yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::actor::Backoff;
use crate::cluster::{ListMoment, Object, ObjectKey, Store};
use crate::status::ObjectState;
use crate::status_sync::plan::changes::Waiting;
use crate::status_sync::plan::{ConflictTracker, Digest, Fingerprint, Sample};
use crate::status_sync::run::database::Found;

/// Back-off of writes that the API server refused. It starts high, since the API server will hardly accept the same
/// content soon.
pub(super) const REFUSED: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// An object that has the desired fields, because it was written or had them already.
#[derive(Clone, Debug)]
struct Part {
    key: ObjectKey,
    digest: Digest,
    /// Our last write, which the cache is expected to show.
    expected: Option<Version>,
    /// What the API server made of our write, if that differs from what we sent (defaults, pruning).
    server_result: Option<Digest>,
}

/// The resource version of our write, and when it was acknowledged. A list that begins later ends the expectation, even if
/// the cluster's resource versions are lower than before.
pub(super) type Version = (Arc<str>, ListMoment);

impl Part {
    /// Whether the cache has yet to show our last write.
    fn is_expected(&self, target: &Store) -> bool {
        let is_unseen =
            |(version, when): &Version| !target.has_caught_up(&self.key, version) && !target.has_listed_since(*when);
        self.expected.as_ref().is_some_and(is_unseen)
    }
}

/// What a poller remembers of a row of `spec`.
#[derive(Debug)]
pub(super) struct RowState {
    /// The name of its hub object.
    pub(super) key: ObjectKey,
    /// Its rows of `status` at the last change detection.
    pub(super) detected: Fingerprint,
    /// The `status` rows that the hub object shows, since we wrote them or found them there. `None` if the object has to
    /// be compared again.
    pub(super) applied: Option<Fingerprint>,
    /// Since when it does.
    applied_at: Option<Instant>,
    /// Why its status is not written.
    pub(super) waiting: Option<Waiting>,
    /// Since when the database has had a change that is not written.
    pub(super) pending: Option<Instant>,
    /// UID of the hub object that its rows were written for.
    hub_object: Option<Arc<str>>,
    parts: Vec<Part>,
    blockers: Vec<(ObjectKey, Arc<str>)>,
    /// UIDs of the objects that we deleted. The cache may still have them.
    deleted: Vec<Arc<str>>,
    /// What was last applied were no rows. Whatever has to be cleared since, somebody else has written.
    pub(super) was_cleared: bool,
    /// Its rows that could not be read, or not completely, when they were last read.
    pub(super) bad: Sample,
    /// When it was last written without a change in the database: that corrected an edit of another writer.
    pub(super) corrected: Option<Instant>,
    /// Notices another writer that keeps editing it.
    pub(super) conflict: ConflictTracker,
    /// The objects of other owners that have the names of ours.
    foreign: Vec<ObjectKey>,
    refusals: u32,
    not_before: Option<Instant>,
    /// When and how its last write failed, until one succeeds.
    failed: Option<(Instant, Box<str>)>,
}

impl RowState {
    pub(super) fn new(found: &Found, now: Instant) -> Self {
        Self {
            key: found.key.clone(),
            detected: found.fingerprint,
            applied: None,
            applied_at: None,
            waiting: None,
            pending: Some(now),
            hub_object: None,
            parts: Vec::new(),
            blockers: Vec::new(),
            deleted: Vec::new(),
            was_cleared: false,
            bad: Sample::default(),
            corrected: None,
            conflict: ConflictTracker::default(),
            foreign: Vec::new(),
            refusals: 0,
            not_before: None,
            failed: None,
        }
    }

    /// Whether the hub shows the rows that the database has.
    pub(super) fn is_applied(&self) -> bool {
        self.applied == Some(self.detected)
    }

    /// Whether its back-off after a refusal has not ended.
    pub(super) fn is_backing_off(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|moment| now < moment)
    }

    /// Its state as reports name it, and since when it is in it, where that is known.
    pub(super) fn state(&self) -> (ObjectState, Option<Instant>) {
        match (self.waiting, &self.failed, self.pending) {
            (Some(_), ..) => (ObjectState::Missing, None),
            (None, Some((failed, _)), pending) => (ObjectState::Failing, pending.or(Some(*failed))),
            (None, None, Some(pending)) => (ObjectState::Pending, Some(pending)),
            (None, None, None) => (ObjectState::InStep, self.applied_at),
        }
    }

    /// How its last write failed, until one succeeds.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, failure)| &**failure)
    }

    /// When its failed write can be retried; `None` if no write failed.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.not_before.max(self.failed.as_ref().map(|(when, _)| *when))
    }

    /// The objects of other owners that have the names of ours.
    pub(super) fn foreign(&self) -> &[ObjectKey] {
        &self.foreign
    }

    /// Whether an edit was corrected less than an interval ago, with no change in the database since.
    pub(super) fn was_just_corrected(&self, now: Instant, interval: Duration) -> bool {
        let just = |corrected| now.saturating_duration_since(corrected) < interval;
        self.pending.is_none() && self.corrected.is_some_and(just)
    }

    /// Whether it has to be compared and written now.
    pub(super) fn is_due(&self, now: Instant, interval: Duration) -> bool {
        !self.is_applied() && !self.is_backing_off(now) && !self.was_just_corrected(now, interval)
    }

    /// Whether we deleted the object with this UID.
    pub(super) fn has_deleted(&self, uid: &str) -> bool {
        self.deleted.iter().any(|deleted| **deleted == *uid)
    }

    /// The digest that counts as equal to the desired one, see
    /// [`Observed::server_result`](crate::status_sync::plan::changes::Observed).
    pub(super) fn server_result(&self, target: &Store, key: &ObjectKey, desired: Digest) -> Option<Digest> {
        let part = self.parts.iter().find(|part| part.key == *key && part.digest == desired)?;
        let cached = target.get(key);
        if part.is_expected(target) {
            return Some(cached.and_then(|cached| Digest::held(&cached)).unwrap_or(desired));
        }
        // An object that is gone has to be created again, whatever the server made of it before.
        cached.and(part.server_result)
    }

    /// Whether our last write of an object had another digest, and the cache has yet to show it.
    pub(super) fn is_outdated(&self, target: &Store, key: &ObjectKey, desired: Digest) -> bool {
        self.parts.iter().any(|part| part.key == *key && part.digest != desired && part.is_expected(target))
    }

    /// Whether an object has the marks of objects created for this row (controlling owner and labels), but is unknown
    /// here.
    pub(super) fn is_unexpected(&self, cached: &Object) -> bool {
        let owner = cached.controller.as_ref().map(|controller| &controller.uid);
        let is_known = self.parts.iter().any(|part| part.key == cached.key)
            || self.blockers.iter().any(|(blocker, _)| *blocker == cached.key)
            || self.has_deleted(&cached.uid);
        owner.is_some()
            && owner == self.hub_object.as_ref()
            && !cached.labels.is_empty()
            && !cached.deleting
            && !is_known
    }

    /// Whether the objects in the caches are as applied. If a cache shows exactly the version of our last write, this
    /// remembers what the API server made of it.
    pub(super) fn is_shown(&mut self, hub: &Store, target: &Store) -> bool {
        if hub.get(&self.key).map(|object| Arc::clone(&object.uid)) != self.hub_object {
            return false;
        }
        if self.blockers.iter().any(|(key, uid)| target.get(key).is_none_or(|cached| cached.uid != *uid)) {
            return false;
        }
        for part in &mut self.parts {
            if part.is_expected(target) {
                continue;
            }
            let Some(cached) = target.get(&part.key) else { return false };
            let shown = Digest::held(&cached);
            if shown == Some(part.digest) || (shown.is_some() && shown == part.server_result) {
                continue;
            }
            if part.expected.as_ref().is_some_and(|(version, _)| *version == cached.resource_version) {
                part.server_result = shown;
                continue;
            }
            self.conflict.record_edit(&part.key);
            return false;
        }
        true
    }

    /// Records that the hub shows these rows in `parts`. The parts that were just written have a version.
    pub(super) fn record_applied(
        &mut self,
        fingerprint: Fingerprint,
        hub_object: Arc<str>,
        parts: Vec<(ObjectKey, Digest, Option<Version>)>,
    ) {
        let before = std::mem::take(&mut self.parts);
        self.parts = parts
            .into_iter()
            .map(|(key, digest, expected)| {
                let same = before.iter().find(|part| part.key == key && part.digest == digest);
                let server_result = same.and_then(|part| part.server_result).filter(|_| expected.is_none());
                let expected = expected.or_else(|| same.and_then(|part| part.expected.clone()));
                Part { key, digest, expected, server_result }
            })
            .collect();
        self.hub_object = Some(hub_object);
        if self.applied.replace(fingerprint) != Some(fingerprint) {
            self.applied_at = Some(Instant::now());
        }
        self.was_cleared = fingerprint.rows() == 0;
        self.blockers.clear();
        self.foreign.clear();
        self.waiting = None;
        self.refusals = 0;
        self.not_before = None;
        self.failed = None;
        if self.is_applied() {
            self.pending = None;
        }
    }

    /// Records that it cannot be written until the blockers are gone. Those in `foreign` belong to other owners.
    pub(super) fn record_blockers(
        &mut self,
        waiting: Waiting,
        blockers: Vec<(ObjectKey, Arc<str>)>,
        foreign: Vec<ObjectKey>,
    ) {
        self.waiting = Some(waiting);
        self.blockers = blockers;
        self.foreign = foreign;
    }

    /// Records that we deleted the objects with these UIDs.
    pub(super) fn record_deleted(&mut self, uids: Vec<Arc<str>>) {
        self.deleted = uids;
    }

    /// Records that the hub object belongs to another row, so nothing is written from this one.
    pub(super) fn supersede(&mut self) {
        self.pending = None;
        self.failed = None;
        self.not_before = None;
        self.refusals = 0;
        self.bad = Sample::default();
    }

    /// Records a failed write. With `backs_off`, it is retried with back-off.
    pub(super) fn record_failure(&mut self, now: Instant, backs_off: bool, failure: String) {
        self.applied = None;
        // If the write was a correction, the edit of the other writer is still there.
        self.corrected = None;
        self.failed = Some((now, failure.into()));
        if backs_off {
            self.not_before = Some(now + REFUSED.next_delay(self.refusals));
            self.refusals = self.refusals.saturating_add(1);
        }
    }
}
