//! What operators ask about one object or one syncset, answered with what is there now. Nothing is written.

mod explain;
mod fields;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::work::{Client, NoCredentials, Preparer};
use crate::cluster::{DynamicClusters, Error, full_text};
use crate::syncset::store::{PassStore, StoredCluster};

pub use explain::{Asked, Explanation, Unexplained, Wanting};

/// Longest wait for one answer of a cluster.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// So many are answered at once.
const AT_ONCE: usize = 4;

/// Looks at clusters for operators. Clones are the same.
#[derive(Clone)]
pub struct Inspector {
    store: PassStore,
    preparer: Preparer,
    clusters: Arc<DynamicClusters>,
    /// Each renders a whole cluster.
    at_once: Arc<Semaphore>,
}

/// Why a cluster can't be looked at.
#[derive(Debug, thiserror::Error)]
enum Unseen {
    /// Its kubeconfig can't be used.
    #[error(transparent)]
    Credentials(#[from] NoCredentials),
    /// No client can be made of its kubeconfig.
    #[error("no client can be made of the kubeconfig")]
    Client(#[source] kube::Error),
    /// It did not answer, or refused.
    #[error("{}", .0.message())]
    Cluster(Error),
    /// It has not answered in time.
    #[error("no answer in time")]
    Late,
}

impl Inspector {
    /// Reads what workers read, and connects as they do.
    pub fn new(store: PassStore, preparer: Preparer, clusters: Arc<DynamicClusters>) -> Self {
        Self { store, preparer, clusters, at_once: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// A client of a cluster, with a connection of its own.
    fn client(&self, cluster: &StoredCluster) -> Result<Client, Unseen> {
        let credentials = self.preparer.credentials(cluster)?;
        let name = cluster.document.id.to_string().parse().unwrap_or_default();
        let cluster =
            self.clusters.cluster(&name, credentials.config, credentials.fingerprint).map_err(Unseen::Client)?;
        Ok(Client::new(cluster))
    }
}

impl Unseen {
    fn text(&self) -> String {
        full_text(self)
    }
}
