//! One reconcile of a claimed cluster: it reads what is stored, runs a pass if one is due, and says when the cluster is due again.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::finish::Shown;
use super::pass::{Asks, NoPass};
use super::slot::ReconcileSlot;
use super::worker::{SOON, Worker};
use super::{ClaimEnd, Read, ReconcileError, Reconciled};
use crate::documents::{ClaimSlot, Work};
use crate::syncset::plan::action::{Action, PassPlan, Probe};
use crate::syncset::plan::pass::Writes;
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::{LeftAs, after};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::snapshot::Plan;
use crate::syncset::run::store::ClusterUpdate;
use crate::telemetry::ReconcileResult;

/// How often a cluster is read anew because a syncset was changed while it was read.
const MOST_READS: usize = 3;

impl Worker {
    /// Reconciles a cluster. `slot` is its slot to connect.
    pub(super) async fn reconcile(
        &self,
        work: &Work,
        slot: ClaimSlot,
        stopping: &CancellationToken,
    ) -> Result<Reconciled, ReconcileError> {
        let mut own_slot = ReconcileSlot::Connecting(slot);
        // The generation of the kubeconfig by which the cluster has answered a probe.
        let mut awake = None;
        for _ in 0..MOST_READS {
            match self.reconcile_once(work, &mut own_slot, &mut awake, stopping).await {
                Ok(reconciled) => return Ok(reconciled),
                Err(NoPass::Ended(reconciled)) => return Ok(*reconciled),
                Err(NoPass::Failed(error)) => {
                    if let ReconcileError::Prepare(cause) = &error {
                        self.show_failure(work, cause).await?;
                    }
                    return Err(error);
                }
                Err(NoPass::Outdated) => {}
            }
        }
        Ok(Reconciled::of(ReconcileResult::Requeue, ClaimEnd::further(after(self.now(), SOON), 0)))
    }

    async fn reconcile_once(
        &self,
        work: &Work,
        own_slot: &mut ReconcileSlot,
        awake: &mut Option<i64>,
        stopping: &CancellationToken,
    ) -> Result<Reconciled, NoPass> {
        let read = self.read(work, stopping).await?;
        let (result, until) = match &read.plan.action {
            Action::Gone => return Ok(Reconciled::of(ReconcileResult::Success, ClaimEnd::Gone)),
            Action::Paused(pause) => (ReconcileResult::Success, pause.until),
            Action::InStep { until } => (ReconcileResult::Success, Some(*until)),
            Action::Silent { retry_at: until } | Action::Throttled { until } => {
                (ReconcileResult::RequeueAfter, Some(*until))
            }
            Action::Pass(pass_plan) => match self.asks(work, &read, pass_plan, *awake, own_slot) {
                Err(wait) => (ReconcileResult::RequeueAfter, Some(self.put_off(work, &read, wait).await?)),
                Ok(asks) => {
                    let passed = Box::pin(self.begin_pass(work, &read, (pass_plan, asks), own_slot, stopping)).await;
                    if asks != Asks::Nothing {
                        *awake = Some(read.plan.kubeconfig_generation());
                    }
                    return passed;
                }
            },
        };
        Ok(self.nothing_until(work, &read, until, result).await?)
    }

    async fn read(&self, work: &Work, stopping: &CancellationToken) -> Result<Read, NoPass> {
        let read = tokio::select! {
            biased;
            _ = work.expired() => return Err(NoPass::Failed(ReconcileError::Lost)),
            () = stopping.cancelled() => return Err(NoPass::Failed(ReconcileError::ShutsDown)),
            read = self.preparer.snapshot(work.cluster, work.namespace()) => read,
        };
        let (snapshot, room) = read.map_err(|error| NoPass::of(error, self.now()))?;
        self.set_clock(snapshot.at);
        let plan = Plan::of(&snapshot);
        let plan = if work.urgent { plan } else { plan.unasked(&snapshot) };
        Ok(Read { at: room.since, snapshot, room, plan })
    }

    /// A silent cluster is asked first whether it answers at all, which takes a slot of its own. `awake` is the generation of the kubeconfig by which
    /// it has answered that earlier in this reconcile. Without a slot it is put off for so long: others that are silent take their turns first.
    fn asks(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        awake: Option<i64>,
        own_slot: &mut ReconcileSlot,
    ) -> Result<Asks, Duration> {
        if pass_plan.probe == Probe::None {
            return Ok(Asks::Nothing);
        }
        if awake == Some(read.plan.kubeconfig_generation()) {
            return Ok(Asks::HasAnswered);
        }
        if !own_slot.may_probe() {
            *own_slot = ReconcileSlot::Probing(self.slots.probe(work.namespace(), pass_plan.probe == Probe::Demanded)?);
        }
        Ok(Asks::First)
    }

    /// Puts off a silent cluster. The time is stored, so that a change does not shorten the wait. Nobody holds the claim meanwhile, so a demanded pass
    /// begins at once.
    async fn put_off(&self, work: &Work, read: &Read, wait: Duration) -> Result<Timestamp, ReconcileError> {
        let until = after(read.now(), wait);
        // A kubeconfig that is refused stays so until it is read.
        if read.cluster_row().retry_at.is_some() {
            let row = ClusterRow { retry_at: Some(until), ..read.cluster_row() };
            let stored = ClusterUpdate { row, resyncs: read.snapshot.resyncs };
            self.store.save(&work.writing(), &Writes::default(), Some(&stored)).await?;
        }
        Ok(until)
    }

    /// Nothing is done to the cluster before this time; none if only a change matters.
    async fn nothing_until(
        &self,
        work: &Work,
        read: &Read,
        until: Option<Timestamp>,
        result: ReconcileResult,
    ) -> Result<Reconciled, ReconcileError> {
        let paused = match &read.plan.action {
            Action::Paused(pause) => Some(pause.message()),
            _ => None,
        };
        let interval = self.config.reapply_interval;
        let next = retry::next(&LeftAs::Nothing { until }, read.cluster_row(), 0, interval, read.now(), rand::random());
        let shown = Shown { paused, ..Shown::without_a_pass(read.reachability_before()) };
        let ready_at = self.show(work, read, shown, next.ready_at).await?;
        let claim_end = match &read.plan.action {
            // The pass that was asked for is still to be made, and this reconcile was no attempt at it.
            Action::Throttled { .. } => ClaimEnd::further(ready_at, work.attempts.saturating_sub(1)),
            // The same for what somebody has asked for.
            Action::Pass(pass_plan) if pass_plan.probe == Probe::Demanded => ClaimEnd::further(ready_at, 0),
            _ => ClaimEnd::until(ready_at, 0),
        };
        Ok(Reconciled::of(result, claim_end))
    }
}
