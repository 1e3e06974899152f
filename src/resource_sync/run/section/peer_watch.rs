//! The watches of a section's peers, which show when a namespace that the section made may be deleted.
//!
//! An owned namespace stays while an object of another section is in it. A peer that runs in this process requeues the owner
//! when its pair has ended. For one that runs in another replica, the events of the peer's watches do, which this process
//! follows. After a list the peer requeues the owners in either case (`Section::requeue_namespace_owners_of_peers`).

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Section;
use crate::cluster::{Follower, ObjectKey, Watch};
use crate::resource_sync::plan::names::PairKey;

/// Which of a peer's watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Remote,
    Local,
}

/// Passes the events of a peer's watch to a section.
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

    /// The pair that made the namespace of a peer's object, if it is ending: a living pair keeps its namespace anyway.
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
