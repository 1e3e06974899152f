//! Tells a poller the keys that a watch shows.

use futures::future::BoxFuture;

use crate::actor::KeyMailbox;
use crate::cluster::{Follower, ObjectKey, Watch};

/// The way from a watch to a poller.
pub(super) struct KeyFollower {
    /// Only this namespace; empty: all.
    pub(super) namespace: String,
    /// The poller's mailbox.
    pub(super) mailbox: KeyMailbox<ObjectKey>,
}

impl KeyFollower {
    async fn request(&self, key: ObjectKey) {
        // A closed mailbox belongs to a process that ends.
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
            // After a first list the poller begins with a whole pass; what another list shows differently is told by
            // each object, or by its absence here.
            if !first {
                for key in vanished {
                    self.request(key).await;
                }
            }
        })
    }
}
