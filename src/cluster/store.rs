//! The cache behind one watch. Its watcher is the only writer; followers and sections read it.

mod contents;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::object::{Object, ObjectKey, is_at_least};
use contents::{Contents, UidIndex};

/// Whether decisions can be based on the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// No list has ended yet, or the last one is void because the kind is no longer served.
    No {
        /// What prevents it, if anything does.
        reason: Option<String>,
        /// Whether the cluster does not answer, as opposed to a missing kind or permission.
        unreachable: bool,
    },
    /// The first list has ended; the cache follows the watch.
    Yes,
}

/// What the cache knows about a key that it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The object was terminating when it was last seen.
    pub seen_terminating: bool,
}

/// Is told of every change of a store as it happens, under the store's lock: it must not call the store.
pub trait Tracker: Send + Sync {
    /// What the store holds or knows of a key may have changed.
    fn changed(&self, key: &ObjectKey);
    /// The object with this UID has another key than before, or was not known before.
    fn moved(&self, uid: &str, before: Option<&ObjectKey>);
    /// Anything may have changed: a list has ended, or the store was emptied.
    fn reset(&self);
}

/// A moment between two lists of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMoment(u64);

/// A cache of one kind's objects.
pub struct Store {
    contents: RwLock<Contents>,
    listed: watch::Sender<Listed>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            contents: RwLock::default(),
            listed: watch::Sender::new(Listed::No { reason: None, unreachable: false }),
        }
    }
}

impl Store {
    /// Tells this tracker of every change from now on.
    pub fn track(&self, tracker: Arc<dyn Tracker>) {
        self.contents.write().trackers.push(tracker);
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.contents.read().objects.get(key).cloned()
    }

    /// What is known about a key that is not held.
    pub fn absence(&self, key: &ObjectKey) -> Absence {
        let contents = self.contents.read();
        let in_namespace = contents.terminated.get(&key.namespace);
        Absence { seen_terminating: in_namespace.is_some_and(|keys| keys.contains(key)) }
    }

    /// Whether the cache has caught up with a write: what it shows of the object is the write's result or newer.
    pub fn has_caught_up(&self, key: &ObjectKey, written: &str) -> bool {
        let contents = self.contents.read();
        written.parse::<u64>().is_ok_and(|written| contents.high_water >= written)
            || contents.objects.get(key).is_some_and(|held| is_at_least(&held.resource_version, written))
    }

    /// The present, in terms of lists.
    pub fn moment(&self) -> ListMoment {
        ListMoment(self.contents.read().asked)
    }

    /// Whether a list that was requested after that moment has ended: it shows all writes before that moment.
    pub fn has_listed_since(&self, moment: ListMoment) -> bool {
        self.contents.read().listed_asked > moment.0
    }

    /// No list is in progress, and the next one has not been requested: the watcher is about to start, or has just received
    /// an error.
    pub(super) fn may_list(&self) {
        self.contents.write().asked += 1;
    }

    /// Keeps from now on what the [`WatchSpec`](super::WatchSpec) says: which objects were terminating when they
    /// disappeared, and the key of every object by its UID.
    pub(super) fn keep(&self, terminated: bool, uids: bool) {
        let mut contents = self.contents.write();
        contents.remember_terminated |= terminated;
        if uids {
            contents.keys_by_uid.get_or_insert_default();
        }
    }

    /// The key of the object with this UID, wanted or not; only where the watch indexes UIDs.
    pub fn key_of(&self, uid: &str) -> Option<ObjectKey> {
        self.contents.read().keys_by_uid.as_ref()?.keys.get(uid).cloned()
    }

    /// An object was seen, wanted or not.
    pub(super) fn saw(&self, object: &Object) {
        let mut contents = self.contents.write();
        let Some(UidIndex { keys, listing }) = &mut contents.keys_by_uid else { return };
        if let Some(listing) = listing {
            listing.insert(Arc::clone(&object.uid), object.key.clone());
        }
        let before = keys.insert(Arc::clone(&object.uid), object.key.clone());
        if before.as_ref() != Some(&object.key) {
            contents.tell(|tracker| tracker.moved(&object.uid, before.as_ref()));
        }
    }

    /// An object was deleted, wanted or not.
    pub(super) fn lost(&self, object: &Object) {
        if let Some(keys) = &mut self.contents.write().keys_by_uid {
            for keys in keys.listing.iter_mut().chain([&mut keys.keys]) {
                keys.remove(&object.uid);
            }
        }
    }

    /// Forgets that the object with this key was terminating.
    pub fn forget(&self, key: &ObjectKey) {
        let mut contents = self.contents.write();
        if contents.forget_terminated(key) {
            contents.tell(|tracker| tracker.changed(key));
        }
    }

    /// The keys in a namespace whose objects disappeared while they were terminating.
    pub fn terminated_in(&self, namespace: &str) -> Vec<ObjectKey> {
        self.contents.read().terminated.get(namespace).into_iter().flatten().cloned().collect()
    }

    /// All keys, in no order.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.contents.read().objects.all().map(|object| object.key.clone()).collect()
    }

    /// All objects, as they are now, in no order.
    pub fn objects(&self) -> Vec<Arc<Object>> {
        self.contents.read().objects.all().cloned().collect()
    }

    /// The objects of one namespace, as they are now.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.contents.read().objects.in_namespace(namespace).cloned().collect()
    }

    /// The names of the objects of one namespace, in no order.
    pub fn names_in_namespace(&self, namespace: &str) -> Vec<Arc<str>> {
        self.contents.read().objects.in_namespace(namespace).map(|object| Arc::clone(&object.key.name)).collect()
    }

    /// How many objects there are in one namespace.
    pub fn count_in_namespace(&self, namespace: &str) -> usize {
        self.contents.read().objects.0.get(namespace).map_or(0, HashMap::len)
    }

    /// Whether decisions can be based on it now.
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow() == Listed::Yes
    }

    /// Whether a list is in progress: objects that it has not shown yet may exist nevertheless.
    pub fn is_listing(&self) -> bool {
        self.contents.read().listing.is_some()
    }

    /// How many lists have ended.
    pub fn lists(&self) -> u64 {
        self.contents.read().lists
    }

    /// Follows whether decisions can be based on it.
    pub fn listed(&self) -> watch::Receiver<Listed> {
        self.listed.subscribe()
    }

    /// Marks the cache as void, for this reason.
    pub(super) fn set_unlisted(&self, reason: String, unreachable: bool) {
        self.listed.send_if_modified(|listed| {
            let next = Listed::No { reason: Some(reason), unreachable };
            let changed = *listed != next;
            *listed = next;
            changed
        });
    }

    /// Empties the cache and marks it as void, because nobody needs it any more.
    pub(super) fn clear(&self) {
        {
            let mut contents = self.contents.write();
            // The counters of lists keep their values.
            let Contents { remember_terminated, lists, asked, .. } = *contents;
            let keys_by_uid = contents.keys_by_uid.is_some().then(UidIndex::default);
            let trackers = std::mem::take(&mut contents.trackers);
            *contents = Contents { trackers, remember_terminated, keys_by_uid, lists, asked, ..Contents::default() };
            contents.tell(|tracker| tracker.reset());
        }
        self.listed.send_replace(Listed::No { reason: None, unreachable: false });
    }

    /// A watch event of a new or changed object; returns whether it differs from what was held.
    pub(super) fn apply(&self, object: Object) -> bool {
        let mut contents = self.contents.write();
        contents.forget_terminated(&object.key);
        contents.raise(&object.resource_version);
        if let Some(listing) = &mut contents.listing {
            listing.insert(object.key.clone());
        }
        let key = object.key.clone();
        match contents.objects.get_mut(&key) {
            Some(held) if held.resource_version == object.resource_version && held.uid == object.uid => return false,
            Some(held) => *held = Arc::new(object),
            None => contents.objects.insert(object),
        }
        contents.tell(|tracker| tracker.changed(&key));
        true
    }

    /// A watch event of a deleted object.
    pub(super) fn delete(&self, last: &Object) {
        let mut contents = self.contents.write();
        contents.raise(&last.resource_version);
        let held = contents.objects.remove(&last.key);
        if contents.remember_terminated && (last.deleting || held.is_some_and(|held| held.deleting)) {
            contents.note_terminated(&last.key);
        }
        contents.tell(|tracker| tracker.changed(&last.key));
    }

    /// A list begins: objects that it does not show are removed when it ends.
    pub(super) fn begin_list(&self) {
        let mut contents = self.contents.write();
        contents.listing = Some(BTreeSet::new());
        if let Some(keys) = &mut contents.keys_by_uid {
            keys.listing = Some(HashMap::new());
        }
        contents.listing_asked = contents.asked;
    }

    /// The list has ended; returns the keys that vanished.
    pub(super) fn end_list(&self) -> Vec<ObjectKey> {
        let vanished = {
            let mut contents = self.contents.write();
            let seen = contents.listing.take().unwrap_or_default();
            if let Some(keys) = &mut contents.keys_by_uid
                && let Some(listed) = keys.listing.take()
            {
                keys.keys = listed;
            }
            contents.lists += 1;
            contents.listed_asked = contents.listing_asked;
            // A list is one consistent state, at least as new as its newest object. Not the maximum with the old value:
            // a restored cluster counts from lower versions.
            contents.high_water = seen
                .iter()
                .filter_map(|key| contents.objects.get(key)?.resource_version.parse().ok())
                .max()
                .unwrap_or_default();
            let keys = contents.objects.all().map(|object| &object.key);
            let vanished: Vec<ObjectKey> = keys.filter(|key| !seen.contains(*key)).cloned().collect();
            for key in &vanished {
                // Seen terminating before the gap and gone after it: a regular deletion.
                let was_terminating = contents.objects.remove(key).is_some_and(|held| held.deleting);
                if was_terminating && contents.remember_terminated {
                    contents.note_terminated(key);
                }
            }
            contents.tell(|tracker| tracker.reset());
            vanished
        };
        self.listed.send_if_modified(|listed| std::mem::replace(listed, Listed::Yes) != Listed::Yes);
        vanished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Decoded;

    fn object(name: &str, version: u64, deleting: bool) -> Object {
        let deletion = if deleting { r#","deletionTimestamp":"2026-01-01T00:00:00Z""# } else { "" };
        serde_json::from_str::<Decoded>(&format!(
            r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"{name}","resourceVersion":"{version}"{deletion}}}}}"#
        ))
        .unwrap()
        .into_object()
    }

    #[test]
    fn a_relist_reports_exactly_what_vanished() {
        let store = Store::default();
        store.keep(true, false);
        store.begin_list();
        for name in ["a", "b", "c"] {
            assert!(store.apply(object(name, 1, name == "c")));
        }
        assert!(!store.is_listed());
        assert!(store.end_list().is_empty());
        assert!(store.is_listed());
        store.begin_list();
        assert!(!store.apply(object("a", 1, false)), "unchanged");
        assert!(store.apply(object("d", 5, false)));
        let vanished: BTreeSet<String> = store.end_list().iter().map(ToString::to_string).collect();
        assert_eq!(vanished, BTreeSet::from(["n/b".to_owned(), "n/c".to_owned()]));
        assert!(store.absence(&ObjectKey::new("n", "c")).seen_terminating);
        assert!(!store.absence(&ObjectKey::new("n", "b")).seen_terminating);
        for (namespace, count) in [("n", 2), ("m", 0)] {
            assert_eq!(store.in_namespace(namespace).len(), count);
            assert_eq!(store.names_in_namespace(namespace).len(), count);
            assert_eq!(store.count_in_namespace(namespace), count);
        }
    }

    #[test]
    fn a_write_is_caught_up_with_by_its_object_or_by_any_later_event() {
        let store = Store::default();
        store.begin_list();
        store.apply(object("a", 5, false));
        let key = ObjectKey::new("n", "a");
        assert!(store.has_caught_up(&key, "5") && !store.has_caught_up(&key, "6"));
        assert!(!store.has_caught_up(&ObjectKey::new("n", "b"), "3"), "a list in progress proves nothing");
        store.end_list();
        assert!(store.has_caught_up(&ObjectKey::new("n", "b"), "3"));
        store.apply(object("c", 9, false));
        assert!(store.has_caught_up(&key, "8"));
        store.begin_list();
        store.apply(object("a", 2, false));
        store.end_list();
        assert!(!store.has_caught_up(&key, "8"), "a restored cluster counts from lower versions");
    }

    #[test]
    fn only_a_list_that_was_requested_later_shows_what_was_written_before() {
        let store = Store::default();
        store.may_list();
        // A list in progress, in which a write may or may not show.
        let before = store.moment();
        store.begin_list();
        let meanwhile = store.moment();
        store.end_list();
        assert!(!store.has_listed_since(before) && !store.has_listed_since(meanwhile));
        store.may_list();
        store.begin_list();
        assert!(!store.has_listed_since(meanwhile), "it has not ended");
        store.end_list();
        assert!(store.has_listed_since(before) && store.has_listed_since(meanwhile));
        assert!(!store.has_listed_since(store.moment()));
    }

    #[test]
    fn an_object_that_disappeared_without_terminating_is_told_apart() {
        let store = Store::default();
        store.keep(true, false);
        store.apply(object("a", 1, false));
        store.delete(&object("a", 2, false));
        assert!(!store.absence(&ObjectKey::new("n", "a")).seen_terminating);
        store.apply(object("a", 3, true));
        store.delete(&object("a", 4, true));
        assert!(store.absence(&ObjectKey::new("n", "a")).seen_terminating);
        store.forget(&ObjectKey::new("n", "a"));
        assert!(!store.absence(&ObjectKey::new("n", "a")).seen_terminating);
    }
}
