//! The identity of a watch.

use crate::config::{ClusterName, ResourceId};

/// What is watched. Equal ids share one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId {
    pub cluster: ClusterName,
    pub resource: ResourceId,
    /// The only namespace that is watched, for which a role in that namespace is enough; empty: all namespaces.
    pub namespace: String,
    /// Label selector, or empty.
    pub labels: String,
    /// Field selector, or empty.
    pub fields: String,
    /// Only metadata is listed and watched.
    pub metadata_only: bool,
    /// The name of the [projection](super::WatchSpec::projection): nobody else can use the objects that it leaves.
    pub projection: Option<&'static str>,
}

impl WatchId {
    /// All objects of a kind, whole.
    pub fn all(cluster: ClusterName, resource: ResourceId) -> Self {
        Self {
            cluster,
            resource,
            namespace: String::new(),
            labels: String::new(),
            fields: String::new(),
            metadata_only: false,
            projection: None,
        }
    }

    /// The name of the only object that is watched; empty: any object.
    pub fn object_name(&self) -> &str {
        self.fields.strip_prefix("metadata.name=").unwrap_or_default()
    }

    /// The kind, and the object if only one is watched: `secrets.v1 edge/hub-kubeconfig`.
    pub fn what(&self) -> String {
        let (resource, namespace, name) = (&self.resource, &self.namespace, self.object_name());
        match (namespace.is_empty(), name.is_empty()) {
            (_, true) => resource.to_string(),
            (true, false) => format!("{resource} {name}"),
            (false, false) => format!("{resource} {namespace}/{name}"),
        }
    }

    /// The kind and the selectors, for the actor's name.
    pub fn label(&self) -> String {
        let mut label = self.resource.to_string();
        if !self.namespace.is_empty() {
            label.push_str(" in ");
            label.push_str(&self.namespace);
        }
        for selector in [&self.labels, &self.fields] {
            if !selector.is_empty() {
                label.push(' ');
                label.push_str(selector);
            }
        }
        if let Some(projection) = self.projection {
            label.push_str(" for ");
            label.push_str(projection);
        }
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_of_one_object_is_called_by_the_name_of_the_object() {
        let cluster = "edge".parse().expect("a name");
        let resource = ResourceId { plural: "secrets".into(), version: "v1".into(), group: String::new() };
        let all = WatchId::all(cluster, resource);
        let one = WatchId { fields: "metadata.name=hub".into(), ..all.clone() };
        let one_in_namespace = WatchId { namespace: "add-on".into(), ..one.clone() };
        let labelled = WatchId { labels: "tier=gold".into(), ..all.clone() };
        let what = [all, one, one_in_namespace, labelled].map(|id| id.what());
        assert_eq!(what, ["secrets.v1", "secrets.v1 hub", "secrets.v1 add-on/hub", "secrets.v1"]);
    }
}
