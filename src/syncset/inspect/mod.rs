//! What operators ask about one object or one syncset, answered with what is there now. Nothing is written.

mod compared;
mod conflict;
mod diff;
mod explain;
mod fields;
mod losses;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use super::config::SyncsetsConfig;
use super::run::work::{Client, NoClient, Preparer};
use crate::actor::Slot;
use crate::cluster::{DynamicClusters, Error, full_text};
use crate::documents::{BlockingPool, CallerSlots, Keyring, Problem, SlotOwner};
use crate::syncset::plan::snapshot::StoredCluster;
use crate::syncset::run::store::PassStore;

pub use compared::ClusterReference;
pub use diff::{Diff, ProposedSyncset, Undiffed};
pub use explain::{Asked, Explanation, Unexplained};

/// Longest wait for one answer of a cluster.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for a slot: others may look at clusters that do not answer.
const SLOT_WITHIN: Duration = Duration::from_secs(5);
/// Slots to work for each slot to compare.
const OF_SLOTS: usize = 4;
/// Of the slots to compare, one in so many is left to administrators.
const RESERVED: usize = 8;

/// Looks at clusters for operators. Clones are the same.
#[derive(Clone)]
pub struct Inspector {
    store: PassStore,
    /// It has budgets of its own.
    preparer: Preparer,
    clusters: Arc<DynamicClusters>,
    /// A quarter of the slots to work: so many clusters are looked at at once.
    slots: CallerSlots,
    /// The number of `slots`.
    at_once: usize,
    /// Whether mass deletions are suspended.
    is_guarding: bool,
}

/// Why a cluster can't be looked at.
#[derive(Debug, thiserror::Error)]
enum Unseen {
    #[error(transparent)]
    Client(#[from] NoClient),
    /// It did not answer, or refused.
    #[error("{}", .0.public_message())]
    Cluster(Error),
    #[error("no answer in time")]
    Late,
}

impl Inspector {
    /// Reads what workers read, in slots of its own, and connects as they do.
    pub fn new(
        store: &PassStore,
        preparer: &Preparer,
        clusters: Arc<DynamicClusters>,
        config: &SyncsetsConfig,
    ) -> Self {
        let at_once = (config.max_in_flight.get() / OF_SLOTS).max(1);
        let slots = CallerSlots::new("looks at clusters", at_once, at_once / RESERVED);
        let store = store.apart();
        let preparer = preparer.apart(store.clone());
        Self { store, preparer, clusters, slots, at_once, is_guarding: config.mass_delete_guard }
    }

    pub fn keyring(&self) -> Arc<Keyring> {
        self.preparer.keyring()
    }

    pub fn blocking(&self) -> &BlockingPool {
        self.preparer.blocking()
    }

    /// A slot to look, or why there is none.
    async fn slot(&self, owner: SlotOwner) -> Result<Slot, Problem> {
        self.slots.take(owner, SLOT_WITHIN).await
    }

    /// A client of a cluster, with a connection of its own.
    async fn client(&self, cluster: &StoredCluster) -> Result<Client, Unseen> {
        let kubeconfig = self.preparer.open(cluster).map_err(NoClient::from)?;
        Ok(self.preparer.client(&self.clusters, cluster, kubeconfig).await?)
    }
}

impl Unseen {
    /// The log has what is not shown.
    fn of(cluster: &StoredCluster, error: Error) -> Self {
        let name = format!("{}/{}", cluster.document.namespace, cluster.document.name);
        tracing::info!(cluster = name, error = error.message(), "a cluster could not be looked at");
        Self::Cluster(error)
    }

    fn text(&self) -> String {
        full_text(self)
    }
}
