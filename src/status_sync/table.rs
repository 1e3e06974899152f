//! What a poller remembers of its family: one entry a row of `spec`, a few hundred bytes each, and no row of `status`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::contest::Contest;
use super::digest::{Digest, Fingerprint};
use super::plan::Waiting;
use super::tally::Tally;
use crate::actor::Backoff;
use crate::cluster::{ListMoment, Object, ObjectKey, Store};

/// What the API server refuses is tried again after this: the same content will hardly do.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// The id of a row of `spec`: a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(u128);

/// A text that is no UUID.
#[derive(Debug)]
pub struct NoUuid;

impl FromStr for RowId {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Self, NoUuid> {
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        if text.len() != 36 || digits.len() != 32 {
            return Err(NoUuid);
        }
        u128::from_str_radix(&digits, 16).map(Self).map_err(|_| NoUuid)
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let part = |range| digits.get(range).unwrap_or_default();
        write!(formatter, "{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }
}

impl fmt::Debug for RowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

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
    fn new(found: &Found, now: Instant) -> Self {
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
    fn is_surprised_by(&self, held: &Object) -> bool {
        let owner = held.controller.as_ref().map(|controller| &controller.uid);
        let is_known = self.parts.iter().any(|part| part.key == held.key)
            || self.blockers.iter().any(|(blocker, _)| *blocker == held.key)
            || self.has_deleted(&held.uid);
        owner.is_some() && owner == self.live.as_ref() && !held.labels.is_empty() && !held.deleting && !is_known
    }

    /// Whether the caches show what was settled. Takes note of what the API server made of our last write, at the very
    /// version that shows it.
    fn is_at_rest(&mut self, hub: &Store, target: &Store) -> bool {
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

/// The entries of a family.
#[derive(Debug, Default)]
pub struct Table {
    entries: HashMap<RowId, Entry>,
    by_name: HashMap<ObjectKey, Vec<RowId>>,
    by_part: HashMap<ObjectKey, RowId>,
    /// What the caches have shown to be otherwise than it was settled.
    unrest: HashSet<RowId>,
}

impl Table {
    /// Takes the result of a complete change detection in: rows that are gone are forgotten.
    pub fn take(&mut self, found: Vec<Found>, now: Instant) {
        let mut before = std::mem::take(&mut self.entries);
        self.by_name.clear();
        for found in found {
            let entry = match before.remove(&found.id) {
                Some(mut entry) if entry.key == found.key => {
                    if entry.found != found.print {
                        entry.pending.get_or_insert(now);
                    }
                    entry.found = found.print;
                    if entry.is_settled() {
                        // The rows had been read at this state already, before the database told of it.
                        entry.pending = None;
                    }
                    if found.print.rows() == 0 {
                        entry.bad = Tally::default();
                    }
                    entry
                }
                _ => Entry::new(&found, now),
            };
            self.by_name.entry(found.key).or_default().push(found.id);
            self.entries.insert(found.id, entry);
        }
        self.by_part.retain(|_, id| self.entries.contains_key(id));
        self.unrest.retain(|id| self.entries.contains_key(id));
    }

    /// An entry.
    pub fn get(&self, id: RowId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// An entry.
    pub fn get_mut(&mut self, id: RowId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// Every name with the rows that have it.
    pub fn names(&self) -> Vec<(ObjectKey, Vec<RowId>)> {
        self.by_name.iter().map(|(key, ids)| (key.clone(), ids.clone())).collect()
    }

    /// The names of some rows, with all rows that have them.
    pub fn names_of(&self, ids: &HashSet<RowId>) -> Vec<(ObjectKey, Vec<RowId>)> {
        let keys: HashSet<&ObjectKey> = ids.iter().filter_map(|id| Some(&self.entries.get(id)?.key)).collect();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.by_name.get(key)?.clone()))).collect()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Remembers whose an object is, so that news of it finds its row.
    pub fn own(&mut self, part: ObjectKey, id: RowId) {
        self.by_part.insert(part, id);
    }

    /// Looks whether the caches show what was settled; what they don't is to be looked at again.
    pub fn check(&mut self, id: RowId, hub: &Store, target: &Store) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.settled.is_some() && !entry.is_at_rest(hub, target) {
            entry.settled = None;
            self.unrest.insert(id);
        }
    }

    /// A watch has shown something new of a hub object, or of one that is made for it. `maker` is the name of the hub
    /// object that the shown object says that it was made for.
    pub fn note(&mut self, shown: &ObjectKey, maker: Option<&ObjectKey>, hub: &Store, target: &Store) {
        let mut ids: HashSet<RowId> = self.by_part.get(shown).copied().into_iter().collect();
        for key in std::iter::once(shown).chain(maker) {
            ids.extend(self.by_name.get(key).into_iter().flatten());
        }
        for id in ids {
            let appeared = self.entries.get(&id).is_some_and(|entry| {
                matches!(entry.waiting, Some(Waiting::Absent | Waiting::Ambiguous)) && hub.get(&entry.key).is_some()
            });
            if appeared {
                self.unrest.insert(id);
            }
            self.check(id, hub, target);
        }
        let Some(held) = target.get(shown) else { return };
        for id in maker.and_then(|maker| self.by_name.get(maker)).into_iter().flatten() {
            // One that was made when its rows were there still, or left over from somebody's: it may have to go.
            // The rows that it was settled with may be newer than those that the last detection found.
            if let Some(entry) = self.entries.get_mut(id)
                && entry.settled.is_some()
                && entry.is_surprised_by(&held)
            {
                entry.settled = None;
                self.unrest.insert(*id);
            }
        }
    }

    /// Takes what is to be looked at before the next pass; what was mended less than `calm` ago stays until then, so that
    /// a contest with another writer costs no more than one write an interval.
    pub fn take_unrest(&mut self, now: Instant, calm: Duration) -> HashSet<RowId> {
        let entries = &self.entries;
        let is_due = |id: &RowId| entries.get(id).is_some_and(|entry| !entry.was_just_mended(now, calm));
        self.unrest.extract_if(is_due).collect()
    }

    /// When the next of what is to be looked at can be.
    pub fn next_unrest(&self, now: Instant, calm: Duration) -> Option<Instant> {
        let entries = self.unrest.iter().filter_map(|id| self.entries.get(id));
        let at = |entry: &Entry| entry.mended.filter(|_| entry.pending.is_none()).map_or(now, |mended| mended + calm);
        entries.map(at).min()
    }

    /// Rows by what they wait for.
    pub fn waiting(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for waiting in self.entries.values().filter_map(|entry| entry.waiting) {
            *counts.entry(waiting.as_str()).or_default() += 1;
        }
        counts
    }

    /// What is wrong with the rows of all entries, and with those that `others` tells of.
    pub fn bad_rows(&self, others: &Tally) -> Tally {
        let mut all = others.clone();
        self.entries.values().filter(|entry| entry.bad.count > 0).for_each(|entry| all.merge(&entry.bad));
        all
    }

    /// The objects of others that have names which ours would have.
    pub fn foreign(&self) -> Tally {
        let mut all = Tally::default();
        let mut keys: Vec<&ObjectKey> = self.entries.values().flat_map(|entry| &entry.foreign).collect();
        keys.sort_unstable();
        for key in keys {
            all.add(1, || key.to_string());
        }
        all
    }

    /// When the next of the writes that failed can be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        let served = self.entries.values().filter(|entry| entry.waiting.is_none());
        served.filter_map(|entry| entry.not_before.max(entry.failed)).min()
    }

    /// Since when the oldest change is not written. What waits for something else than us does not count.
    pub fn oldest_pending(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.waiting.is_none()).filter_map(|entry| entry.pending).min()
    }
}

#[cfg(test)]
mod tests;
