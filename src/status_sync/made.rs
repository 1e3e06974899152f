//! What was made for hub objects, found by its owner.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Object, ObjectKey};

/// The objects of a cache by the UID of their controlling owner, namespace by namespace, each as it was when it was asked
/// for first. A namespace is walked through once, whoever asks: a look through it for each hub object would cost the square
/// of their number; and only those are that somebody asks for, since a look between passes is at few objects. What the
/// cache shows later, a watch tells [`Table::note`](super::table::Table::note), which has the owner looked at again.
#[derive(Debug, Default)]
pub(super) struct Made(HashMap<Arc<str>, ByOwner>);

type ByOwner = HashMap<Arc<str>, Vec<ObjectKey>>;

impl Made {
    /// The objects that this one controls, all in its own namespace. `walk` tells the objects of a namespace.
    pub(super) fn by(&mut self, owner: &Object, walk: impl FnOnce(&str) -> Vec<Arc<Object>>) -> &[ObjectKey] {
        let namespace = &owner.key.namespace;
        let by_owner = self.0.entry(Arc::clone(namespace)).or_insert_with(|| sorted(walk(namespace)));
        by_owner.get(&owner.uid).map_or(&[], Vec::as_slice)
    }
}

fn sorted(objects: Vec<Arc<Object>>) -> ByOwner {
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

    /// The objects of a namespace, with the namespace noted as walked through.
    fn walk<'w>(
        objects: &'w [Arc<Object>],
        walked: &'w mut Vec<String>,
    ) -> impl FnOnce(&str) -> Vec<Arc<Object>> + use<'w> {
        move |namespace| {
            walked.push(namespace.to_owned());
            objects.iter().filter(|object| *object.key.namespace == *namespace).cloned().collect()
        }
    }

    #[test]
    fn each_owner_has_its_own_and_what_it_does_not_control_is_not_its() {
        let objects = [
            object("n", "a-1", "a", true),
            object("n", "b-1", "b", true),
            object("n", "a-2", "a", true),
            object("n", "c-1", "c", false),
            object("copies", "a-1", "a", true),
        ];
        let (mut made, mut walked) = (Made::default(), Vec::new());
        let mut by = |owner| made.by(&object("n", owner, "nobody", true), walk(&objects, &mut walked)).to_vec();
        assert_eq!(by("a"), [ObjectKey::new("n", "a-1"), ObjectKey::new("n", "a-2")]);
        assert_eq!(by("b"), [ObjectKey::new("n", "b-1")]);
        assert!(by("c").is_empty());
    }

    #[test]
    fn a_namespace_is_walked_through_once_and_only_where_somebody_asks() {
        let objects =
            [object("n", "a-1", "a", true), object("m", "b-1", "b", true), object("unasked", "c-1", "c", true)];
        let (mut made, mut walked) = (Made::default(), Vec::new());
        for (namespace, owner) in [("n", "a"), ("m", "b"), ("n", "other"), ("m", "b"), ("n", "a")] {
            made.by(&object(namespace, owner, "nobody", true), walk(&objects, &mut walked));
        }
        assert_eq!(walked, ["n", "m"]);
    }
}
