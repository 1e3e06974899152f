//! What a poller remembers of its family: one entry a row of `spec`, a few hundred bytes each, and no row of `status`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Entry, Found};
use super::plan::Waiting;
use super::row_id::RowId;
use super::same_hub::Compared;
use super::tally::Tally;
use crate::cluster::{ObjectKey, Store};

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

    /// Compares the rows with the objects on the hub: an object is its row's where its UID is the row's id.
    pub fn compare(&self, hub: &Store) -> Compared {
        let mut compared = Compared::default();
        for (key, ids) in &self.by_name {
            let Some(object) = hub.get(key) else { continue };
            let is_its = object.uid.parse().is_ok_and(|uid: RowId| ids.contains(&uid));
            compared.objects += 1;
            compared.others += usize::from(!is_its);
        }
        compared
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
        let mut keys: Vec<&ObjectKey> = self.entries.values().flat_map(Entry::foreign).collect();
        keys.sort_unstable();
        for key in keys {
            all.add(1, || key.to_string());
        }
        all
    }

    /// When the next of the writes that failed can be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        let served = self.entries.values().filter(|entry| entry.waiting.is_none());
        served.filter_map(Entry::retry_at).min()
    }

    /// Whether the last write of any object failed.
    pub fn any_failing(&self) -> bool {
        self.entries.values().any(Entry::is_failing)
    }

    /// Since when the oldest change is not written. What waits for something else than us does not count.
    pub fn oldest_pending(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.waiting.is_none()).filter_map(|entry| entry.pending).min()
    }
}

#[cfg(test)]
mod tests;
