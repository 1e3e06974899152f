//! The mapping between remote and local objects.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::cluster::ObjectKey;
use crate::config::ResourceId;
use crate::resource_sync::config::SyncConfig;

/// The keys of one pair. The receiver of a watch event computes them once; they go through the dispatcher's mailbox to the
/// pair's run and into the section's index.
///
/// Within a section the remote key follows from the local one. Comparison, order and hash use the local key alone, and a map
/// with these keys can be searched by local key.
#[derive(Clone)]
pub struct PairKey {
    pub local: ObjectKey,
    pub remote: ObjectKey,
}

#[cfg(test)]
impl PairKey {
    /// The pair of two objects with the same key.
    pub(crate) fn alike(namespace: &str, name: &str) -> Self {
        let key = ObjectKey::new(namespace, name);
        Self { local: key.clone(), remote: key }
    }
}

impl PartialEq for PairKey {
    fn eq(&self, other: &Self) -> bool {
        self.local == other.local
    }
}

impl Eq for PairKey {}

impl PartialOrd for PairKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PairKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.local.cmp(&other.local)
    }
}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.local.hash(hasher);
    }
}

impl Borrow<ObjectKey> for PairKey {
    fn borrow(&self) -> &ObjectKey {
        &self.local
    }
}

/// Shows the local key, by which operators know the pair.
impl fmt::Display for PairKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.local.fmt(formatter)
    }
}

impl fmt::Debug for PairKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.local, self.remote)
    }
}

/// The mapping between the keys of the two sides. It is invertible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    remote_resource_suffix: String,
    local_namespace_suffix: String,
    namespace_prefix: String,
    /// Both sides are one cluster: the suffixes decide on which side an object is.
    same_cluster: bool,
    system: System,
}

/// Objects that every cluster creates by itself, and whose content belongs to that cluster.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct System {
    names: &'static [&'static str],
    prefix: Option<&'static str>,
}

impl System {
    fn of(resource: &ResourceId) -> Self {
        let (names, prefix): (&'static [&'static str], _) = match (resource.group.is_empty(), resource.plural.as_str())
        {
            (true, "configmaps") => (&["kube-root-ca.crt"], None),
            (true, "serviceaccounts") => (&["default"], None),
            (true, "namespaces") => (&["default"], Some("kube-")),
            _ => (&[], None),
        };
        Self { names, prefix }
    }

    fn has_any(&self) -> bool {
        !self.names.is_empty() || self.prefix.is_some()
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(&name) || self.prefix.is_some_and(|prefix| name.starts_with(prefix))
    }
}

impl Mapping {
    pub fn new(config: &SyncConfig) -> Self {
        Self {
            remote_resource_suffix: config.remote_resource_suffix.clone(),
            local_namespace_suffix: config.local_namespace_suffix.clone(),
            namespace_prefix: config.namespace_prefix.clone(),
            same_cluster: config.remote == config.local,
            system: System::of(&config.resource),
        }
    }

    /// The pair of a remote object; `None` where it is not this section's.
    pub fn pair_of_remote(&self, remote: &ObjectKey) -> Option<PairKey> {
        Some(PairKey { local: self.local_of(remote)?, remote: remote.clone() })
    }

    /// The pair of a local object; `None` where it is not this section's.
    pub fn pair_of_local(&self, local: &ObjectKey) -> Option<PairKey> {
        Some(PairKey { remote: self.remote_of(local)?, local: local.clone() })
    }

    /// Whether a remote object is this section's.
    pub fn covers_remote(&self, remote: &ObjectKey) -> bool {
        self.local_name_of(remote).is_some()
    }

    /// Whether a local object is this section's.
    pub fn covers_local(&self, local: &ObjectKey) -> bool {
        if self.same_cluster || self.system.has_any() {
            return self.remote_of(local).is_some();
        }
        local.namespace.is_empty() || self.remote_namespace_of(&local.namespace).is_some()
    }

    /// The local key of a remote object; `None` where it is not this section's.
    fn local_of(&self, remote: &ObjectKey) -> Option<ObjectKey> {
        let name = self.local_name_of(remote)?;
        let name = if self.remote_resource_suffix.is_empty() { Arc::clone(&remote.name) } else { name.into() };
        let suffix = if remote.namespace.is_empty() { "" } else { self.local_namespace_suffix.as_str() };
        Some(ObjectKey { namespace: with_suffix(&remote.namespace, suffix), name })
    }

    /// The name of the local object of a remote one; `None` where it is not this section's.
    fn local_name_of<'a>(&self, remote: &'a ObjectKey) -> Option<&'a str> {
        let name = strip(&remote.name, &self.remote_resource_suffix)?;
        if self.system.has(name) || self.system.has(&remote.name) {
            return None;
        }
        // In one cluster the local object would also be the remote object of another pair.
        let resource_suffix = &self.remote_resource_suffix;
        if self.same_cluster && !resource_suffix.is_empty() && name.ends_with(resource_suffix.as_str()) {
            return None;
        }
        if remote.namespace.is_empty() {
            return Some(name);
        }
        let suffix = &self.local_namespace_suffix;
        let is_local_side = self.same_cluster && !suffix.is_empty() && remote.namespace.ends_with(suffix.as_str());
        (!is_local_side && remote.namespace.starts_with(&self.namespace_prefix)).then_some(name)
    }

    /// The remote key of a local object; `None` where it is not this section's.
    fn remote_of(&self, local: &ObjectKey) -> Option<ObjectKey> {
        let suffix = &self.remote_resource_suffix;
        if self.same_cluster && !suffix.is_empty() && local.name.ends_with(suffix.as_str()) {
            return None;
        }
        let name = with_suffix(&local.name, suffix);
        if self.system.has(&local.name) || self.system.has(&name) {
            return None;
        }
        let namespace = if local.namespace.is_empty() {
            Arc::clone(&local.namespace)
        } else {
            let namespace = self.remote_namespace_of(&local.namespace)?;
            if self.local_namespace_suffix.is_empty() { Arc::clone(&local.namespace) } else { namespace.into() }
        };
        let remote = ObjectKey { namespace, name };
        // In one cluster the would-be remote object may itself be a copy. Then this object has no pair.
        let is_pair = !self.same_cluster || self.local_of(&remote).as_ref() == Some(local);
        is_pair.then_some(remote)
    }

    /// The remote namespace of a local one; `None` where it is not this section's.
    pub fn remote_namespace_of<'a>(&self, local: &'a str) -> Option<&'a str> {
        let namespace = strip(local, &self.local_namespace_suffix)?;
        namespace.starts_with(&self.namespace_prefix).then_some(namespace)
    }

    /// Whether both mappings may lead to the same local namespace.
    pub fn may_meet(&self, other: &Self) -> bool {
        let (one, two) = (&self.namespace_prefix, &other.namespace_prefix);
        let (first, second) = (&self.local_namespace_suffix, &other.local_namespace_suffix);
        let begin_alike = one.starts_with(two.as_str()) || two.starts_with(one.as_str());
        begin_alike && (first.ends_with(second.as_str()) || second.ends_with(first.as_str()))
    }

    pub fn remote_secret_name(&self, local: &str) -> String {
        format!("{local}{}", self.remote_resource_suffix)
    }
}

/// The text with the suffix. Without a suffix it shares the memory.
fn with_suffix(text: &Arc<str>, suffix: &str) -> Arc<str> {
    if suffix.is_empty() { Arc::clone(text) } else { format!("{text}{suffix}").into() }
}

/// The text before the suffix; `None` if it has no such suffix, or consists of it.
fn strip<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    text.strip_suffix(suffix).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(resource: &str, namespace: &str, prefix: &str, same_cluster: bool) -> Mapping {
        Mapping {
            remote_resource_suffix: resource.into(),
            local_namespace_suffix: namespace.into(),
            namespace_prefix: prefix.into(),
            same_cluster,
            system: System::default(),
        }
    }

    #[test]
    fn what_clusters_make_by_themselves_is_left_out() {
        let mapping = |resource: &str, suffix: &str| Mapping {
            system: System::of(&resource.parse().unwrap()),
            ..mapping(suffix, "", "", false)
        };
        let is_synced = |mapping: &Mapping, namespace: &str, name: &str| {
            let key = ObjectKey::new(namespace, name);
            let (down, up) = (mapping.local_of(&key).is_some(), mapping.remote_of(&key).is_some());
            assert_eq!(down, up, "{key}");
            down
        };
        let config_maps = mapping("configmaps.v1", "");
        assert!(!is_synced(&config_maps, "a", "kube-root-ca.crt") && is_synced(&config_maps, "a", "default"));
        let namespaces = mapping("namespaces.v1", "");
        assert!(!is_synced(&namespaces, "", "kube-system") && !is_synced(&namespaces, "", "default"));
        assert!(!is_synced(&namespaces, "", "kube-public") && is_synced(&namespaces, "", "team"));
        assert!(!is_synced(&mapping("serviceaccounts.v1", ""), "a", "default"));
        let suffixed = mapping("serviceaccounts.v1", "-hub");
        assert_eq!(suffixed.local_of(&ObjectKey::new("a", "default-hub")), None);
        assert!(is_synced(&mapping("databases.v1.demo.towline.dev", ""), "a", "default"));
    }

    #[test]
    fn suffixes_and_prefix_decide_what_belongs_to_a_section() {
        let mapping = mapping("-hub", "-edge", "team-", false);
        let local = mapping.local_of(&ObjectKey::new("team-a", "orders-hub")).unwrap();
        assert_eq!(local, ObjectKey::new("team-a-edge", "orders"));
        assert_eq!(mapping.remote_of(&local).unwrap(), ObjectKey::new("team-a", "orders-hub"));
        for ignored in [("team-a", "orders"), ("other", "orders-hub"), ("team-a", "-hub")] {
            assert_eq!(mapping.local_of(&ObjectKey::new(ignored.0, ignored.1)), None, "{ignored:?}");
        }
        assert_eq!(mapping.remote_of(&ObjectKey::new("team-a", "orders")), None, "namespace without the suffix");
        assert_eq!(mapping.remote_of(&ObjectKey::new("other-edge", "orders")), None, "namespace without the prefix");
    }

    #[test]
    fn in_one_cluster_a_copy_is_never_copied_again() {
        let edge = mapping("", "-edge", "", true);
        assert_eq!(edge.local_of(&ObjectKey::new("a", "x")), Some(ObjectKey::new("a-edge", "x")));
        assert_eq!(edge.local_of(&ObjectKey::new("a-edge", "x")), None);
        let named = mapping("-hub", "", "", true);
        assert_eq!(named.remote_of(&ObjectKey::new("a", "x-hub")), None, "a remote object is not a local one");
        assert_eq!(named.remote_of(&ObjectKey::new("a", "x")), Some(ObjectKey::new("a", "x-hub")));
    }

    /// Its local object would be the remote one of another pair, which would be overwritten.
    #[test]
    fn in_one_cluster_a_local_object_is_never_another_pairs_remote_one() {
        let mapping = mapping("-hub", "", "", true);
        let pair = |name: &str| mapping.pair_of_remote(&ObjectKey::new("a", name));
        assert_eq!(pair("x-hub").map(|pair| pair.local), Some(ObjectKey::new("a", "x")));
        assert_eq!(pair("x-hub-hub"), None);
    }

    proptest! {
        #[test]
        fn the_mapping_is_invertible(
            resource in "(-[a-z]{1,3})?", suffix in "(-[a-z]{1,3})?", prefix in "([a-z]{1,2}-)?",
            namespace in "[a-z]{0,6}(-[a-z]{1,3}){0,2}", name in "[a-z]{1,6}(-[a-z]{1,3}){0,2}", same: bool,
        ) {
            let mapping = mapping(&resource, &suffix, &prefix, same);
            let key = ObjectKey::new(namespace, name);
            prop_assert_eq!(mapping.covers_remote(&key), mapping.pair_of_remote(&key).is_some());
            prop_assert_eq!(mapping.covers_local(&key), mapping.pair_of_local(&key).is_some());
            if let Some(local) = mapping.local_of(&key) {
                prop_assert_eq!(mapping.remote_of(&local), Some(key.clone()));
            }
            if let Some(remote) = mapping.remote_of(&key) {
                prop_assert_eq!(mapping.local_of(&remote), Some(key));
            }
        }
    }
}
