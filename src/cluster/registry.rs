//! The configured clusters of a process and its watches: equal watches are one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::client::Cluster;
use super::session;
use super::watch::{Watch, WatchId, WatchSpec};
use crate::actor::ChildSpec;
use crate::config::{ClusterAccess, ClusterConfig, ClusterName};

/// The clusters of the configuration, and what is watched in each.
pub struct WatchRegistry {
    clusters: BTreeMap<ClusterName, (Cluster, ClusterConfig)>,
    watches: BTreeMap<WatchId, Arc<Watch>>,
}

impl WatchRegistry {
    /// The configured clusters; nothing is watched yet.
    pub fn new(clusters: &BTreeMap<ClusterName, ClusterConfig>) -> Self {
        let cluster = |name: &ClusterName, config: &ClusterConfig| (Cluster::new(name.clone(), config), config.clone());
        let clusters = clusters.iter().map(|(name, config)| (name.clone(), cluster(name, config))).collect();
        Self { clusters, watches: BTreeMap::new() }
    }

    /// A cluster. One that is not configured never becomes available; the configuration's check refuses that.
    pub fn cluster(&mut self, name: &ClusterName) -> Cluster {
        let unknown = || {
            let nowhere = ClusterAccess::Kubeconfig { path: "/nonexistent".into(), context: None };
            let config = ClusterConfig::new(nowhere);
            (Cluster::new(name.clone(), &config), config)
        };
        self.clusters.entry(name.clone()).or_insert_with(unknown).0.clone()
    }

    /// The first configured cluster with the same access: two names of one cluster must not be taken for two clusters.
    pub fn canonical(&self, name: &ClusterName) -> ClusterName {
        let Some((_, config)) = self.clusters.get(name) else { return name.clone() };
        self.clusters
            .iter()
            .find(|(_, (_, other))| other.access == config.access)
            .map_or_else(|| name.clone(), |(first, _)| first.clone())
    }

    /// The watch with this id, shared with all who asked for it before, and what the caller requires of it.
    pub fn watch(&mut self, id: WatchId, spec: WatchSpec) -> Arc<Watch> {
        if let Some(watch) = self.watches.get(&id) {
            watch.share(spec);
            return Arc::clone(watch);
        }
        let watch = Watch::new(id.clone(), self.cluster(&id.cluster));
        watch.specify(spec);
        self.watches.entry(id).or_insert(watch).clone()
    }

    /// What else a user requires of a watch, where that refers to the watch itself, such as its followers. Watches start when the
    /// registry has become the actors of the tree, so a running watch is never changed.
    #[expect(clippy::unused_self, reason = "who has the registry is early enough")]
    pub fn specify(&mut self, watch: &Arc<Watch>, spec: WatchSpec) {
        watch.specify(spec);
    }

    /// Every cluster, in the order of the names.
    pub fn clusters(&self) -> Vec<Cluster> {
        self.clusters.values().map(|(cluster, _)| cluster.clone()).collect()
    }

    /// The branches of the tree that belong to the clusters: each with its session and its watches.
    pub fn into_children(self) -> Vec<ChildSpec> {
        let Self { clusters, watches } = self;
        clusters
            .into_iter()
            .map(|(name, (cluster, config))| {
                let watches: Vec<Arc<Watch>> =
                    watches.values().filter(|watch| watch.id().cluster == name).cloned().collect();
                ChildSpec::supervisor(format!("cluster {name}"), move || {
                    let (own, config) = (cluster.clone(), config.clone());
                    let session =
                        ChildSpec::new("session", move |scope| session::run(own.clone(), config.clone(), scope));
                    let followers = watches.iter().map(|watch| {
                        let watch = Arc::clone(watch);
                        ChildSpec::new(format!("watcher {}", watch.id().label()), move |scope| {
                            Arc::clone(&watch).run(scope)
                        })
                    });
                    std::iter::once(session).chain(followers).collect()
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::ResourceId;

    #[test]
    fn one_users_restriction_does_not_bind_those_who_share_the_watch() {
        let resource = || ResourceId { plural: "secrets".into(), version: "v1".into(), group: String::new() };
        let id = || WatchId { fields: "metadata.name=one".into(), ..WatchId::all(ClusterName::default(), resource()) };
        let spec = |only_if_granted| WatchSpec { only_if_granted, ..WatchSpec::default() };
        for (users, expected) in [
            (&[true][..], true),
            (&[false], false),
            (&[true, true], true),
            (&[true, false], false),
            (&[false, true], false),
            (&[false, true, true], false),
        ] {
            let mut registry = WatchRegistry::new(&BTreeMap::new());
            let watches: Vec<Arc<Watch>> = users.iter().map(|user| registry.watch(id(), spec(*user))).collect();
            for watch in &watches {
                assert!(Arc::ptr_eq(watch, &watches[0]), "they share it");
                // What a user adds later says nothing of permissions.
                registry.specify(watch, WatchSpec { index_uids: true, ..WatchSpec::default() });
            }
            assert_eq!(watches[0].is_only_if_granted(), expected, "{users:?}");
        }
    }
}
