//! Pairs that have to be requested again.
//!
//! The requeue actor may be stopped at any moment, and a key may be added anew while it is being requested. Therefore a key is only
//! removed after its request, and only if it was not added again since it was seen.

use std::collections::BTreeMap;

use crate::resource_sync::plan::names::PairKey;

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
