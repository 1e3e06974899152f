//! A pass over a cluster: it connects, finds out which cluster it is, prepares what is due, runs, and reads health.
//!
//! Of the documents of a namespace that lead to one cluster the first one owns it ([`PassStore::own`]), and nothing is sent for the others.
//!
//! [`PassStore::own`]: crate::syncset::run::store::PassStore::own

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::executor::{Executor, Failed, Stop};
use super::finish::Ran;
use super::health::{ReadingEnd, SentObjects};
use super::idle::{KeptClient, Unfinished};
use super::prepare::{NoClient, NoCredentials, PrepareError, Prepared};
use super::slot::{ReconcileSlot, put_off};
use super::target::{Basis, Halt, PassTarget};
use super::worker::{SOON, Worker};
use super::{ClaimEnd, Identified, Read, ReconcileError, Reconciled};
use crate::cluster::full_text;
use crate::documents::{OpenError, Work};
use crate::syncset::plan::action::PassPlan;
use crate::syncset::plan::pass::{End, Refusal, Refused, pass};
use crate::syncset::plan::retry::{LeftAs, after};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::snapshot::StoredCluster;
use crate::syncset::plan::status::Unreachable;
use crate::syncset::run::store::ClusterUpdate;
use crate::telemetry::ReconcileResult;

/// A cluster has to answer within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Whether a pass first asks a silent cluster whether it answers at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// It is not silent.
    Nothing,
    First,
    /// It has answered that earlier in this reconcile.
    HasAnswered,
}

/// Why a pass has not begun.
pub(super) enum NoPass {
    /// The reconcile has come to its end without it.
    Ended(Box<Reconciled>),
    /// Documents have changed since they were read.
    Outdated,
    Failed(ReconcileError),
}

impl From<ReconcileError> for NoPass {
    fn from(error: ReconcileError) -> Self {
        Self::Failed(error)
    }
}

/// The reconcile ended in this way.
impl From<Result<Reconciled, ReconcileError>> for NoPass {
    fn from(ended: Result<Reconciled, ReconcileError>) -> Self {
        ended.map_or_else(Self::Failed, |reconciled| Self::Ended(Box::new(reconciled)))
    }
}

impl NoPass {
    /// The cluster is requeued, and what was urgent stays urgent.
    fn requeued(at: Timestamp) -> Self {
        Self::Ended(Box::new(Reconciled::of(ReconcileResult::Requeue, ClaimEnd::further(at, 0))))
    }

    /// What it rests on could not be read or rendered.
    pub(super) fn of(error: PrepareError, now: Timestamp) -> Self {
        match error {
            PrepareError::Outdated => Self::Outdated,
            PrepareError::Store(error) => Self::Failed(error.into()),
            PrepareError::Busy => Self::requeued(after(now, SOON)),
            // Others may need the slot to connect, and another replica may have budget.
            PrepareError::NoBudget => Self::requeued(put_off(now)),
            error @ (PrepareError::TooManyObjects | PrepareError::TooManySyncsets) => {
                Self::Failed(ReconcileError::Prepare(error))
            }
        }
    }
}

impl Worker {
    /// Runs the pass that is planned, with a client of the cluster.
    pub(super) async fn begin_pass(
        &self,
        work: &Work,
        read: &Read,
        (pass_plan, asks): (&PassPlan, Asks),
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<Reconciled, NoPass> {
        // No pass is planned without a cluster.
        let Some(cluster) = &read.snapshot.cluster else { return Err(NoPass::Outdated) };
        let mut kept = self.connect(work, read, cluster, own_slot, stopping).await?;
        let reconciled = Box::pin(self.with_client(work, read, (pass_plan, asks), own_slot, &mut kept, stopping)).await;
        let dropped = self.idle.lock().put(work.cluster, kept, Instant::now());
        drop(dropped);
        reconciled
    }

    /// A client of the cluster, which connects with its first request.
    async fn connect(
        &self,
        work: &Work,
        read: &Read,
        cluster: &StoredCluster,
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<KeptClient, NoPass> {
        // Keys and certificates are read on few threads, which may be busy.
        let kept = tokio::select! {
            biased;
            _ = work.expired() => return Err(NoPass::Failed(ReconcileError::Lost)),
            () = stopping.cancelled() => return Err(NoPass::Failed(ReconcileError::ShutsDown)),
            kept = self.kept(work.cluster, cluster) => kept,
        };
        let fault = match kept {
            Ok(kept) => return Ok(kept),
            Err(NoClient::ShutsDown(_)) => return Err(NoPass::Failed(ReconcileError::ShutsDown)),
            // Another replica may have the keys.
            Err(NoClient::Credentials(
                error @ NoCredentials::Sealed(OpenError::UnknownKey { .. } | OpenError::Unread),
            )) => return Err(NoPass::Failed(ReconcileError::NoKey(error))),
            Err(fault) => fault,
        };
        // A value that does not fit its key does so again once the right key is there.
        let is_sealed = matches!(fault, NoClient::Credentials(NoCredentials::Sealed(_)));
        let left_as = if is_sealed { self.silent_again(work, Duration::ZERO) } else { LeftAs::Refused };
        let (reason, message) = (Unreachable::KubeconfigInvalid, full_text(&fault));
        read.log_unreachable(work, reason, &message);
        // Others need not wait for the database.
        *own_slot = ReconcileSlot::Nothing;
        Err(self.unreachable(work, read, (reason, message), left_as).await.into())
    }

    /// The client of the last pass, if it was made of this kubeconfig, or a new one.
    async fn kept(&self, id: Uuid, cluster: &StoredCluster) -> Result<KeptClient, NoClient> {
        let kubeconfig = self.preparer.open(cluster)?;
        let kept = self.idle.lock().take(id);
        match kept.filter(|kept| kept.client.fingerprint() == kubeconfig.fingerprint()) {
            Some(kept) => Ok(kept),
            None => Ok(KeptClient {
                client: self.preparer.client(&self.clusters, cluster, kubeconfig).await?,
                unfinished: Unfinished::default(),
            }),
        }
    }

    async fn with_client(
        &self,
        work: &Work,
        read: &Read,
        (pass_plan, asks): (&PassPlan, Asks),
        own_slot: &mut ReconcileSlot,
        kept: &mut KeptClient,
        stopping: &CancellationToken,
    ) -> Result<Reconciled, NoPass> {
        let mut executor = Executor::new(&mut kept.client, work.fence(), CONNECT_WITHIN);
        if asks == Asks::First {
            self.probe(work, read, &mut executor, own_slot).await?;
        }
        let identified = self.identify(work, read, pass_plan, &mut executor).await?;
        let began = Instant::now();
        let mut prepared = self.prepared(work, read, pass_plan, &identified, stopping).await?;
        let mut basis = Basis::of(work, read);
        basis.has_waited(began.elapsed());
        if executor.is_answered() {
            basis.has_waited(self.begin_work(work, own_slot, stopping).await?);
        }
        prepared.input.progress = kept.unfinished.take(read.demand());
        prepared.input.elsewhere = read.cluster_row().is_elsewhere(identified.identity.as_deref().or(read.identity()));
        let sent = SentObjects::of(&read.plan, &pass_plan.health, &prepared.input.applied);
        let begins_with = (prepared, identified.noted(read));
        let mut ran = self.on_target((work, read), &mut executor, &mut basis, begins_with, own_slot, stopping).await?;
        let reads_health = !sent.is_empty() && ran.stop.is_none() && ran.outcome.end == End::Finished;
        if reads_health && basis.may_send(&self.store, work).await? {
            match self.read_health((work, read), &mut executor, sent, own_slot, stopping).await? {
                ReadingEnd::Read(health) => ran.health = health,
                ReadingEnd::Stopped(stop) => ran.stop = Some(stop),
                ReadingEnd::ShutsDown => {}
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
        Ok(reconciled)
    }

    /// Asks a silent cluster whether it answers.
    async fn probe(
        &self,
        work: &Work,
        read: &Read,
        executor: &mut Executor<'_>,
        own_slot: &mut ReconcileSlot,
    ) -> Result<(), NoPass> {
        if let Err(stop) = executor.probe().await {
            // Others need not wait for the database.
            *own_slot = ReconcileSlot::Nothing;
            return Err(self.stopped_before(work, read, stop).await.into());
        }
        // From now on it is one of those that answer.
        if let Some(slot) = self.slots.connect(work) {
            *own_slot = ReconcileSlot::Connecting(slot);
        }
        Ok(())
    }

    /// Finds out which cluster it is, if that is to be found out. A document that does not own it stops here.
    async fn identify(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        executor: &mut Executor<'_>,
    ) -> Result<Identified, NoPass> {
        if !pass_plan.identifies {
            return match self.duplicate(read.snapshot.owner.as_deref()) {
                Some(stop) => Err(self.stopped_before(work, read, stop).await.into()),
                None => Ok(Identified { identity: None, is_another: false }),
            };
        }
        let identity = match executor.identity().await {
            Ok(identity) => identity,
            Err(Failed::Refused(Refused { refusal, message })) => {
                let message = format!("failed to read the UID of namespace kube-system: {message}");
                let reason = match refusal {
                    Refusal::Forbidden => Unreachable::Forbidden,
                    _ => Unreachable::ErrorConnectingToCluster,
                };
                return Err(self.stopped_before(work, read, Stop::silent(reason, message)).await.into());
            }
            Err(Failed::Stopped(stop)) => return Err(self.stopped_before(work, read, stop).await.into()),
        };
        // It is noted also where duplicates are allowed, so that the order is known when they no longer are.
        let owner = self.store.own(&work.writing(), &identity).await.map_err(ReconcileError::from)?;
        if let Some(stop) = self.duplicate(owner.as_deref()) {
            return Err(self.stopped_before(work, read, stop).await.into());
        }
        let is_another = read.identity().is_some_and(|noted| *noted != identity);
        Ok(Identified { identity: Some(identity), is_another })
    }

    /// What stops a pass over a cluster that another document of the namespace owns.
    fn duplicate(&self, owner: Option<&str>) -> Option<Stop> {
        let owner = owner.filter(|_| !self.config.allows_duplicates)?;
        let message = format!(
            "the kubeconfig leads to the same cluster as that of {owner}, which owns it: nothing is sent for this document"
        );
        Some(Stop::silent(Unreachable::Duplicate, message))
    }

    /// What the pass begins with. It may wait for the budget that other passes have. They may wait for slots to work, so nobody waits for the
    /// budget with a slot to work.
    async fn prepared(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        identified: &Identified,
        stopping: &CancellationToken,
    ) -> Result<Prepared, NoPass> {
        let deletions = |syncset: Uuid| read.snapshot.deletions(syncset);
        let prepared = tokio::select! {
            biased;
            _ = work.expired() => return Err(NoPass::Failed(ReconcileError::Lost)),
            () = stopping.cancelled() => return Err(NoPass::Failed(ReconcileError::ShutsDown)),
            prepared = self.preparer.prepare(&read.snapshot, &read.plan, pass_plan, identified.is_another, &deletions) => prepared,
        };
        prepared.map_err(|error| NoPass::of(error, read.now()))
    }

    async fn on_target(
        &self,
        (work, read): (&Work, &Read),
        executor: &mut Executor<'_>,
        basis: &mut Basis,
        (prepared, noted): (Prepared, Option<ClusterUpdate>),
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<Ran, ReconcileError> {
        let Prepared { input, budget: _budget } = prepared;
        executor.expect(input.kinds());
        let mut target = PassTarget::new((self, work, read), executor, basis, own_slot, stopping, noted);
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

impl Identified {
    /// What is stored of it with the first writes, if it was not known: the rows of this pass are of this cluster, also if the kubeconfig is
    /// changed before it ends. The full pass that a new kubeconfig demands stays due until one has come to its end.
    fn noted(&self, read: &Read) -> Option<ClusterUpdate> {
        if self.identity.as_deref().is_none_or(|identity| read.identity() == Some(identity)) {
            return None;
        }
        let generation = read.plan.kubeconfig_generation();
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
