//! The state of a family: one entry of a few hundred bytes for each row of `spec`. Rows of `status` are not kept.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde_json::{Map, json};
use tokio::time::Instant;

use super::row_state::RowState;
use crate::cluster::{ObjectKey, Store};
use crate::status::{ListedObject, ObjectState, Objects};
use crate::status_sync::plan::changes::{Waiting, matching_row};
use crate::status_sync::plan::same_hub::Compared;
use crate::status_sync::plan::{RowId, Sample};
use crate::status_sync::run::database::Found;

/// The rows that have to be compared and written now.
pub(super) struct Due {
    /// Those without rows of `status`.
    pub(super) without_rows: Vec<RowId>,
    /// The others.
    pub(super) with_rows: Vec<RowId>,
}

/// The entries of a family.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<RowId, RowState>,
    by_name: HashMap<ObjectKey, Vec<RowId>>,
    by_part: HashMap<ObjectKey, RowId>,
    /// Rows whose objects in the caches differ from what was applied. They are compared again between passes.
    requeue_set: HashSet<RowId>,
}

/// Why objects are held.
pub(in crate::status_sync) fn clearing_is_held(family: &str) -> String {
    format!("most rows of {family} are gone, and clearing the status of so many objects is held")
}

impl Table {
    /// Updates the table with the result of a complete change detection. Rows that are gone are forgotten.
    pub(super) fn update(&mut self, found: Vec<Found>, now: Instant) {
        let mut before = std::mem::take(&mut self.entries);
        self.by_name.clear();
        for found in found {
            let entry = match before.remove(&found.id) {
                Some(mut entry) if entry.key == found.key => {
                    if entry.detected != found.fingerprint {
                        entry.pending.get_or_insert(now);
                    }
                    entry.detected = found.fingerprint;
                    if entry.is_applied() {
                        // An earlier pass has read these rows already, in a version newer than its own detection.
                        entry.pending = None;
                    }
                    if found.fingerprint.rows() == 0 {
                        entry.bad = Sample::default();
                    }
                    entry
                }
                _ => RowState::new(&found, now),
            };
            self.by_name.entry(found.key).or_default().push(found.id);
            self.entries.insert(found.id, entry);
        }
        self.by_part.retain(|_, id| self.entries.contains_key(id));
        self.requeue_set.retain(|id| self.entries.contains_key(id));
    }

    pub(super) fn get(&self, id: RowId) -> Option<&RowState> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RowId) -> Option<&mut RowState> {
        self.entries.get_mut(&id)
    }

    /// All names, each with the rows that have it.
    pub(super) fn names(&self) -> Vec<(ObjectKey, Vec<RowId>)> {
        self.by_name.iter().map(|(key, ids)| (key.clone(), ids.clone())).collect()
    }

    /// The names of some rows, each with all rows that have it.
    pub(super) fn names_of(&self, ids: &HashSet<RowId>) -> Vec<(ObjectKey, Vec<RowId>)> {
        let keys: HashSet<&ObjectKey> = ids.iter().filter_map(|id| Some(&self.entries.get(id)?.key)).collect();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.by_name.get(key)?.clone()))).collect()
    }

    /// Of the rows with these names, those that have to be compared and written now. A row whose hub object is missing
    /// or belongs to another row waits.
    pub(super) fn due(
        &mut self,
        names: Vec<(ObjectKey, Vec<RowId>)>,
        hub: &Store,
        target: &Store,
        now: Instant,
        interval: Duration,
    ) -> Due {
        let chosen = self.choose(names, hub, target);
        let due = chosen.into_iter().filter(|id| self.get(*id).is_some_and(|entry| entry.is_due(now, interval)));
        let (without_rows, with_rows) =
            due.partition(|id| self.get(*id).is_some_and(|entry| entry.detected.rows() == 0));
        Due { without_rows, with_rows }
    }

    /// Chooses for each name the row that belongs to the hub object. The others wait.
    fn choose(&mut self, names: Vec<(ObjectKey, Vec<RowId>)>, hub: &Store, target: &Store) -> Vec<RowId> {
        let mut chosen = Vec::new();
        for (key, ids) in names {
            let hub_object = hub.get(&key);
            let id = hub_object.as_ref().and_then(|hub_object| matching_row(&ids, hub_object.uid.parse().ok()));
            let waiting = match (&hub_object, id) {
                (None, _) => Some(Waiting::Absent),
                (Some(_), None) => Some(Waiting::Ambiguous),
                (Some(_), Some(_)) => None,
            };
            for other in ids {
                let Some(entry) = self.entries.get_mut(&other) else { continue };
                if Some(other) == id {
                    if matches!(entry.waiting, Some(Waiting::Absent | Waiting::Ambiguous)) {
                        entry.waiting = None;
                    }
                    self.check(other, hub, target);
                    chosen.push(other);
                } else {
                    entry.waiting = waiting;
                    entry.applied = None;
                    if waiting.is_none() {
                        entry.supersede();
                    }
                }
            }
        }
        chosen
    }

    /// Compares the rows with the objects on the hub. An object belongs to a row if its UID is the row's id.
    pub(super) fn compare(&self, hub: &Store) -> Compared {
        let mut compared = Compared::default();
        for (key, ids) in &self.by_name {
            let Some(object) = hub.get(key) else { continue };
            let has_row = object.uid.parse().is_ok_and(|uid: RowId| ids.contains(&uid));
            compared.objects += 1;
            compared.others += usize::from(!has_row);
        }
        compared
    }

    /// Whether an object without rows is still to be cleared, and can't be now.
    pub(super) fn is_cleared_later(&self, key: &ObjectKey, now: Instant, interval: Duration) -> bool {
        let mut entries = self.by_name.get(key).into_iter().flatten().filter_map(|id| self.get(*id));
        entries.any(|entry| entry.detected.rows() == 0 && !entry.is_applied() && !entry.is_due(now, interval))
    }

    /// How many hub objects show something that could be lost: not those that are absent, and not those without rows that were cleared,
    /// or had nothing to clear.
    pub(super) fn shown(&self) -> usize {
        let shows = |entry: &RowState| {
            let is_there = !matches!(entry.waiting, Some(Waiting::Absent | Waiting::Ambiguous));
            is_there && (entry.detected.rows() > 0 || !entry.was_cleared)
        };
        self.by_name.values().filter(|ids| ids.iter().filter_map(|id| self.get(*id)).any(shows)).count()
    }

    /// Remembers which row an object belongs to, to find the row when a watch shows a change of the object.
    pub(super) fn own(&mut self, part: ObjectKey, id: RowId) {
        self.by_part.insert(part, id);
    }

    /// Requeues a row if its objects in the caches differ from what was applied.
    pub(super) fn check(&mut self, id: RowId, hub: &Store, target: &Store) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.applied.is_some() && !entry.is_shown(hub, target) {
            entry.applied = None;
            self.requeue_set.insert(id);
        }
    }

    /// Records that a watch has shown a change of a hub object, or of an object that a hub object owns. `owner` is the
    /// name of the hub object that controls the shown object.
    pub(super) fn record_change(&mut self, shown: &ObjectKey, owner: Option<&ObjectKey>, hub: &Store, target: &Store) {
        let mut ids: HashSet<RowId> = self.by_part.get(shown).copied().into_iter().collect();
        for key in std::iter::once(shown).chain(owner) {
            ids.extend(self.by_name.get(key).into_iter().flatten());
        }
        for id in ids {
            let appeared = self.entries.get(&id).is_some_and(|entry| {
                matches!(entry.waiting, Some(Waiting::Absent | Waiting::Ambiguous)) && hub.get(&entry.key).is_some()
            });
            if appeared {
                self.requeue_set.insert(id);
            }
            self.check(id, hub, target);
        }
        let Some(cached) = target.get(shown) else { return };
        for id in owner.and_then(|owner| self.by_name.get(owner)).into_iter().flatten() {
            // The object may have to be deleted: it was created while there were still rows for it, or another writer left
            // it. `is_applied` is no condition, since the applied rows may be newer than those of the last detection.
            if let Some(entry) = self.entries.get_mut(id)
                && entry.applied.is_some()
                && entry.is_unexpected(&cached)
            {
                entry.applied = None;
                self.requeue_set.insert(*id);
            }
        }
    }

    /// Takes the requeued rows out of the set. A row whose last correction is less than an interval ago stays in it, so
    /// that a conflict with another writer costs at most one write per interval.
    pub(super) fn take_requeued(&mut self, now: Instant, interval: Duration) -> HashSet<RowId> {
        let entries = &self.entries;
        let is_due = |id: &RowId| entries.get(id).is_some_and(|entry| !entry.was_just_corrected(now, interval));
        self.requeue_set.extract_if(is_due).collect()
    }

    /// When the first of the requeued rows can be compared.
    pub(super) fn next_requeue(&self, now: Instant, interval: Duration) -> Option<Instant> {
        let entries = self.requeue_set.iter().filter_map(|id| self.entries.get(id));
        let at = |entry: &RowState| {
            entry.corrected.filter(|_| entry.pending.is_none()).map_or(now, |corrected| corrected + interval)
        };
        entries.map(at).min()
    }

    /// How many rows wait, by reason.
    pub(super) fn waiting(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for waiting in self.entries.values().filter_map(|entry| entry.waiting) {
            *counts.entry(waiting.as_str()).or_default() += 1;
        }
        counts
    }

    /// The bad rows of all entries, and those in `others`.
    pub(super) fn bad_rows(&self, others: &Sample) -> Sample {
        let mut all = others.clone();
        self.entries.values().filter(|entry| entry.bad.count > 0).for_each(|entry| all.merge(&entry.bad));
        all
    }

    /// The objects of other owners that have the names of ours.
    pub(super) fn foreign(&self) -> Sample {
        let mut all = Sample::default();
        let mut keys: Vec<&ObjectKey> = self.entries.values().flat_map(RowState::foreign).collect();
        keys.sort_unstable();
        for key in keys {
            all.add(1, || key.to_string());
        }
        all
    }

    /// The objects that another writer keeps editing, with the writer.
    pub(super) fn contenders(&self, now: Instant, interval: Duration) -> Sample {
        let told = self.entries.values().filter_map(|entry| entry.conflict.contender(now, interval));
        let mut told: Vec<&str> = told.collect();
        told.sort_unstable();
        let mut all = Sample::default();
        for contender in told {
            all.add(1, || contender.to_owned());
        }
        all
    }

    /// When the first of the failed writes can be retried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let written = self.entries.values().filter(|entry| entry.waiting.is_none());
        written.filter_map(RowState::retry_at).min()
    }

    /// The rows by state, those of `held` by that; the ones that are listed are named.
    pub(super) fn objects(&self, family: &'static str, held: &HashSet<ObjectKey>) -> Objects {
        let rows = self.entries.values().map(|row| {
            let (state, since) = state_of(row, held);
            (&row.key, row, state, since)
        });
        Objects::of(rows, Instant::now(), |_, row, state, since| described(family, row, state, since))
    }

    /// What is known of a hub object, or of one that a hub object owns; none if no row is about it. Of several rows with its name it is the one
    /// that is written.
    pub(super) fn explained(
        &self,
        family: &'static str,
        key: &ObjectKey,
        held: &HashSet<ObjectKey>,
        hub: &Store,
    ) -> Option<ListedObject> {
        let of_name = self.by_name.get(key).and_then(|ids| {
            let uid = hub.get(key).and_then(|object| object.uid.parse().ok());
            matching_row(ids, uid).or_else(|| ids.first().copied())
        });
        let row = self.get(of_name.or_else(|| self.by_part.get(key).copied())?)?;
        let (state, since) = state_of(row, held);
        let mut object = described(family, row, state, since);
        object.also.insert("rows".to_owned(), json!(row.detected.rows()));
        Some(object)
    }

    /// Since when the oldest unwritten change has been known. Rows that wait for something do not count.
    pub(super) fn oldest_pending(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.waiting.is_none()).filter_map(|entry| entry.pending).min()
    }
}

fn state_of(row: &RowState, held: &HashSet<ObjectKey>) -> (ObjectState, Option<Instant>) {
    let is_held = row.waiting.is_none() && row.detected.rows() == 0 && held.contains(&row.key);
    if is_held { (ObjectState::Held, row.pending) } else { row.state() }
}

fn described(family: &'static str, row: &RowState, state: ObjectState, since: Option<Instant>) -> ListedObject {
    let (cause, next_step) = match (state, row.waiting) {
        (ObjectState::Held, _) => (clearing_is_held(family), None),
        (ObjectState::Failing, _) => (row.failure().unwrap_or_default().to_owned(), None),
        (_, Some(waiting)) => (waiting.cause().to_owned(), waiting.next_step()),
        (ObjectState::InStep, None) => (String::new(), None),
        (_, None) => ("a change is being written".to_owned(), None),
    };
    ListedObject {
        cause,
        next_step: next_step.map(str::to_owned),
        retry_at: row.retry_at().filter(|_| state == ObjectState::Failing),
        also: Map::from_iter([("family".to_owned(), json!(family))]),
        ..ListedObject::new(&row.key, state, since)
    }
}

#[cfg(test)]
mod tests;
