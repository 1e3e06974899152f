//! What was made for hub objects, found by its owner.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Object, ObjectKey};

/// The objects of a cache by the UID of their controlling owner, at one moment. One walk through the cache serves a whole
/// pass: a look through it for each hub object would cost the square of their number. What the cache shows later, a watch
/// tells [`Table::note`](super::table::Table::note), which has the owner looked at again.
#[derive(Debug)]
pub(super) struct Made(HashMap<Arc<str>, Vec<ObjectKey>>);

impl Made {
    /// Of these objects.
    pub(super) fn of(objects: impl IntoIterator<Item = Arc<Object>>) -> Self {
        let mut by_owner: HashMap<Arc<str>, Vec<ObjectKey>> = HashMap::new();
        for object in objects {
            if let Some(owner) = &object.controller {
                by_owner.entry(Arc::clone(&owner.uid)).or_default().push(object.key.clone());
            }
        }
        Self(by_owner)
    }

    /// The objects of this owner.
    pub(super) fn by(&self, owner: &str) -> &[ObjectKey] {
        self.0.get(owner).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Decoded;

    /// An object with an owner.
    fn object(name: &str, owner: &str, controller: bool) -> Arc<Object> {
        let owners =
            json!([{"apiVersion": "x/v1", "kind": "X", "name": "same", "uid": owner, "controller": controller}]);
        let object = json!({"metadata": {"namespace": "n", "name": name, "uid": name, "ownerReferences": owners}});
        Arc::new(serde_json::from_value::<Decoded>(object).unwrap().into_object())
    }

    #[test]
    fn each_owner_has_its_own_and_what_it_does_not_control_is_not_its() {
        let made = Made::of([object("a-1", "a", true), object("b-1", "b", true), object("a-2", "a", true)]);
        assert_eq!(made.by("a"), [ObjectKey::new("n", "a-1"), ObjectKey::new("n", "a-2")]);
        assert_eq!(made.by("b"), [ObjectKey::new("n", "b-1")]);
        assert!(Made::of([object("c-1", "c", false)]).by("c").is_empty());
    }
}
