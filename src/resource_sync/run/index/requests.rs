//! The work of a section's requeue actor: pairs to request, and searches.
//!
//! Runs and watches leave requests to the requeue actor. A run that waited for room in its own dispatcher's mailbox would wait for
//! itself.

use std::collections::BTreeMap;

use crate::resource_sync::plan::names::PairKey;

/// Pairs to request, and searches.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Pairs that wait for a cluster or a permission.
    pub(crate) parked: RequeueSet,
    /// Pairs that were requested otherwise.
    pub(crate) asked: RequeueSet,
    /// All pending changes of the guard: how often a request of them was ordered, and for which order it was made last.
    pending_changes: u64,
    pending_changes_requested: u64,
    /// Whether the remote objects outside the selector have to be searched for our finalizer.
    pub(crate) unselected: bool,
}

impl Requests {
    /// Orders a request of all pairs with pending changes, because the guard's decisions may have changed.
    pub(crate) fn pending_changes_may_go(&mut self) {
        self.pending_changes += 1;
    }

    /// The pairs that were requested, and the number of the order to request all pairs with pending changes, if there is a new one.
    pub(crate) fn due(&self) -> (Vec<(PairKey, Added)>, Option<u64>) {
        (self.asked.seen(), (self.pending_changes != self.pending_changes_requested).then_some(self.pending_changes))
    }

    /// Records that all pairs with pending changes were requested for the order with this number.
    pub(crate) fn pending_changes_requested(&mut self, number: u64) {
        self.pending_changes_requested = number;
    }
}

/// Pairs that have to be requested again.
///
/// The requeue actor may be stopped at any moment, and a key may be added anew while it is being requested. Therefore a key is only
/// removed after its request, and only if it was not added again since it was seen.
#[derive(Debug, Default)]
pub(crate) struct RequeueSet {
    /// Each key with the number of its last insertion.
    keys: BTreeMap<PairKey, u64>,
    last: u64,
}

/// The number of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Added(u64);

impl RequeueSet {
    pub(crate) fn insert(&mut self, key: PairKey) {
        self.last += 1;
        self.keys.insert(key, self.last);
    }

    /// The present keys.
    pub(crate) fn seen(&self) -> Vec<(PairKey, Added)> {
        self.keys.iter().map(|(key, added)| (key.clone(), Added(*added))).collect()
    }

    /// Removes a key that was requested after it was seen.
    pub(crate) fn requested(&mut self, key: &PairKey, seen: Added) {
        if self.keys.get(key) == Some(&seen.0) {
            self.keys.remove(key);
        }
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.keys().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_added_again_meanwhile_stays() {
        let [one, two] = ["one", "two"].map(|name| PairKey::alike("n", name));
        let mut set = RequeueSet::default();
        set.insert(one.clone());
        set.insert(two);
        let seen = set.seen();
        set.insert(one);
        for (key, added) in seen {
            set.requested(&key, added);
        }
        assert_eq!(set.keys(), ["n/one"]);
    }
}
