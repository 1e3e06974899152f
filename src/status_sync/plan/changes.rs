//! Compares the desired fields of a hub object with what the caches show, and decides what to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::families::Fields;
use super::family::{FamilySpec, HOSTING_LABEL, Home, PLACEMENT_LABEL, Shape};
use crate::cluster::{Object, ObjectKey, Payload};
use crate::config::names::LONGEST_LABEL;

/// The label that marks an object as made for a hub object, and the annotation that a truncated label needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Key of the label.
    pub label: &'static str,
    pub value: String,
    /// The complete value, where the label had to be truncated.
    pub annotation: Option<String>,
}

/// The mark of the objects that are made for a hub object; `None` where nothing is made.
pub fn mark(shape: Shape, hub_object: &ObjectKey) -> Option<Mark> {
    match shape {
        Shape::Itself => None,
        Shape::Numbered => Some(Mark { label: PLACEMENT_LABEL, value: hub_object.name.to_string(), annotation: None }),
        Shape::Named => {
            let whole = format!("{}.{}", hub_object.namespace, hub_object.name);
            if whole.len() <= LONGEST_LABEL {
                return Some(Mark { label: HOSTING_LABEL, value: whole, annotation: None });
            }
            let hash = Sha256::digest(&whole);
            let first = hash.iter().take(4).fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
            let kept: String = whole.chars().take(LONGEST_LABEL - 9).collect();
            Some(Mark { label: HOSTING_LABEL, value: format!("{kept}-{first:08x}"), annotation: Some(whole) })
        }
    }
}

/// The name of the `index`-th object that is made for a hub object.
pub fn part_name(shape: Shape, hub_object: &ObjectKey, index: usize) -> ObjectKey {
    match shape {
        Shape::Itself | Shape::Named => hub_object.clone(),
        Shape::Numbered => {
            ObjectKey::new(Arc::clone(&hub_object.namespace), format!("{}-decision-{}", hub_object.name, index + 1))
        }
    }
}

/// The row of `spec` that belongs to a hub object: the only one, or the one whose id is the object's UID.
pub fn matching_row<R: Copy + PartialEq>(rows: &[R], uid: Option<R>) -> Option<R> {
    match rows {
        [only] => Some(*only),
        several => several.iter().copied().find(|row| Some(*row) == uid),
    }
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Sets fields of an existing object.
    Patch {
        key: ObjectKey,
        /// The desired fields. Fields of ours that are not among them are removed.
        fields: Fields,
        /// For an object that Towline made: the UID that it must still have, since another object may have its name by
        /// then.
        only: Option<Arc<str>>,
    },
    /// Creates an object. Where our fields are in the status, a second request sets them.
    Create {
        key: ObjectKey,
        fields: Fields,
        mark: Mark,
        /// Name and live UID of its owner.
        owner: (Arc<str>, Arc<str>),
    },
    /// Deletes an object of ours that is no longer needed.
    Delete {
        /// The object as the cache shows it.
        object: Arc<Object>,
    },
}

impl Change {
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Patch { key, .. } | Self::Create { key, .. } => key,
            Self::Delete { object } => &object.key,
        }
    }
}

/// Why a hub object's status is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiting {
    /// The hub object does not exist.
    Absent,
    /// Several rows have its name, and none its UID.
    Ambiguous,
    /// An object of another owner has the name.
    Foreign,
    /// An object that is being deleted, or whose owner is gone, has the name until it is garbage collected.
    Leaving,
}

impl Waiting {
    /// The name in reports and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Ambiguous => "ambiguous",
            Self::Foreign => "foreign",
            Self::Leaving => "leaving",
        }
    }

    /// What it waits for.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Absent => "its object is not on the hub",
            Self::Ambiguous => "several rows of `spec` have its name, and none has the UID of the object",
            Self::Foreign => "an object of another owner has the name",
            Self::Leaving => "an object that is being deleted, or whose owner is gone, has the name",
        }
    }

    /// What an operator can do.
    pub fn next_step(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::Ambiguous => Some("remove the wrong rows"),
            Self::Foreign => Some("delete that object"),
            Self::Leaving => Some("check its finalizers"),
        }
    }
}

/// What the caches show for one hub object.
pub struct Observed<'o> {
    /// The hub object, if it exists.
    pub hub_object: Option<Arc<Object>>,
    /// For families that make objects: the objects that the hub object owns, and those that have a desired name.
    pub owned: BTreeMap<ObjectKey, Arc<Object>>,
    /// By object, the digest that counts as equal to a desired one: the API server's result of our write (defaults,
    /// pruning), and, until the cache shows our write of this very digest, whatever the cache shows.
    pub server_result: &'o dyn Fn(&ObjectKey, Digest) -> Option<Digest>,
    /// Whether the cache has yet to show our last write of an object, which had another digest than the desired one.
    /// The object is then written even if the cache shows the desired digest.
    pub outdated: &'o dyn Fn(&ObjectKey, Digest) -> bool,
}

/// The plan for one hub object.
#[derive(Debug, Default)]
pub struct Planned {
    /// The writes, in order.
    pub changes: Vec<Change>,
    /// Why some writes have to wait.
    pub waiting: Option<Waiting>,
    /// The objects that they wait for, with their UIDs.
    pub blockers: Vec<(ObjectKey, Arc<str>)>,
    /// Those of them that belong to other owners.
    pub foreign: Vec<ObjectKey>,
    /// The objects that must exist, with the digests of their desired fields.
    pub parts: Vec<(ObjectKey, Digest)>,
}

/// Compares the desired fields of one hub object with what the caches show. `desired` is empty if there are no rows.
pub fn next(spec: &FamilySpec, hub_object: &ObjectKey, desired: Vec<Fields>, observed: &Observed<'_>) -> Planned {
    let mut planned = Planned::default();
    let Some(live) = &observed.hub_object else {
        planned.waiting = Some(Waiting::Absent);
        return planned;
    };
    let Some(mark) = mark(spec.shape, hub_object) else {
        let fields = desired.into_iter().next().unwrap_or_else(|| cleared(spec));
        compare(&mut planned, live, fields, None, observed);
        return planned;
    };
    if live.deleting {
        // The garbage collector deletes the objects that it owns.
        planned.waiting = Some(Waiting::Leaving);
        return planned;
    }
    let wanted = desired.len();
    for (index, fields) in desired.into_iter().enumerate() {
        let key = part_name(spec.shape, hub_object, index);
        match observed.owned.get(&key) {
            None => {
                let digest = Digest::of(&fields);
                planned.parts.push((key.clone(), digest));
                if (observed.server_result)(&key, digest).is_some() {
                    // It was created a moment ago, and the cache does not show it yet.
                    continue;
                }
                let owner = (Arc::clone(&hub_object.name), Arc::clone(&live.uid));
                planned.changes.push(Change::Create { key, fields, mark: mark.clone(), owner });
            }
            Some(held) if is_ours(held, &mark, live) && !held.deleting => {
                compare(&mut planned, held, fields, Some(&held.uid), observed);
            }
            Some(held) => {
                if held.deleting || is_orphan(held, &mark, hub_object) {
                    planned.waiting.get_or_insert(Waiting::Leaving);
                } else {
                    planned.waiting = Some(Waiting::Foreign);
                    planned.foreign.push(key.clone());
                }
                planned.blockers.push((key, Arc::clone(&held.uid)));
            }
        }
    }
    let needed: Vec<ObjectKey> = (0..wanted).map(|index| part_name(spec.shape, hub_object, index)).collect();
    for (key, held) in &observed.owned {
        if is_ours(held, &mark, live) && !held.deleting && !needed.contains(key) {
            planned.changes.push(Change::Delete { object: Arc::clone(held) });
        }
    }
    planned
}

fn compare(planned: &mut Planned, held: &Object, fields: Fields, only: Option<&Arc<str>>, observed: &Observed<'_>) {
    let desired = Digest::of(&fields);
    planned.parts.push((held.key.clone(), desired));
    let found = Digest::held(held);
    let differs = found != Some(desired) && (found.is_none() || found != (observed.server_result)(&held.key, desired));
    if differs || (observed.outdated)(&held.key, desired) {
        planned.changes.push(Change::Patch { key: held.key.clone(), fields, only: only.cloned() });
    }
}

/// The desired fields of a hub object without rows.
pub fn cleared(spec: &FamilySpec) -> Fields {
    if spec.fields == ["numberOfSelectedClusters"] {
        return Fields::from([("numberOfSelectedClusters", Value::from(0))]);
    }
    Fields::new()
}

/// Whether an object was made for the hub object that exists now. An owner is always in the same namespace as its
/// objects, so a reference to an owner in another namespace, which a copied object has, proves nothing.
fn is_ours(held: &Object, mark: &Mark, live: &Object) -> bool {
    let is_controlled = held.controller.as_ref().is_some_and(|owner| owner.uid == live.uid);
    held.key.namespace == live.key.namespace && has_mark(held, mark) && is_controlled
}

/// Whether an object was made for an earlier hub object of the same name.
fn is_orphan(held: &Object, mark: &Mark, hub_object: &ObjectKey) -> bool {
    has_mark(held, mark) && held.controller.as_ref().is_some_and(|owner| owner.name == hub_object.name)
}

fn has_mark(held: &Object, mark: &Mark) -> bool {
    held.labels.get(mark.label).is_some_and(|value| **value == *mark.value)
}

/// The body of a new object. It contains no fields of the status, since the API server would drop them.
pub fn body_of_new(spec: &FamilySpec, change: &Change, api_version: &str, kind: &str) -> Option<Value> {
    let Change::Create { key, fields, mark, owner: (name, uid) } = change else { return None };
    let (owner_version, owner_kind) = spec.owner_type()?;
    let mut metadata = json!({
        "name": &*key.name,
        "namespace": &*key.namespace,
        "labels": {mark.label: mark.value},
        "ownerReferences": [{
            "apiVersion": owner_version, "kind": owner_kind, "name": &**name, "uid": &**uid,
            "controller": true, "blockOwnerDeletion": true,
        }],
    });
    if let (Some(whole), Some(metadata)) = (&mark.annotation, metadata.as_object_mut()) {
        metadata.insert("annotations".to_owned(), json!({mark.label: whole}));
    }
    let mut body = Map::new();
    body.insert("apiVersion".to_owned(), api_version.into());
    body.insert("kind".to_owned(), kind.into());
    body.insert("metadata".to_owned(), metadata);
    if spec.home == Home::Root {
        body.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }
    Some(Value::Object(body))
}

/// The patch that sets our fields.
///
/// Fields of a status are set by a merge patch, which works with and without an existing status. They are lists and
/// scalars, which a merge replaces as a whole. Fields of the root may be objects, which a merge would combine with the
/// existing values: a JSON patch replaces them, and removes a field that may be absent by adding it first. With a UID
/// in `only` it is a JSON patch that first tests the UID; the whole status of such an object is ours.
pub fn patch(spec: &FamilySpec, mut fields: Fields, only: Option<&str>) -> Payload {
    let mut operations: Vec<Value> =
        only.iter().map(|uid| json!({"op": "test", "path": "/metadata/uid", "value": uid})).collect();
    match spec.home {
        Home::Status if only.is_some() => {
            operations.push(json!({"op": "add", "path": "/status", "value": fields}));
            Payload::json_patch(&Value::Array(operations))
        }
        Home::Status => {
            let status: Map<String, Value> = spec
                .fields
                .iter()
                .map(|name| ((*name).to_owned(), fields.remove(name).unwrap_or(Value::Null)))
                .collect();
            Payload::merge_patch(&json!({"status": status}))
        }
        Home::Root => {
            for name in spec.fields {
                let path = format!("/{name}");
                let value = fields.remove(name);
                let is_absent = value.is_none();
                operations.push(json!({"op": "add", "path": path, "value": value}));
                if is_absent {
                    operations.push(json!({"op": "remove", "path": path}));
                }
            }
            Payload::json_patch(&Value::Array(operations))
        }
    }
}

#[cfg(test)]
mod tests;
