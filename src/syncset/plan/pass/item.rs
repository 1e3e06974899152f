//! What a pass works on: objects to send, patches, and objects to delete.

use std::borrow::Cow;

use serde_json::Value;
use uuid::Uuid;

use super::stored::Facts;
use super::target::{Address, Refusal, Refused};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::Precondition;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::spec::{Behavior, Desired, DesiredPatch};

/// How often one object may be found to come and go while it is sent.
const MOST_TRIES: u8 = 3;

/// A kind in a version: `apps/v1`, `Deployment`.
pub(super) type KindKey = (String, String);

/// An object that its winner may have to send.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what is known of an object are independent facts")]
pub(super) struct Item {
    /// The position of the syncset that sends it, in the order of the live ones.
    pub(super) syncset: usize,
    /// Without namespace if its kind has none.
    pub(super) object: ObjectRef,
    pub(super) desired: Desired,
    pub(super) behavior: Behavior,
    /// What is known of the object, whoever sent it.
    pub(super) facts: Facts,
    /// Whether the object was known before, or has been looked at.
    pub(super) is_known: bool,
    /// Whether the winner had a row when the pass began.
    pub(super) had_row: bool,
    pub(super) check: Check,
    pub(super) state: ItemState,
    /// Whether it is to be sent.
    pub(super) send: bool,
    /// Whether a GET or a PATCH of this pass has shown that there is no such object.
    pub(super) is_absent: bool,
    /// Whether the server has refused to create it by an apply, although it had shown that there is no such object.
    pub(super) was_refused_as_new: bool,
    /// Whether it is sent as a merge patch, since the kind knows no strategic one.
    pub(super) as_merge: bool,
    /// Whether it became ready, or what is known of it changed, after the rows of the pass were stored.
    pub(super) is_late: bool,
    /// The manager that has written last besides ours, when the object was looked at.
    pub(super) last_other: Option<String>,
    /// The patch by which fields of Hive and of other behaviors become those of `Apply`, before the object is applied.
    pub(super) takeover: Option<Box<Value>>,
    pub(super) tries: u8,
}

/// What is looked at before an object is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    None,
    /// Whether it exists already.
    Existence,
    /// Whether it is as it was sent, by a list if possible.
    Drift,
    /// The same, by a GET: it does not have our label.
    DriftAlone,
    /// Whether it is ours, since an earlier pass was about to send it, and did not note its UID or was cut short; or which fields it
    /// got by another behavior, before it is applied for the first time since. This is done right before it is sent: a pass with
    /// many of them gets further, and one that fails looks at nothing in vain.
    Anew,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ItemState {
    Unresolved,
    Unlooked,
    Ready,
    /// The cluster does not serve the kind, unless this pass brings it.
    Unserved(Failure),
    Failed(Failure),
}

impl Item {
    /// As it is written to what is known to be there: the object with its UID. An apply of what is known not to be there creates it,
    /// and changes nothing of an object that somebody else has created meanwhile.
    pub(super) fn written_body(&self) -> Cow<'_, Value> {
        let is_new = self.behavior == Behavior::Apply && self.is_absent && !self.was_refused_as_new;
        self.body(match &self.facts.uid {
            Some(uid) => Some(Precondition::Uid(uid)),
            None => is_new.then_some(Precondition::Absent),
        })
    }

    /// As it is created by a POST.
    pub(super) fn created_body(&self) -> Cow<'_, Value> {
        self.body(None)
    }

    fn body(&self, only_if: Option<Precondition<'_>>) -> Cow<'_, Value> {
        let is_adopted = match self.behavior {
            Behavior::CreateOnly => None,
            _ if self.facts.adopted => Some(true),
            // Whether it has the mark of an earlier write is not known in every pass.
            _ => self.desired.may_adopt.then_some(false),
        };
        self.desired.sent(is_adopted, only_if)
    }

    /// The object is not there, whoever created it: what is created in its place is ours.
    pub(super) fn forget_uid(&mut self) {
        self.is_absent = true;
        let Facts { uid, version, owned, adopted, resent: _, gone: _ } = &mut self.facts;
        (*uid, *version, *owned, *adopted) = (None, None, None, false);
    }

    /// Whether an apply was refused as one that creates the object: somebody has created it meanwhile, or the server knows no other way
    /// to create it.
    pub(super) fn was_overtaken(&self, refused: &Refused) -> bool {
        refused.refusal == Refusal::Conflict && self.is_absent && !self.was_refused_as_new
    }

    /// Whether it is not tried once more if it turns out to have come or gone.
    pub(super) fn is_last_try(&self) -> bool {
        self.tries + 1 >= MOST_TRIES
    }

    /// Whether it was refused as an object with a UID is if there is none of that name (409), or one with another UID (422). Both can
    /// have other causes.
    pub(super) fn may_be_another(&self, refused: &Refused) -> bool {
        self.facts.uid.is_some() && matches!(refused.refusal, Refusal::Conflict | Refusal::Invalid)
    }

    pub(super) fn address(&self) -> Address<'_> {
        Address { object: &self.object, api_version: &self.desired.api_version }
    }

    pub(super) fn kind_key(&self) -> KindKey {
        (self.desired.api_version.clone(), self.desired.object.kind.clone())
    }
}

/// A patch of a syncset that is due.
#[derive(Debug)]
pub(super) struct PatchItem {
    pub(super) syncset: usize,
    pub(super) position: usize,
    pub(super) object: ObjectRef,
    pub(super) desired: DesiredPatch,
}

impl PatchItem {
    pub(super) fn address(&self) -> Address<'_> {
        Address { object: &self.object, api_version: &self.desired.api_version }
    }
}

#[derive(Debug)]
pub(super) struct Removal {
    /// The syncset that has sent it.
    pub(super) syncset: Uuid,
    pub(super) object: ObjectRef,
    /// The version under which it is addressed.
    pub(super) api_version: String,
}

impl Removal {
    pub(super) fn address(&self) -> Address<'_> {
        Address { object: &self.object, api_version: &self.api_version }
    }
}

/// What a syncset does in its turn.
#[derive(Debug)]
pub(super) enum Task {
    Item(Box<Item>),
    Patch(Box<PatchItem>),
    /// It comes to an element that does not render.
    Broken(Failure),
}
