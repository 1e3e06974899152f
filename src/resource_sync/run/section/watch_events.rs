//! Watch events of a section: which pairs one affects, whether guarded changes of them are pending, and which reconciles it
//! requests.
//!
//! The watches of its peers show when a namespace that the section made may be deleted. An owned namespace stays while an object of
//! another section is in it. A peer that runs in this process requeues the owner when its pair has ended. For one that runs in
//! another replica, the events of the peer's watches do, which this process follows. After a list the peer requeues the owners in
//! either case (`Section::requeue_namespace_owners_of_peers`).

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::Section;
use crate::cluster::{Follower, Object, ObjectKey, Watch};
use crate::guard::GuardedChange;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::ending;
use crate::resource_sync::plan::guard::{PairChange, change_to_existing};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::run::index::ChangedPair;

/// The role of a watch for a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The kind on the remote.
    Remote,
    /// The kind on the local cluster.
    Local,
    /// Namespaces of the local cluster.
    Namespaces,
    /// A named secret on the local cluster.
    Secrets,
    /// A named secret on the remote.
    RemoteSecrets,
}

impl Section {
    /// The pairs that a change of a watched object concerns.
    fn affected_pairs(&self, role: Role, watch: &Watch, key: &ObjectKey) -> Vec<PairKey> {
        match role {
            Role::Remote => self.mapping.pair_of_remote(key).into_iter().collect(),
            Role::Local => self.mapping.pair_of_local(key).into_iter().collect(),
            Role::Namespaces => {
                let mut keys: BTreeSet<PairKey> = BTreeSet::new();
                if let Some(remote_namespace) = self.mapping.remote_namespace_of(&key.name) {
                    if watch.store().get(key).is_none() {
                        for key in self.watches.remote.store().terminated_in(remote_namespace) {
                            self.forget_terminated(&key);
                        }
                        self.forget_namespace(&key.name);
                    }
                    let remotes = self.watches.remote.store().names_in_namespace(remote_namespace);
                    let remotes = remotes.into_iter().map(|name| ObjectKey::new(remote_namespace, name));
                    keys.extend(remotes.filter_map(|key| self.mapping.pair_of_remote(&key)));
                    let locals = self.watches.local.store().names_in_namespace(&key.name);
                    let locals = locals.into_iter().map(|name| ObjectKey::new(Arc::clone(&key.name), name));
                    keys.extend(locals.filter_map(|key| self.mapping.pair_of_local(&key)));
                }
                if let Some(namespace) = watch.store().get(key) {
                    keys.extend(self.owner_in(&namespace).or_else(|| self.claimed_in(&namespace)));
                }
                self.index(|index| keys.extend(index.table.keys_in(&key.name).cloned()));
                keys.into_iter().collect()
            }
            Role::Secrets => {
                let owner = watch.store().get(key).and_then(|secret| secret.controller.clone());
                let owner = owner.map(|owner| ObjectKey::new(Arc::clone(&key.namespace), owner.name));
                owner.and_then(|key| self.mapping.pair_of_local(&key)).into_iter().collect()
            }
            Role::RemoteSecrets => {
                // The local secret names the pair: the remote one may have lost its owner reference, or be gone.
                let suffix = &self.config.local_namespace_suffix;
                let namespace = format!("{}{suffix}", key.namespace);
                let mut keys = Vec::new();
                for (name, secrets) in self.config.secret_names.iter().zip(&self.watches.secrets) {
                    if self.mapping.remote_secret_name(name) == *key.name {
                        let secret = secrets.store().get(&ObjectKey::new(namespace.as_str(), name.as_str()));
                        let owner = secret.and_then(|secret| secret.controller.clone());
                        let owner = owner.map(|owner| ObjectKey::new(namespace.as_str(), owner.name));
                        keys.extend(owner.and_then(|key| self.mapping.pair_of_local(&key)));
                    }
                }
                keys
            }
        }
    }

    /// Registers the pair's pending change with the guard, or clears it, before a run acts on it. Returns whether that may change the
    /// decision for other pairs.
    pub(crate) fn update_pending_change(&self, key: &PairKey) -> bool {
        let (remote, local) =
            (self.watches.remote.store().get(&key.remote), self.watches.local.store().get(&key.local));
        let pending = self.pending_change_to(key, remote.as_deref(), local.as_deref());
        self.index(|index| {
            if remote.is_some() {
                index.guard.came_back(key);
            }
            index.register(key, pending, Instant::now())
        })
    }

    /// The guarded change that is about to be made to the pair, if any.
    fn pending_change_to(&self, key: &PairKey, remote: Option<&Object>, local: Option<&Object>) -> Option<PairChange> {
        if local.is_some_and(|local| self.is_from_elsewhere(local)) {
            return None;
        }
        let change = match remote {
            Some(remote) => change_to_existing(remote, local?, &self.policy)?,
            None if self.watches.remote.store().absence(&key.remote).seen_terminating => return None,
            None => {
                let namespace = self.owned_namespace_of(key);
                let is_of_another = |namespace: &Object| self.owner_in(namespace).is_some_and(|owner| owner != *key);
                let owns = namespace.is_some_and(|namespace| local.is_some() || !is_of_another(&namespace));
                ending::would_go(local, owns, &self.policy).then_some(GuardedChange::Delete)?
            }
        };
        Some(self.pending_change(key, local, remote, change))
    }

    /// The local namespace of a pair, if it is ours and is not being deleted.
    fn owned_namespace_of(&self, key: &PairKey) -> Option<Arc<Object>> {
        self.namespace_of(key).filter(|namespace| !namespace.deleting && self.owns(namespace))
    }

    /// Compares what a watch shows of a pair with our last writes, at the very event that shows it, and updates the guard's
    /// pending changes. Returns whether that may change the decision for other pairs.
    fn shown(&self, role: Role, key: &PairKey) -> bool {
        let direction = match role {
            Role::Remote => Direction::Spec,
            Role::Local => Direction::Status,
            Role::Namespaces | Role::Secrets | Role::RemoteSecrets => return false,
        };
        let cached = || (self.watches.remote.store().get(&key.remote), self.watches.local.store().get(&key.local));
        let (remote, local) = cached();
        let pending = self.pending_change_to(key, remote.as_deref(), local.as_deref());
        self.index(|index| {
            // Read again under the lock of the index, so that a write of ours is recorded either before this event or after
            // it.
            let (remote, local) = cached();
            let shown = ChangedPair { remote: remote.as_deref(), local: local.as_deref(), pending, direction };
            index.shown(key, &shown, &self.policy, Instant::now())
        })
    }

    async fn watch_event(&self, role: Role, watch: &Watch, key: &ObjectKey) {
        let mut freed = false;
        for pair in self.affected_pairs(role, watch, key) {
            freed |= self.shown(role, &pair);
            self.request(pair).await;
        }
        if freed {
            self.requeue_pending_changes();
        }
    }

    /// The cache of a shared watch remembers terminated objects until the sections that follow it have dealt with them.
    /// Forgets one that no section running here covers.
    fn forget_unless_attended(&self, watch: &Watch, remote_key: &ObjectKey) {
        let is_attended = |section: &Self| {
            section.is_running()
                && std::ptr::eq(Arc::as_ptr(&section.watches.remote), watch)
                && section.mapping.covers_remote(remote_key)
        };
        if watch.store().get(remote_key).is_none() && !self.peers().iter().any(|peer| is_attended(peer)) {
            watch.store().forget(remote_key);
        }
    }
}

/// Passes the events of one watch to a section.
pub(crate) struct SectionFollower {
    pub(crate) section: Arc<Section>,
    pub(crate) role: Role,
}

impl Follower for SectionFollower {
    fn wants(&self, key: &ObjectKey) -> bool {
        let mapping = &self.section.mapping;
        match self.role {
            Role::Remote => mapping.covers_remote(key),
            Role::Local => mapping.covers_local(key),
            Role::Namespaces => mapping.remote_namespace_of(&key.name).is_some(),
            Role::Secrets => mapping.remote_namespace_of(&key.namespace).is_some(),
            Role::RemoteSecrets => true,
        }
    }

    fn changed<'a>(&'a self, watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.section.is_listed() {
                self.section.watch_event(self.role, watch, key).await;
            } else if self.role == Role::Remote {
                self.section.forget_unless_attended(watch, key);
            }
        })
    }

    fn redefined(&self, _: &Watch, another_way: bool) {
        if matches!(self.role, Role::Remote | Role::Local) && self.section.is_listed() {
            self.section.definition_changed(another_way);
        }
    }

    fn note(&self, watch: &Watch, first: bool, vanished: Vec<ObjectKey>) -> Vec<ObjectKey> {
        let section = &self.section;
        if matches!(self.role, Role::Remote | Role::Local) {
            section.requeue_namespace_owners_of_peers();
        }
        if !section.is_listed() {
            if self.role == Role::Remote {
                for key in &vanished {
                    section.forget_unless_attended(watch, key);
                }
            }
            return Vec::new();
        }
        let begins = section.begins_now();
        if begins || (first && self.role == Role::Remote) {
            section.look_for_unselected();
        }
        if begins {
            section.write_left_fields_again();
        }
        let keys: BTreeSet<PairKey> = if first || begins {
            section.all_pairs()
        } else {
            vanished.iter().flat_map(|key| section.affected_pairs(self.role, watch, key)).collect()
        };
        // The guard has to know all pending changes before a run makes the first of them.
        for key in &keys {
            section.update_pending_change(key);
        }
        // A watch passes keys of objects from here to `listed`, and no keys of pairs.
        keys.into_iter().map(|key| key.local).collect()
    }

    fn listed<'a>(&'a self, _: &'a Watch, _: bool, noted: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let section = &self.section;
            if !section.is_listed() {
                return;
            }
            for key in noted.iter().filter_map(|key| section.mapping.pair_of_local(key)) {
                section.request(key).await;
            }
            // During the list the guard made no decisions.
            if self.role == Role::Remote {
                section.requeue_pending_changes();
            }
        })
    }
}

/// Which of a peer's watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Remote,
    Local,
}

/// Passes the events of a peer's watch to a section.
pub(super) struct PeerFollower {
    pub(super) section: Arc<Section>,
    pub(super) peer: Arc<Section>,
    pub(super) side: Side,
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
        let namespace = self.section.namespace_of(&self.pair_of(key)?)?;
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
