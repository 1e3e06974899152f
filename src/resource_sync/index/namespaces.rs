//! Local namespaces that the section's pairs are making or deleting: of many that want the same, one does it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::rules::names::PairKey;

/// A namespace that was just made is in the cache within this, or was not made; one that was deleted shows it.
const MADE_WITHIN: Duration = Duration::from_secs(5);

/// That a namespace is being deleted by this section.
struct Deletion {
    uid: Arc<str>,
    since: Instant,
    /// The pair that deleted it, where its remote object bears our finalizer, which stays until the namespace is gone.
    waits: Option<PairKey>,
}

/// What is being done to namespaces, by name.
#[derive(Default)]
pub(crate) struct NamespaceWork {
    making: HashMap<Arc<str>, Instant>,
    deleting: HashMap<Arc<str>, Deletion>,
}

impl NamespaceWork {
    /// Whether a pair that asks now is to make the namespace; the others are asked for when the watch shows it.
    pub(crate) fn may_create(&mut self, namespace: &Arc<str>, now: Instant) -> bool {
        self.making.retain(|_, since| now.saturating_duration_since(*since) < MADE_WITHIN);
        if self.making.contains_key(namespace) {
            return false;
        }
        self.making.insert(Arc::clone(namespace), now);
        true
    }

    /// It could not be made: another pair may try.
    pub(crate) fn was_not_made(&mut self, namespace: &Arc<str>) {
        self.making.remove(namespace);
    }

    /// Whether a pair that asks now is to delete the namespace; the others are asked for when the watch shows it. `waits`:
    /// the pair keeps its finalizer until the namespace is gone.
    pub(crate) fn may_delete(&mut self, namespace: &Object, waits: Option<&PairKey>, now: Instant) -> bool {
        if let Some(deletion) = self.deleting.get(&namespace.key.name)
            && deletion.uid == namespace.uid
            && now.saturating_duration_since(deletion.since) < MADE_WITHIN
        {
            return false;
        }
        let deletion = Deletion { uid: Arc::clone(&namespace.uid), since: now, waits: waits.cloned() };
        self.deleting.insert(Arc::clone(&namespace.key.name), deletion);
        true
    }

    /// It could not be deleted, or that is not known: another pair may try. Or it is gone.
    pub(crate) fn forget_deletion(&mut self, namespace: &str) {
        self.deleting.remove(namespace);
    }

    /// Whether another pair of this run has deleted the namespace, and waits for its end.
    pub(crate) fn another_awaits_end_of(&self, namespace: &Object, pair: &PairKey) -> bool {
        let deletion = self.deleting.get(&namespace.key.name).filter(|_| namespace.deleting);
        deletion.is_some_and(|deletion| {
            deletion.uid == namespace.uid && deletion.waits.as_ref().is_some_and(|waits| waits != pair)
        })
    }
}
