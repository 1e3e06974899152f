//! What the watches of a section's peers tell it: that a namespace it made may go now.
//!
//! An owned namespace stays while another section's object is in it. Where that section runs in this process it says when
//! it is done; where it runs in another replica, its watches do. What a list makes known, a peer says itself, wherever it
//! runs (`Section::became_known`).

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Section;
use crate::cluster::{Follower, ObjectKey, Watch};
use crate::resource_sync::rules::names::PairKey;

/// Which of a peer's watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Remote,
    Local,
}

/// A section's ear at a watch of a peer's.
pub(crate) struct PeerFollower {
    pub(crate) section: Arc<Section>,
    pub(crate) peer: Arc<Section>,
    pub(crate) side: Side,
}

impl PeerFollower {
    fn pair_of(&self, key: &ObjectKey) -> Option<PairKey> {
        match self.side {
            Side::Remote => self.peer.mapping.pair_of_remote(key),
            Side::Local => self.peer.mapping.pair_of_local(key),
        }
    }

    /// The pair that made the namespace of a peer's object, where it is ending: while it lives the namespace stays anyway.
    fn ending_owner_beside(&self, key: &ObjectKey) -> Option<PairKey> {
        let namespace = ObjectKey::new("", self.pair_of(key)?.local.namespace);
        let namespace = self.section.watches.namespaces.store().get(&namespace)?;
        let owner = self.section.owner_in(&namespace)?;
        let remote = self.section.watches.remote.store().get(&owner.remote);
        remote.is_none_or(|remote| remote.deleting).then_some(owner)
    }
}

impl Follower for PeerFollower {
    fn wants(&self, key: &ObjectKey) -> bool {
        match self.side {
            Side::Remote => self.peer.mapping.covers_remote(key),
            Side::Local => self.peer.mapping.covers_local(key),
        }
    }

    fn changed<'a>(&'a self, _: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.section.is_listed()
                && let Some(owner) = self.ending_owner_beside(key)
            {
                self.section.request(owner).await;
            }
        })
    }
}
