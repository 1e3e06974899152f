//! A map of pairs by local key that also finds the pairs of one namespace.

use std::collections::HashMap;
use std::sync::Arc;

use crate::resource_sync::plan::names::PairKey;

/// A map by key, grouped by namespace.
#[derive(Debug)]
pub(crate) struct Pairs<P>(HashMap<Arc<str>, HashMap<PairKey, P>>);

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P> Pairs<P> {
    pub(crate) fn get_mut(&mut self, key: &PairKey) -> Option<&mut P> {
        self.0.get_mut(&key.local.namespace)?.get_mut(key)
    }

    /// The pair of a key, created on first use.
    pub(crate) fn get_or_insert_with(&mut self, key: &PairKey, make: impl FnOnce() -> P) -> &mut P {
        self.0.entry(Arc::clone(&key.local.namespace)).or_default().entry(key.clone()).or_insert_with(make)
    }

    pub(crate) fn remove(&mut self, key: &PairKey) {
        if let Some(pairs) = self.0.get_mut(&key.local.namespace) {
            pairs.remove(key);
            if pairs.is_empty() {
                self.0.remove(&key.local.namespace);
            }
        }
    }

    /// The keys of one namespace, in no order.
    pub(crate) fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &PairKey> {
        self.0.get(namespace).into_iter().flat_map(HashMap::keys)
    }

    /// All pairs, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PairKey, &P)> {
        self.0.values().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&PairKey, &mut P)> {
        self.0.values_mut().flatten()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &P> {
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
            *pairs.get_or_insert_with(&PairKey::alike(namespace, name), u8::default) += 1;
        }
        pairs.remove(&PairKey::alike("a", "one"));
        assert_eq!(pairs.keys_in("a").collect::<Vec<_>>(), [&PairKey::alike("a", "two")]);
        pairs.remove(&PairKey::alike("a", "two"));
        pairs.remove(&PairKey::alike("c", "none"));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(&PairKey::alike("b", "one"), &1)]);
        assert_eq!(pairs.0.len(), 1);
    }
}
