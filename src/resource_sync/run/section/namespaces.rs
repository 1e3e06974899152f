//! Local namespaces: which section owns one, whether it may be deleted, and which of many pairs creates or deletes it.

use std::sync::Arc;

use tokio::time::Instant;

use super::Section;
use crate::cluster::{Object, ObjectKey};
use crate::resource_sync::plan::ending;
use crate::resource_sync::plan::marks::NamespaceOwner;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::observed::{Namespace, Observed, Remote};
use crate::resource_sync::plan::ownership;

impl Section {
    /// Whether this pair is to create the namespace. Of many pairs that need it at once only one does; the others are
    /// requested when the watch shows it.
    pub(crate) fn may_create_namespace(&self, namespace: &Arc<str>) -> bool {
        self.index(|index| index.namespaces.may_create(namespace, Instant::now()))
    }

    /// Whether this pair is to delete the namespace. Of many pairs that end at once only one does; the others are requested
    /// when the watch shows the deletion.
    pub(crate) fn may_delete_namespace(&self, namespace: &Object, observed: &Observed) -> bool {
        let holds = |remote: &Arc<Object>| remote.has_finalizer(&self.policy.marks.finalizer);
        let waits = observed.remote_object().is_some_and(holds).then_some(&observed.pair);
        self.index(|index| index.namespaces.may_delete(namespace, waits, Instant::now()))
    }

    /// The local namespace of a pair.
    pub(crate) fn namespace_of(&self, pair: &PairKey) -> Option<Arc<Object>> {
        self.watches.namespaces.store().get(&ObjectKey::new("", Arc::clone(&pair.local.namespace)))
    }

    /// Observes the namespace of an ending pair again between two steps, since other pairs may have begun or stopped to use it
    /// in the meantime.
    pub(crate) fn look_at_namespace_again(&self, observed: &mut Observed) {
        let is_ending = !matches!(&observed.remote, Remote::Present(remote) if !remote.deleting);
        let Namespace::Present { object, ours: true } = &observed.namespace else { return };
        if !is_ending || object.deleting {
            return;
        }
        let shown = self.watches.namespaces.store().get(&object.key).filter(|shown| shown.uid == object.uid);
        if let Some(object) = shown.filter(|shown| self.owns(shown)) {
            observed.namespace_end_is_awaited =
                self.index(|index| index.namespaces.another_awaits_end_of(&object, &observed.pair));
            observed.namespace_is_of_another = self.owner_in(&object).is_some_and(|owner| owner != observed.pair);
            observed.namespace = Namespace::Present { object, ours: true };
        }
        observed.namespace_in_use = self.is_in_use(&observed.pair);
    }

    /// The pair for which this section created a namespace, if it owns the namespace.
    pub(crate) fn owner_in(&self, namespace: &Object) -> Option<PairKey> {
        let owner = namespace.annotation(&self.policy.marks.owner)?;
        let key = ObjectKey::new(Arc::clone(&namespace.key.name), owner);
        self.mapping.pair_of_local(&key).filter(|_| self.owns(namespace))
    }

    /// Requeues the pairs that own the namespace of a pair that has ended: they may have waited for it.
    pub(crate) fn requeue_namespace_owners(&self, pair: &PairKey) {
        let Some(namespace) = self.namespace_of(pair).filter(|namespace| !namespace.deleting) else { return };
        for section in self.sections_here() {
            if let Some(owner) = section.owner_in(&namespace)
                && !(section.config.name == self.config.name && owner == *pair)
                && section.is_running()
            {
                section.request_later([owner]);
            }
        }
    }

    /// Requeues the pairs of peers that own namespaces in which this section may have objects: a list has shown which it has.
    pub(crate) fn requeue_namespace_owners_of_peers(&self) {
        for peer in self.others_here().filter(|peer| peer.is_running()) {
            for namespace in peer.watches.namespaces.store().objects() {
                if self.mapping.remote_namespace_of(&namespace.key.name).is_some()
                    && let Some(owner) = peer.owner_in(&namespace)
                {
                    peer.request_later([owner]);
                }
            }
        }
    }

    /// Makes the cache forget that a remote object was observed terminating, unless another section that shares the cache
    /// still has to delete the namespace that it created for its own pair.
    pub(crate) fn forget_terminated(&self, remote_key: &ObjectKey) {
        let is_needed = |peer: &Arc<Self>| {
            let namespace = peer.mapping.pair_of_remote(remote_key).and_then(|pair| {
                let namespaces = peer.watches.namespaces.store();
                Some((namespaces.get(&ObjectKey::new("", Arc::clone(&pair.local.namespace)))?, pair))
            });
            peer.config.name != self.config.name
                && peer.is_running()
                && Arc::ptr_eq(&peer.watches.remote, &self.watches.remote)
                && namespace.is_some_and(|(namespace, pair)| peer.owner_in(&namespace) == Some(pair))
        };
        if !self.peers().iter().any(is_needed) {
            self.watches.remote.store().forget(remote_key);
        }
    }

    /// Whether this section owns the namespace: the marks say so, and either they prove it, or the remote object that they
    /// name has our finalizer. So a namespace that another program created for the pair is deleted with it, and a copied one
    /// never is.
    pub(crate) fn owns(&self, namespace: &Object) -> bool {
        if self.is_namespace_from_elsewhere(namespace) {
            return false;
        }
        match self.policy.marks.namespace_owner(namespace) {
            NamespaceOwner::Us => {
                ownership::namespace_proof(namespace, &self.policy).is_ok() || self.holds_source_of(namespace)
            }
            NamespaceOwner::Unnamed => {
                let others_map_to_it =
                    || self.others_here().any(|peer| peer.mapping.remote_namespace_of(&namespace.key.name).is_some());
                self.holds_source_of(namespace) && !others_map_to_it()
            }
            NamespaceOwner::Nobody | NamespaceOwner::Others => false,
        }
    }

    /// Whether the remote object that a namespace's mark names has our finalizer. A mark that names another namespace was
    /// copied and does not count.
    fn holds_source_of(&self, namespace: &Object) -> bool {
        let marks = &self.policy.marks;
        let is_copy = namespace.annotation(&marks.local_name).is_some() && !marks.names_itself(namespace);
        let owner = namespace.annotation(&marks.owner).filter(|_| !is_copy);
        let owner = owner.map(|owner| ObjectKey::new(Arc::clone(&namespace.key.name), owner));
        owner
            .and_then(|owner| self.watches.remote.store().get(&self.mapping.pair_of_local(&owner)?.remote))
            .is_some_and(|remote| marks.holds(&remote))
    }

    /// The pair that a namespace's marks name as its owner, if nothing proves that this section wrote them.
    pub(crate) fn claimed_in(&self, namespace: &Object) -> Option<PairKey> {
        let marks = &self.policy.marks;
        if marks.namespace_owner(namespace) != NamespaceOwner::Us || self.owns(namespace) {
            return None;
        }
        let key = ObjectKey::new(Arc::clone(&namespace.key.name), namespace.annotation(&marks.owner)?);
        self.mapping.pair_of_local(&key)
    }

    /// The key of the remote object that a local one records as its source, if that is not the pair's.
    pub(crate) fn source_lives_at(&self, local: &Object, remote_key: &ObjectKey) -> Option<ObjectKey> {
        let source = local.annotation(&self.policy.marks.remote_uid)?;
        self.watches.remote.store().key_of(source).filter(|key| key != remote_key)
    }

    /// All sections with the same local cluster, this one included.
    pub(crate) fn sections_here(&self) -> Vec<Arc<Section>> {
        self.peers().iter().filter(|peer| peer.config.local == self.config.local).cloned().collect()
    }

    /// The other sections that may have objects in the same local namespaces as this one.
    pub(crate) fn others_here(&self) -> impl Iterator<Item = Arc<Section>> {
        let name = self.config.name.clone();
        let mapping = self.mapping.clone();
        let shares = move |peer: &Arc<Self>| peer.config.name != name && mapping.may_meet(&peer.mapping);
        self.sections_here().into_iter().filter(shares)
    }

    /// Whether the local namespace of an ending pair has to stay: another pair of any section lives in it, or a local object
    /// in it must be kept.
    pub(crate) fn is_in_use(&self, pair: &PairKey) -> bool {
        let namespace = &pair.local.namespace;
        self.lives_in(self, namespace, Some(&pair.remote))
            || self.keeps(self, namespace, Some(&pair.local))
            || self
                .others_here()
                .any(|peer| self.lives_in(&peer, namespace, None) || self.keeps(&peer, namespace, None))
    }

    /// A namespace is gone: drops what is recorded about it, also in the indexes of sections that do not run here.
    pub(crate) fn forget_namespace(&self, namespace: &str) {
        self.index(|index| index.namespaces.forget_deletion(namespace));
        for section in self.sections_here() {
            if let Some(remote_namespace) = section.mapping.remote_namespace_of(namespace) {
                section.namespace_use.forget(namespace, remote_namespace);
            }
        }
    }

    /// Whether a local object of `owner` in the namespace, other than `except`, must not be deleted with it. Yes while the
    /// cache of `owner` is not up to date.
    fn keeps(&self, owner: &Self, namespace: &str, except: Option<&ObjectKey>) -> bool {
        if owner.mapping.remote_namespace_of(namespace).is_none() {
            return false;
        }
        !self.knows(&owner.watches.local)
            || !owner.watches.local.is_of_session()
            || owner.namespace_use.kept.any(
                namespace,
                except.map(|key| &*key.name),
                || owner.watches.local.store().names_in_namespace(namespace),
                |name| owner.must_be_kept(&ObjectKey::new(namespace, Arc::clone(name))),
            )
    }

    /// Whether a local object must not be deleted with its namespace: because its source has another key, or
    /// because it came from another remote cluster.
    pub(crate) fn must_be_kept(&self, local_key: &ObjectKey) -> bool {
        let (remotes, marks) = (self.watches.remote.store(), &self.policy.marks);
        let Some(PairKey { remote: remote_key, .. }) = self.mapping.pair_of_local(local_key) else { return false };
        let Some(local) = self.watches.local.store().get(local_key).filter(|local| !local.deleting) else {
            return false;
        };
        let remote = remotes.get(&remote_key);
        let seen_terminating = remote.is_none() && remotes.absence(&remote_key).seen_terminating;
        if let Some(source) = local.annotation(&marks.remote_uid)
            && remotes.key_of(source).is_none()
        {
            self.namespace_use.await_source(source, local_key);
        }
        ending::must_be_kept(&local, remote.as_deref(), seen_terminating, &self.policy)
            || self.source_lives_at(&local, &remote_key).is_some()
            || self.is_from_elsewhere(&local)
    }

    /// Whether a living remote object of `owner`, other than `except`, maps to the local namespace. Yes while the cache of
    /// `owner` is not up to date.
    fn lives_in(&self, owner: &Self, namespace: &str, except: Option<&ObjectKey>) -> bool {
        let Some(remote_namespace) = owner.mapping.remote_namespace_of(namespace) else { return false };
        !self.knows(&owner.watches.remote)
            || !owner.watches.remote.is_of_session()
            || owner.namespace_use.living.any(
                remote_namespace,
                except.map(|key| &*key.name),
                || owner.watches.remote.store().names_in_namespace(remote_namespace),
                |name| owner.counts_as_living(&ObjectKey::new(remote_namespace, Arc::clone(name))),
            )
    }

    /// Whether a remote object belongs to this section and keeps its local namespace.
    pub(crate) fn counts_as_living(&self, remote_key: &ObjectKey) -> bool {
        let remote = self.watches.remote.store().get(remote_key);
        remote.is_some_and(|remote| ending::lives(&remote, &self.policy)) && self.mapping.covers_remote(remote_key)
    }
}
