//! The watches whose caches a family decides from, of the kind that it writes and of the owners of created objects; and what follows them.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::actor::KeyMailbox;
use crate::cluster::{Availability, Cluster, Demand, Fence, Follower, Listed, ObjectKey, Store, Watch};
use crate::job::not_listed;
use crate::status::NotReady;

pub(super) struct HubWatches {
    /// The kind that the family writes.
    pub(super) target: Arc<Watch>,
    /// The kind of the hub objects, if it is not the kind that the family writes. Hub objects own what is written then.
    pub(super) owner: Option<Arc<Watch>>,
    /// The fence of the section's Lease, with leader election. Writes and lists fail while it is closed.
    pub(super) fence: Option<Fence>,
}

impl HubWatches {
    pub(super) fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        std::iter::once(&self.target).chain(&self.owner)
    }

    /// The cache of the kind that the family writes.
    pub(super) fn targets(&self) -> &Store {
        self.target.store()
    }

    /// The cache of the hub objects.
    pub(super) fn hub_objects(&self) -> &Store {
        self.owner.as_ref().unwrap_or(&self.target).store()
    }

    /// The cluster, whose requests are under the fence.
    pub(super) fn cluster(&self) -> Cluster {
        let cluster = self.target.cluster();
        self.fence.as_ref().map_or_else(|| cluster.clone(), |fence| cluster.under(fence))
    }

    /// Demands all watches. Only lists that begin after this call meet the demands.
    pub(super) fn demand(&self) -> Vec<Demand> {
        self.watches().map(|watch| watch.demand(self.fence.as_ref())).collect()
    }

    /// The name of the hub object that owns an object, by the object's controlling owner reference.
    pub(super) fn owner_of(&self, shown: &ObjectKey) -> Option<ObjectKey> {
        self.owner.as_ref()?;
        let cached = self.targets().get(shown)?;
        let controller = cached.controller.as_ref()?;
        Some(ObjectKey { namespace: Arc::clone(&shown.namespace), name: Arc::clone(&controller.name) })
    }

    /// Whether the cluster answers, and the caches are complete and current.
    pub(super) fn is_ready(&self) -> bool {
        self.target.cluster().is_available() && self.watches().all(|watch| watch.is_current())
    }

    /// Makes the watches list again that were resumed after a lost connection.
    pub(super) fn become_current(&self) {
        self.watches().for_each(|watch| watch.become_current());
    }

    /// Whether a kind cannot be listed although the cluster answers: it is not served, or a permission is missing.
    pub(super) fn cannot_list(&self) -> bool {
        let fails =
            |watch: &Arc<Watch>| matches!(&*watch.store().listed().borrow(), Listed::No { reason: Some(_), .. });
        self.target.cluster().is_available() && self.watches().any(fails)
    }

    /// Why the kinds have not been listed: the cluster does not answer, or a list has not ended.
    pub(super) fn not_ready_because(&self) -> Option<NotReady> {
        if let Availability::Unavailable { reason } = &*self.target.cluster().availability().borrow() {
            return Some(NotReady { reason: reason.clone(), unreachable: true });
        }
        not_listed(self.watches(), |_| true)
    }
}

/// Follows a watch for a poller, and sends it the keys that it shows.
pub(in crate::status_sync) struct KeyFollower {
    /// The only namespace of interest; empty for all.
    pub(in crate::status_sync) namespace: String,
    /// The poller's mailbox.
    pub(in crate::status_sync) mailbox: KeyMailbox<ObjectKey>,
}

impl KeyFollower {
    async fn request(&self, key: ObjectKey) {
        // The mailbox is closed only while the process ends.
        let _ = self.mailbox.request(key).await;
    }
}

impl Follower for KeyFollower {
    fn wants(&self, key: &ObjectKey) -> bool {
        self.namespace.is_empty() || *key.namespace == *self.namespace
    }

    fn changed<'a>(&'a self, _watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(self.request(key.clone()))
    }

    fn listed<'a>(&'a self, _watch: &'a Watch, first: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // After a first list the poller begins with a pass anyway. A later list calls `changed` for each changed object,
            // so only the objects that have vanished are left.
            if !first {
                for key in vanished {
                    self.request(key).await;
                }
            }
        })
    }
}
