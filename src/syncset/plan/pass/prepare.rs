//! Before an object is sent: its kind, first contacts, and drift.

use serde_json::Value;

use super::ask::Ask;
use super::failure;
use super::item::{Check, Item, ItemState, KindKey, Work};
use super::run::{Pass, unexpected};
use super::step::{Answer, Refused, Resolution, Seen, Takeover};
use super::stored::Facts;
use crate::syncset::plan::object::{left_alone, may_end_by_itself};
use crate::syncset::plan::ownership::without;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::spec::Behavior;
use crate::syncset::plan::status::Reason;
use crate::syncset::plan::wanted::placed;

impl Pass {
    /// `has_waited`: the kind was asked for until it was served, as long as that could be expected.
    pub(super) fn resolved(&mut self, key: KindKey, has_waited: bool, reply: Result<Answer, Refused>) {
        let resolution = match reply {
            Ok(Answer::Kind(resolution)) => Ok(resolution),
            Ok(_) => Err(unexpected()),
            Err(refused) => Err(refused),
        };
        let group = key.0.split_once('/').map_or("", |(group, _)| group);
        if let Ok(Resolution::Served { namespaced, plural }) = &resolution {
            self.scopes.insert((group.to_owned(), key.1.clone()), *namespaced);
            self.plurals.insert((group.to_owned(), key.1.clone()), plural.clone());
        } else if has_waited {
            // Nobody waits for it once more: many syncsets may have such objects.
            self.defined.remove(&(group.to_owned(), key.1.clone()));
        }
        if resolution.is_err() {
            self.progress.slow_kinds.insert(key.clone());
        } else {
            self.progress.slow_kinds.remove(&key);
            self.progress.unknown_within.remove(&key);
        }
        self.kinds.insert(key, resolution);
    }

    pub(super) fn next_look(&mut self) -> Option<Ask> {
        while let Some(item) = self.unprepared.pop_front() {
            let ask = self.prepare(item);
            if ask.is_some() {
                return ask;
            }
        }
        None
    }

    /// What has to be asked before the object can be sent. If that is nothing, it waits for its turn.
    pub(super) fn prepare(&mut self, mut item: Box<Item>) -> Option<Ask> {
        if item.state == ItemState::Unresolved {
            let key = item.kind_key();
            item.state = match self.kinds.get(&key) {
                None => {
                    let wait = item.has_waited;
                    self.place(item);
                    return Some(Ask::Kind { key, wait });
                }
                Some(Ok(Resolution::Served { .. }))
                    if placed(&item.object, self.scope(&item.object)) != item.object =>
                {
                    // The definition came with this pass. Who wants the object has to be found out again.
                    ItemState::Failed(Self::unserved(&key, None, item.desired.place))
                }
                Some(Ok(Resolution::Served { namespaced: true, .. })) if item.object.namespace.is_empty() => {
                    let message =
                        format!("a {} needs a namespace: set metadata.namespace, none is assumed", item.object.kind);
                    ItemState::Failed(failure::of_place(item.desired.place, Reason::ResourceInvalid, &message))
                }
                Some(Ok(Resolution::Served { .. })) if item.check == Check::None => ItemState::Ready,
                Some(Ok(Resolution::Served { .. })) => ItemState::Unlooked,
                Some(Ok(Resolution::OtherVersion { api_version })) => {
                    ItemState::Unserved(Self::unserved(&key, Some(api_version), item.desired.place))
                }
                Some(Ok(Resolution::NotServed)) => ItemState::Unserved(Self::unserved(&key, None, item.desired.place)),
                Some(Err(refused)) => ItemState::Failed(failure::of_refusal(item.desired.place, &item.object, refused)),
            };
        }
        if item.state == ItemState::Unlooked {
            match self.known_failure(&item) {
                Some(failure) => item.state = ItemState::Failed(failure),
                None => return Some(Ask::Look(item)),
            }
        }
        self.place(item);
        None
    }

    /// The failure of an earlier pass, which this one continues: of a read of the object, or of its syncset. None if the inputs have
    /// changed since.
    fn known_failure(&self, item: &Item) -> Option<Failure> {
        if let Some(failure) = self.earlier_failure(item.syncset) {
            return Some(failure);
        }
        let live = self.live.get(item.syncset)?;
        let (inputs, failure) = self.progress.looks.get(&(item.object.clone(), live.header.id))?;
        (*inputs == live.inputs).then(|| failure.clone())
    }

    /// Queues an object for its turn, unless there is nothing to do for it.
    pub(super) fn place(&mut self, mut item: Box<Item>) {
        item.is_late = self.is_committed();
        if matches!(item.state, ItemState::Failed(_) | ItemState::Unserved(_)) && !item.send {
            // The object's state is not known. The next try is no full pass, and would take the object to be as it was sent.
            item.send = true;
            self.settle(&item);
        }
        if item.state == ItemState::Ready {
            if item.send && item.desired.may_adopt && item.behavior != Behavior::CreateOnly {
                item.facts.adopted = false;
            }
            if !item.is_late || !item.send {
                self.settle(&item);
            }
            if !item.send {
                return;
            }
        }
        self.works.insert((item.syncset, item.desired.place), Work::Item(item));
    }

    pub(super) fn looked(&mut self, mut item: Box<Item>, reply: Result<Answer, Refused>) {
        let reply = match reply {
            Ok(Answer::Found(found)) => Ok(found),
            Ok(_) => Err(unexpected()),
            Err(refused) => Err(refused),
        };
        match reply {
            Ok(found) if matches!(item.check, Check::ClusterUpdate | Check::Anew) => {
                first_contact(&mut item, found, self.elsewhere);
            }
            Ok(found) => self.check_drift(&mut item, found),
            Err(refused) => {
                item.state = ItemState::Failed(failure::of_refusal(item.desired.place, &item.object, &refused));
            }
        }
        if let (ItemState::Failed(failure), Some(live)) = (&item.state, self.live.get(item.syncset)) {
            let key = (item.object.clone(), live.header.id);
            self.progress.looks.insert(key, (live.inputs, failure.clone()));
        }
        self.place(item);
    }

    /// Compares an object that was sent before with what there is.
    pub(super) fn check_drift(&mut self, item: &mut Item, found: Option<Seen>) {
        item.state = ItemState::Ready;
        let Some(seen) = found else {
            if may_end_by_itself(&item.desired.body) {
                return;
            }
            item.send = true;
            item.is_gone();
            item.facts.resent = item.facts.resent.saturating_add(1);
            item.facts.gone = item.facts.gone.saturating_add(1);
            item.is_known &= item.behavior != Behavior::CreateOnly;
            return;
        };
        if seen.is_terminating() {
            item.state = terminating(item);
            return;
        }
        item.facts.gone = 0;
        let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        if item.behavior == Behavior::CreateOnly {
            // What existed is stored without UID. With it the object is known again under the name of another group.
            item.facts.adopted |= is_another;
            item.facts.uid = Some(seen.uid);
        } else {
            let owned = if item.behavior == Behavior::Apply { seen.owned_by_apply } else { seen.owned_by_update };
            let is_unchanged = item.facts.version.as_ref() == Some(&seen.version);
            let is_ours = item.facts.uid.as_ref() == Some(&seen.uid);
            if !is_ours || (!is_unchanged && (owned.is_none() || owned != item.facts.owned)) {
                // Somebody else has changed it or created it anew.
                item.last_other = contender(&item.desired.body, &seen);
                item.facts.adopted |= is_another;
                item.facts.uid = Some(seen.uid);
                item.facts.resent = item.facts.resent.saturating_add(1);
                item.send = true;
                return;
            }
        }
        item.facts.resent = 0;
        self.progress.objects.insert(item.object.clone());
    }
}

/// The manager that has changed a field of this body. One that owns a field through a subresource has written it since it was sent last.
fn contender(body: &Value, seen: &Seen) -> Option<String> {
    let is_given = |field: &str| without(body, &left_alone(body)).pointer(field).is_some();
    let scaled = seen.scaled.iter().find(|(_, field)| is_given(field));
    scaled.map(|(manager, _)| manager).or(seen.last_other.as_ref()).cloned()
}

/// Before an apply, the fields that an object got by another behavior are taken over, and if it is ours, those that Hive has applied.
/// Until that is done nothing is noted of what we own, so that each pass looks again.
fn first_contact(item: &mut Item, found: Option<Seen>, elsewhere: bool) {
    item.state = ItemState::Ready;
    item.is_known = true;
    match found {
        None => item.is_gone(),
        Some(seen) if seen.is_terminating() => item.state = terminating(item),
        Some(seen) => {
            let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
            let adopted = seen.is_adopted(item.facts.uid.as_deref(), item.facts.adopted, elsewhere);
            item.is_absent = false;
            item.last_other = seen.last_other;
            let Takeover { ours, with_hive } = seen.takeover;
            let takeover = with_hive.filter(|_| !adopted).or(ours);
            item.takeover = takeover.filter(|_| item.behavior == Behavior::Apply);
            let owned = item.facts.owned.filter(|_| !is_another && item.takeover.is_none());
            let resent = item.facts.resent;
            item.facts = Facts { uid: Some(seen.uid), version: None, owned, adopted, resent, gone: 0 };
        }
    }
}

fn terminating(item: &Item) -> ItemState {
    ItemState::Failed(failure::of_place(item.desired.place, Reason::Terminating, "the object is being deleted"))
}
