//! Sending an object, by its syncset's behavior.

use serde_json::Value;

use super::item::{Check, Item, ItemState, Task};
use super::outcome::Release;
use super::target::{Manager, Refusal, Refused, Seen, Target, Write, Written};
use super::{Flow, Pass, failure};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::NEVER_RECREATED;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::spec::{Behavior, PatchType, Position};
use crate::syncset::plan::wanted::Deletions;

/// How many objects of kinds that this pass has defined are looked at before their rows are stored together.
const MOST_AHEAD: usize = 50;
/// From so many full passes in a row on an object that was sent in each counts as contended, and one that was gone in each as
/// deleted again.
pub(super) const CONTENDED_AFTER: u8 = 2;

/// What helps if a copy of a Secret can't be changed.
const RECREATE_A_COPY: &str = "; if it can't be changed, the annotation towline.dev/recreate: \"true\" on the hub's Secret has it deleted \
     and created again, where secretMetadata of the mapping lists it";
/// Why an object is not deleted to be created again.
const CHANGED: &str = "documents have changed meanwhile";

/// Whether an object needs another request after it was written.
enum Sent {
    Settled,
    /// It existed before us, so it is sent with the mark of that.
    Again,
}

impl Pass {
    /// The next thing to do for an object whose turn it is: it is looked at, or sent. After that it may come once more.
    pub(super) async fn send_item<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        match &item.state {
            ItemState::Unserved(_) if self.may_be_served_now(&item) => return self.resolve_again(target, item).await,
            ItemState::Unresolved | ItemState::Unlooked => return self.prepare(target, item).await,
            ItemState::Unserved(failure) | ItemState::Failed(failure) => {
                self.fail(item.syncset, failure.clone());
                return Ok(());
            }
            ItemState::Ready => {}
        }
        if std::mem::take(&mut item.is_late) && self.settle(&item) {
            // The rows of other objects of the syncset that are not ready yet are stored with it.
            self.look_ahead(target, item.syncset).await?;
            self.settle_late(item.syncset);
            self.ready(target).await?;
            self.store(target).await?;
        }
        self.step(target).await?;
        match item.behavior {
            Behavior::Apply => self.apply(target, item).await,
            Behavior::CreateOrUpdate if !item.is_absent => self.update(target, item).await,
            Behavior::CreateOrUpdate | Behavior::CreateOnly => self.create(target, item).await,
        }
    }

    /// Whether the kind was not served, and this pass has applied its definition.
    fn may_be_served_now(&self, item: &Item) -> bool {
        let kind = (item.object.group.clone(), item.object.kind.clone());
        matches!(item.state, ItemState::Unserved(_)) && self.defined.contains(&kind)
    }

    async fn resolve_again<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        let key = item.kind_key();
        if !self.is_served(&key) {
            self.step(target).await?;
            self.resolve_late(target, key, true).await?;
        }
        item.state = ItemState::Unresolved;
        self.prepare(target, item).await
    }

    /// Looks at other objects of the syncset whose kinds this pass has defined, so that the rows of all are stored at once.
    async fn look_ahead<T: Target>(&mut self, target: &mut T, syncset: usize) -> Flow<T> {
        for _ in 0..MOST_AHEAD {
            let tasks = self.tasks.range((syncset, Position::Resource(0))..);
            let mut tasks = tasks.take_while(|((of, _), _)| *of == syncset);
            let is_next = |task: &Task| matches!(task, Task::Item(item) if self.may_be_served_now(item));
            let Some(at) = tasks.find(|(_, task)| is_next(task)).map(|(at, _)| *at) else { break };
            if let Some(Task::Item(item)) = self.tasks.remove(&at) {
                self.resolve_again(target, item).await?;
            }
        }
        Ok(())
    }

    /// Notes all objects of the syncset that have become ready.
    fn settle_late(&mut self, syncset: usize) {
        let tasks = self.tasks.range((syncset, Position::Resource(0))..).take_while(|((of, _), _)| *of == syncset);
        let is_late = |task: &Task| matches!(task, Task::Item(item) if item.is_late && item.state == ItemState::Ready);
        let late: Vec<_> = tasks.filter(|(_, task)| is_late(task)).map(|(at, _)| *at).collect();
        for at in late {
            if let Some(Task::Item(mut item)) = self.tasks.remove(&at) {
                item.is_late = false;
                self.settle(&item);
                self.tasks.insert(at, Task::Item(item));
            }
        }
    }

    /// The object has changed, so its turn comes once more: its row is stored first if that is necessary.
    fn begin_again(&mut self, mut item: Box<Item>) {
        item.is_late = true;
        self.tasks.insert((item.syncset, item.desired.place), Task::Item(item));
    }

    /// The object is not as it was when it was looked at.
    async fn look_again<T: Target>(&mut self, target: &mut T, mut item: Box<Item>, refused: &Refused) -> Flow<T> {
        if item.is_last_try() {
            self.refuse(&item, refused);
            return Ok(());
        }
        item.tries += 1;
        (item.state, item.check) = (ItemState::Unlooked, Check::Anew);
        self.look_at(target, item).await
    }

    async fn apply<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        // The fields that were taken over are those of our manager, which has to apply the object now.
        if let Some(body) = item.takeover.take() {
            let write = Write::Patch { patch_type: PatchType::Json, manager: Manager::Apply, body: &body };
            match self.write(target, item.address(), write).await? {
                Ok(Written { seen, .. }) if seen.is_terminating() => {
                    self.fail_terminating(&item);
                    return Ok(());
                }
                Ok(Written { seen, .. }) => item.facts.uid = Some(seen.uid),
                Err(refused) if matches!(refused.refusal, Refusal::Conflict | Refusal::NotFound) => {
                    return self.look_again(target, item, &refused).await;
                }
                Err(refused) => {
                    self.refuse(&item, &refused);
                    return Ok(());
                }
            }
        }
        loop {
            let applied = self.write(target, item.address(), Write::Apply(&item.written_body())).await?;
            match applied {
                Ok(written) => {
                    target.sent(item.behavior, true);
                    match self.note_written(&mut item, written) {
                        Sent::Settled => return Ok(()),
                        Sent::Again => {}
                    }
                }
                Err(refused) if item.was_overtaken(&refused) => {
                    item.was_refused_as_new = true;
                    if item.is_last_try() {
                        target.sent(item.behavior, false);
                    }
                    return self.look_again(target, item, &refused).await;
                }
                Err(refused) => return self.identify_or_refuse(target, item, refused).await,
            }
        }
    }

    async fn create<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        let write = Write::Create { body: &item.created_body(), dry_run: false };
        let refused = match self.write(target, item.address(), write).await? {
            Ok(Written { seen, .. }) => {
                target.sent(item.behavior, true);
                // It has not existed, so it is ours.
                item.facts.adopted = false;
                self.note_written(&mut item, Written { created: true, seen });
                return Ok(());
            }
            Err(refused) => refused,
        };
        if refused.refusal != Refusal::Exists {
            target.sent(item.behavior, false);
            self.refuse(&item, &refused);
        } else if item.behavior == Behavior::CreateOrUpdate {
            if item.is_last_try() {
                target.sent(item.behavior, false);
            }
            self.look_again(target, item, &refused).await?;
        } else {
            // `CreateOnly` leaves what exists, which is a success.
            target.sent(item.behavior, true);
            let is_decided = item.facts.uid.is_some() || (item.facts.adopted && item.is_known);
            if !is_decided && item.had_row {
                return self.find_owner(target, item).await;
            }
            item.facts.adopted |= !is_decided;
            self.keep(&mut item);
        }
        Ok(())
    }

    /// An earlier pass may have created the object, and have been cut short.
    async fn find_owner<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        match self.look(target, item.address()).await? {
            Ok(Some(seen)) => {
                let own = self.live.get(item.syncset).map(|live| live.header.id);
                let is_own = seen.marks.managed && seen.marks.syncset == own && !seen.marks.adopted;
                let is_ours = is_own && !self.elsewhere;
                item.facts.adopted = !is_ours;
                item.facts.uid = Some(seen.uid);
                self.keep(&mut item);
            }
            Ok(None) => {
                let message = "the object was created and deleted again meanwhile".to_owned();
                self.refuse(&item, &Refused { refusal: Refusal::Conflict, message });
            }
            Err(refused) => self.refuse(&item, &refused),
        }
        Ok(())
    }

    async fn update<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        loop {
            let patch_type = if item.as_merge { PatchType::Merge } else { PatchType::Strategic };
            let write = Write::Patch { patch_type, manager: Manager::Update, body: &item.written_body() };
            match self.write(target, item.address(), write).await? {
                Ok(written) => {
                    target.sent(item.behavior, true);
                    match self.note_written(&mut item, written) {
                        Sent::Settled => return Ok(()),
                        Sent::Again => {}
                    }
                }
                Err(refused) if refused.refusal == Refusal::NotFound && !item.is_last_try() => {
                    item.tries += 1;
                    item.forget_uid();
                    self.begin_again(item);
                    return Ok(());
                }
                Err(refused) if refused.refusal == Refusal::UnsupportedMediaType && !item.as_merge => {
                    item.as_merge = true;
                }
                Err(refused) => return self.identify_or_refuse(target, item, refused).await,
            }
        }
    }

    /// An object that is gone is created, and one in its place existed before us. A GET shows whether the object whose write was refused is the
    /// one that has the UID.
    async fn identify_or_refuse<T: Target>(
        &mut self,
        target: &mut T,
        mut item: Box<Item>,
        refused: Refused,
    ) -> Flow<T> {
        let found =
            if item.may_be_another(&refused) { self.look(target, item.address()).await? } else { Err(refused.clone()) };
        let found = match found {
            Ok(found) => found,
            Err(answer) => {
                target.sent(item.behavior, false);
                self.refuse(&item, &answer);
                return Ok(());
            }
        };
        let is_it = |seen: &Seen| item.facts.uid.as_ref() == Some(&seen.uid);
        let is_last_try = item.is_last_try();
        if let Some(seen) = found.as_ref().filter(|seen| is_it(seen)) {
            target.sent(item.behavior, false);
            return self.refuse_or_recreate(target, item, refused, seen).await;
        }
        if is_last_try {
            target.sent(item.behavior, false);
            self.refuse(&item, &refused);
        } else if found.as_ref().is_some_and(Seen::is_terminating) {
            target.sent(item.behavior, false);
            self.fail_terminating(&item);
        } else {
            let uid = found.map(|seen| seen.uid);
            item.tries += 1;
            item.forget_uid();
            item.is_absent = uid.is_none();
            item.facts.adopted = uid.is_some() && !item.desired.may_adopt;
            item.facts.uid = uid;
            self.begin_again(item);
        }
        Ok(())
    }

    /// What the cluster does not accept as a change, it may accept as a new object. Only an object that is known to be ours may be
    /// deleted for that, as it was seen after the refusal, and only by a syncset that may delete.
    async fn refuse_or_recreate<T: Target>(
        &mut self,
        target: &mut T,
        item: Box<Item>,
        refused: Refused,
        seen: &Seen,
    ) -> Flow<T> {
        let kind = (item.object.group.as_str(), item.object.kind.as_str());
        let may_delete = self.live.get(item.syncset).is_some_and(|live| live.deletions == Deletions::Allowed);
        let may_recreate = item.desired.may_recreate && may_delete && !NEVER_RECREATED.contains(&kind);
        if refused.refusal != Refusal::Invalid || !may_recreate {
            self.refuse(&item, &refused);
            return Ok(());
        }
        if seen.is_terminating() {
            self.fail_terminating(&item);
            return Ok(());
        }
        if let Some(release) = self.not_ours(&item, seen) {
            self.refuse_to_recreate(&item, &refused, release.reason());
            return Ok(());
        }
        let tried = Write::Create { body: &item.created_body(), dry_run: true };
        let tried = self.write(target, item.address(), tried).await?;
        if !tried.is_err_and(|answer| answer.refusal == Refusal::Exists) {
            self.refuse(&item, &refused);
            return Ok(());
        }
        if !self.may_delete(target).await? {
            self.refuse_to_recreate(&item, &refused, CHANGED);
            return Ok(());
        }
        match self.delete(target, item.address(), seen).await? {
            Ok(_) => {
                let message = "the object is being deleted, to be created again";
                self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
            }
            // It has changed since it was seen. The next pass finds out what it is now.
            Err(answer) if answer.refusal == Refusal::Conflict => self.refuse(&item, &refused),
            Err(answer) => self.refuse(&item, &answer),
        }
        Ok(())
    }

    /// Why an object is not ours to delete, none if it is: the same rules as for an object that nobody wants. The known facts come from the
    /// syncset that sent it last, which need not be the one that sends it now.
    fn not_ours(&self, item: &Item, seen: &Seen) -> Option<Release> {
        let own = self.live.get(item.syncset).map(|live| live.header.id);
        let is_wanted = |object: &ObjectRef| *object != item.object && self.wanted.winner(object).is_some();
        let mut release = None;
        for row in self.stored.rows_of(&item.object) {
            let row = AppliedRow { uid: item.facts.uid.clone(), adopted: item.facts.adopted, ..row.clone() };
            let found = Release::of(&row, seen, self.stored.rows(), is_wanted)?;
            if release.is_none() || Some(row.syncset) == own {
                release = Some(found);
            }
        }
        // Without a row nothing is known of it.
        release.or(Some(Release::AnotherOwner))
    }

    fn refuse_to_recreate(&mut self, item: &Item, refused: &Refused, why: &str) {
        let message = format!("{}; it is not deleted to be created again: {why}", refused.message);
        self.refuse(item, &Refused { refusal: refused.refusal, message });
    }

    fn fail_terminating(&mut self, item: &Item) {
        let message = "the object is being deleted";
        self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
    }

    /// Notes that the object is there as it was sent.
    fn note_written(&mut self, item: &mut Item, Written { created, seen }: Written) -> Sent {
        if seen.is_terminating() {
            self.fail_terminating(item);
            return Sent::Settled;
        }
        let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        let is_foreign = !created && (is_another || item.is_absent);
        item.is_absent = false;
        item.facts.uid = Some(seen.uid);
        if is_foreign && !item.facts.adopted && !item.desired.may_adopt {
            item.facts.adopted = true;
            self.note(item, false);
            return Sent::Again;
        }
        item.facts.version = Some(seen.version);
        item.facts.owned = match item.behavior {
            Behavior::Apply => seen.owned_by_apply,
            Behavior::CreateOrUpdate | Behavior::CreateOnly => seen.owned_by_update,
        };
        if !created {
            item.facts.gone = 0;
        }
        if self.full && item.facts.resent >= CONTENDED_AFTER {
            self.contended.push((item.object.clone(), item.last_other.take()));
        }
        // The failure keeps nothing from being sent: this object was sent, and the next ones are.
        if self.full && item.facts.gone >= CONTENDED_AFTER {
            let failure = failure::of_absence(item.desired.place, &item.object);
            self.left_out.entry(item.syncset).or_insert(failure);
        }
        self.note(item, true);
        self.wrote.insert(item.object.clone());
        if self.full {
            self.progress.objects.insert(item.object.clone());
        }
        self.note_definition(&item.desired.body);
        Sent::Settled
    }

    /// `CreateOnly` leaves what exists, which is not what was sent.
    fn keep(&mut self, item: &mut Item) {
        (item.facts.version, item.facts.owned, item.facts.gone) = (None, None, 0);
        self.note(item, true);
    }

    fn note(&mut self, item: &Item, is_sent: bool) {
        let Some(id) = self.live.get(item.syncset).map(|live| live.header.id) else { return };
        let Some(row) = self.stored.row(&item.object, id).cloned() else { return };
        let facts = item.facts.clone();
        self.stored.put(AppliedRow {
            content: is_sent.then_some(item.desired.content),
            adopted: facts.adopted,
            uid: facts.uid,
            version: facts.version,
            owned: facts.owned,
            resent: facts.resent,
            gone: facts.gone,
            ..row
        });
        if is_sent {
            self.settle_others(&item.object, item.syncset);
        }
    }

    /// Objects of a kind that this pass has defined may follow.
    fn note_definition(&mut self, body: &Value) {
        if body.get("kind").and_then(Value::as_str) != Some("CustomResourceDefinition") {
            return;
        }
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        if let (Some(group), Some(kind)) = (text("/spec/group"), text("/spec/names/kind")) {
            self.defined.insert((group, kind));
        }
    }

    fn refuse(&mut self, item: &Item, refused: &Refused) {
        let is_copy = matches!(item.desired.place, Position::Secret(_)) && !item.desired.may_recreate;
        if is_copy && refused.refusal == Refusal::Invalid {
            let message = format!("{}{RECREATE_A_COPY}", refused.message);
            let refused = Refused { refusal: refused.refusal, message };
            return self.fail(item.syncset, failure::of_refusal(item.desired.place, &item.object, &refused));
        }
        self.fail(item.syncset, failure::of_refusal(item.desired.place, &item.object, refused));
    }
}
