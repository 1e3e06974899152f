//! Marks that get another content without any other change of their object: a finalizer with a former name
//! (`former_finalizers`) gets its present one, and a namespace the mark of the remote cluster that has taken the place of
//! another. One guarded write for each object. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::elsewhere::Clusters;
use super::marks::NamespaceOwner;
use super::patch::replace_version;
use super::policy::Policy;
use crate::cluster::Object;
use crate::yaml::escape;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RenewedObject {
    Remote,
    /// The local namespace.
    Namespace,
}

/// A renewal of the marks of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    pub place: RenewedObject,
    /// Annotations to set.
    annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// The new list of finalizers, where it changes.
    finalizers: Option<Vec<Arc<str>>>,
}

impl Renewal {
    /// The renewal of the remote object. None while it is being deleted: the API server accepts no new finalizer then.
    pub fn of_remote(remote: &Object, policy: &Policy, clusters: &Clusters) -> Option<Self> {
        let marks = &policy.marks;
        if remote.deleting || !marks.holds_former(remote) {
            return None;
        }
        // From now on a finalizer with the former name is not ours.
        let note = clusters.note(remote, policy).map(|note| (Arc::clone(&marks.local_cluster), note));
        let others = remote.finalizers.iter().filter(|held| !marks.is_finalizer_on(remote, held)).cloned();
        let finalizers = Some(others.chain([Arc::clone(&marks.finalizer)]).collect());
        Some(Self { place: RenewedObject::Remote, annotations: note.into_iter().collect(), finalizers })
    }

    /// The renewal of a namespace of ours.
    pub fn of_namespace(namespace: &Object, policy: &Policy, clusters: &Clusters) -> Option<Self> {
        let marks = &policy.marks;
        if namespace.deleting || marks.namespace_owner(namespace) == NamespaceOwner::Others {
            return None;
        }
        let source = clusters.new_source(namespace, policy)?;
        let annotations = BTreeMap::from([(Arc::clone(&marks.remote_cluster), source)]);
        Some(Self { place: RenewedObject::Namespace, annotations, finalizers: None })
    }

    /// Applies the renewal to an object in memory.
    pub fn apply_to(&self, object: &mut Object, policy: &Policy) {
        if let Some(finalizers) = &self.finalizers {
            object.finalizers.clone_from(finalizers);
        }
        for (mark, value) in &self.annotations {
            object.annotations.insert(Arc::clone(mark), Arc::clone(value));
        }
        if self.place == RenewedObject::Namespace
            && let Some(owned) = object.owned_by_mut(&policy.manager)
        {
            owned.annotations.extend(self.annotations.keys().cloned());
        }
    }

    /// The JSON patch of the renewal, for the object as it was read.
    pub fn json_patch(&self, object: &Object) -> Value {
        let mut operations = vec![replace_version(object)];
        if let Some(finalizers) = &self.finalizers {
            let held: Vec<&str> = finalizers.iter().map(AsRef::as_ref).collect();
            operations.push(json!({"op": "replace", "path": "/metadata/finalizers", "value": held}));
        }
        if object.annotations.is_empty() && !object.hidden_annotations {
            let all: Map<_, _> =
                self.annotations.iter().map(|(mark, value)| (mark.to_string(), json!(**value))).collect();
            if !all.is_empty() {
                operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": all}));
            }
        } else {
            for (mark, value) in &self.annotations {
                let path = format!("/metadata/annotations/{}", escape(mark));
                operations.push(json!({"op": "add", "path": path, "value": **value}));
            }
        }
        Value::Array(operations)
    }
}
