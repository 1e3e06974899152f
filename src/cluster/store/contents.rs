//! What a store holds, behind its one lock.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Tracker;
use crate::cluster::object::{Object, ObjectKey};

/// Objects by namespace and name. Hashed, not sorted: every event looks some up, and each comparison in a tree of text keys
/// is one more cache miss of the processor.
#[derive(Default)]
pub(super) struct Objects(pub(super) HashMap<Arc<str>, HashMap<Arc<str>, Arc<Object>>>);

impl Objects {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.0.get(&key.namespace)?.get(&key.name)
    }

    pub(super) fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut Arc<Object>> {
        self.0.get_mut(&key.namespace)?.get_mut(&key.name)
    }

    pub(super) fn insert(&mut self, object: Object) {
        let ObjectKey { namespace, name } = object.key.clone();
        self.0.entry(namespace).or_default().insert(name, Arc::new(object));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Object>> {
        let namespace = self.0.get_mut(&key.namespace)?;
        let removed = namespace.remove(&key.name);
        if namespace.is_empty() {
            self.0.remove(&key.namespace);
        }
        removed
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.0.get(namespace).into_iter().flat_map(HashMap::values)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.0.values().flat_map(HashMap::values)
    }
}

/// The keys of all objects by their UIDs.
#[derive(Default)]
pub(super) struct UidIndex {
    pub(super) keys: HashMap<Arc<str>, ObjectKey>,
    /// The keys of the list in progress, which replace the others when it ends.
    pub(super) listing: Option<HashMap<Arc<str>, ObjectKey>>,
}

#[derive(Default)]
pub(super) struct Contents {
    pub(super) objects: Objects,
    /// They are called for every change, while the contents are locked.
    pub(super) trackers: Vec<Arc<dyn Tracker>>,
    /// Objects that disappeared while they were terminating, by namespace, if `remember_terminated` is set;
    /// [`Store::forget`] drops them.
    pub(super) terminated: HashMap<Arc<str>, HashSet<ObjectKey>>,
    pub(super) remember_terminated: bool,
    /// The key of every object by its UID, if the watch indexes UIDs: also of objects that no follower wants, of which
    /// nothing else is kept.
    pub(super) keys_by_uid: Option<UidIndex>,
    /// Keys seen by the list in progress.
    pub(super) listing: Option<BTreeSet<ObjectKey>>,
    /// How many lists have ended.
    pub(super) lists: u64,
    /// How often a list may have been requested: none was in progress when this was raised.
    pub(super) asked: u64,
    /// The same, at the start of the list in progress, and at the start of the last one that has ended.
    pub(super) listing_asked: u64,
    pub(super) listed_asked: u64,
    /// All events up to this version have been applied. Events of one watch come in the order of their versions.
    pub(super) high_water: u64,
}

impl Contents {
    pub(super) fn note_terminated(&mut self, key: &ObjectKey) {
        self.terminated.entry(Arc::clone(&key.namespace)).or_default().insert(key.clone());
    }

    pub(super) fn forget_terminated(&mut self, key: &ObjectKey) -> bool {
        let Some(keys) = self.terminated.get_mut(&key.namespace) else { return false };
        let was_there = keys.remove(key);
        if keys.is_empty() {
            self.terminated.remove(&key.namespace);
        }
        was_there
    }

    pub(super) fn tell(&self, what: impl Fn(&dyn Tracker)) {
        self.trackers.iter().for_each(|tracker| what(&**tracker));
    }

    pub(super) fn raise(&mut self, version: &str) {
        // During a list the cache is not complete up to any version.
        if self.listing.is_none()
            && let Ok(version) = version.parse::<u64>()
        {
            self.high_water = self.high_water.max(version);
        }
    }
}
