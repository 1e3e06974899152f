//! Deleting what nobody wants, and the results of syncsets.
//!
//! Some objects that nobody wants any more stay. What is deleted with its namespace or the definition of its kind is not deleted
//! with these either. That an object stays is known from the moment on at which it is released. What it is within may be decided on much later, so a row
//! remembers it until then. It belongs to a syncset that has the outer object, and goes with the row of that.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use uuid::Uuid;

use super::item::{KindKey, Removal};
use super::outcome::Release;
use super::send::CONTENDED_AFTER;
use super::stored::is_undetermined;
use super::target::{Ending, Refusal, Resolution, Target};
use super::{Flow, Pass, failure};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{AppliedRow, Failure, ResultRow, TAKEN};
use crate::syncset::plan::wanted::{Deletions, group_defined_by, is_definition_of, is_namespace, is_within};

/// How often an object is looked at again that changed before it was deleted.
const MOST_LOOKS: u8 = 3;
/// After this time an object that was deleted and is still there is a failure: what holds it does not let go.
const SOON_GONE: SignedDuration = SignedDuration::from_mins(1);

/// Whether a row says only that the object is to stay. For a syncset that wants the object again it is as good as no row.
pub(super) fn is_kept(row: &AppliedRow) -> bool {
    !row.wanted && !row.tracked && is_undetermined(row)
}

impl Pass {
    /// What syncsets that are gone have left.
    pub(super) async fn delete_gone<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        while let Some(removal) = self.gone_removals.pop_front() {
            if self.has_removal_within(&removal.object, None) {
                self.late_removals.push_back(removal);
            } else {
                self.remove(target, removal).await?;
            }
        }
        Ok(())
    }

    /// Deletes an object, if it is provably ours and nothing keeps it.
    pub(super) async fn remove<T: Target>(&mut self, target: &mut T, mut removal: Removal) -> Flow<T> {
        if self.are_deletions_off || self.is_awaited(&removal.object) {
            return Ok(());
        }
        while let Some(key) = self.unresolved_within(&removal.object) {
            self.step(target).await?;
            // Counts as one without an answer until there is one.
            self.progress.unknown_within.insert(key.clone());
            self.resolve_late(target, key, false).await?;
        }
        if let Some(hindrance) = self.hindrance(&removal.object) {
            self.keep_row(&removal, &hindrance);
            return Ok(());
        }
        if let Some(taken) = self.taken_within(&removal.object) {
            let why = format!("{taken} would be deleted with it, and stays");
            self.protect(&removal, &why);
            return Ok(());
        }
        if self.has_to_stay(&removal.object) {
            self.release(&removal, Release::Kept);
            return Ok(());
        }
        let place = (removal.object.clone(), removal.syncset);
        if self.progress.ending.contains(&place) {
            return Ok(());
        }
        if let Some(failure) = self.progress.removals.get(&place) {
            self.note_failure(removal.syncset, failure.clone());
            return Ok(());
        }
        let key = (removal.api_version.clone(), removal.object.kind.clone());
        if !self.kinds.contains_key(&key) {
            self.step(target).await?;
            self.resolve_late(target, key.clone(), false).await?;
        }
        match self.kinds.get(&key).cloned() {
            Some(Ok(Resolution::Served { .. })) => {}
            Some(Ok(Resolution::OtherVersion { api_version })) => removal.api_version = api_version,
            Some(Ok(Resolution::NotServed)) | None => {
                self.stored.forget(&removal.object, removal.syncset);
                return Ok(());
            }
            Some(Err(refused)) => {
                self.give_up(&removal, &refused.message);
                return Ok(());
            }
        }
        self.step(target).await?;
        self.delete_if_ours(target, &removal).await
    }

    async fn delete_if_ours<T: Target>(&mut self, target: &mut T, removal: &Removal) -> Flow<T> {
        for look in 1.. {
            let seen = match self.look(target, removal.address()).await? {
                Ok(Some(seen)) => seen,
                // A pass that was killed may have deleted it.
                Ok(None) => {
                    self.stored.remove(&removal.object, removal.syncset);
                    break;
                }
                Err(refused) => {
                    self.give_up(removal, &refused.message);
                    break;
                }
            };
            let Some(row) = self.stored.row(&removal.object, removal.syncset) else { break };
            let is_wanted = |object: &ObjectRef| self.wanted.winner(object).is_some();
            if let Some(release) = Release::of(row, &seen, self.stored.rows(), is_wanted) {
                // Of what was never sent it is not known whose it was, and what bears the id of another syncset is that one's, perhaps of another hub.
                let is_of_another = release == Release::AnotherOwner && seen.marks.syncset.is_some();
                if release == Release::Wanted || is_undetermined(row) || is_of_another {
                    self.release(removal, release);
                } else {
                    // It was sent to be deleted again, and somebody on the cluster has changed that: it is told until it is gone, wanted
                    // again, or as it was.
                    self.protect(removal, release.reason());
                }
                break;
            }
            if let Some(ending) = &seen.ending {
                self.wait_until_gone(removal, ending);
                break;
            }
            if !self.may_delete(target).await? {
                break;
            }
            match self.delete(target, removal.address(), &seen).await? {
                Ok(Some(ending)) => self.wait_until_gone(removal, &ending),
                Ok(None) => self.stored.remove(&removal.object, removal.syncset),
                Err(refused) => match refused.refusal {
                    Refusal::NotFound => self.stored.remove(&removal.object, removal.syncset),
                    Refusal::Conflict if look < MOST_LOOKS => continue,
                    _ => self.give_up(removal, &refused.message),
                },
            }
            break;
        }
        Ok(())
    }

    /// Whether a rollout is about to bring it to this cluster, or something within it: then it is never absent. That it is still there
    /// is nothing that has to be done, until the rollout has come here or is over.
    fn is_awaited(&self, object: &ObjectRef) -> bool {
        self.awaited.iter().any(|names| names.need(object))
    }

    /// Whether a syncset has something to delete.
    fn is_pending(&self, row: &AppliedRow) -> bool {
        let stays = is_kept(row) || (row.tracked && self.is_awaited(&row.object));
        !row.wanted && !stays
    }

    fn release(&mut self, removal: &Removal, release: Release) {
        *self.releases.entry(release).or_default() += 1;
        self.let_stay(&removal.object, removal.syncset);
    }

    /// Why an object can't be deleted although nobody wants it: something that is wanted, that another syncset may not delete,
    /// or of which it was not found out whether it is to stay would be deleted with it, or it may be a wanted object under the
    /// name of another group (as a Deployment was of `extensions` and `apps`).
    fn hindrance(&self, object: &ObjectRef) -> Option<String> {
        if let Some(within) = self.wanted.within(object).find(|within| self.may_define(object, within)) {
            return Some(format!("{within} is still wanted"));
        }
        let is_ending = |row: &AppliedRow| self.progress.ending.contains(&(row.object.clone(), row.syncset));
        let mut pending = self.pending_within(object).filter(|row| !is_ending(row) && !self.is_taken(row));
        if let Some(row) = pending.find(|row| self.may_define(object, &row.object)) {
            let is_allowed = self.deletions_of(row.syncset) == Deletions::Allowed;
            let why = if is_allowed { "is not deleted yet" } else { "may not be deleted yet" };
            return Some(format!("{} {why}", row.object));
        }
        let is_same = |wanted: &&ObjectRef| {
            wanted.kind == object.kind
                && wanted.namespace == object.namespace
                && wanted.name == object.name
                && self.stored.rows_of(wanted).all(|row| row.uid.is_none())
        };
        self.wanted.objects().find(is_same).map(|same| format!("it may be {same}, which is wanted"))
    }

    /// Whether the deletion of an object was allowed, and somebody on the cluster has taken it from its syncset.
    fn is_taken(&self, row: &AppliedRow) -> bool {
        row.gone == TAKEN && self.deletions_of(row.syncset) == Deletions::Allowed
    }

    /// An object that was taken from its syncset, and would be deleted with this one.
    fn taken_within(&self, outer: &ObjectRef) -> Option<ObjectRef> {
        let mut taken = self.pending_within(outer).filter(|row| self.is_taken(row));
        taken.find(|row| self.may_define(outer, &row.object)).map(|row| row.object.clone())
    }

    /// Objects that nobody wants and that are not deleted yet, and would be deleted with this one.
    fn pending_within(&self, outer: &ObjectRef) -> impl Iterator<Item = &AppliedRow> {
        self.stored.rows().filter(move |row| !row.wanted && row.tracked && is_within(&row.object, outer))
    }

    /// Whether an object that is a namespace or a definition may be the one of an object within: a definition is that of one kind, as
    /// far as the cluster has told its name.
    pub(super) fn may_define(&self, outer: &ObjectRef, within: &ObjectRef) -> bool {
        let plural = self.plurals.get(&(within.group.clone(), within.kind.clone()));
        is_namespace(outer) || plural.is_none_or(|plural| is_definition_of(outer, plural, &within.group))
    }

    /// A kind of the group of a definition that was not looked up yet, so that it is not known whether it is the one.
    fn unresolved_within(&self, outer: &ObjectRef) -> Option<KindKey> {
        group_defined_by(outer)?;
        let wanted = self.wanted.within(outer).flat_map(|within| self.stored.rows_of(within));
        let others = self.pending_within(outer).chain(self.kept_within(outer));
        let mut keys = wanted.chain(others).map(|row| (row.api_version.clone(), row.object.kind.clone()));
        keys.find(|key| !self.kinds.contains_key(key) && !self.progress.unknown_within.contains(key))
    }

    fn keep_row(&mut self, removal: &Removal, message: &str) {
        let failure = failure::of_deletion(&removal.api_version, &removal.object, message);
        self.note_failure(removal.syncset, failure);
    }

    /// Leaves an object that nobody wants, and notes that its deletion was allowed.
    fn protect(&mut self, removal: &Removal, why: &str) {
        let Some(row) = self.stored.row(&removal.object, removal.syncset).cloned() else { return };
        self.stored.put(AppliedRow { gone: TAKEN, ..row });
        self.fail_removal(removal, failure::of_protected(&removal.api_version, &removal.object, why));
    }

    /// Gives up a deletion that the cluster has refused: a pass that continues this one does not try it again.
    fn give_up(&mut self, removal: &Removal, message: &str) {
        self.fail_removal(removal, failure::of_deletion(&removal.api_version, &removal.object, message));
    }

    fn fail_removal(&mut self, removal: &Removal, failure: Failure) {
        self.progress.removals.insert((removal.object.clone(), removal.syncset), failure.clone());
        self.note_failure(removal.syncset, failure);
    }

    /// Keeps the first failure of a syncset. A failure that can be retried takes precedence over those that wait for a change, or it would not be retried.
    fn note_failure(&mut self, syncset: Uuid, failure: Failure) {
        let told = self.deletion_failures.entry(syncset).or_insert_with(|| failure.clone());
        if told.reason == Reason::NotDeleted && failure.reason != Reason::NotDeleted {
            *told = failure;
        }
    }

    /// Why a syncset has not deleted something, with how many objects stay like the one that is named.
    fn take_deletion_failure(&mut self, syncset: Uuid) -> Option<Failure> {
        let Failure { reason, message } = self.deletion_failures.remove(&syncset)?;
        let is_same = |((_, of), failure): &(&(ObjectRef, Uuid), &Failure)| *of == syncset && failure.reason == reason;
        let others = self.progress.removals.iter().filter(is_same).count().saturating_sub(1);
        let more = if others == 0 { String::new() } else { format!("; and {others} more") };
        Some(Failure { reason, message: format!("{message}{more}") })
    }

    /// Syncsets that are gone and all of whose objects are being deleted.
    pub(super) fn ending(&self) -> BTreeSet<Uuid> {
        let left = |syncset: Uuid| {
            let rows = self.stored.rows().filter(move |row| row.syncset == syncset && !is_kept(row));
            rows.map(|row| (row.object.clone(), row.syncset))
        };
        let gone = self.stored.results().map(|row| row.syncset).filter(|syncset| self.position(*syncset).is_none());
        gone.filter(|syncset| {
            left(*syncset).next().is_some() && left(*syncset).all(|row| self.progress.ending.contains(&row))
        })
        .collect()
    }

    /// The row of an object that is being deleted stays until it is gone, so that somebody says what holds it.
    fn wait_until_gone(&mut self, removal: &Removal, ending: &Ending) {
        let since = ending.since.filter(|since| self.now().duration_since(*since) >= SOON_GONE);
        if let Some(since) = since {
            let failure = failure::of_ending(&removal.api_version, &removal.object, since, ending);
            self.note_failure(removal.syncset, failure);
        }
        self.progress.ending.insert((removal.object.clone(), removal.syncset));
    }

    /// Removes the results of gone syncsets that have no rows left. Their rows may also have been removed in the turn of a later syncset.
    pub(super) fn finish_deletions(&mut self) {
        self.tidy_kept();
        let pending = self.stored.rows().filter(|row| self.is_pending(row));
        let pending: BTreeSet<Uuid> = pending.map(|row| row.syncset).collect();
        let done = self.stored.results().filter(|row| row.has_pending_deletions && !pending.contains(&row.syncset));
        for row in done.cloned().collect::<Vec<_>>() {
            self.stored.put_result(ResultRow { has_pending_deletions: false, ..row });
        }
        let gone: Vec<ResultRow> =
            self.stored.results().filter(|row| self.position(row.syncset).is_none()).cloned().collect();
        for row in gone {
            if self.stored.rows().all(|applied| applied.syncset != row.syncset) {
                self.stored.drop_result(row.syncset);
                continue;
            }
            let failure = self.take_deletion_failure(row.syncset).map(Failure::harmless);
            let since = if row.failure == failure { row.since } else { self.now() };
            self.stored.put_result(ResultRow { failure, since, has_pending_deletions: true, ..row });
        }
    }

    /// The failure `DeletedAgain` of an earlier pass, which stays until a pass, full or not, has found the object in place.
    fn still_deleted_again(&self, syncset: Uuid, old: &ResultRow) -> Option<Failure> {
        let is_open = |row: &AppliedRow| row.syncset == syncset && row.wanted && row.gone >= CONTENDED_AFTER;
        let failure = old.failure.as_ref().filter(|failure| failure.reason == Reason::DeletedAgain);
        failure.filter(|_| !self.full && self.stored.rows().any(is_open)).cloned()
    }

    /// Notes the result of a syncset's turn.
    pub(super) fn finish_turn(&mut self, position: usize) {
        let Some(id) = self.live.get(position).map(|live| live.header.id) else { return };
        let of_deletion = self.take_deletion_failure(id);
        let Some(live) = self.live.get(position) else { return };
        let failures = [self.failures.remove(&position), self.left_out.remove(&position)];
        let failure = failures.into_iter().flatten().next().or(of_deletion);
        let (name, inputs, generation) = (live.header.name.clone(), live.inputs, live.header.generation);
        let old = self.stored.result(id);
        let failure = failure.or_else(|| self.still_deleted_again(id, old?)).map(Failure::harmless);
        // A row of generation 0 was only stored to be found by the next pass.
        let same = old.filter(|old| old.generation > 0 && old.failure == failure);
        let first_success = old.and_then(|old| old.first_success).or(failure.is_none().then(|| self.now()));
        let row = ResultRow {
            syncset: id,
            name,
            inputs,
            generation,
            since: same.map_or_else(|| self.now(), |old| old.since),
            first_success,
            has_pending_deletions: self.stored.rows().any(|row| row.syncset == id && self.is_pending(row)),
            failure,
        };
        if row.failure.is_some() {
            self.progress.ended.insert(id, row.inputs);
        }
        self.stored.put_result(row);
    }

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
