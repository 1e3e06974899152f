//! The identity of a watch.

use crate::config::{ClusterName, ResourceId};

/// What is watched. Equal ids share one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId {
    /// The cluster.
    pub cluster: ClusterName,
    /// The kind.
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
