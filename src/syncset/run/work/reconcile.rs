//! One reconcile of a claimed cluster: it reads what is stored, runs a pass if one is due, stores and shows the result, and says when the
//! cluster is due again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::basis::Basis;
use super::executor::Executor;
use super::finish::Ran;
use super::health::{self, Sent};
use super::identity::{Identified, MayBegin};
use super::plan::{Plan, Read, after};
use super::prepare::{NoClient, NoCredentials, PrepareError, Prepared};
use super::slot::{ReconcileSlot, put_off};
use super::target::{Halt, PassTarget};
use super::worker::{ClaimEnd, Kept, ReconcileError, Reconciled, SOON, Unfinished, Worker};
use crate::cluster::full_text;
use crate::documents::{ClaimSlot, OpenError, Work};
use crate::syncset::plan::action::{Action, PassPlan, Probe};
use crate::syncset::plan::pass::{End, pass};
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::Ended;
use crate::syncset::plan::status::{Conditions, Unreachable};
use crate::syncset::run::store::StoredCluster;
use crate::telemetry::ReconcileResult;

/// A cluster has to answer within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How often a cluster is read anew because a syncset was changed while it was read.
const MOST_READS: usize = 3;

enum Passed {
    Ended(Box<Reconciled>),
    /// Documents have changed since they were read: it reads again.
    Again,
}

impl Passed {
    fn ended(reconciled: Reconciled) -> Self {
        Self::Ended(Box::new(reconciled))
    }
}

/// Whether a pass first asks a silent cluster whether it answers at all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// It is not silent.
    Nothing,
    First,
    /// It has answered that earlier in this reconcile.
    HasAnswered,
}

impl Worker {
    /// Reconciles a cluster. `slot` is its slot to connect.
    pub(super) async fn reconcile(
        &self,
        work: &Work,
        slot: ClaimSlot,
        stopping: &CancellationToken,
    ) -> Result<Reconciled, ReconcileError> {
        let (mut own_slot, mut again) = (ReconcileSlot::Connecting(slot), after(self.now(), SOON));
        // By which kubeconfig the cluster has answered a probe.
        let mut awake = None;
        for _ in 0..MOST_READS {
            let at = Instant::now();
            let snapshot = self.store.snapshot(work.cluster).await?;
            self.set_clock(snapshot.at);
            let plan = Plan::of(&snapshot);
            let plan = if work.urgent { plan } else { plan.unasked(&snapshot) };
            let read = Read { snapshot, plan, at };
            again = after(read.now(), SOON);
            let is_awake =
                awake.is_some() && awake == read.plan.facts.as_ref().map(|facts| facts.kubeconfig_generation);
            let (mut asks, mut no_slot_until) = (Asks::Nothing, None);
            if let Action::Pass(pass_plan) = &read.plan.action
                && pass_plan.probe != Probe::None
            {
                if is_awake {
                    asks = Asks::HasAnswered;
                } else if own_slot.may_probe() {
                    asks = Asks::First;
                } else {
                    match self.slots.probe(work.namespace(), pass_plan.probe == Probe::Demanded) {
                        Ok(slot) => (own_slot, asks) = (ReconcileSlot::Probing(slot), Asks::First),
                        // Nobody holds the claim meanwhile, so a demanded pass begins at once. The time is stored, so that a change
                        // does not shorten the wait.
                        Err(wait) => {
                            let until = after(read.now(), wait);
                            // A kubeconfig that is refused stays so until it is read.
                            if read.cluster_row().retry_at.is_some() {
                                self.store_retry(work, &read, until).await?;
                            }
                            no_slot_until = Some(until);
                        }
                    }
                }
            }
            let (result, until) = match &read.plan.action {
                Action::Pass(_) if no_slot_until.is_some() => (ReconcileResult::RequeueAfter, no_slot_until),
                Action::Gone => return Ok(Reconciled::of(ReconcileResult::Success, ClaimEnd::Gone)),
                Action::Paused(pause) => (ReconcileResult::Success, pause.until),
                Action::Silent { retry_at } => (ReconcileResult::RequeueAfter, Some(*retry_at)),
                Action::Throttled { until } => (ReconcileResult::RequeueAfter, Some(*until)),
                Action::InStep { until } => (ReconcileResult::Success, Some(*until)),
                Action::Pass(pass_plan) => {
                    let passed = Box::pin(self.pass(work, &read, pass_plan, asks, &mut own_slot, stopping)).await?;
                    if let Passed::Ended(reconciled) = passed {
                        return Ok(*reconciled);
                    }
                    if asks != Asks::Nothing {
                        awake = read.plan.facts.as_ref().map(|facts| facts.kubeconfig_generation);
                    }
                    continue;
                }
            };
            let paused = match &read.plan.action {
                Action::Paused(pause) => Some(pause.message()),
                _ => None,
            };
            let conditions = Conditions {
                reachability: Self::reachability_before(&read),
                paused,
                suspended: read.suspended(&read.snapshot.results),
                released: self.released(&read, None),
                has_moved: self.has_moved(&read),
            };
            let next = retry::next(
                &Ended::Nothing { until },
                read.cluster_row(),
                0,
                self.config.reapply_interval,
                read.now(),
                rand::random(),
            );
            let ready_at = self.show(work, &read, (None, &BTreeMap::new(), false), conditions, next.ready_at).await?;
            let claim_end = match &read.plan.action {
                // The pass that was asked for is still to be made, and this reconcile was no attempt at it.
                Action::Throttled { .. } => ClaimEnd::further(ready_at, work.attempts.saturating_sub(1)),
                // The same for what somebody has asked for.
                Action::Pass(pass_plan) if pass_plan.probe == Probe::Demanded => ClaimEnd::further(ready_at, 0),
                _ => ClaimEnd::until(ready_at, 0),
            };
            return Ok(Reconciled::of(result, claim_end));
        }
        Ok(Reconciled::of(ReconcileResult::Requeue, ClaimEnd::further(again, 0)))
    }

    async fn pass(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        asks: Asks,
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<Passed, ReconcileError> {
        // No pass is planned without a cluster.
        let Some(cluster) = &read.snapshot.cluster else { return Ok(Passed::Again) };
        // Keys and certificates are read on few threads, which may be busy.
        let kept = tokio::select! {
            biased;
            _ = work.expired() => return Err(ReconcileError::Lost),
            () = stopping.cancelled() => return Err(ReconcileError::ShutsDown),
            kept = self.kept(work.cluster, cluster) => kept,
        };
        let mut kept = match kept {
            Ok(kept) => kept,
            Err(NoClient::ShutsDown(_)) => return Err(ReconcileError::ShutsDown),
            // Another replica may have the keys.
            Err(NoClient::Credentials(
                error @ NoCredentials::Sealed(OpenError::UnknownKey { .. } | OpenError::Unread),
            )) => return Err(ReconcileError::NoKey(error)),
            Err(fault) => {
                // A value that does not fit its key does so again once the right key is there.
                let is_sealed = matches!(fault, NoClient::Credentials(NoCredentials::Sealed(_)));
                let ended = if is_sealed { self.silent_again(work, Duration::ZERO) } else { Ended::Refused };
                let message = full_text(&fault);
                read.tell_unreachable(work, Unreachable::KubeconfigInvalid, &message);
                // Others need not wait for the database.
                *own_slot = ReconcileSlot::Nothing;
                return self
                    .unreachable(work, read, (Unreachable::KubeconfigInvalid, message), ended)
                    .await
                    .map(Passed::ended);
            }
        };
        let reconciled = Box::pin(self.pass_with(work, read, (pass_plan, asks), own_slot, &mut kept, stopping)).await;
        let dropped = self.idle.lock().put(work.cluster, kept, Instant::now());
        drop(dropped);
        reconciled
    }

    /// The client of the last pass, if it was made of this kubeconfig, or a new one.
    async fn kept(&self, id: Uuid, cluster: &StoredCluster) -> Result<Kept, NoClient> {
        let kubeconfig = self.preparer.open(cluster)?;
        let kept = self.idle.lock().take(id);
        match kept.filter(|kept| kept.client.fingerprint() == kubeconfig.fingerprint()) {
            Some(kept) => Ok(kept),
            None => Ok(Kept {
                client: self.preparer.client(&self.clusters, cluster, kubeconfig).await?,
                unfinished: Unfinished::default(),
            }),
        }
    }

    async fn pass_with(
        &self,
        work: &Work,
        read: &Read,
        (pass_plan, asks): (&PassPlan, Asks),
        own_slot: &mut ReconcileSlot,
        kept: &mut Kept,
        stopping: &CancellationToken,
    ) -> Result<Passed, ReconcileError> {
        let mut executor = Executor::new(&mut kept.client, work.fence(), CONNECT_WITHIN);
        if asks == Asks::First {
            let probed = executor.probe().await;
            own_slot.note_probed();
            if let Err(stop) = probed {
                // Others need not wait for the database.
                *own_slot = ReconcileSlot::Nothing;
                return self.stopped_before(work, read, stop).await.map(Passed::ended);
            }
            // From now on it is one of those that answer.
            if let Some(slot) = self.slots.connect(work) {
                *own_slot = ReconcileSlot::Connecting(slot);
            }
        }
        let identified = match self.identify(work, read, pass_plan, &mut executor).await? {
            MayBegin::As(identified) => identified,
            MayBegin::Stopped(stop) => return self.stopped_before(work, read, stop).await.map(Passed::ended),
        };
        let deletions = |syncset: Uuid| read.snapshot.deletions(syncset);
        let prepared = self.preparer.prepare(&read.snapshot, &read.plan, pass_plan, identified.is_another, &deletions);
        // It may wait for the budget that other passes have. They may wait for slots to work, so nobody waits for the budget with a slot to work.
        let began = Instant::now();
        let prepared = tokio::select! {
            biased;
            _ = work.expired() => return Err(ReconcileError::Lost),
            () = stopping.cancelled() => return Err(ReconcileError::ShutsDown),
            prepared = prepared => prepared,
        };
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            Err(PrepareError::Outdated) => return Ok(Passed::Again),
            Err(PrepareError::Store(error)) => return Err(error.into()),
            Err(PrepareError::Busy) => {
                return Ok(Passed::ended(Reconciled::of(
                    ReconcileResult::Requeue,
                    ClaimEnd::further(after(read.now(), SOON), 0),
                )));
            }
            // Others may need the slot to connect, and another replica may have budget.
            Err(PrepareError::NoBudget) => {
                return Ok(Passed::ended(Reconciled::of(
                    ReconcileResult::Requeue,
                    ClaimEnd::further(put_off(read.now()), 0),
                )));
            }
            Err(error @ PrepareError::TooManyObjects) => return Err(ReconcileError::Prepare(error)),
        };
        let mut basis = Basis::of(work, read);
        basis.has_waited(began.elapsed());
        if executor.is_answered() {
            basis.has_waited(self.begin_work(work, own_slot, stopping).await?);
        }
        if basis.is_stale(false, Instant::now()) {
            self.ask_anew(work, &mut basis).await?;
        }
        if basis.is_another_version {
            // Another pass is requested for that, or will be soon.
            return Ok(Passed::ended(Reconciled::of(ReconcileResult::Requeue, ClaimEnd::further(read.now(), 0))));
        }
        prepared.input.progress = kept.unfinished.take(read.demand());
        prepared.input.elsewhere = read.cluster_row().is_elsewhere(identified.identity.as_deref().or(read.identity()));
        let sent = Sent::of(&read.plan, &pass_plan.health, &prepared.input.applied);
        let rests_on = (prepared, read, &identified);
        let mut ran = self.run_pass(work, &mut executor, &mut basis, rests_on, own_slot, stopping).await?;
        if !sent.is_empty() && ran.stop.is_none() && ran.outcome.end == End::Finished {
            match self.read_health((work, read), &mut executor, sent, own_slot, stopping).await? {
                health::ReadingEnd::Read(health) => ran.health = health,
                health::ReadingEnd::Stopped(stop) => ran.stop = Some(stop),
                health::ReadingEnd::ShutsDown => {}
            }
            ran.is_answered |= executor.is_answered();
        }
        drop(executor);
        // The pass may have sent no request itself.
        ran.is_answered |= asks == Asks::HasAnswered;
        let progress = std::mem::take(&mut ran.outcome.progress);
        let reconciled = self.finish(work, read, pass_plan, &identified, ran).await?;
        // The next pass may skip only what this one has stored. If the status could not be written, some of it is done once more.
        kept.unfinished.keep(progress, read.demand());
        Ok(Passed::ended(reconciled))
    }

    async fn run_pass(
        &self,
        work: &Work,
        executor: &mut Executor<'_>,
        basis: &mut Basis,
        (prepared, read, identified): (Prepared, &Read, &Identified),
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<Ran, ReconcileError> {
        let Prepared { input, budget: _budget } = prepared;
        executor.expect(input.kinds());
        let mut target = PassTarget::new((self, work, read), executor, basis, own_slot, stopping);
        target.noted = identified.noted(read);
        let (outcome, halt) = Box::pin(pass(&mut target, input)).await;
        let not_before = target.not_before;
        let is_answered = executor.is_answered();
        let (stop, is_stopped) = match halt {
            Some(Halt::Failed(error)) => return Err(error),
            Some(Halt::Cluster(stop)) => (Some(stop), false),
            Some(Halt::ShutsDown) => (None, true),
            Some(Halt::Outdated) => (None, false),
            None => {
                // What it did is stored with a slot to work, too: others wait for the one to connect.
                if is_answered {
                    self.begin_work(work, own_slot, stopping).await?;
                }
                (None, false)
            }
        };
        Ok(Ran { outcome, health: BTreeMap::new(), stop, is_stopped, not_before, is_answered })
    }
}
