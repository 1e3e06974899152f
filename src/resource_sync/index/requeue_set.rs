//! Pairs that are to be requested again.
//!
//! Whoever requests them may be stopped at any moment, and a key may be added anew while it is being requested: so a key
//! is only taken out after its request, and only if it was not added again since it was seen.

use std::collections::BTreeMap;

use crate::resource_sync::rules::names::PairKey;

/// The keys.
#[derive(Debug, Default)]
pub(crate) struct RequeueSet {
    /// With a number of the moment in which each was added last.
    keys: BTreeMap<PairKey, u64>,
    last: u64,
}

/// When a key was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Added(u64);

impl RequeueSet {
    pub(crate) fn insert(&mut self, key: PairKey) {
        self.last += 1;
        self.keys.insert(key, self.last);
    }

    /// Those of now.
    pub(crate) fn seen(&self) -> Vec<(PairKey, Added)> {
        self.keys.iter().map(|(key, added)| (key.clone(), Added(*added))).collect()
    }

    /// It was requested after it was seen.
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
    fn what_is_added_again_meanwhile_is_owed_again() {
        let [one, two] = ["one", "two"].map(|name| PairKey::alike("n", name));
        let mut owed = RequeueSet::default();
        owed.insert(one.clone());
        owed.insert(two);
        let seen = owed.seen();
        owed.insert(one);
        for (key, added) in seen {
            owed.requested(&key, added);
        }
        assert_eq!(owed.keys(), ["n/one"]);
    }
}
