//! A map of pairs by their local keys that also finds those of one namespace.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::PairKey;

/// A map by key, grouped by namespace.
#[derive(Debug)]
pub(super) struct Pairs<P>(HashMap<Arc<str>, HashMap<PairKey, P>>);

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P: Default> Pairs<P> {
    /// The pair of a key.
    pub(super) fn get_mut(&mut self, key: &PairKey) -> Option<&mut P> {
        self.0.get_mut(&key.local.namespace)?.get_mut(key)
    }

    /// The pair of a key, made on first use.
    pub(super) fn get_or_default(&mut self, key: &PairKey) -> &mut P {
        if self.get_mut(key).is_none() {
            self.0.entry(Arc::clone(&key.local.namespace)).or_default().insert(key.clone(), P::default());
        }
        self.0.entry(Arc::clone(&key.local.namespace)).or_default().entry(key.clone()).or_default()
    }

    /// Forgets a pair.
    pub(super) fn remove(&mut self, key: &PairKey) {
        if let Some(pairs) = self.0.get_mut(&key.local.namespace) {
            pairs.remove(key);
            if pairs.is_empty() {
                self.0.remove(&key.local.namespace);
            }
        }
    }

    /// The keys of one namespace, in no order.
    pub(super) fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.0.get(namespace).into_iter().flat_map(HashMap::keys)
    }

    /// All pairs, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PairKey, &P)> {
        self.0.values().flatten()
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&PairKey, &mut P)> {
        self.0.values_mut().flatten()
    }

    /// All pairs without their keys.
    pub(super) fn values(&self) -> impl Iterator<Item = &P> {
        self.iter().map(|(_, pair)| pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_pairs_leaves_nothing_behind() {
        let mut pairs = Pairs::<u8>::default();
        for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one")] {
            *pairs.get_or_default(&PairKey::alike(namespace, name)) += 1;
        }
        pairs.remove(&PairKey::alike("a", "one"));
        assert_eq!(pairs.keys_in("a").collect::<Vec<_>>(), [&PairKey::alike("a", "two")]);
        pairs.remove(&PairKey::alike("a", "two"));
        pairs.remove(&PairKey::alike("c", "none"));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(&PairKey::alike("b", "one"), &1)]);
        assert_eq!(pairs.0.len(), 1);
    }
}
