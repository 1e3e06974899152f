//! Objects that nobody wants any more and that stay: what is deleted with its namespace or the definition of its kind, is not deleted
//! with these either.
//!
//! That an object stays is known from the moment on at which it is released. What it is within may be decided on much later, so a row
//! remembers it until then. It belongs to a syncset that has the outer object, and goes with the row of that.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::run::Pass;
use super::stored::is_undetermined;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::wanted::is_within;

/// Whether a row says only that the object is to stay. For a syncset that wants the object again it is as good as no row.
pub(super) fn is_kept(row: &AppliedRow) -> bool {
    !row.wanted && !row.tracked && is_undetermined(row)
}

impl Pass {
    /// Removes the row of an object that stays, but keeps the fact that it stays.
    pub(super) fn let_stay(&mut self, object: &ObjectRef, syncset: Uuid) {
        let Some(row) = self.stored.row(object, syncset).cloned() else { return };
        self.stored.forget(object, syncset);
        // Otherwise another row decides what becomes of the object.
        if self.stored.rows_of(object).all(is_kept) {
            self.remember_kept(&row);
        }
    }

    fn remember_kept(&mut self, row: &AppliedRow) {
        for syncset in self.owners_around(&row.object) {
            if self.stored.row(&row.object, syncset).is_none() {
                self.stored.put(AppliedRow {
                    syncset,
                    content: None,
                    wanted: false,
                    tracked: false,
                    adopted: true,
                    uid: None,
                    version: None,
                    owned: None,
                    resent: 0,
                    gone: 0,
                    ..row.clone()
                });
            }
        }
    }

    /// The syncsets with rows of objects that an object would be deleted with.
    fn owners_around(&self, object: &ObjectRef) -> BTreeSet<Uuid> {
        let is_around =
            |row: &&AppliedRow| !is_kept(row) && is_within(object, &row.object) && self.may_define(&row.object, object);
        self.stored.rows().filter(is_around).map(|row| row.syncset).collect()
    }

    /// Moves what is known of objects that stay to the syncsets that now have the outer objects, and removes rows that are no longer
    /// needed.
    pub(super) fn tidy_kept(&mut self) {
        let kept: Vec<AppliedRow> = self.stored.rows().filter(|row| is_kept(row)).cloned().collect();
        for row in kept {
            let is_decided_elsewhere = !self.stored.rows_of(&row.object).all(is_kept);
            if is_decided_elsewhere || !self.owners_around(&row.object).contains(&row.syncset) {
                self.stored.forget(&row.object, row.syncset);
            }
            if !is_decided_elsewhere {
                self.remember_kept(&row);
            }
        }
    }

    /// Rows of objects that stay and would be deleted with this one.
    pub(super) fn kept_within(&self, outer: &ObjectRef) -> impl Iterator<Item = &AppliedRow> {
        self.stored.rows().filter(move |row| is_kept(row) && is_within(&row.object, outer))
    }

    /// Whether something stays that would be deleted with this object.
    pub(super) fn has_to_stay(&self, outer: &ObjectRef) -> bool {
        self.kept_within(outer).any(|row| self.may_define(outer, &row.object))
    }

    /// Whether a live syncset other than this one has yet to delete something that would be deleted with this object. That goes first: the
    /// other syncset sends what it wants before it deletes anything, and the inner object may turn out to be kept. A syncset deletes its
    /// own objects in order. Two syncsets may still wait for each other, since a definition of definitions may have any name.
    pub(super) fn has_removal_within(&self, outer: &ObjectRef, but: Option<usize>) -> bool {
        let of_others = self.removals.iter().filter(|(syncset, _)| Some(**syncset) != but);
        of_others.flat_map(|(_, removals)| removals).any(|removal| is_within(&removal.object, outer))
    }
}
