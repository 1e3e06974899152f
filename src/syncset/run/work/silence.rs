//! How a reconcile ends to which the cluster has not answered, or not with anything that a pass could begin with; and the log of clusters
//! that stop to answer and answer again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::plan::Read;
use super::refusal::Stop;
use super::worker::{ClaimEnd, ReconcileError, Reconciled, Worker};
use crate::documents::{Work, WorkEnd};
use crate::syncset::plan::action::{Action, Probe};
use crate::syncset::plan::pass::Writes;
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::{Ended, Left, Next};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status::{Conditions, Reachability, Unreachable};
use crate::syncset::run::store::ClusterUpdate;
use crate::telemetry::ReconcileResult;

impl Read {
    /// Logs that the cluster no longer answers, if it did the last time, or if somebody has asked for this pass.
    pub(super) fn tell_unreachable(&self, work: &Work, reason: Unreachable, error: &str) {
        let is_demanded = matches!(&self.plan.action, Action::Pass(plan) if plan.probe == Probe::Demanded);
        let (cluster, reason) = (work.name.as_str(), reason.as_str());
        if is_demanded || self.cluster_row().reachable != Some(false) {
            tracing::warn!(cluster, reason, error, "a cluster is unreachable, its changes wait");
        } else {
            tracing::debug!(cluster, reason, error, "a cluster is unreachable still");
        }
    }

    /// Logs that the cluster answers, if it did not the last time.
    pub(super) fn tell_reachable(&self, work: &Work) {
        if self.cluster_row().reachable == Some(false) {
            tracing::info!(cluster = work.name, "a cluster is reachable again");
        }
    }
}

impl Worker {
    /// The cluster stopped the reconcile before the pass.
    pub(super) async fn stopped_before(
        &self,
        work: &Work,
        read: &Read,
        stop: Stop,
    ) -> Result<Reconciled, ReconcileError> {
        match stop {
            // Only a change of a document helps, as if the kubeconfig were refused.
            Stop::Silent { reason, shown, logged } => {
                read.tell_unreachable(work, reason, &logged);
                let is_duplicate = reason == Unreachable::Duplicate;
                let ended = if is_duplicate { Ended::Refused } else { self.silent_again(work, Duration::ZERO) };
                self.unreachable(work, read, (reason, shown), ended).await
            }
            // Whether it answers what a pass needs is still to be seen.
            Stop::Throttled { told, message, .. } if read.cluster_row().reachable == Some(false) => {
                let reason = Unreachable::ErrorConnectingToCluster;
                read.tell_unreachable(work, reason, &message);
                self.unreachable(work, read, (reason, message), self.silent_again(work, told)).await
            }
            Stop::Throttled { told, .. } => self.throttled(work, read, told).await,
            Stop::Lost => Err(ReconcileError::Lost),
        }
    }

    /// A cluster was asked in vain, and is asked again when its turn comes.
    pub(super) fn silent_again(&self, work: &Work, told: Duration) -> Ended {
        Ended::Silent { told, turn: self.slots.next_probe(work.namespace()) }
    }

    /// Stores when a silent cluster is asked that could not be asked now.
    pub(super) async fn store_retry(&self, work: &Work, read: &Read, until: Timestamp) -> Result<(), ReconcileError> {
        let row = ClusterRow { retry_at: Some(until), ..read.cluster_row() };
        let stored = ClusterUpdate { row, resyncs: read.snapshot.resyncs };
        self.store.save(&work.writing(), &Writes::default(), Some(&stored)).await?;
        Ok(())
    }

    /// The cluster asks to wait, before anything could be done.
    async fn throttled(&self, work: &Work, read: &Read, told: Duration) -> Result<Reconciled, ReconcileError> {
        let ended = Ended::Complete { was_full: false, left: Some(Left::Throttled(told)) };
        let attempts = i32::try_from(work.attempts).unwrap_or(i32::MAX);
        let next = self.after_question(read, &ended, attempts);
        let end = WorkEnd::go_on(next.ready_at, work.attempts);
        self.stored(work, read, next.cluster_row, ReconcileResult::Error, end).await
    }

    /// When the cluster is reconciled next, after it was asked with its present kubeconfig.
    fn after_question(&self, read: &Read, ended: &Ended, attempts: i32) -> Next {
        let generation = read.plan.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation);
        let cluster_row = ClusterRow { asked_generation: generation, ..read.cluster_row() };
        retry::next(ended, cluster_row, attempts, self.config.reapply_interval, read.now(), rand::random())
    }

    /// Stores when the cluster is reconciled next, and ends the reconcile.
    async fn stored(
        &self,
        work: &Work,
        read: &Read,
        row: ClusterRow,
        result: ReconcileResult,
        work_end: WorkEnd,
    ) -> Result<Reconciled, ReconcileError> {
        let claim_end = if row == read.cluster_row() {
            ClaimEnd::Waits(work_end)
        } else {
            let stored = ClusterUpdate { row, resyncs: read.snapshot.resyncs };
            self.end(work, &work_end, &Writes::default(), &stored).await?
        };
        Ok(Reconciled::of(result, claim_end))
    }

    /// The cluster is shown as unreachable, for which the log has the cause already.
    pub(super) async fn unreachable(
        &self,
        work: &Work,
        read: &Read,
        (reason, message): (Unreachable, String),
        ended: Ended,
    ) -> Result<Reconciled, ReconcileError> {
        let next = self.after_question(read, &ended, 0);
        let conditions = Conditions {
            reachability: Reachability::Unreachable { reason, message },
            paused: None,
            suspended: read.suspended(&read.snapshot.results),
            released: self.released(read, None),
            has_moved: self.has_moved(read),
        };
        // Only the status says why it is silent. It is written first, and the cluster is asked again if that fails.
        let ready_at = self.show(work, read, (None, &BTreeMap::new(), false), conditions, next.ready_at).await?;
        if ready_at != next.ready_at {
            return Ok(Reconciled::of(ReconcileResult::Error, ClaimEnd::until(ready_at, 0)));
        }
        self.stored(work, read, next.cluster_row, ReconcileResult::Error, WorkEnd::done(ready_at, 0)).await
    }
}
