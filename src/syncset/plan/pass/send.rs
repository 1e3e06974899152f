//! Sending an object, by its syncset's behavior.

use serde_json::Value;

use super::ask::Ask;
use super::failure;
use super::item::{Check, Item, ItemState, Work};
use super::run::{Pass, unexpected};
use super::step::{Answer, Refusal, Refused, Resolution, Seen};
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::spec::{Behavior, Position};
use crate::syncset::plan::status::Reason;

/// How often one object may be found to come and go while it is sent.
const MOST_TRIES: u8 = 3;

/// How many objects of kinds that this pass has defined are looked at before their rows are stored together.
const MOST_AHEAD: usize = 50;
/// From so many full passes in a row on an object that was sent in each counts as contended, and one that was gone in each as
/// deleted again.
pub(super) const CONTENDED_AFTER: u8 = 2;

/// What helps if a copy of a Secret can't be changed.
const RECREATE_A_COPY: &str = "; if it can't be changed, the annotation towline.dev/recreate: \"true\" on the hub's Secret has it deleted \
     and created again";

impl Pass {
    /// How an object of a syncset was sent, and whether it was, by the reply to the step that waits for it. None if it is another step,
    /// or a try, or if the pass is going to send the object in another way or once more.
    pub fn sent(&self, reply: &Result<Answer, Refused>) -> Option<(Behavior, bool)> {
        let (Ask::Apply(item) | Ask::Create(item) | Ask::Update(item) | Ask::Identify(item, _)) = self.asked()? else {
            return None;
        };
        let may_try_again = item.tries + 1 < MOST_TRIES;
        let is_sent = match (self.asked()?, reply) {
            // A look at the object whose write was refused.
            (Ask::Identify(..), Ok(Answer::Found(found))) => {
                let is_it = |seen: &Seen| seen.is_terminating() || item.facts.uid.as_ref() == Some(&seen.uid);
                if may_try_again && !found.as_ref().is_some_and(is_it) {
                    return None;
                }
                false
            }
            (Ask::Identify(..), _) => false,
            (_, Ok(_)) => true,
            (Ask::Apply(_), Err(refused)) if may_try_again && item.was_overtaken(refused) => return None,
            (Ask::Create(_), Err(Refused { refusal: Refusal::Exists, .. })) => match item.behavior {
                // `CreateOnly` leaves what exists, which is a success.
                Behavior::CreateOnly => true,
                _ if may_try_again => return None,
                _ => false,
            },
            (Ask::Update(_), Err(Refused { refusal: Refusal::NotFound, .. })) if may_try_again => return None,
            (Ask::Update(_), Err(Refused { refusal: Refusal::UnsupportedMediaType, .. })) if !item.as_merge => {
                return None;
            }
            (Ask::Apply(_) | Ask::Update(_), Err(refused)) if item.may_be_another(refused) => return None,
            (_, Err(_)) => false,
        };
        Some((item.behavior, is_sent))
    }

    pub(super) fn begin(&mut self, mut item: Box<Item>) -> Option<Ask> {
        match item.state.clone() {
            ItemState::Unresolved | ItemState::Unlooked => self.prepare(item),
            ItemState::Unserved(_) if self.may_be_served_now(&item) => self.resolve_again(item),
            ItemState::Unserved(failure) | ItemState::Failed(failure) => {
                self.fail(item.syncset, failure);
                None
            }
            ItemState::Ready => {
                if std::mem::take(&mut item.is_late) {
                    self.awaits_store |= self.settle(&item);
                }
                if self.awaits_store {
                    let syncset = item.syncset;
                    self.works.insert((syncset, item.desired.place), Work::Item(item));
                    return Some(self.look_ahead(syncset).unwrap_or_else(|| self.store_late(syncset)));
                }
                Some(match item.behavior {
                    Behavior::Apply if item.takeover.is_some() => Ask::TakeOver(item),
                    Behavior::Apply => Ask::Apply(item),
                    Behavior::CreateOrUpdate if item.is_absent => Ask::Create(item),
                    Behavior::CreateOrUpdate => Ask::Update(item),
                    Behavior::CreateOnly => Ask::Create(item),
                })
            }
        }
    }

    /// Whether the kind was not served, and this pass has applied its definition.
    fn may_be_served_now(&self, item: &Item) -> bool {
        let kind = (item.object.group.clone(), item.object.kind.clone());
        matches!(item.state, ItemState::Unserved(_)) && !item.has_waited && self.defined.contains(&kind)
    }

    fn resolve_again(&mut self, mut item: Box<Item>) -> Option<Ask> {
        let key = item.kind_key();
        if !matches!(self.kinds.get(&key), Some(Ok(Resolution::Served { .. }))) {
            self.kinds.remove(&key);
        }
        (item.state, item.has_waited) = (ItemState::Unresolved, true);
        self.prepare(item)
    }

    /// What has to be asked for other objects of the syncset that are not ready yet, so that all are stored at once.
    fn look_ahead(&mut self, syncset: usize) -> Option<Ask> {
        while self.ahead < MOST_AHEAD {
            let mut works =
                self.works.range((syncset, Position::Resource(0))..).take_while(|((of, _), _)| *of == syncset);
            let is_next = |work: &Work| matches!(work, Work::Item(item) if self.may_be_served_now(item));
            let at = works.find(|(_, work)| is_next(work)).map(|(at, _)| *at)?;
            let Some(Work::Item(item)) = self.works.remove(&at) else { return None };
            self.ahead += 1;
            let ask = self.resolve_again(item);
            if ask.is_some() {
                return ask;
            }
        }
        None
    }

    /// Stores the rows of all objects of the syncset that have become ready.
    fn store_late(&mut self, syncset: usize) -> Ask {
        (self.awaits_store, self.ahead) = (false, 0);
        let works = self.works.range((syncset, Position::Resource(0))..).take_while(|((of, _), _)| *of == syncset);
        let is_late = |work: &Work| matches!(work, Work::Item(item) if item.is_late && item.state == ItemState::Ready);
        let late: Vec<_> = works.filter(|(_, work)| is_late(work)).map(|(at, _)| *at).collect();
        for at in late {
            if let Some(Work::Item(mut item)) = self.works.remove(&at) {
                item.is_late = false;
                self.settle(&item);
                self.works.insert(at, Work::Item(item));
            }
        }
        self.store()
    }

    /// The object has changed, so its turn comes once more: its row is stored first if that is necessary.
    fn begin_again(&mut self, mut item: Box<Item>) {
        item.is_late = true;
        self.works.insert((item.syncset, item.desired.place), Work::Item(item));
    }

    /// The fields that were taken over are those of our manager, which has to apply the object now.
    pub(super) fn taken_over(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        item.takeover = None;
        match reply {
            Ok(Answer::Written { seen, .. }) if seen.is_terminating() => self.fail_terminating(&item),
            Ok(Answer::Written { seen, .. }) => {
                item.facts.uid = Some(seen.uid);
                self.follow_up = Some(Ask::Apply(item));
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) if matches!(refused.refusal, Refusal::Conflict | Refusal::NotFound) => {
                self.look_again(item, &refused);
            }
            Err(refused) => self.refuse(&item, &refused),
        }
    }

    /// The object is not as it was when it was looked at.
    fn look_again(&mut self, mut item: Box<Item>, refused: &Refused) {
        item.tries += 1;
        if item.tries >= MOST_TRIES {
            self.refuse(&item, refused);
        } else {
            (item.state, item.check) = (ItemState::Unlooked, Check::Anew);
            self.follow_up = Some(Ask::Look(item));
        }
    }

    pub(super) fn applied(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { created, seen }) => {
                self.follow_up = self.written(item, created, seen).map(Ask::Apply);
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) if item.was_overtaken(&refused) => {
                item.was_refused_as_new = true;
                self.look_again(item, &refused);
            }
            Err(refused) => self.identify_or_refuse(item, refused),
        }
    }

    pub(super) fn created(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { seen, .. }) => {
                // It has not existed, so it is ours.
                item.facts.adopted = false;
                self.follow_up = self.written(item, true, seen).map(Ask::Create);
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) if refused.refusal != Refusal::Exists => self.refuse(&item, &refused),
            Err(refused) if item.behavior == Behavior::CreateOrUpdate => self.look_again(item, &refused),
            Err(_) if item.facts.uid.is_some() || (item.facts.adopted && item.is_known) => self.keep(item),
            Err(_) if item.had_row => self.follow_up = Some(Ask::Owner(item)),
            Err(_) => {
                item.facts.adopted = true;
                self.keep(item);
            }
        }
    }

    /// An earlier pass may have created the object, and have been cut short.
    pub(super) fn owner_seen(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Found(Some(seen))) => {
                let own = self.live.get(item.syncset).map(|live| live.header.id);
                let is_own = seen.marks.managed && seen.marks.syncset == own && !seen.marks.adopted;
                let is_ours = is_own && !self.elsewhere;
                item.facts.adopted = !is_ours;
                item.facts.uid = Some(seen.uid);
                self.keep(item);
            }
            Ok(Answer::Found(None)) => {
                let message = "the object was created and deleted again meanwhile".to_owned();
                self.refuse(&item, &Refused { refusal: Refusal::Conflict, message });
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) => self.refuse(&item, &refused),
        }
    }

    pub(super) fn updated(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { created, seen }) => {
                self.follow_up = self.written(item, created, seen).map(Ask::Update);
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) => {
                item.tries += u8::from(refused.refusal == Refusal::NotFound);
                match refused.refusal {
                    Refusal::NotFound if item.tries < MOST_TRIES => {
                        item.is_gone();
                        self.begin_again(item);
                    }
                    Refusal::UnsupportedMediaType if !item.as_merge => {
                        item.as_merge = true;
                        self.follow_up = Some(Ask::Update(item));
                    }
                    _ => self.identify_or_refuse(item, refused),
                }
            }
        }
    }

    fn identify_or_refuse(&mut self, item: Box<Item>, refused: Refused) {
        if item.may_be_another(&refused) {
            self.follow_up = Some(Ask::Identify(item, refused));
        } else {
            self.refuse(&item, &refused);
        }
    }

    /// An object that is gone is created, and one in its place existed before us.
    pub(super) fn identified(&mut self, mut item: Box<Item>, refused: Refused, reply: Result<Answer, Refused>) {
        let found = match reply {
            Ok(Answer::Found(found)) => found,
            Ok(_) => return self.refuse(&item, &unexpected()),
            Err(answer) => return self.refuse(&item, &answer),
        };
        let uid = found.as_ref().map(|seen| seen.uid.clone());
        item.tries += 1;
        if let Some(seen) = found.clone().filter(|seen| item.facts.uid.as_ref() == Some(&seen.uid)) {
            self.refuse_or_recreate(item, refused, seen);
        } else if item.tries >= MOST_TRIES {
            self.refuse(&item, &refused);
        } else if found.as_ref().is_some_and(Seen::is_terminating) {
            self.fail_terminating(&item);
        } else {
            item.is_gone();
            item.is_absent = uid.is_none();
            item.facts.adopted = uid.is_some() && !item.desired.may_adopt;
            item.facts.uid = uid;
            self.begin_again(item);
        }
    }

    pub(super) fn fail_terminating(&mut self, item: &Item) {
        let message = "the object is being deleted";
        self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
    }

    /// The object is there as it was sent. It comes back if it has to be sent once more, since it existed before us.
    fn written(&mut self, mut item: Box<Item>, created: bool, seen: Seen) -> Option<Box<Item>> {
        if seen.is_terminating() {
            self.fail_terminating(&item);
            return None;
        }
        let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        let is_foreign = !created && (is_another || item.is_absent);
        item.is_absent = false;
        item.facts.uid = Some(seen.uid);
        if is_foreign && !item.facts.adopted && !item.desired.may_adopt {
            item.facts.adopted = true;
            self.note(&item, false);
            return Some(item);
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
        self.note(&item, true);
        self.wrote.insert(item.object.clone());
        if self.full {
            self.progress.objects.insert(item.object.clone());
        }
        self.note_definition(&item.desired.body);
        None
    }

    /// `CreateOnly` leaves what exists, which is not what was sent.
    fn keep(&mut self, mut item: Box<Item>) {
        (item.facts.version, item.facts.owned, item.facts.gone) = (None, None, 0);
        self.note(&item, true);
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

    pub(super) fn refuse(&mut self, item: &Item, refused: &Refused) {
        let is_copy = matches!(item.desired.place, Position::Secret(_)) && !item.desired.may_recreate;
        if is_copy && refused.refusal == Refusal::Invalid {
            let message = format!("{}{RECREATE_A_COPY}", refused.message);
            let refused = Refused { refusal: refused.refusal, message };
            return self.fail(item.syncset, failure::of_refusal(item.desired.place, &item.object, &refused));
        }
        self.fail(item.syncset, failure::of_refusal(item.desired.place, &item.object, refused));
    }
}
