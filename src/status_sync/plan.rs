//! Decisions, pure: what is desired and what the caches show in, what to write out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::families::Fields;
use super::family::{Facts, Home, PLACEMENT_LABEL, Shape};
use crate::cluster::{Object, ObjectKey};

/// Label and annotation that tell which subscription a status or report is about.
const HOSTING: &str = "apps.open-cluster-management.io/hosting-subscription";
/// A label's value is no longer than this.
const LONGEST_LABEL: usize = 63;

/// Whether a label says whose an object is.
pub fn is_label_of_ours(key: &str) -> bool {
    key == PLACEMENT_LABEL || key == HOSTING
}

/// The label by which an object that was made for a hub object is known, and the annotation that a cut label needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Key of the label.
    pub label: &'static str,
    /// Its value.
    pub value: String,
    /// The whole of what the value had to be cut from.
    pub annotation: Option<String>,
}

/// The mark of what is made for a hub object; none where nothing is made.
pub fn mark(shape: Shape, hub_object: &ObjectKey) -> Option<Mark> {
    match shape {
        Shape::Itself => None,
        Shape::Numbered => Some(Mark { label: PLACEMENT_LABEL, value: hub_object.name.to_string(), annotation: None }),
        Shape::Named => {
            let whole = format!("{}.{}", hub_object.namespace, hub_object.name);
            if whole.len() <= LONGEST_LABEL {
                return Some(Mark { label: HOSTING, value: whole, annotation: None });
            }
            let hash = Sha256::digest(&whole);
            let first = hash.iter().take(4).fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
            let kept: String = whole.chars().take(LONGEST_LABEL - 9).collect();
            Some(Mark { label: HOSTING, value: format!("{kept}-{first:08x}"), annotation: Some(whole) })
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

/// The row of `spec` that a hub object is served from: the one whose id is the live UID, or the only one.
pub fn whose<R: Copy + PartialEq>(rows: &[R], live: Option<R>) -> Option<R> {
    match rows {
        [only] => Some(*only),
        several => several.iter().copied().find(|row| Some(*row) == live),
    }
}

/// One write.
#[derive(Clone, Debug)]
pub enum Change {
    /// Fields of an object that is there.
    Patch {
        /// Which.
        key: ObjectKey,
        /// What they are to be; those of ours that are not in it go.
        fields: Fields,
        /// Only this object, of those that are made: by the time of the write its name may be another's.
        only: Option<Arc<str>>,
    },
    /// A new object; its status, where the fields are there, in a second request.
    Create {
        /// Which.
        key: ObjectKey,
        /// Its fields.
        fields: Fields,
        /// What it is known by.
        mark: Mark,
        /// Name and live UID of its owner.
        owner: (Arc<str>, Arc<str>),
    },
    /// An object of ours that nobody needs.
    Delete {
        /// As the cache shows it.
        object: Arc<Object>,
    },
}

impl Change {
    /// The object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Patch { key, .. } | Self::Create { key, .. } => key,
            Self::Delete { object } => &object.key,
        }
    }
}

/// Why an object is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiting {
    /// The hub object is not on the hub.
    Absent,
    /// Several rows have its name, and none its UID.
    Ambiguous,
    /// The name is taken by an object that is not ours.
    Foreign,
    /// The name is taken by an object that is going, or whose owner is gone, until it is collected.
    Leaving,
}

impl Waiting {
    /// Each, in the order of a report.
    pub const ALL: [Self; 4] = [Self::Absent, Self::Ambiguous, Self::Foreign, Self::Leaving];

    /// The word of a report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Ambiguous => "ambiguous",
            Self::Foreign => "foreign",
            Self::Leaving => "leaving",
        }
    }
}

/// What the caches show around one hub object.
pub struct Observed<'o> {
    /// The hub object, where it is on the hub.
    pub hub_object: Option<Arc<Object>>,
    /// What was made for it and what has the names of what is to be made; only where something is made.
    pub made: BTreeMap<ObjectKey, Arc<Object>>,
    /// What is accepted in the place of a desired digest, by object: how the API server keeps what we wrote, and
    /// whatever the cache shows until it has caught up with our write of this very digest.
    pub accepted: &'o dyn Fn(&ObjectKey, Digest) -> Option<Digest>,
    /// Whether the cache has yet to show our last write of an object, which was of another digest than the desired one:
    /// what it shows is then no reason to leave the object alone.
    pub outdated: &'o dyn Fn(&ObjectKey, Digest) -> bool,
}

/// What is to be done for one hub object.
#[derive(Debug, Default)]
pub struct Planned {
    /// The writes, in order.
    pub changes: Vec<Change>,
    /// What stands in the way of some of them.
    pub waiting: Option<Waiting>,
    /// The objects that stand in the way, with their UIDs.
    pub blockers: Vec<(ObjectKey, Arc<str>)>,
    /// Those of them that belong to others.
    pub foreign: Vec<ObjectKey>,
    /// What the objects are to be.
    pub parts: Vec<(ObjectKey, Digest)>,
}

/// Compares what is desired of one hub object with what the caches show. `desired` is empty where there are no rows.
pub fn next(facts: &Facts, hub_object: &ObjectKey, desired: Vec<Fields>, observed: &Observed<'_>) -> Planned {
    let mut planned = Planned::default();
    let Some(live) = &observed.hub_object else {
        planned.waiting = Some(Waiting::Absent);
        return planned;
    };
    let Some(mark) = mark(facts.shape, hub_object) else {
        let fields = desired.into_iter().next().unwrap_or_else(|| cleared(facts));
        compare(&mut planned, live, fields, None, observed);
        return planned;
    };
    if live.deleting {
        // What it owns goes with it.
        planned.waiting = Some(Waiting::Leaving);
        return planned;
    }
    let wanted = desired.len();
    for (index, fields) in desired.into_iter().enumerate() {
        let key = part_name(facts.shape, hub_object, index);
        match observed.made.get(&key) {
            None => {
                let digest = Digest::of(&fields);
                planned.parts.push((key.clone(), digest));
                if (observed.accepted)(&key, digest).is_some() {
                    // Made a moment ago; the cache has yet to show it.
                    continue;
                }
                let owner = (Arc::clone(&hub_object.name), Arc::clone(&live.uid));
                planned.changes.push(Change::Create { key, fields, mark: mark.clone(), owner });
            }
            Some(held) if is_ours(held, &mark, live) && !held.deleting => {
                compare(&mut planned, held, fields, Some(&held.uid), observed);
            }
            Some(held) => {
                if held.deleting || is_an_orphan(held, &mark, hub_object) {
                    planned.waiting.get_or_insert(Waiting::Leaving);
                } else {
                    planned.waiting = Some(Waiting::Foreign);
                    planned.foreign.push(key.clone());
                }
                planned.blockers.push((key, Arc::clone(&held.uid)));
            }
        }
    }
    let needed: Vec<ObjectKey> = (0..wanted).map(|index| part_name(facts.shape, hub_object, index)).collect();
    for (key, held) in &observed.made {
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
    let differs = found != Some(desired) && (found.is_none() || found != (observed.accepted)(&held.key, desired));
    if differs || (observed.outdated)(&held.key, desired) {
        planned.changes.push(Change::Patch { key: held.key.clone(), fields, only: only.cloned() });
    }
}

/// The fields of a hub object without rows.
pub fn cleared(facts: &Facts) -> Fields {
    if facts.fields == ["numberOfSelectedClusters"] {
        return Fields::from([("numberOfSelectedClusters", Value::from(0))]);
    }
    Fields::new()
}

/// Whether an object was made for the hub object that lives now. An owner is in the namespace of what it owns: a reference
/// to another's, as a copy of ours has, means nothing.
fn is_ours(held: &Object, mark: &Mark, live: &Object) -> bool {
    let is_controlled = held.controller.as_ref().is_some_and(|owner| owner.uid == live.uid);
    held.key.namespace == live.key.namespace && has_mark(held, mark) && is_controlled
}

/// Whether an object was made for a hub object of that name that is no more.
fn is_an_orphan(held: &Object, mark: &Mark, hub_object: &ObjectKey) -> bool {
    has_mark(held, mark) && held.controller.as_ref().is_some_and(|owner| owner.name == hub_object.name)
}

fn has_mark(held: &Object, mark: &Mark) -> bool {
    held.labels.get(mark.label).is_some_and(|value| **value == *mark.value)
}

/// The body of a new object. Fields of a status are not in it: the API server would drop them.
pub fn body_of_new(facts: &Facts, change: &Change, api_version: &str, kind: &str) -> Option<Value> {
    let Change::Create { key, fields, mark, owner: (name, uid) } = change else { return None };
    let (owner_version, owner_kind) = facts.owner_type()?;
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
    if facts.home == Home::Root {
        body.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }
    Some(Value::Object(body))
}

/// The patch that sets the fields of ours, and its media type.
///
/// Fields of a status are set by a merge patch, which works whether there is a status or not: they are lists and
/// scalars, which a merge replaces whole. Fields of the root may be objects, which a merge would mix with what is there:
/// a JSON patch replaces them, and takes away what is not there by setting it first. Where it is for one object `only`,
/// it is a JSON patch, too, that begins with a look at the UID; of what is made the whole status is ours.
pub fn patch(facts: &Facts, mut fields: Fields, only: Option<&str>) -> (&'static str, Value) {
    let mut operations: Vec<Value> =
        only.iter().map(|uid| json!({"op": "test", "path": "/metadata/uid", "value": uid})).collect();
    match facts.home {
        Home::Status if only.is_some() => {
            operations.push(json!({"op": "add", "path": "/status", "value": fields}));
            ("application/json-patch+json", Value::Array(operations))
        }
        Home::Status => {
            let status: Map<String, Value> = facts
                .fields
                .iter()
                .map(|name| ((*name).to_owned(), fields.remove(name).unwrap_or(Value::Null)))
                .collect();
            ("application/merge-patch+json", json!({"status": status}))
        }
        Home::Root => {
            for name in facts.fields {
                let path = format!("/{name}");
                let value = fields.remove(name);
                let is_absent = value.is_none();
                operations.push(json!({"op": "add", "path": path, "value": value}));
                if is_absent {
                    operations.push(json!({"op": "remove", "path": path}));
                }
            }
            ("application/json-patch+json", Value::Array(operations))
        }
    }
}

#[cfg(test)]
mod tests;
