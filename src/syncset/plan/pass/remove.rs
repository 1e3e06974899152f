//! Deleting what nobody wants, and the results of syncsets.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use uuid::Uuid;

use super::ask::Ask;
use super::failure;
use super::item::{KindKey, Removal};
use super::kept::is_kept;
use super::run::{Pass, unexpected};
use super::send::CONTENDED_AFTER;
use super::step::{Answer, Ending, Refusal, Refused, Release, Resolution, Seen};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::{AppliedRow, Failure, ResultRow};
use crate::syncset::plan::status::Reason;
use crate::syncset::plan::wanted::{Deletions, group_defined_by, is_definition_of, is_namespace, is_within};

/// How often an object is looked at again that changed before it was deleted.
const MOST_LOOKS: u8 = 3;
/// After this time an object that was deleted and is still there is a failure: what holds it does not let go.
const SOON_GONE: SignedDuration = SignedDuration::from_mins(1);

impl Pass {
    pub(super) fn next_gone_removal(&mut self) -> Option<Ask> {
        while let Some(removal) = self.gone_removals.pop_front() {
            if self.has_removal_within(&removal.object, None) {
                self.late_removals.push_back(removal);
                continue;
            }
            let ask = self.begin_removal(removal);
            if ask.is_some() {
                return ask;
            }
        }
        None
    }

    pub(super) fn next_removal(&mut self, syncset: usize) -> Option<Ask> {
        while let Some(removal) = self.removals.get_mut(&syncset).and_then(std::collections::VecDeque::pop_front) {
            // When all of them have given way and nothing was done, each waits for another one: then nobody does, and what would be deleted
            // with an object keeps it.
            if self.given_way < self.turns.len() && self.has_removal_within(&removal.object, Some(syncset)) {
                // The rest of its turn comes after those of the others.
                self.put_back(removal);
                self.turns.rotate_left(1);
                self.given_way += 1;
                return self.next_of_turn();
            }
            let ask = self.begin_removal(removal);
            if ask.is_some() {
                return ask;
            }
            self.given_way = 0;
        }
        None
    }

    fn begin_removal(&mut self, mut removal: Removal) -> Option<Ask> {
        if self.are_deletions_off {
            return None;
        }
        if let Some(key) = self.unresolved_within(&removal.object) {
            self.put_back(removal);
            // Counts as one without an answer until there is one.
            self.progress.unknown_within.insert(key.clone());
            return Some(Ask::Kind { key, wait: false });
        }
        if let Some(hindrance) = self.hindrance(&removal.object) {
            self.keep_row(&removal, &hindrance);
            return None;
        }
        if self.has_to_stay(&removal.object) {
            *self.releases.entry(Release::Kept).or_default() += 1;
            self.let_stay(&removal.object, removal.syncset);
            return None;
        }
        let place = (removal.object.clone(), removal.syncset);
        if self.progress.ending.contains(&place) {
            return None;
        }
        if let Some(failure) = self.progress.removals.get(&place) {
            self.deletion_failures.entry(removal.syncset).or_insert(failure.clone());
            return None;
        }
        let key = (removal.api_version.clone(), removal.object.kind.clone());
        match self.kinds.get(&key).cloned() {
            None => {
                self.put_back(removal);
                Some(Ask::Kind { key, wait: false })
            }
            Some(Ok(Resolution::Served { .. })) => Some(Ask::Examine(removal)),
            Some(Ok(Resolution::OtherVersion { api_version })) => {
                removal.api_version = api_version;
                Some(Ask::Examine(removal))
            }
            Some(Ok(Resolution::NotServed)) => {
                self.stored.forget(&removal.object, removal.syncset);
                None
            }
            Some(Err(refused)) => {
                self.give_up(&removal, &refused.message);
                None
            }
        }
    }

    /// Why an object can't be deleted although nobody wants it: something that is wanted, that another syncset may not delete,
    /// or of which it was not found out whether it is to stay would be deleted with it, or it may be a wanted object under the
    /// name of another group (as a Deployment was of `extensions` and `apps`).
    fn hindrance(&self, object: &ObjectRef) -> Option<String> {
        if let Some(within) = self.wanted.within(object).find(|within| self.may_define(object, within)) {
            return Some(format!("{within} is still wanted"));
        }
        let is_ending = |row: &AppliedRow| self.progress.ending.contains(&(row.object.clone(), row.syncset));
        let mut pending = self.pending_within(object).filter(|row| !is_ending(row));
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

    fn put_back(&mut self, removal: Removal) {
        match self.position(removal.syncset) {
            Some(position) => self.removals.entry(position).or_default().push_front(removal),
            None => self.gone_removals.push_front(removal),
        }
    }

    fn keep_row(&mut self, removal: &Removal, message: &str) {
        let failure = failure::of_deletion(&removal.api_version, &removal.object, message);
        self.deletion_failures.entry(removal.syncset).or_insert(failure);
    }

    /// Gives up a deletion that the cluster has refused: a pass that continues this one does not try it again.
    fn give_up(&mut self, removal: &Removal, message: &str) {
        let failure = failure::of_deletion(&removal.api_version, &removal.object, message);
        self.progress.removals.insert((removal.object.clone(), removal.syncset), failure);
        self.keep_row(removal, message);
    }

    pub(super) fn examined(&mut self, removal: Removal, reply: Result<Answer, Refused>) {
        match reply {
            // A pass that was killed may have deleted it.
            Ok(Answer::Found(None)) => self.stored.remove(&removal.object, removal.syncset),
            Ok(Answer::Found(Some(seen))) => {
                let Some(row) = self.stored.row(&removal.object, removal.syncset) else { return };
                if let Some(release) = self.release(row, &seen) {
                    *self.releases.entry(release).or_default() += 1;
                    self.let_stay(&removal.object, removal.syncset);
                } else if seen.is_terminating() {
                    self.wait_until_gone(removal, &seen.ending.unwrap_or_default());
                } else {
                    self.follow_up = Some(Ask::Delete(removal, seen));
                }
            }
            Ok(_) => self.give_up(&removal, &unexpected().message),
            Err(refused) => self.give_up(&removal, &refused.message),
        }
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

    /// Why the object is not ours to delete, if it is not.
    fn release(&self, row: &AppliedRow, seen: &Seen) -> Option<Release> {
        Release::of(row, seen, self.stored.rows(), |object| self.wanted.winner(object).is_some())
    }

    /// The row of an object that is being deleted stays until it is gone, so that somebody says what holds it.
    fn wait_until_gone(&mut self, removal: Removal, ending: &Ending) {
        let since = ending.since.filter(|since| self.now().duration_since(*since) >= SOON_GONE);
        if let Some(since) = since {
            let failure = failure::of_ending(&removal.api_version, &removal.object, since, ending);
            self.deletion_failures.entry(removal.syncset).or_insert(failure);
        }
        self.progress.ending.insert((removal.object, removal.syncset));
    }

    pub(super) fn deleted(&mut self, mut removal: Removal, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Deleted(Some(ending))) => self.wait_until_gone(removal, &ending),
            Ok(Answer::Deleted(None)) => self.stored.remove(&removal.object, removal.syncset),
            Ok(_) => self.give_up(&removal, &unexpected().message),
            Err(refused) => {
                removal.tries += 1;
                match refused.refusal {
                    Refusal::NotFound => self.stored.remove(&removal.object, removal.syncset),
                    Refusal::Conflict if removal.tries < MOST_LOOKS => self.follow_up = Some(Ask::Examine(removal)),
                    _ => self.give_up(&removal, &refused.message),
                }
            }
        }
    }

    /// Removes the results of gone syncsets that have no rows left. Their rows may also have been removed in the turn of a later syncset.
    pub(super) fn finish_deletions(&mut self) {
        self.tidy_kept();
        let pending = self.stored.rows().filter(|row| !row.wanted && !is_kept(row));
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
            let failure = self.deletion_failures.remove(&row.syncset);
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

    /// Ends the turn of a syncset. Returns whether another one is next.
    pub(super) fn finish_turn(&mut self) -> bool {
        let Some(position) = self.turns.pop_front() else { return false };
        let Some(live) = self.live.get(position) else { return false };
        let id = live.header.id;
        let failures = [self.failures.remove(&position), self.left_out.remove(&position)];
        let failure = failures.into_iter().flatten().next().or_else(|| self.deletion_failures.remove(&id));
        let (name, inputs, generation) = (live.header.name.clone(), live.inputs, live.header.generation);
        let old = self.stored.result(id);
        let failure = failure.or_else(|| self.still_deleted_again(id, old?));
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
            has_pending_deletions: self.stored.rows().any(|row| row.syncset == id && !row.wanted && !is_kept(row)),
            failure,
        };
        if row.failure.is_some() {
            self.progress.ended.insert(id, row.inputs);
        }
        self.stored.put_result(row);
        !self.turns.is_empty()
    }
}
