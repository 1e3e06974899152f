//! The requests of a pass to its caller. Each holds what the pass needs to use the answer.

use std::borrow::Cow;

use serde_json::Value;

use super::item::{Item, KindKey, PatchItem, Removal};
use super::list::Listing;
use super::step::{Manager, Refused, Seen, Step, Target, Throttled, Verb, Writes};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::spec::PatchType;

/// A request of a pass to its caller, with what the pass needs to use the answer.
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
    /// Whether an object that can't be changed could be created.
    Probe(Box<Item>, Refused, Seen),
    /// Deletes such an object, as it was seen.
    Replace(Box<Item>, Refused, Seen),
    LookForPatch(Box<PatchItem>),
    Patch(Box<PatchItem>),
    Examine(Removal),
    Delete(Removal, Seen),
}

impl Ask {
    /// What counts the answers with 429: one for each request.
    pub(super) fn throttled(&self) -> Vec<Throttled> {
        let one = match self {
            Self::Lists(listings) => return listings.iter().map(Listing::throttled).collect(),
            Self::Store(_) => return Vec::new(),
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
            Self::Probe(item, ..) => (Verb::Probe, item.object.clone()),
            Self::Replace(item, ..) => (Verb::Replace, item.object.clone()),
            Self::Patch(patch) if patch.as_merge => (Verb::MergePatch(patch.desired.content), patch.object.clone()),
            Self::Patch(patch) => (Verb::Patch(patch.desired.content), patch.object.clone()),
            Self::Delete(removal, _) => (Verb::Delete, removal.object.clone()),
        };
        vec![one]
    }

    /// How many requests of a pass it is. Discovery does not count.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::Kind { .. } | Self::Store(_) => 0,
            Self::Lists(listings) => listings.len(),
            _ => 1,
        }
    }

    pub(super) fn step(&self) -> Step<'_> {
        match self {
            Self::Kind { key: (api_version, kind), wait } => Step::Resolve { api_version, kind, wait: *wait },
            Self::Lists(listings) => Step::Lists(listings.iter().map(Listing::step).collect()),
            Self::Look(item) | Self::Owner(item) | Self::Identify(item, _) => Step::Look { target: target(item) },
            Self::Store(writes) => Step::Store(writes.clone()),
            Self::TakeOver(item) => Step::Patch {
                target: target(item),
                patch_type: PatchType::Json,
                manager: Manager::Apply,
                body: item.takeover.as_deref().map_or(Cow::Owned(Value::Array(Vec::new())), Cow::Borrowed),
            },
            Self::Apply(item) => Step::Apply { target: target(item), body: item.written_body() },
            Self::Create(item) => Step::Create { target: target(item), body: item.created_body(), dry_run: false },
            Self::Probe(item, ..) => Step::Create { target: target(item), body: item.created_body(), dry_run: true },
            Self::Update(item) => Step::Patch {
                target: target(item),
                patch_type: if item.as_merge { PatchType::Merge } else { PatchType::Strategic },
                manager: Manager::Update,
                body: item.written_body(),
            },
            Self::Replace(item, _, seen) => {
                Step::Delete { target: target(item), uid: &seen.uid, version: &seen.version }
            }
            Self::LookForPatch(patch) => Step::Look { target: target_of_patch(patch) },
            Self::Patch(patch) => Step::Patch {
                target: target_of_patch(patch),
                patch_type: if patch.as_merge { PatchType::Merge } else { patch.desired.patch_type },
                manager: Manager::Patch,
                body: Cow::Borrowed(&patch.desired.body),
            },
            Self::Examine(removal) => Step::Look { target: target_of_removal(removal) },
            Self::Delete(removal, seen) => {
                Step::Delete { target: target_of_removal(removal), uid: &seen.uid, version: &seen.version }
            }
        }
    }
}

/// A kind as what counts answers with 429 names it: whatever its version is.
pub(super) fn group_and_kind((api_version, kind): &KindKey) -> ObjectRef {
    let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
    ObjectRef { group, kind: kind.clone(), namespace: String::new(), name: String::new() }
}

fn target(item: &Item) -> Target<'_> {
    Target { object: &item.object, api_version: Cow::Borrowed(&item.desired.api_version) }
}

fn target_of_patch(patch: &PatchItem) -> Target<'_> {
    Target { object: &patch.object, api_version: Cow::Borrowed(&patch.desired.api_version) }
}

fn target_of_removal(removal: &Removal) -> Target<'_> {
    Target { object: &removal.object, api_version: Cow::Borrowed(&removal.api_version) }
}
