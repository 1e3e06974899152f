//! What is stored of a cluster, as a pass changes it, and which of it has not been written yet.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::target::{Writes, is_of_apply};
use crate::syncset::plan::name::{Digest, ObjectRef};
use crate::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};

#[derive(Debug, Default)]
pub(super) struct StoredRows {
    applied: BTreeMap<ObjectRef, BTreeMap<Uuid, AppliedRow>>,
    patched: BTreeMap<(Uuid, usize), PatchedRow>,
    results: BTreeMap<Uuid, ResultRow>,
    changed_rows: BTreeSet<(ObjectRef, Uuid)>,
    removed: BTreeSet<(ObjectRef, Uuid)>,
    changed_patches: BTreeSet<(Uuid, usize)>,
    changed_results: BTreeSet<Uuid>,
}

/// What is known of an object, of whichever syncset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
    pub(super) owned: Option<Digest>,
    /// Whether it existed before us.
    pub(super) adopted: bool,
    /// In how many full passes in a row it was sent again.
    pub(super) resent: u8,
    /// In how many of the last ones in a row it was gone.
    pub(super) gone: u8,
}

impl Facts {
    /// Whether our last write was an apply, so that no field is left of what was sent before in another behavior.
    pub(super) fn was_applied(&self) -> bool {
        self.owned.is_some_and(is_of_apply)
    }
}

/// Whether it is not known yet if the object existed before us. Rows of `CreateOnly` are stored like that before the first try, and so are
/// rows of syncsets whose object another one sends.
pub(super) fn is_undetermined(row: &AppliedRow) -> bool {
    row.adopted && row.uid.is_none() && row.content.is_none()
}

/// Of the rows of an object, the one that says what is known of it; none if nothing is.
pub fn telling<'r>(rows: impl Iterator<Item = &'r AppliedRow>) -> Option<&'r AppliedRow> {
    let determined = rows.filter(|row| !is_undetermined(row));
    determined.max_by_key(|row| (row.uid.is_some(), row.content.is_some(), row.adopted))
}

impl StoredRows {
    pub(super) fn new(applied: Vec<AppliedRow>, patched: Vec<PatchedRow>, results: Vec<ResultRow>) -> Self {
        let mut stored = Self::default();
        for row in applied {
            stored.applied.entry(row.object.clone()).or_default().insert(row.syncset, row);
        }
        stored.patched = patched.into_iter().map(|row| ((row.syncset, row.position), row)).collect();
        stored.results = results.into_iter().map(|row| (row.syncset, row)).collect();
        stored
    }

    /// Another cluster is behind the kubeconfig: nothing that is known of objects holds.
    pub(super) fn forget_objects(&mut self) {
        for (object, rows) in std::mem::take(&mut self.applied) {
            self.changed_rows.extend(rows.into_keys().map(|syncset| (object.clone(), syncset)));
        }
        self.changed_patches.extend(std::mem::take(&mut self.patched).into_keys());
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &AppliedRow> + Clone {
        self.applied.values().flat_map(BTreeMap::values)
    }

    pub(super) fn rows_of(&self, object: &ObjectRef) -> impl Iterator<Item = &AppliedRow> {
        self.applied.get(object).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn row(&self, object: &ObjectRef, syncset: Uuid) -> Option<&AppliedRow> {
        self.applied.get(object)?.get(&syncset)
    }

    /// What is known of an object; none if nothing is, so that the next write is the first contact.
    pub(super) fn facts(&self, object: &ObjectRef) -> Option<Facts> {
        let row = telling(self.rows_of(object))?;
        Some(Facts {
            uid: row.uid.clone(),
            version: row.version.clone(),
            owned: row.owned,
            adopted: row.adopted,
            resent: row.resent,
            // One that somebody had taken is wanted again.
            gone: if row.wanted { row.gone } else { 0 },
        })
    }

    /// Returns whether the row has to be stored before the object is written. It need not be if a pass that finds the previous row does the
    /// same: before it sends an object without content, it reads the object.
    pub(super) fn put(&mut self, row: AppliedRow) -> bool {
        let rows = self.applied.entry(row.object.clone()).or_default();
        let is_urgent = match rows.get(&row.syncset) {
            Some(old) if *old == row => return false,
            None => true,
            Some(old) => {
                let is_forgotten = old.uid.is_some() && row.uid.is_none();
                let is_opened = old.content.is_some() && row.content.is_none();
                let was_applied = old.owned.is_some_and(is_of_apply) && old.uid == row.uid && row.owned.is_none();
                is_forgotten || is_opened || was_applied || (old.wanted, old.tracked) != (row.wanted, row.tracked)
            }
        };
        self.changed_rows.insert((row.object.clone(), row.syncset));
        rows.insert(row.syncset, row);
        is_urgent
    }

    pub(super) fn forget(&mut self, object: &ObjectRef, syncset: Uuid) {
        if self.applied.get_mut(object).is_some_and(|rows| rows.remove(&syncset).is_some()) {
            self.changed_rows.insert((object.clone(), syncset));
        }
    }

    /// Forgets a row of an object that was deleted, or is gone.
    pub(super) fn remove(&mut self, object: &ObjectRef, syncset: Uuid) {
        self.removed.insert((object.clone(), syncset));
        self.forget(object, syncset);
    }

    pub(super) fn patch(&self, syncset: Uuid, position: usize) -> Option<&PatchedRow> {
        self.patched.get(&(syncset, position))
    }

    pub(super) fn put_patch(&mut self, row: PatchedRow) {
        let key = (row.syncset, row.position);
        if self.patched.get(&key) != Some(&row) {
            self.changed_patches.insert(key);
            self.patched.insert(key, row);
        }
    }

    /// Forgets the patches of which `stays` says no.
    pub(super) fn retain_patches(&mut self, stays: impl Fn(Uuid, usize) -> bool) {
        let changed = &mut self.changed_patches;
        self.patched.retain(|(syncset, position), _| {
            let stays = stays(*syncset, *position);
            if !stays {
                changed.insert((*syncset, *position));
            }
            stays
        });
    }

    pub(super) fn results(&self) -> impl Iterator<Item = &ResultRow> {
        self.results.values()
    }

    pub(super) fn result(&self, syncset: Uuid) -> Option<&ResultRow> {
        self.results.get(&syncset)
    }

    pub(super) fn put_result(&mut self, row: ResultRow) {
        if self.results.get(&row.syncset) != Some(&row) {
            self.changed_results.insert(row.syncset);
            self.results.insert(row.syncset, row);
        }
    }

    pub(super) fn drop_result(&mut self, syncset: Uuid) {
        if self.results.remove(&syncset).is_some() {
            self.changed_results.insert(syncset);
        }
    }

    /// Whether something of objects or patches has not been written.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed_rows.is_empty() || !self.changed_patches.is_empty()
    }

    /// Whether something has not been written, be it only a result.
    pub(super) fn is_unwritten(&self) -> bool {
        self.has_changed() || !self.changed_results.is_empty()
    }

    pub(super) fn take(&mut self) -> Writes {
        let mut writes = Writes::default();
        let removed = std::mem::take(&mut self.removed);
        for (object, syncset) in std::mem::take(&mut self.changed_rows) {
            match self.row(&object, syncset) {
                Some(row) => writes.applied.push(row.clone()),
                None => writes.forgotten.push((object, syncset)),
            }
        }
        writes.removed = writes.forgotten.iter().filter(|row| removed.contains(row)).cloned().collect();
        for (syncset, position) in std::mem::take(&mut self.changed_patches) {
            match self.patch(syncset, position) {
                Some(row) => writes.patched.push(row.clone()),
                None => writes.unpatched.push((syncset, position)),
            }
        }
        for syncset in std::mem::take(&mut self.changed_results) {
            match self.results.get(&syncset) {
                Some(row) => writes.results.push(row.clone()),
                None => writes.finished.push(syncset),
            }
        }
        writes
    }
}
