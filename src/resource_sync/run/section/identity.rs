//! The identification of a section's clusters: whether they are two clusters, and the same two as before.
//!
//! A cluster is identified by the UID of its namespace `kube-system`. If another cluster answers under the same name, the
//! whole section is held: it writes nothing to either side until an operator approves. Where the UID can't be read or none
//! is stored, the pairs decide: if many that were in step have no local object, the local cluster is another one, or was
//! emptied.
//!
//! Another daemon that runs the same section, between the same clusters and under the same name, has the same field manager and
//! writes the same marks, so its objects look like ours. There are two signs: the section's `ConfigMap` was written by another
//! process (the store notices that), or a local object that this daemon is about to create exists already and has this section's
//! marks. One such object may be the last write of the replica that ran the section before; several are another daemon's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Mode, Section};
use crate::cluster::{Cluster, Identification, Identity, Object, ObjectKey, Objection, Replaced, Seen};
use crate::guard::{self, WINDOW};
use crate::resource_sync::plan::elsewhere::{Clusters, Elsewhere, KnownCluster};
use crate::resource_sync::plan::marks::NamespaceOwner;
use crate::resource_sync::plan::ownership;
use crate::resource_sync::run::index::clusters::FOR_GOOD;
use crate::state::Identities;

/// For this long after a section was handed over, late writes of the previous holder may still appear.
const HANDOVER: Duration = Duration::from_mins(1);

impl Section {
    /// Whether the section may act now. `Unread` before its caches have been listed and its stored state has been read. The
    /// identity of a cluster that it has never met before is accepted and stored.
    pub(crate) fn identification(&self) -> Identification {
        let without_local = self.mode() == Mode::DetachingLocalGone;
        // The state is in the local cluster: where that is gone, there is nothing to read.
        if !self.is_listed() || !(without_local || self.state().is_known()) {
            return Identification::Unread;
        }
        let seen = [Seen::of(self.remote_cluster()), Seen::of(self.local_cluster())];
        let sides = if without_local { &seen[..1] } else { &seen[..] };
        if !sides.iter().all(Seen::is_read) {
            return Identification::Unread;
        }
        if let (false, Some(remote), Some(local)) = (without_local, seen[0].identity.uid(), seen[1].identity.uid())
            && remote == local
            && self.config.remote != self.config.local
        {
            let (remote, local) = (self.config.remote.clone(), self.config.local.clone());
            let objection = Objection::OneCluster { remote, local };
            self.log_objection(&objection);
            return Identification::Refused(objection);
        }
        let lists = || self.watches.remote.store().lists() + self.watches.local.store().lists();
        loop {
            if let Some(identification) = self.index(|index| index.clusters.identification(&seen, lists)) {
                return identification;
            }
            let lists = lists();
            let before = self.index(|index| index.clusters.identities.clone());
            // This evaluates every pair, so the index is not locked meanwhile.
            if let Some(objection) = self.objection(&before, &seen, without_local) {
                self.index(|index| index.clusters.object(seen, lists, objection.clone()));
                self.log_objection(&objection);
                return Identification::Held(objection);
            }
            if let Some(identities) = self.index(|index| index.clusters.accept(&seen, &before, seconds_now())) {
                self.state().change(|state| state.identities = identities);
                return Identification::Clear;
            }
        }
    }

    /// Why the section must not act on these clusters, if anything says so.
    fn objection(&self, before: &Identities, seen: &[Seen; 2], without_local: bool) -> Option<Objection> {
        let [remote, local] = seen;
        let mut replaced = Replaced::of(&self.config.remote, before.remote.as_deref(), remote);
        if !without_local {
            replaced = replaced.or_else(|| Replaced::of(&self.config.local, before.local.as_deref(), local));
        }
        if let Some(replaced) = replaced {
            return Some(Objection::AnotherCluster(replaced));
        }
        let is_same = before.local.is_some() && before.local.as_deref() == local.identity.uid().map(AsRef::as_ref);
        if is_same || without_local { None } else { self.missing_locals(before) }
    }

    /// An objection if so many local objects are missing that the local cluster must be another one.
    fn missing_locals(&self, before: &Identities) -> Option<Objection> {
        let (remotes, locals) = (self.watches.remote.store(), self.watches.local.store());
        let (clusters, mut pairs, mut missing) = (self.clusters_by(before), 0, 0);
        for remote in remotes.objects() {
            let Some(key) = self.mapping.pair_of_remote(&remote.key) else { continue };
            // Objects that another local cluster holds are reported on their own.
            if remote.deleting
                || !ownership::was_in_step(&remote, &self.policy)
                || clusters.other_holder(&remote, &self.policy).is_some()
            {
                continue;
            }
            pairs += 1;
            let is_there = locals.get(&key.local).is_some_and(|local| {
                local.content == remote.content
                    || local.annotation(&self.policy.marks.remote_uid).is_some()
                    || ownership::is_ours(&local, &self.policy)
            });
            missing += usize::from(!is_there);
        }
        guard::is_mass(missing, pairs).then(|| Objection::LocalObjectsMissing {
            cluster: self.config.local.clone(),
            missing,
            pairs,
        })
    }

    /// Whether the guard has to hold every deletion. Either the credentials have changed and nothing proves that they lead to
    /// the same cluster; or the state can't be stored and the run is young, so that earlier deletions, which count against the
    /// limit, are unknown.
    pub(crate) fn is_blocked(&self) -> bool {
        if !self.state().is_durable() && self.began_within(WINDOW) {
            return true;
        }
        let Some(epochs) = self.index(|index| index.clusters.epochs) else { return false };
        [self.remote_cluster(), self.local_cluster()]
            .into_iter()
            .zip(epochs)
            .any(|(cluster, epoch)| matches!(cluster.identity(), Identity::Unknown { .. }) && cluster.epoch() != epoch)
    }

    /// An operator accepts the clusters as they are. Returns the objection that this overrules, if there was one.
    pub(crate) fn accept_clusters(&self) -> Option<Objection> {
        let seen = [Seen::of(self.remote_cluster()), Seen::of(self.local_cluster())];
        let epochs = [self.remote_cluster().epoch(), self.local_cluster().epoch()];
        let (objection, identities) = self.index(|index| index.clusters.overrule(&seen, epochs, seconds_now()))?;
        self.state().change(|state| state.identities = identities);
        Some(objection)
    }

    /// The identities of the two clusters, as far as they are known, and of those whose place they have taken.
    pub(crate) fn clusters_view(&self) -> Clusters {
        self.index(|index| self.clusters_by(&index.clusters.identities))
    }

    pub(crate) fn clusters_by(&self, known: &Identities) -> Clusters {
        let view = |cluster: &Cluster, known: &Option<String>, former: &BTreeMap<String, u64>| {
            let uid = cluster.identity().uid().cloned().or_else(|| known.as_deref().map(Arc::from));
            let is_recent = |(_, when): &(&String, &u64)| seconds_now().saturating_sub(**when) < WINDOW.as_secs();
            let in_place_of = former.iter().filter(is_recent).map(|(former, _)| former.as_str().into());
            KnownCluster { uid, in_place_of: in_place_of.collect() }
        };
        Clusters {
            remote: view(self.remote_cluster(), &known.remote, &known.former_remotes),
            local: view(self.local_cluster(), &known.local, &known.former_locals),
        }
    }

    /// Whether another local cluster holds a remote object by our finalizer.
    pub(crate) fn is_held_elsewhere(&self, remote: &Object) -> bool {
        self.clusters_view().other_holder(remote, &self.policy).is_some()
    }

    /// Whether a local object of ours came from another remote cluster.
    pub(crate) fn is_from_elsewhere(&self, local: &Object) -> bool {
        self.may_be_from_elsewhere(local) && self.clusters_view().other_source(local, &self.policy).is_some()
    }

    /// Whether a namespace of ours came from another remote cluster.
    pub(crate) fn is_namespace_from_elsewhere(&self, namespace: &Object) -> bool {
        self.may_be_from_elsewhere(namespace)
            && self.clusters_view().other_source_of_namespace(namespace, &self.policy).is_some()
    }

    /// A quick check: most objects name the present remote cluster as their source.
    fn may_be_from_elsewhere(&self, object: &Object) -> bool {
        let Some(source) = object.annotation(&self.policy.marks.remote_cluster) else { return false };
        !self.remote_cluster().identity().uid().is_some_and(|uid| source.starts_with(&**uid))
    }

    /// Objects that belong to another cluster: pairs by their local keys, and namespaces. Paused ones are left out.
    pub(crate) fn elsewhere(&self) -> Vec<(ObjectKey, Elsewhere)> {
        let (clusters, marks) = (self.clusters_view(), &self.policy.marks);
        let mut found = Vec::new();
        for remote in self.watches.remote.store().objects().iter().filter(|remote| !marks.is_paused(remote)) {
            if let Some(key) = self.mapping.pair_of_remote(&remote.key) {
                found.extend(clusters.other_holder(remote, &self.policy).map(|elsewhere| (key.local, elsewhere)));
            }
        }
        for local in self.watches.local.store().objects().iter().filter(|local| !marks.is_paused(local)) {
            if self.mapping.covers_local(&local.key) {
                let elsewhere = clusters.other_source(local, &self.policy);
                found.extend(elsewhere.map(|elsewhere| (local.key.clone(), elsewhere)));
            }
        }
        for namespace in self.watches.namespaces.store().objects() {
            if self.mapping.remote_namespace_of(&namespace.key.name).is_some()
                && marks.namespace_owner(&namespace) == NamespaceOwner::Us
            {
                let elsewhere = clusters.other_source_of_namespace(&namespace, &self.policy);
                found.extend(elsewhere.map(|elsewhere| (namespace.key.clone(), elsewhere)));
            }
        }
        found.sort_by(|(left, _), (right, _)| left.cmp(right));
        found
    }

    /// An operator approves that the section's clusters take the place of those that objects still name. Returns how many
    /// objects and namespaces that frees; `None`: there are none.
    pub(crate) fn take_over(&self) -> Option<usize> {
        let found = self.elsewhere();
        if found.is_empty() {
            return None;
        }
        // The approval expires, so that the section does not fight with a cluster that takes its place back later. It lasts
        // for good where the UID of our remote cluster is unknown, because then the marks can't be renewed to name it.
        let now = seconds_now();
        let of_remotes = if self.remote_cluster().identity().uid().is_some() { now } else { FOR_GOOD };
        let identities = self.index(|index| {
            let Identities { former_remotes, former_locals, .. } = &mut index.clusters.identities;
            for former in [&mut *former_remotes, &mut *former_locals] {
                former.retain(|_, when| now.saturating_sub(*when) < WINDOW.as_secs());
            }
            for (_, elsewhere) in &found {
                match elsewhere {
                    Elsewhere::HeldFor(uid) => former_locals.insert(uid.to_string(), now),
                    Elsewhere::CameFrom(uid) => former_remotes.insert(uid.to_string(), of_remotes),
                };
            }
            index.clusters.identities.clone()
        });
        self.state().change(|state| state.identities = identities);
        let keys: BTreeSet<&ObjectKey> = found.iter().map(|(key, _)| key).collect();
        Some(keys.len())
    }

    /// A local object existed already when this daemon was about to create it. Counts it, if it has this section's marks.
    pub(crate) fn object_made_by_other_daemon(&self, local: &Object) {
        if !ownership::is_ours(local, &self.policy) || ownership::is_adopted(local, &self.policy) {
            return;
        }
        if self.fence.is_some() && self.began_within(HANDOVER) {
            return;
        }
        if let Some(duplicate) = self.index(|index| index.duplicate.made_another(&local.key)) {
            tracing::warn!(section = %self.name(), "{duplicate}");
            // So that the other daemon notices this one at its next write of the state.
            self.state().sign();
        }
    }

    /// What says that another daemon runs the section; `None`: nothing does.
    pub(crate) fn other_daemon(&self) -> Option<String> {
        let written = || self.state().other().map(|other| format!("another daemon runs this section, too: {other}"));
        self.index(|index| index.duplicate.seen()).or_else(written)
    }

    fn log_objection(&self, objection: &Objection) {
        if self.index(|index| index.clusters.is_untold()) {
            tracing::warn!(section = %self.name(), reason = %objection, "section is held");
        }
    }
}

/// Seconds since the Unix epoch.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
