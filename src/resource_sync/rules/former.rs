//! Former names of a section's marks, from before the section, its finalizer or its domain was renamed. Marks with former
//! names count as the section's own, and are renamed when their pair is next reconciled. The mark of a remote cluster that an
//! operator has replaced is renewed in the same way. Pure.
//!
//! A renewal keeps every value under its present name: one guarded write for each object, which changes nothing that a rule
//! depends on. It also renews the record of field managers, which proves the marks. That costs a read, since the caches do not
//! hold the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value, json};

use super::elsewhere::Clusters;
use super::marks::{Marks, NamespaceOwner};
use super::ownership;
use super::patch::{escape, replace_version};
use super::plan::Policy;
use crate::cluster::Object;

/// Which object of a pair gets the present names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The remote object.
    Remote,
    /// The local object.
    Local,
    /// The local namespace.
    Namespace,
}

/// A change of marks from their former names to their present ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The object.
    pub place: Place,
    /// Annotations to set (`Some`) or to remove (`None`).
    annotations: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// The new list of finalizers, where it changes.
    finalizers: Option<Vec<Arc<str>>>,
    /// The record of field managers has an entry of a former name of the section.
    pub managers: bool,
}

impl Renewal {
    /// The renewal of the remote object. None while it is being deleted: the API server accepts no new finalizer then.
    pub fn of_remote(remote: &Object, policy: &Policy, clusters: &Clusters) -> Option<Self> {
        let marks = &policy.marks;
        if remote.deleting || !marks.has_former_names() {
            return None;
        }
        // Without write-back the notes belong to another section.
        let mut annotations = if policy.write_back {
            // The note of another section stays.
            let is_theirs = |mark: &Arc<str>| *mark == marks.local_cluster && marks.is_noted_by_others(remote);
            let which: Vec<&Arc<str>> = marks.on_remote().into_iter().filter(|mark| !is_theirs(mark)).collect();
            renamed(remote, marks, &which)
        } else {
            BTreeMap::new()
        };
        let finalizers = marks.holds_former(remote).then(|| {
            // From now on a finalizer with the former name is not ours.
            let note = clusters.note(remote, policy);
            annotations.extend(note.map(|note| (Arc::clone(&marks.local_cluster), Some(note))));
            let others = remote.finalizers.iter().filter(|held| !marks.is_finalizer_on(remote, held)).cloned();
            others.chain([Arc::clone(&marks.finalizer)]).collect()
        });
        Self { place: Place::Remote, annotations, finalizers, managers: false }.if_any()
    }

    /// The renewal of a local object of ours.
    pub fn of_local(local: &Object, policy: &Policy) -> Option<Self> {
        if !policy.marks.has_former_names() || local.deleting || !ownership::is_ours(local, policy) {
            return None;
        }
        let annotations = renamed(local, &policy.marks, &policy.marks.on_local());
        Self { place: Place::Local, annotations, finalizers: None, managers: wrote_before(local, policy) }.if_any()
    }

    /// The renewal of a namespace of ours.
    pub fn of_namespace(namespace: &Object, policy: &Policy, clusters: &Clusters) -> Option<Self> {
        let marks = &policy.marks;
        let new_source = clusters.new_source(namespace, policy);
        if namespace.deleting
            || marks.namespace_owner(namespace) == NamespaceOwner::Others
            || !(marks.has_former_names() || new_source.is_some())
        {
            return None;
        }
        let mut annotations = renamed(namespace, marks, &marks.on_namespace());
        if marks.value_of(namespace, &marks.owner_section).is_some_and(|section| *section != *marks.section) {
            annotations.insert(Arc::clone(&marks.owner_section), Some(Arc::clone(&marks.section)));
        }
        annotations.extend(new_source.map(|uid| (Arc::clone(&marks.remote_cluster), Some(uid))));
        Self { place: Place::Namespace, annotations, finalizers: None, managers: wrote_before(namespace, policy) }
            .if_any()
    }

    /// Whether it only writes the remote cluster of a namespace, without which everything else works.
    pub fn is_only_source(&self, policy: &Policy) -> bool {
        let marks = &policy.marks;
        let is_source = |mark: &Arc<str>| *mark == marks.remote_cluster;
        self.place == Place::Namespace && !self.managers && self.annotations.keys().all(is_source)
    }

    fn if_any(self) -> Option<Self> {
        (!self.annotations.is_empty() || self.finalizers.is_some() || self.managers).then_some(self)
    }

    /// Applies the renewal to an object in memory.
    pub fn apply_to(&self, object: &mut Object, policy: &Policy) {
        if let Some(finalizers) = &self.finalizers {
            object.finalizers.clone_from(finalizers);
        }
        for (mark, value) in &self.annotations {
            match value {
                Some(value) => object.annotations.insert(Arc::clone(mark), Arc::clone(value)),
                None => object.annotations.remove(mark),
            };
        }
        if self.place == Place::Remote {
            return;
        }
        let manager = policy.manager();
        let mut owned = object.owned_by_mut(&manager).map(std::mem::take).unwrap_or_default();
        object.owned.retain(|held| {
            let is_former = policy.managers.contains(&held.manager);
            if is_former {
                owned.labels.extend(held.labels.iter().cloned());
                owned.annotations.extend(held.annotations.iter().cloned());
            }
            !is_former && !held.manager.is_empty()
        });
        for (mark, value) in &self.annotations {
            owned.annotations.remove(mark);
            owned.annotations.extend(value.is_some().then(|| Arc::clone(mark)));
        }
        owned.manager = manager;
        object.owned.push(owned);
    }

    /// The JSON patch of the renewal, for the object as it was read; `managers`: its record of field managers.
    pub fn json_patch(&self, object: &Object, managers: Option<&[ManagedFieldsEntry]>, policy: &Policy) -> Value {
        let mut operations = vec![replace_version(object)];
        if let Some(finalizers) = &self.finalizers {
            let held: Vec<&str> = finalizers.iter().map(AsRef::as_ref).collect();
            operations.push(json!({"op": "replace", "path": "/metadata/finalizers", "value": held}));
        }
        let has_map = !object.annotations.is_empty() || object.hidden_annotations;
        if !has_map && !self.annotations.is_empty() {
            let set =
                self.annotations.iter().filter_map(|(mark, value)| Some((mark.to_string(), json!(value.as_deref()?))));
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": set.collect::<Map<_, _>>()}));
        }
        for (mark, value) in self.annotations.iter().filter(|_| has_map) {
            let path = format!("/metadata/annotations/{}", escape(mark));
            operations.push(match value {
                Some(value) => json!({"op": "add", "path": path, "value": &**value}),
                None => json!({"op": "remove", "path": path}),
            });
        }
        if let Some(managers) = managers.filter(|_| self.managers) {
            let renewed = renewed_managers(managers, policy);
            operations.push(json!({"op": "replace", "path": "/metadata/managedFields", "value": renewed}));
        }
        Value::Array(operations)
    }
}

/// Whether a field manager with a former name of the section wrote the object.
fn wrote_before(object: &Object, policy: &Policy) -> bool {
    policy.managers.iter().skip(1).any(|manager| object.owned_by(manager).is_some())
}

/// Renames marks with former domains. A mark that has its present name already keeps its value.
fn renamed(object: &Object, marks: &Marks, which: &[&Arc<str>]) -> BTreeMap<Arc<str>, Option<Arc<str>>> {
    let mut annotations = BTreeMap::new();
    for mark in which {
        for former in marks.former_names_of(mark) {
            let Some(value) = object.annotations.get(&*former) else { continue };
            if object.annotations.contains_key(*mark) {
                annotations.insert(former, None);
                continue;
            }
            annotations.entry(Arc::clone(mark)).or_insert_with(|| Some(Arc::clone(value)));
            annotations.insert(former, None);
        }
    }
    annotations
}

/// The record of field managers with the section's present manager in the place of its former ones. Entries that become equal
/// in manager, operation and version are merged, since the API server keeps only the last of them.
fn renewed_managers(managers: &[ManagedFieldsEntry], policy: &Policy) -> Vec<ManagedFieldsEntry> {
    let mut renewed: Vec<ManagedFieldsEntry> = Vec::new();
    for entry in managers {
        let mut entry = entry.clone();
        let is_main = entry.subresource.as_deref().unwrap_or_default().is_empty();
        if is_main && policy.managers.iter().any(|manager| entry.manager.as_deref() == Some(&**manager)) {
            entry.manager = Some(policy.manager().to_string());
        }
        let same = |held: &&mut ManagedFieldsEntry| {
            (&held.manager, &held.operation, &held.api_version, &held.subresource)
                == (&entry.manager, &entry.operation, &entry.api_version, &entry.subresource)
        };
        match renewed.iter_mut().find(same) {
            Some(held) => {
                let mut fields = held.fields_v1.take().map_or_else(Value::default, |fields| fields.0);
                unite(&mut fields, entry.fields_v1.map_or_else(Value::default, |fields| fields.0));
                held.fields_v1 = Some(FieldsV1(fields));
            }
            None => renewed.push(entry),
        }
    }
    renewed
}

/// The union of two sets of fields.
fn unite(fields: &mut Value, others: Value) {
    let Value::Object(others) = others else { return };
    if !fields.is_object() {
        *fields = Value::Object(Map::new());
    }
    if let Value::Object(fields) = fields {
        for (field, below) in others {
            unite(fields.entry(field).or_insert_with(|| json!({})), below);
        }
    }
}
