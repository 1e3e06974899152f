//! Sending an object, by its syncset's behavior (rules 19, 20 and 26).

use std::borrow::Cow;

use serde_json::Value;

use super::failure;
use super::item::{Ask, Item, ItemState, Work};
use super::run::{Pass, unexpected};
use super::step::{Answer, Refusal, Refused, Seen};
use crate::syncset::rules::object::{ADOPTED, NEVER_RECREATED};
use crate::syncset::rules::rows::AppliedRow;
use crate::syncset::rules::spec::Behavior;
use crate::syncset::rules::status::Reason;
use crate::syncset::rules::wanted::Deletions;

/// How often one object may be found to come and go while it is sent.
const MOST_TRIES: u8 = 3;

/// The object as it is sent: one that existed before us says so.
pub(super) fn body(item: &Item) -> Cow<'_, Value> {
    let body = &item.desired.body;
    if !item.facts.adopted || item.behavior == Behavior::CreateOnly {
        return Cow::Borrowed(body);
    }
    let mut marked = body.clone();
    if let Some(metadata) = marked.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(ADOPTED.to_owned(), Value::String("true".to_owned()));
        }
    }
    Cow::Owned(marked)
}

impl Pass {
    /// An object's turn has come.
    pub(super) fn begin(&mut self, mut item: Box<Item>) -> Option<Ask> {
        match item.state.clone() {
            ItemState::Unresolved | ItemState::Unlooked => self.prepare(item),
            ItemState::Unserved(failure) => {
                let kind = (item.object.group.clone(), item.object.kind.clone());
                if item.has_waited || !self.defined.contains(&kind) {
                    self.fail(item.syncset, failure);
                    return None;
                }
                self.kinds.remove(&item.kind_key());
                (item.state, item.has_waited) = (ItemState::Unresolved, true);
                self.prepare(item)
            }
            ItemState::Failed(failure) => {
                self.fail(item.syncset, failure);
                None
            }
            ItemState::Ready => {
                if std::mem::take(&mut item.is_late) {
                    self.settle(&item);
                    if self.ledger.has_changed() {
                        self.works.insert((item.syncset, item.desired.place), Work::Item(item));
                        return Some(self.store());
                    }
                }
                Some(match item.behavior {
                    Behavior::Apply => Ask::Apply(item),
                    Behavior::CreateOrUpdate if item.is_absent => Ask::Create(item),
                    Behavior::CreateOrUpdate => Ask::Update(item),
                    Behavior::CreateOnly => Ask::Create(item),
                })
            }
        }
    }

    pub(super) fn applied(&mut self, item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { created, seen }) => {
                self.follow_up = self.written(item, created, seen).map(Ask::Apply);
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) => self.refuse_or_recreate(item, refused),
        }
    }

    pub(super) fn created(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { seen, .. }) => {
                // It has not existed, so it is ours.
                item.facts.adopted &= item.behavior != Behavior::CreateOnly;
                self.follow_up = self.written(item, true, seen).map(Ask::Create);
            }
            Ok(_) => self.refuse(&item, &unexpected()),
            Err(refused) if refused.refusal != Refusal::Exists => self.refuse(&item, &refused),
            Err(refused) if item.behavior == Behavior::CreateOrUpdate => {
                item.tries += 1;
                if item.tries >= MOST_TRIES {
                    self.refuse(&item, &refused);
                } else {
                    self.follow_up = Some(Ask::Update(item));
                }
            }
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
                let is_ours = seen.marks.managed && seen.marks.syncset == own && !seen.marks.adopted;
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
                item.tries += 1;
                match refused.refusal {
                    Refusal::NotFound if item.tries < MOST_TRIES => {
                        item.is_absent = true;
                        self.follow_up = Some(Ask::Create(item));
                    }
                    Refusal::UnsupportedMediaType if !item.as_merge => {
                        item.as_merge = true;
                        self.follow_up = Some(Ask::Update(item));
                    }
                    _ => self.refuse_or_recreate(item, refused),
                }
            }
        }
    }

    /// The object is there as it was sent. It comes back if it has to be sent once more, since it existed before us.
    fn written(&mut self, mut item: Box<Item>, created: bool, seen: Seen) -> Option<Box<Item>> {
        if seen.terminating {
            let message = "the object is being deleted";
            self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
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
        self.note(&item, true);
        self.wrote.insert(item.object.clone());
        self.note_definition(&item.desired.body);
        None
    }

    /// `CreateOnly` leaves what exists, which is not what was sent.
    fn keep(&mut self, mut item: Box<Item>) {
        (item.facts.version, item.facts.owned) = (None, None);
        self.note(&item, true);
    }

    fn note(&mut self, item: &Item, is_sent: bool) {
        let Some(id) = self.live.get(item.syncset).map(|live| live.header.id) else { return };
        let Some(row) = self.ledger.row(&item.object, id).cloned() else { return };
        let facts = item.facts.clone();
        self.ledger.put(AppliedRow {
            content: is_sent.then_some(item.sent_content()),
            adopted: facts.adopted,
            uid: facts.uid,
            version: facts.version,
            owned: facts.owned,
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
        self.fail(item.syncset, failure::of_refusal(item.desired.place, &item.object, refused));
    }

    /// What the cluster does not accept as a change, it may accept as a new object. Only an object that is known to be ours may be
    /// deleted for that, and only by a syncset that may delete.
    fn refuse_or_recreate(&mut self, item: Box<Item>, refused: Refused) {
        let kind = (item.object.group.as_str(), item.object.kind.as_str());
        let is_ours = item.facts.uid.is_some() && !item.facts.adopted;
        let may_delete = self.live.get(item.syncset).is_some_and(|live| live.deletions == Deletions::Allowed);
        let may_recreate = item.desired.may_recreate && may_delete && is_ours && !NEVER_RECREATED.contains(&kind);
        if refused.refusal == Refusal::Invalid && may_recreate {
            self.follow_up = Some(Ask::Probe(item, refused));
        } else {
            self.refuse(&item, &refused);
        }
    }

    pub(super) fn probed(&mut self, item: Box<Item>, refused: &Refused, reply: &Result<Answer, Refused>) {
        match reply {
            Err(answer) if answer.refusal == Refusal::Exists => {
                self.follow_up = Some(Ask::Replace(item, refused.clone()));
            }
            _ => self.refuse(&item, refused),
        }
    }

    pub(super) fn replaced(&mut self, item: &Item, refused: &Refused, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Deleted) => {
                let message = "the object is being deleted, to be created again";
                self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
            }
            Ok(_) => self.refuse(item, &unexpected()),
            // It is not the object that was refused.
            Err(answer) if answer.refusal == Refusal::Conflict => self.refuse(item, refused),
            Err(answer) => self.refuse(item, &answer),
        }
    }
}
