//! What is remembered of a row of `spec`: what was found and read of its rows, what was written of that, and what stands in
//! the way of the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::contest::Contest;
use super::digest::{Digest, Fingerprint};
use super::plan::Waiting;
use super::row_id::RowId;
use super::tally::Tally;
use crate::actor::Backoff;
use crate::cluster::{ListMoment, Object, ObjectKey, Store};

/// What the API server refuses is tried again after this: the same content will hardly do.
pub(super) const REFUSED: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// A hub object as change detection found it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its row.
    pub id: RowId,
    /// Its name.
    pub key: ObjectKey,
    /// Its rows of `status`.
    pub print: Fingerprint,
}

/// An object that was written, or found to be right.
#[derive(Clone, Debug)]
pub struct Part {
    key: ObjectKey,
    digest: Digest,
    /// Our last write, which the cache may have yet to show.
    written: Option<Version>,
    /// What the API server made of our write.
    accepted: Option<Digest>,
}

/// The version of a write of ours, and when it was acknowledged: a list of later shows it too, also where the cluster
/// counts its versions from lower ones than before.
pub type Version = (Arc<str>, ListMoment);

impl Part {
    /// Whether the cache has yet to show our last write.
    fn is_awaited(&self, target: &Store) -> bool {
        let awaits =
            |(version, when): &Version| !target.has_caught_up(&self.key, version) && !target.has_listed_since(*when);
        self.written.as_ref().is_some_and(awaits)
    }
}

/// A row of `spec`.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub key: ObjectKey,
    /// Its rows of `status`, by the last change detection.
    pub found: Fingerprint,
    /// Its rows when it was last written or found to be right; none where it has to be looked at.
    pub settled: Option<Fingerprint>,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// Since when the database says something that is not written.
    pub pending: Option<Instant>,
    /// UID of the hub object that it was served to.
    live: Option<Arc<str>>,
    parts: Vec<Part>,
    blockers: Vec<(ObjectKey, Arc<str>)>,
    /// UIDs of what we deleted, which the cache may have yet to show.
    deleted: Vec<Arc<str>>,
    /// What was wrong with its rows when they were last read.
    pub bad: Tally,
    /// When it was last written without the database having asked for it: somebody else's edit was taken back.
    pub mended: Option<Instant>,
    /// The contest with another writer, where there is one.
    pub contest: Contest,
    /// The names that objects of others have.
    foreign: Vec<ObjectKey>,
    refusals: u32,
    not_before: Option<Instant>,
    /// When its last write failed, until one succeeds.
    failed: Option<Instant>,
}

impl Entry {
    pub(super) fn new(found: &Found, now: Instant) -> Self {
        Self {
            key: found.key.clone(),
            found: found.print,
            settled: None,
            waiting: None,
            pending: Some(now),
            live: None,
            parts: Vec::new(),
            blockers: Vec::new(),
            deleted: Vec::new(),
            bad: Tally::default(),
            mended: None,
            contest: Contest::default(),
            foreign: Vec::new(),
            refusals: 0,
            not_before: None,
            failed: None,
        }
    }

    /// Whether it was settled with the rows that the database has, and the caches show nothing else.
    pub fn is_settled(&self) -> bool {
        self.settled == Some(self.found)
    }

    /// Whether a refusal still holds it back.
    pub fn is_held_back(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|moment| now < moment)
    }

    /// Whether its last write failed.
    pub fn is_failing(&self) -> bool {
        self.failed.is_some()
    }

    /// When its failed write can be tried again, where there is one.
    pub fn retry_at(&self) -> Option<Instant> {
        self.not_before.max(self.failed)
    }

    /// The names that objects of others have.
    pub fn foreign(&self) -> &[ObjectKey] {
        &self.foreign
    }

    /// Whether somebody else's edit was taken back less than `calm` ago, and the database says nothing new since.
    pub fn was_just_mended(&self, now: Instant, calm: Duration) -> bool {
        let just = |mended| now.saturating_duration_since(mended) < calm;
        self.pending.is_none() && self.mended.is_some_and(just)
    }

    /// Whether it is to be looked at now.
    pub fn is_due(&self, now: Instant, calm: Duration) -> bool {
        !self.is_settled() && !self.is_held_back(now) && !self.was_just_mended(now, calm)
    }

    /// Whether the object was deleted by us.
    pub fn has_deleted(&self, uid: &str) -> bool {
        self.deleted.iter().any(|deleted| **deleted == *uid)
    }

    /// What is accepted in the place of a digest, see [`super::plan::Observed::accepted`].
    pub fn accepts(&self, target: &Store, key: &ObjectKey, desired: Digest) -> Option<Digest> {
        let part = self.parts.iter().find(|part| part.key == *key && part.digest == desired)?;
        let held = target.get(key);
        if part.is_awaited(target) {
            return Some(held.and_then(|held| Digest::held(&held)).unwrap_or(desired));
        }
        // What is gone was accepted once; that is no reason not to make it again.
        held.and(part.accepted)
    }

    /// Whether the cache has yet to show our last write of an object, which was of another digest.
    pub fn is_outdated(&self, target: &Store, key: &ObjectKey, desired: Digest) -> bool {
        self.parts.iter().any(|part| part.key == *key && part.digest != desired && part.is_awaited(target))
    }

    /// Whether an object was made for this one, by its owner and a label of ours, and nothing is known of it.
    pub(super) fn is_surprised_by(&self, held: &Object) -> bool {
        let owner = held.controller.as_ref().map(|controller| &controller.uid);
        let is_known = self.parts.iter().any(|part| part.key == held.key)
            || self.blockers.iter().any(|(blocker, _)| *blocker == held.key)
            || self.has_deleted(&held.uid);
        owner.is_some() && owner == self.live.as_ref() && !held.labels.is_empty() && !held.deleting && !is_known
    }

    /// Whether the caches show what was settled. Takes note of what the API server made of our last write, at the very
    /// version that shows it.
    pub(super) fn is_at_rest(&mut self, hub: &Store, target: &Store) -> bool {
        if hub.get(&self.key).map(|live| Arc::clone(&live.uid)) != self.live {
            return false;
        }
        if self.blockers.iter().any(|(key, uid)| target.get(key).is_none_or(|held| held.uid != *uid)) {
            return false;
        }
        for part in &mut self.parts {
            if part.is_awaited(target) {
                continue;
            }
            let Some(held) = target.get(&part.key) else { return false };
            let shown = Digest::held(&held);
            if shown == Some(part.digest) || (shown.is_some() && shown == part.accepted) {
                continue;
            }
            if part.written.as_ref().is_some_and(|(version, _)| *version == held.resource_version) {
                part.accepted = shown;
                continue;
            }
            self.contest.edited(&part.key);
            return false;
        }
        true
    }

    /// The rows were read and what they say is in the cluster: by `parts`, some of which were just written.
    pub fn settle(&mut self, print: Fingerprint, live: Arc<str>, parts: Vec<(ObjectKey, Digest, Option<Version>)>) {
        let before = std::mem::take(&mut self.parts);
        self.parts = parts
            .into_iter()
            .map(|(key, digest, written)| {
                let same = before.iter().find(|part| part.key == key && part.digest == digest);
                let accepted = same.and_then(|part| part.accepted).filter(|_| written.is_none());
                let written = written.or_else(|| same.and_then(|part| part.written.clone()));
                Part { key, digest, written, accepted }
            })
            .collect();
        self.live = Some(live);
        self.settled = Some(print);
        self.blockers.clear();
        self.foreign.clear();
        self.waiting = None;
        self.refusals = 0;
        self.not_before = None;
        self.failed = None;
        if self.is_settled() {
            self.pending = None;
        }
    }

    /// It can't be served until the blockers have gone, of which some belong to others.
    pub fn block(&mut self, waiting: Waiting, blockers: Vec<(ObjectKey, Arc<str>)>, foreign: Vec<ObjectKey>) {
        self.waiting = Some(waiting);
        self.blockers = blockers;
        self.foreign = foreign;
    }

    /// These objects were deleted.
    pub fn delete(&mut self, uids: Vec<Arc<str>>) {
        self.deleted = uids;
    }

    /// Another row is the object's: this one says nothing that anybody would write.
    pub fn shadow(&mut self) {
        self.pending = None;
        self.failed = None;
        self.not_before = None;
        self.refusals = 0;
        self.bad = Tally::default();
    }

    /// A write failed.
    pub fn fail(&mut self, now: Instant, refused: bool) {
        self.settled = None;
        // It is to be mended still.
        self.mended = None;
        self.failed = Some(now);
        if refused {
            self.not_before = Some(now + REFUSED.next_delay(self.refusals));
            self.refusals = self.refusals.saturating_add(1);
        }
    }
}
