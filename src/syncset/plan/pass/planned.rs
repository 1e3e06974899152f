//! What a pass has to do, once it is known which kinds have namespaces.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use uuid::Uuid;

use super::item::{Check, Item, ItemState, KindKey, PatchItem, Removal, Task};
use super::look::Listing;
use super::outcome::Release;
use super::remove::is_kept;
use super::stored::{Facts, is_undetermined};
use super::target::{Resolution, is_of_apply};
use super::{Pass, failure};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{AppliedRow, Failure, PatchedRow, ResultRow};
use crate::syncset::plan::spec::{Behavior, Desired, DesiredPatch, Mode, Position, Rendered, Rendering};
use crate::syncset::plan::wanted::{Deletions, Live, Scope, Wanted, group_defined_by, is_namespace, placed};

/// From how many objects on a list costs less than as many GETs.
const FEWEST_TO_LIST: usize = 3;

/// The kinds of everything that is rendered.
pub(super) fn kinds_in_use(live: &[Live]) -> BTreeSet<KindKey> {
    let mut kinds = BTreeSet::new();
    for rendered in live.iter().filter_map(|live| live.rendered.as_ref()) {
        for rendering in rendered.resources.iter().chain(&rendered.secrets) {
            if let Rendering::Ready(desired) = rendering {
                kinds.insert((desired.api_version.clone(), desired.object.kind.clone()));
            }
        }
        for rendering in &rendered.patches {
            if let Rendering::Ready(desired) = rendering {
                kinds.insert((desired.api_version.clone(), desired.object.kind.clone()));
            }
        }
    }
    kinds
}

impl Pass {
    pub(super) fn plan(&mut self) {
        self.wanted = Wanted::new(&self.live, self.stored.rows(), |object| self.scope(object));
        self.untrack_upserts();
        let (mut items, mut patches) = (Vec::new(), BTreeMap::new());
        for position in self.turns.clone() {
            let Some(live) = self.live.get_mut(position) else { continue };
            if let Some(obstacle) = live.obstacle().cloned() {
                self.failures.insert(position, obstacle);
            } else if let Some(rendered) = live.rendered.take() {
                patches.insert(live.header.id, rendered.patches.len());
                self.plan_syncset(position, rendered, &mut items);
            }
        }
        let lives: BTreeSet<Uuid> = self.live.iter().map(|live| live.header.id).collect();
        self.stored.retain_patches(|syncset, position| {
            lives.contains(&syncset) && patches.get(&syncset).is_none_or(|count| position < *count)
        });
        self.note_superseded();
        self.note_dropped();
        self.settle_without_items(&items);
        self.plan_removals();
        self.plan_checks(items);
    }

    /// An `Upsert` syncset no longer deletes what it has sent, even if it does not render and nothing else of it is recorded.
    fn untrack_upserts(&mut self) {
        let upserts = self.live.iter().map(|live| &live.header).filter(|header| header.mode == Mode::Upsert);
        let upserts: BTreeSet<Uuid> = upserts.map(|header| header.id).collect();
        let tracked = self.stored.rows().filter(|row| row.tracked && upserts.contains(&row.syncset));
        for row in tracked.cloned().collect::<Vec<_>>() {
            self.stored.put(AppliedRow { tracked: false, ..row });
        }
    }

    fn plan_syncset(&mut self, position: usize, rendered: Rendered, items: &mut Vec<Item>) {
        let resources = rendered.resources.into_iter().map(|rendering| (false, rendering));
        let secrets = rendered.secrets.into_iter().map(|rendering| (true, rendering));
        let (mut index, mut in_secrets) = (0, false);
        // Two elements may turn out to be one object, since its kind has no namespaces: then the last one counts.
        let mut own: BTreeMap<ObjectRef, Desired> = BTreeMap::new();
        for (is_secret, rendering) in resources.chain(secrets) {
            if is_secret && !in_secrets {
                (index, in_secrets) = (0, true);
            }
            let place = if is_secret { Position::Secret(index) } else { Position::Resource(index) };
            index += 1;
            match rendering {
                Rendering::Ready(desired) => {
                    own.insert(placed(&desired.object, self.scope(&desired.object)), desired);
                }
                Rendering::Failed { failure, .. } => {
                    self.tasks.insert((position, place), Task::Broken(failure));
                }
            }
        }
        for (object, desired) in own {
            if self.wanted.winner(&object) == Some(position) {
                items.extend(self.item(position, object, desired));
            } else {
                self.superseded.insert((object, position), desired.api_version);
            }
        }
        for (index, rendering) in rendered.patches.into_iter().enumerate() {
            match rendering {
                Rendering::Ready(desired) => {
                    let patch = self.patch_item(position, index, desired);
                    self.tasks.insert((position, Position::Patch(index)), Task::Patch(Box::new(patch)));
                }
                Rendering::Failed { failure, .. } => {
                    self.left_out.entry(position).or_insert(failure);
                }
            }
        }
    }

    fn patch_item(&self, syncset: usize, position: usize, desired: DesiredPatch) -> PatchItem {
        let scope = self.scope(&desired.object);
        let mut object = placed(&desired.object, scope);
        if object.namespace.is_empty() && scope == Scope::Namespaced {
            "default".clone_into(&mut object.namespace);
        }
        PatchItem { syncset, position, object, desired }
    }

    fn item(&self, syncset: usize, object: ObjectRef, mut desired: Desired) -> Option<Item> {
        desired.may_adopt &= !self.elsewhere;
        let header = &self.live.get(syncset)?.header;
        let row = self.stored.row(&object, header.id);
        let mut facts = self.stored.facts(&object);
        let is_only_created = header.behavior == Behavior::CreateOnly;
        let send = row.is_none_or(|row| row.content != Some(desired.content));
        let is_checked = self.full && !self.progress.objects.contains(&object);
        let is_applied = header.behavior == Behavior::Apply;
        // From now on it may have fields of another behavior.
        if let Some(facts) = facts.as_mut().filter(|facts| send && !is_applied && facts.was_applied()) {
            facts.owned = None;
        }
        let is_unsure = |facts: &Facts| {
            let may_be_another = !facts.adopted && (facts.uid.is_none() || self.was_cut_short(&object));
            may_be_another || (is_applied && !facts.was_applied())
        };
        let check = match &facts {
            None if send && !is_only_created => Check::Existence,
            Some(facts) if send && !is_only_created && is_unsure(facts) => Check::Anew,
            Some(facts) if !send && is_checked && is_only_created && facts.adopted => Check::DriftAlone,
            _ if !send && is_checked => Check::Drift,
            _ => Check::None,
        };
        let is_known = facts.is_some();
        Some(Item {
            syncset,
            behavior: header.behavior,
            facts: facts.unwrap_or_default(),
            is_known,
            had_row: row.is_some_and(|row| !is_kept(row)),
            check,
            state: ItemState::Unresolved,
            send,
            is_absent: false,
            was_refused_as_new: false,
            as_merge: false,
            is_late: false,
            last_other: None,
            takeover: None,
            tries: 0,
            object,
            desired,
        })
    }

    /// Whether a pass was cut short when it was about to send an object, so that its UID may not have been noted.
    fn was_cut_short(&self, object: &ObjectRef) -> bool {
        let is_unfinished = |row: &AppliedRow| {
            self.stored.result(row.syncset).is_some_and(|result| result.inputs == ResultRow::UNFINISHED)
        };
        self.stored.rows_of(object).all(|row| row.content.is_none()) && self.stored.rows_of(object).any(is_unfinished)
    }

    /// Objects of which nothing is sent are only noted; the others are looked at, by lists where that costs less.
    fn plan_checks(&mut self, items: Vec<Item>) {
        let mut by_kind: BTreeMap<KindKey, Vec<Item>> = BTreeMap::new();
        for item in items {
            match item.check {
                Check::None if !item.send => {
                    self.settle(&item);
                }
                Check::Anew => {
                    if self.is_served(&item.kind_key()) {
                        self.settle(&item);
                    }
                    self.tasks.insert((item.syncset, item.desired.place), Task::Item(Box::new(item)));
                }
                Check::Drift => by_kind.entry(item.kind_key()).or_default().push(item),
                _ => self.unprepared.push_back(Box::new(item)),
            }
        }
        for (kind, items) in by_kind {
            let is_endless = self.progress.unlisted.contains(&kind);
            if items.len() < FEWEST_TO_LIST || !self.is_served(&kind) || is_endless {
                self.unprepared.extend(items.into_iter().map(Box::new));
                continue;
            }
            let by_name = |item: Item| ((item.object.namespace.clone(), item.object.name.clone()), Box::new(item));
            self.listings.push_back(Listing { kind, page: 0, items: items.into_iter().map(by_name).collect() });
        }
    }

    pub(super) fn is_served(&self, kind: &KindKey) -> bool {
        matches!(self.kinds.get(kind), Some(Ok(Resolution::Served { .. })))
    }

    /// Notes an object of a syncset, and who else wants it. What is going to be sent has no content until it has been sent. Returns
    /// whether this has to be stored before the object is written.
    pub(super) fn settle(&mut self, item: &Item) -> bool {
        let Some(header) = self.live.get(item.syncset).map(|live| &live.header) else { return false };
        let is_open = item.behavior == Behavior::CreateOnly && !item.is_known;
        let is_urgent = self.stored.put(AppliedRow {
            object: item.object.clone(),
            syncset: header.id,
            api_version: item.desired.api_version.clone(),
            content: (!item.send).then_some(item.desired.content),
            wanted: true,
            tracked: header.mode == Mode::Sync && !object::is_kept(&item.desired.body),
            // Open until it is created: if it can't be created, it existed before.
            adopted: is_open || item.facts.adopted,
            uid: item.facts.uid.clone(),
            version: item.facts.version.clone(),
            owned: item.facts.owned,
            resent: item.facts.resent,
            gone: item.facts.gone,
        });
        self.settle_others(&item.object, item.syncset) || is_urgent
    }

    /// Records what a syncset wants even if another one sends it: the syncset may be done with this pass and not be due when the other one
    /// is gone. A row that knows the object stays until the winner's row does, but loses its content: if the winner goes away before it has
    /// sent the object, the object is sent again.
    fn note_superseded(&mut self) {
        for ((object, position), api_version) in &self.superseded {
            let Some(header) = self.live.get(*position).map(|live| &live.header) else { continue };
            let row = match self.stored.row(object, header.id) {
                Some(row) => {
                    AppliedRow { wanted: true, content: None, tracked: header.mode == Mode::Sync, ..row.clone() }
                }
                None => superseded_row(object, header.id, api_version.clone(), header.mode == Mode::Sync),
            };
            self.stored.put(row);
        }
    }

    /// Records what a syncset no longer wants even if the next sender fails. Otherwise its row would still claim the object once the
    /// syncset is no longer due.
    fn note_dropped(&mut self) {
        let is_dropped = |row: &&AppliedRow| {
            let at = self.position(row.syncset).filter(|at| self.turns.contains(at) && !self.failures.contains_key(at));
            row.wanted && at.is_some_and(|at| !self.wanted.claimants(&row.object).any(|of| of == at))
        };
        let dropped: Vec<AppliedRow> = self.stored.rows().filter(is_dropped).cloned().collect();
        for row in dropped {
            self.stored.put(AppliedRow { wanted: false, ..row });
        }
    }

    /// Objects whose winner is not due, or does not render: who else wants them may have changed.
    fn settle_without_items(&mut self, items: &[Item]) {
        let planned: BTreeSet<&ObjectRef> = items.iter().map(|item| &item.object).collect();
        let others: Vec<ObjectRef> =
            self.wanted.objects().filter(|object| !planned.contains(object)).cloned().collect();
        for object in others {
            let Some(winner) = self.wanted.winner(&object) else { continue };
            let Some(id) = self.live.get(winner).map(|live| live.header.id) else { continue };
            if let Some(row) = self.stored.row(&object, id).cloned() {
                if let Some(facts) = self.stored.facts(&object).filter(|_| is_undetermined(&row)) {
                    let Facts { uid, version, owned, adopted, resent, gone } = facts;
                    self.stored.put(AppliedRow { wanted: true, uid, version, owned, adopted, resent, gone, ..row });
                }
                self.settle_others(&object, winner);
                continue;
            }
            // The winner can't be sent and has no row that could say what is known of the object, so the rows of those who
            // no longer want it stay.
            let claimants = self.claimants(&object);
            let dropped: Vec<AppliedRow> =
                self.stored.rows_of(&object).filter(|row| !claimants.contains(&row.syncset)).cloned().collect();
            for row in dropped {
                self.stored.put(AppliedRow { wanted: false, ..row });
            }
        }
    }

    fn claimants(&self, object: &ObjectRef) -> BTreeSet<Uuid> {
        let live = self.wanted.claimants(object).filter_map(|position| self.live.get(position));
        live.map(|live| live.header.id).collect()
    }

    /// The winner's row holds what is known of the object; the rows of the others only say that they want it. A syncset that no longer
    /// wants it keeps its row until the winner has sent the object, since only the last sender may delete it.
    pub(super) fn settle_others(&mut self, object: &ObjectRef, winner: usize) -> bool {
        let mut is_urgent = false;
        let others: Vec<usize> = self.wanted.claimants(object).filter(|position| *position != winner).collect();
        for position in others {
            let Some(header) = self.live.get(position).map(|live| &live.header) else { continue };
            let row = self.stored.row(object, header.id);
            let fresh = self.superseded.get(&(object.clone(), position));
            let Some(api_version) = fresh.or(row.map(|row| &row.api_version)).cloned() else { continue };
            let tracked = match (fresh, row) {
                (None, Some(row)) => row.tracked,
                _ => header.mode == Mode::Sync,
            };
            is_urgent |= self.stored.put(superseded_row(object, header.id, api_version, tracked));
        }
        let claimants = self.claimants(object);
        let header = self.live.get(winner).map(|live| &live.header);
        let is_applied = header.is_some_and(|header| header.behavior == Behavior::Apply);
        let id = header.map(|header| header.id);
        let is_sent = id.and_then(|id| self.stored.row(object, id)).is_some_and(|row| row.content.is_some());
        let dropped: Vec<AppliedRow> =
            self.stored.rows_of(object).filter(|row| !claimants.contains(&row.syncset)).cloned().collect();
        for row in dropped {
            if is_sent {
                self.stored.forget(object, row.syncset);
            } else {
                let owned = row.owned.filter(|owned| is_applied || !is_of_apply(*owned));
                is_urgent |= self.stored.put(AppliedRow { wanted: false, content: None, owned, ..row });
            }
        }
        is_urgent
    }

    /// Rows of objects that nobody wants: forgotten, released, or deleted later.
    fn plan_removals(&mut self) {
        let unwanted = self.stored.rows().filter(|row| self.wanted.winner(&row.object).is_none());
        let mut unwanted: Vec<AppliedRow> = unwanted.cloned().collect();
        // Of several rows of an object the last one decides: the one that says most.
        unwanted.sort_by_key(|row| !is_undetermined(row));
        let sent: BTreeSet<ObjectRef> =
            unwanted.iter().filter(|row| row.content.is_some()).map(|row| row.object.clone()).collect();
        for row in unwanted.into_iter().filter(|row| !is_kept(row)) {
            let position = self.position(row.syncset);
            let live = position.and_then(|position| self.live.get(position));
            if position.is_some_and(|position| !self.turns.contains(&position) || self.failures.contains_key(&position))
            {
                continue;
            }
            let is_upsert = live.is_some_and(|live| live.header.mode == Mode::Upsert);
            let is_forgotten = !row.tracked || is_upsert;
            // Another syncset's row says more: it is the one that has sent the object.
            let is_superseded = is_undetermined(&row) && sent.contains(&row.object);
            let is_adopted = row.adopted && !is_undetermined(&row);
            if is_forgotten || is_superseded || is_adopted {
                if is_adopted && !is_forgotten {
                    *self.releases.entry(Release::Adopted).or_default() += 1;
                }
                // For a syncset that is gone it is not known why it did not track an object.
                if is_adopted || !(is_upsert || is_superseded) {
                    self.let_stay(&row.object, row.syncset);
                } else {
                    self.stored.forget(&row.object, row.syncset);
                }
                continue;
            }
            if self.deletions_of(row.syncset) != Deletions::Allowed || self.wanted.may_want(&row.object) {
                self.stored.put(AppliedRow { wanted: false, ..row });
                continue;
            }
            // Without content it is sent again if the change is taken back after the object was deleted.
            self.stored.put(AppliedRow { wanted: false, content: None, ..row.clone() });
            let removal = Removal { syncset: row.syncset, object: row.object, api_version: row.api_version };
            match position {
                Some(position) => self.removals.entry(position).or_default().push_back(removal),
                None => self.gone_removals.push_back(removal),
            }
        }
        // A syncset that is gone may select the cluster again before this pass has ended. It has to be due then: its objects are
        // deleted or taken over, and its rows no longer say that it wants them.
        let gone: Vec<ResultRow> =
            self.stored.results().filter(|row| self.position(row.syncset).is_none()).cloned().collect();
        for row in gone {
            self.stored.put_result(ResultRow { inputs: ResultRow::UNFINISHED, ..row });
        }
        self.tidy_kept();
        let queues = self.removals.values_mut().chain(std::iter::once(&mut self.gone_removals));
        for queue in queues {
            let rank = |removal: &Removal| rank_of_deletion(&removal.object);
            VecDeque::make_contiguous(queue).sort_by_key(rank);
        }
    }

    /// Whether a syncset may delete, live or gone.
    pub(super) fn deletions_of(&self, syncset: Uuid) -> Deletions {
        match self.position(syncset).and_then(|position| self.live.get(position)) {
            Some(live) => live.deletions,
            None => self.gone.get(&syncset).copied().unwrap_or(Deletions::Unchecked),
        }
    }

    /// Before anything is written: patches that are going to be sent are noted as not sent.
    pub(super) fn open_patches(&mut self) {
        let items = self.tasks.values().filter_map(|task| if let Task::Item(item) = task { Some(item) } else { None });
        let written: BTreeSet<&ObjectRef> = items.filter(|item| item.send).map(|item| &item.object).collect();
        let mut open = Vec::new();
        for task in self.tasks.values() {
            let Task::Patch(patch) = task else { continue };
            let Some(live) = self.live.get(patch.syncset) else { continue };
            let Some(row) = self.stored.patch(live.header.id, patch.position) else { continue };
            if row.content != Some(patch.desired.content) || written.contains(&patch.object) {
                open.push(PatchedRow { content: None, ..row.clone() });
            }
        }
        for row in open {
            self.stored.put_patch(row);
        }
    }

    /// Why a kind can't be used for an object, if it can't.
    pub(super) fn unserved(key: &KindKey, other: Option<&str>, place: Position) -> Failure {
        let (api_version, kind) = key;
        let mut message = format!("the cluster does not serve {kind} of {api_version}");
        if let Some(other) = other {
            message = format!("{message}, but of {other}");
        }
        failure::of_place(place, Reason::KindNotServed, &message)
    }
}

/// The row of a syncset whose object another one sends: it says that the syncset wants it, and nothing of the object.
fn superseded_row(object: &ObjectRef, syncset: Uuid, api_version: String, tracked: bool) -> AppliedRow {
    AppliedRow {
        object: object.clone(),
        syncset,
        api_version,
        content: None,
        wanted: true,
        tracked,
        adopted: true,
        uid: None,
        version: None,
        owned: None,
        resent: 0,
        gone: 0,
    }
}

/// Objects in namespaces are deleted first, then those without, then definitions, then namespaces.
fn rank_of_deletion(object: &ObjectRef) -> u8 {
    match object {
        object if !object.namespace.is_empty() => 0,
        object if is_namespace(object) => 3,
        object if group_defined_by(object).is_some() => 2,
        _ => 1,
    }
}
