//! Local namespaces that the section's pairs are creating or deleting: one of the pairs in a namespace does it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::plan::names::PairKey;

/// The cache shows a created or deleted namespace within this time. Otherwise another pair tries.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// A deletion of a namespace by this section.
struct Deletion {
    uid: Arc<str>,
    since: Instant,
    /// The pair that has deleted it, if it keeps our finalizer on its remote object until the namespace is gone.
    waits: Option<PairKey>,
}

/// The work on namespaces, by name.
#[derive(Default)]
pub(crate) struct NamespaceWork {
    creating: HashMap<Arc<str>, Instant>,
    deleting: HashMap<Arc<str>, Deletion>,
}

impl NamespaceWork {
    /// Whether the asking pair has to create the namespace. The others are requested when the watch shows it.
    pub(crate) fn may_create(&mut self, namespace: &Arc<str>, now: Instant) -> bool {
        self.creating.retain(|_, since| now.saturating_duration_since(*since) < SHOWN_WITHIN);
        if self.creating.contains_key(namespace) {
            return false;
        }
        self.creating.insert(Arc::clone(namespace), now);
        true
    }

    /// Records that it could not be created, so that another pair may try.
    pub(crate) fn was_not_made(&mut self, namespace: &Arc<str>) {
        self.creating.remove(namespace);
    }

    /// Whether the asking pair has to delete the namespace. The others are requested when the watch shows it. `waits`: the pair
    /// keeps its finalizer until the namespace is gone.
    pub(crate) fn may_delete(&mut self, namespace: &Object, waits: Option<&PairKey>, now: Instant) -> bool {
        if let Some(deletion) = self.deleting.get(&namespace.key.name)
            && deletion.uid == namespace.uid
            && now.saturating_duration_since(deletion.since) < SHOWN_WITHIN
        {
            return false;
        }
        let deletion = Deletion { uid: Arc::clone(&namespace.uid), since: now, waits: waits.cloned() };
        self.deleting.insert(Arc::clone(&namespace.key.name), deletion);
        true
    }

    /// Forgets a deletion that has failed or whose outcome is unknown, so that another pair may try, or that is complete.
    pub(crate) fn forget_deletion(&mut self, namespace: &str) {
        self.deleting.remove(namespace);
    }

    /// Whether another pair of this run has deleted the namespace and waits until it is gone.
    pub(crate) fn another_awaits_end_of(&self, namespace: &Object, pair: &PairKey) -> bool {
        let deletion = self.deleting.get(&namespace.key.name).filter(|_| namespace.deleting);
        deletion.is_some_and(|deletion| {
            deletion.uid == namespace.uid && deletion.waits.as_ref().is_some_and(|waits| waits != pair)
        })
    }
}
