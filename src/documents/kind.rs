//! The kinds of documents.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A cluster, with a kubeconfig that leads to it.
    Cluster,
    /// Objects for clusters of its own namespace, which it names.
    SyncSet,
    /// Objects for clusters that it selects by label; it has no namespace.
    SelectorSyncSet,
    /// Values that syncsets copy to clusters.
    Secret,
    /// What was applied to a cluster. The hub writes it together with its cluster.
    ClusterSync,
}

/// The field of a kind that is stored sealed and never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// `kubeconfig` of a cluster: a text.
    Kubeconfig,
    /// `data` of a secret: a map of base64 values.
    Data,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Cluster, Self::SyncSet, Self::SelectorSyncSet, Self::Secret, Self::ClusterSync];

    /// Its name in documents: `Cluster`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::SyncSet => "SyncSet",
            Self::SelectorSyncSet => "SelectorSyncSet",
            Self::Secret => "Secret",
            Self::ClusterSync => "ClusterSync",
        }
    }

    /// Its name in paths and in the database: `clusters`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Cluster => "clusters",
            Self::SyncSet => "syncsets",
            Self::SelectorSyncSet => "selectorsyncsets",
            Self::Secret => "secrets",
            Self::ClusterSync => "clustersyncs",
        }
    }

    pub fn of_plural(plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether its documents have a namespace.
    pub fn is_namespaced(self) -> bool {
        self != Self::SelectorSyncSet
    }

    /// Whether clients create, change and delete it. They can't with what the hub itself maintains, of which they may change the
    /// status alone.
    pub fn is_written_by_clients(self) -> bool {
        self != Self::ClusterSync
    }

    pub fn sealed(self) -> Option<Sealed> {
        match self {
            Self::Cluster => Some(Sealed::Kubeconfig),
            Self::Secret => Some(Sealed::Data),
            Self::SyncSet | Self::SelectorSyncSet | Self::ClusterSync => None,
        }
    }
}

impl Sealed {
    pub fn field(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::Data => "data",
        }
    }

    /// The field that shows the generation which set it. It is one of the own fields in the database.
    pub fn generation_field(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfigGeneration",
            Self::Data => "dataGeneration",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name_and_its_plural() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_plural(kind.plural()), Some(kind));
            assert_eq!(Kind::of_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::of_plural("Cluster"), None);
    }
}
