//! Which cluster a kubeconfig leads to, and whether the document owns that cluster.
//!
//! Of the documents of a namespace that lead to one cluster the first one owns it ([`PassStore::own`]), and nothing is sent for the
//! others.
//!
//! [`PassStore::own`]: crate::syncset::run::store::PassStore::own

use super::executor::Executor;
use super::plan::Read;
use super::refusal::{Failed, Stop};
use super::worker::{ReconcileError, Worker};
use crate::documents::Work;
use crate::syncset::plan::action::PassPlan;
use crate::syncset::plan::pass::{Refusal, Refused};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status::Unreachable;
use crate::syncset::run::store::ClusterUpdate;

/// Whether a pass may begin on the cluster.
pub(super) enum MayBegin {
    As(Identified),
    /// The cluster did not say which one it is, or another document owns it.
    Stopped(Stop),
}

/// What was found out about which cluster it is.
pub(super) struct Identified {
    /// Read in this pass.
    pub(super) identity: Option<String>,
    /// Another one than noted.
    pub(super) is_another: bool,
}

impl Identified {
    /// What is stored of it with the first writes, if it was not known: the rows of this pass are of this cluster, also if the kubeconfig is
    /// changed before it ends. The full pass that a new kubeconfig demands stays due until one has come to its end.
    pub(super) fn noted(&self, read: &Read) -> Option<ClusterUpdate> {
        if self.identity.as_deref().is_none_or(|identity| read.identity() == Some(identity)) {
            return None;
        }
        let generation = read.plan.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation);
        let row = ClusterRow {
            kubeconfig_generation: generation,
            asked_generation: generation,
            next_full: None,
            // It has just answered.
            reachable: Some(true),
            last_contact: Some(read.now()),
            ..read.cluster_row().identified(self.identity.clone())
        };
        Some(ClusterUpdate { row, resyncs: read.snapshot.resyncs })
    }
}

impl Worker {
    /// Finds out which cluster it is, if that is to be found out. A document that does not own it stops here.
    pub(super) async fn identify(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        executor: &mut Executor<'_>,
    ) -> Result<MayBegin, ReconcileError> {
        if !pass_plan.identifies {
            return Ok(match self.duplicate(read.snapshot.owner.as_deref()) {
                Some(stop) => MayBegin::Stopped(stop),
                None => MayBegin::As(Identified { identity: None, is_another: false }),
            });
        }
        let identity = match executor.identity().await {
            Ok(identity) => identity,
            Err(Failed::Refused(Refused { refusal, message })) => {
                let message = format!("failed to read the UID of namespace kube-system: {message}");
                let reason = match refusal {
                    Refusal::Forbidden => Unreachable::Forbidden,
                    _ => Unreachable::ErrorConnectingToCluster,
                };
                return Ok(MayBegin::Stopped(Stop::silent(reason, message)));
            }
            Err(Failed::Stopped(stop)) => return Ok(MayBegin::Stopped(stop)),
        };
        // It is noted also where duplicates are allowed, so that the order is known when they no longer are.
        let owner = self.store.own(&work.writing(), &identity).await?;
        if let Some(stop) = self.duplicate(owner.as_deref()) {
            return Ok(MayBegin::Stopped(stop));
        }
        let is_another = read.identity().is_some_and(|noted| *noted != identity);
        Ok(MayBegin::As(Identified { identity: Some(identity), is_another }))
    }

    /// What stops a pass over a cluster that another document of the namespace owns.
    fn duplicate(&self, owner: Option<&str>) -> Option<Stop> {
        let owner = owner.filter(|_| !self.config.allows_duplicates)?;
        let message = format!(
            "the kubeconfig leads to the same cluster as that of {owner}, which owns it: nothing is sent for this document"
        );
        Some(Stop::silent(Unreachable::Duplicate, message))
    }
}
