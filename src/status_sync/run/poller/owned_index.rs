//! Finds the objects that a hub object owns.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Object, ObjectKey};

/// The objects of a cache by the UID of their controlling owner, namespace by namespace.
///
/// A namespace is indexed when it is first needed, and only once: a scan for each hub object would be quadratic. Other
/// namespaces are not indexed, since a recheck between passes concerns few objects. The index does not follow the cache:
/// a watch reports later objects to [`Table::record_change`](super::table::Table::record_change), which requeues their
/// owner.
#[derive(Debug, Default)]
pub(super) struct OwnedIndex(HashMap<Arc<str>, ByOwner>);

type ByOwner = HashMap<Arc<str>, Vec<ObjectKey>>;

impl OwnedIndex {
    /// The objects that this one controls, all in its own namespace. `list` returns the objects of a namespace.
    pub(super) fn owned_by(&mut self, owner: &Object, list: impl FnOnce(&str) -> Vec<Arc<Object>>) -> &[ObjectKey] {
        let namespace = &owner.key.namespace;
        let objects = self.0.entry(Arc::clone(namespace)).or_insert_with(|| by_owner(list(namespace)));
        objects.get(&owner.uid).map_or(&[], Vec::as_slice)
    }
}

fn by_owner(objects: Vec<Arc<Object>>) -> ByOwner {
    let mut by_owner = ByOwner::new();
    for object in objects {
        if let Some(owner) = &object.controller {
            by_owner.entry(Arc::clone(&owner.uid)).or_default().push(object.key.clone());
        }
    }
    by_owner
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Decoded;

    /// An object with an owner; its UID is its name.
    fn object(namespace: &str, name: &str, owner: &str, controller: bool) -> Arc<Object> {
        let owners =
            json!([{"apiVersion": "x/v1", "kind": "X", "name": "same", "uid": owner, "controller": controller}]);
        let object =
            json!({"metadata": {"namespace": namespace, "name": name, "uid": name, "ownerReferences": owners}});
        Arc::new(serde_json::from_value::<Decoded>(object).unwrap().into_object())
    }

    /// Returns the objects of a namespace, and records that it was listed.
    fn list<'w>(
        objects: &'w [Arc<Object>],
        listed: &'w mut Vec<String>,
    ) -> impl FnOnce(&str) -> Vec<Arc<Object>> + use<'w> {
        move |namespace| {
            listed.push(namespace.to_owned());
            objects.iter().filter(|object| *object.key.namespace == *namespace).cloned().collect()
        }
    }

    #[test]
    fn each_owner_has_the_objects_that_it_controls_and_no_others() {
        let objects = [
            object("n", "a-1", "a", true),
            object("n", "b-1", "b", true),
            object("n", "a-2", "a", true),
            object("n", "c-1", "c", false),
            object("copies", "a-1", "a", true),
        ];
        let (mut index, mut listed) = (OwnedIndex::default(), Vec::new());
        let mut owned_by =
            |owner| index.owned_by(&object("n", owner, "nobody", true), list(&objects, &mut listed)).to_vec();
        assert_eq!(owned_by("a"), [ObjectKey::new("n", "a-1"), ObjectKey::new("n", "a-2")]);
        assert_eq!(owned_by("b"), [ObjectKey::new("n", "b-1")]);
        assert!(owned_by("c").is_empty());
    }

    #[test]
    fn a_namespace_is_listed_once_and_only_if_it_is_needed() {
        let objects =
            [object("n", "a-1", "a", true), object("m", "b-1", "b", true), object("unasked", "c-1", "c", true)];
        let (mut index, mut listed) = (OwnedIndex::default(), Vec::new());
        for (namespace, owner) in [("n", "a"), ("m", "b"), ("n", "other"), ("m", "b"), ("n", "a")] {
            index.owned_by(&object(namespace, owner, "nobody", true), list(&objects, &mut listed));
        }
        assert_eq!(listed, ["n", "m"]);
    }
}
