//! Sends the keys that a watch shows to a poller.

use futures::future::BoxFuture;

use crate::actor::KeyMailbox;
use crate::cluster::{Follower, ObjectKey, Watch};

/// Follows a watch for a poller.
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
