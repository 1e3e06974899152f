//! What a pass works on: objects to send, patches, and objects to delete.

use std::borrow::Cow;

use serde_json::Value;
use uuid::Uuid;

use super::ledger::Facts;
use super::list::Listing;
use super::step::{Refused, Seen, Throttled, Verb, Writes};
use crate::syncset::rules::name::ObjectRef;
use crate::syncset::rules::rows::Failure;
use crate::syncset::rules::spec::{Behavior, Desired, DesiredPatch};

/// A kind in a version: `apps/v1`, `Deployment`.
pub(super) type KindKey = (String, String);

/// An object that its winner may have to send.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what is known of an object are independent facts")]
pub(super) struct Item {
    /// Its winner.
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
    /// Whether it is sent as a merge patch, since the kind knows no strategic one.
    pub(super) as_merge: bool,
    /// Whether it became ready, or what is known of it changed, after the rows of the pass were stored.
    pub(super) is_late: bool,
    /// The manager that has written last besides ours, when the object was looked at.
    pub(super) last_other: Option<String>,
    /// The patch by which fields of Hive and of other behaviors become those of `Apply`, before the object is applied.
    pub(super) takeover: Option<Box<Value>>,
    /// Whether the pass has waited for its kind.
    pub(super) has_waited: bool,
    pub(super) tries: u8,
}

/// What is looked at before an object is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing.
    None,
    /// Whether it exists already (rule 13).
    Contact,
    /// Whether it is as it was sent, by a list if possible (rule 22).
    Drift,
    /// The same, by a GET: it does not have our label.
    DriftAlone,
    /// Whether it is ours, since an earlier pass was about to send it, and did not note its UID or was cut short; or which fields it
    /// got by another behavior, before it is applied for the first time since. This is done right before it is sent: a pass with
    /// many of them gets further, and one that fails looks at nothing in vain.
    Anew,
}

/// How far an object is.
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
    /// As it is sent: with a UID, only to the object that has it.
    pub(super) fn body(&self, uid: Option<&str>) -> Cow<'_, Value> {
        let is_adopted = match self.behavior {
            Behavior::CreateOnly => None,
            _ if self.facts.adopted => Some(true),
            // Whether it has the mark of an earlier write is not known in every pass.
            _ => self.desired.may_adopt.then_some(false),
        };
        self.desired.sent(is_adopted, uid)
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
    pub(super) as_merge: bool,
    pub(super) has_waited: bool,
}

/// An object to delete.
#[derive(Debug)]
pub(super) struct Removal {
    /// The syncset that has sent it.
    pub(super) syncset: Uuid,
    pub(super) object: ObjectRef,
    /// The version under which it is addressed.
    pub(super) api_version: String,
    pub(super) tries: u8,
}

/// What a syncset does in its turn.
#[derive(Debug)]
pub(super) enum Work {
    Item(Box<Item>),
    Patch(Box<PatchItem>),
    /// It comes to an element that does not render.
    Broken(Failure),
}

/// A kind as what counts answers with 429 names it: whatever its version is.
pub(super) fn group_and_kind((api_version, kind): &KindKey) -> ObjectRef {
    let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
    ObjectRef { group, kind: kind.clone(), namespace: String::new(), name: String::new() }
}

impl Ask {
    /// What counts the answers with 429: one for each request.
    pub(super) fn throttled(&self) -> Vec<Throttled> {
        let one = match self {
            Self::Lists(listings) => return listings.iter().map(Listing::throttled).collect(),
            Self::Store(_) | Self::Elsewhere(..) => return Vec::new(),
            Self::Kind { key, .. } => (Verb::Discover, group_and_kind(key)),
            Self::Look(item) => (Verb::Look, item.object.clone()),
            Self::Identify(item, _) => (Verb::Identify, item.object.clone()),
            Self::Owner(item) => (Verb::Owner, item.object.clone()),
            Self::LookForPatch(patch) => (Verb::LookForPatch, patch.object.clone()),
            Self::Examine(removal) => (Verb::Examine, removal.object.clone()),
            Self::TakeOver(item) => (Verb::TakeOver, item.object.clone()),
            Self::Apply(item) => (Verb::Apply, item.object.clone()),
            Self::Create(item) => (Verb::Create, item.object.clone()),
            Self::Update(item) if item.as_merge => (Verb::Merge, item.object.clone()),
            Self::Update(item) => (Verb::Update, item.object.clone()),
            Self::Probe(item, _) => (Verb::Probe, item.object.clone()),
            Self::Replace(item, _) => (Verb::Replace, item.object.clone()),
            Self::Patch(patch) if patch.as_merge => (Verb::MergePatch(patch.desired.content), patch.object.clone()),
            Self::Patch(patch) => (Verb::Patch(patch.desired.content), patch.object.clone()),
            Self::Delete(removal, _) => (Verb::Delete, removal.object.clone()),
        };
        vec![one]
    }

    /// How many requests of a pass it is. Discovery does not count.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::Kind { .. } | Self::Store(_) | Self::Elsewhere(..) => 0,
            Self::Lists(listings) => listings.len(),
            _ => 1,
        }
    }
}

/// What the caller was asked to do, with what the answer is for.
#[derive(Debug)]
pub(super) enum Ask {
    Kind {
        key: KindKey,
        wait: bool,
    },
    Lists(Vec<Listing>),
    Look(Box<Item>),
    Store(Writes),
    /// Makes fields of Hive and of other behaviors those of `Apply`, so that the apply that follows removes those that are no longer
    /// given.
    TakeOver(Box<Item>),
    Apply(Box<Item>),
    Create(Box<Item>),
    Update(Box<Item>),
    /// GET of an object whose write was refused, to find out whether it is the one that has the UID.
    Identify(Box<Item>, Refused),
    /// GET of an object that `CreateOnly` found to exist, and may have created in a pass that was cut short.
    Owner(Box<Item>),
    /// Whether an object that can't be changed could be created (rule 26).
    Probe(Box<Item>, Refused),
    Replace(Box<Item>, Refused),
    LookForPatch(Box<PatchItem>),
    Patch(Box<PatchItem>),
    Examine(Removal),
    /// Whether another document of the cluster wants the object that is about to be deleted.
    Elsewhere(Removal, Seen),
    Delete(Removal, Seen),
}
