//! What a pass runs on: one cluster and the database, under the claim on the cluster.
//!
//! Between its requests a pass waits for its slot, stops if the process ends, and finds out whether what it was planned by still holds
//! (`basis`). A cluster that takes long gives its slot back meanwhile.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::basis::{Basis, Rechecked};
use super::executor::Executor;
use super::plan::Read;
use super::refusal::{self, Stop};
use super::slot::ReconcileSlot;
use super::worker::{ReconcileError, Worker};
use crate::documents::Work;
use crate::syncset::plan::pass::{
    Address, Ending, Failed, List, Page, Refusal, Refused, Resolution, Seen, Target, Write, Writes, Written,
};
use crate::syncset::plan::spec::Behavior;
use crate::syncset::run::store::ClusterUpdate;

/// Why a pass stops.
#[derive(Debug)]
pub(super) enum Halt {
    /// The cluster does not answer, or wants fewer requests.
    Cluster(Stop),
    ShutsDown,
    /// Documents have changed: another pass is requested for that, or will be soon.
    Outdated,
    /// Nothing is known to be stored of what it has done since it last stored that.
    Failed(ReconcileError),
}

impl From<ReconcileError> for Halt {
    fn from(error: ReconcileError) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct PassTarget<'p, 'c> {
    pub(super) worker: &'p Worker,
    pub(super) work: &'p Work,
    pub(super) read: &'p Read,
    pub(super) executor: &'p mut Executor<'c>,
    pub(super) basis: &'p mut Basis,
    pub(super) own_slot: &'p mut ReconcileSlot,
    pub(super) stopping: &'p CancellationToken,
    /// A new identity is stored with the first writes. If it is another one, these forget what was stored of the cluster before.
    pub(super) noted: Option<ClusterUpdate>,
    began: Instant,
    waited: Duration,
    /// How long the last request took.
    took: Duration,
    /// What the last 429 has said.
    told: (Duration, String),
    /// Something failed with a 429, and may not be tried again before.
    pub(super) not_before: Duration,
}

impl<'p, 'c> PassTarget<'p, 'c> {
    pub(super) fn new(
        (worker, work, read): (&'p Worker, &'p Work, &'p Read),
        executor: &'p mut Executor<'c>,
        basis: &'p mut Basis,
        own_slot: &'p mut ReconcileSlot,
        stopping: &'p CancellationToken,
    ) -> Self {
        let (waited, took, told, not_before) = <_>::default();
        let (began, noted) = (Instant::now(), None);
        Self { worker, work, read, executor, basis, own_slot, stopping, noted, began, waited, took, told, not_before }
    }

    fn answered<A>(&mut self, asked: Instant, answer: Result<A, refusal::Failed>) -> Result<A, Failed<Halt>> {
        self.took = asked.elapsed();
        answer.map_err(|failed| match failed {
            Failed::Refused(refused) => Failed::Refused(refused),
            Failed::Stopped(Stop::Throttled { told, message, .. }) => {
                self.told = (told, message.clone());
                Failed::Refused(Refused { refusal: Refusal::Throttled, message })
            }
            Failed::Stopped(stop) => Failed::Stopped(Self::halt(stop)),
        })
    }

    fn halt(stop: Stop) -> Halt {
        if stop == Stop::Lost { Halt::Failed(ReconcileError::Lost) } else { Halt::Cluster(stop) }
    }
}

impl Target for PassTarget<'_, '_> {
    type Stop = Halt;

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    async fn ready(&mut self) -> Result<(), Halt> {
        if self.executor.is_answered() {
            let waited = self.worker.begin_work(self.work, self.own_slot, self.stopping).await?;
            self.waited += waited;
            self.basis.has_waited(waited);
        }
        if self.stopping.is_cancelled() {
            return Err(Halt::ShutsDown);
        }
        if self.basis.is_stale(false, Instant::now()) {
            self.worker.ask_anew(self.work, self.basis).await?;
            if self.basis.is_another_version {
                return Err(Halt::Outdated);
            }
        }
        Ok(())
    }

    async fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Result<Resolution, Failed<Halt>> {
        let asked = Instant::now();
        let resolved = self.executor.resolve(api_version, kind, wait);
        let resolved = self.worker.patiently(self.work, resolved, self.own_slot).await;
        self.answered(asked, resolved)
    }

    async fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Failed<Halt>> {
        let asked = Instant::now();
        let found = self.worker.patiently(self.work, self.executor.look(at), self.own_slot).await;
        let mut found = self.answered(asked, found)?;
        if let Some(seen) = &mut found
            && let Some(syncset) = seen.marks.syncset
        {
            let is_known = self.worker.store.knows(&self.read.snapshot, syncset).await;
            seen.of_this_hub = is_known.map_err(|error| Failed::Stopped(Halt::Failed(error.into())))?;
        }
        Ok(found)
    }

    async fn list(&mut self, lists: &[List<'_>]) -> Result<Vec<Result<Page, Refused>>, Halt> {
        match self.worker.patiently(self.work, self.executor.list(lists), self.own_slot).await {
            Ok(pages) => Ok(pages),
            Err(Stop::Throttled { told, message, lists }) => {
                self.told = (told, message);
                Ok(lists)
            }
            Err(stop) => Err(Self::halt(stop)),
        }
    }

    async fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed<Halt>> {
        let asked = Instant::now();
        let written = self.worker.patiently(self.work, self.executor.write(at, write), self.own_slot).await;
        self.answered(asked, written)
    }

    /// What has changed may be that the object is wanted again, or that nothing is to be done to the cluster.
    async fn may_delete(&mut self) -> Result<bool, Halt> {
        if self.basis.is_stale(true, Instant::now()) {
            self.worker.ask_anew(self.work, self.basis).await?;
        }
        if !self.basis.has_changed {
            return Ok(true);
        }
        match self.worker.check_again(self.work, self.read, self.basis).await? {
            Rechecked::Same => Ok(true),
            Rechecked::Changed => Ok(false),
            Rechecked::Ended => Err(Halt::Outdated),
        }
    }

    async fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed<Halt>> {
        let asked = Instant::now();
        let deleted = self.worker.patiently(self.work, self.executor.delete(at, uid, version), self.own_slot).await;
        self.answered(asked, deleted)
    }

    async fn throttled(&mut self, may_be_alone: bool) -> Result<(), Halt> {
        let (told, message) = std::mem::take(&mut self.told);
        if may_be_alone && self.executor.probe().await.is_ok() {
            self.not_before = self.not_before.max(told);
            return Ok(());
        }
        Err(Halt::Cluster(Stop::Throttled { told, message, lists: Vec::new() }))
    }

    async fn store(&mut self, writes: Writes) -> Result<(), Halt> {
        let noted = self.noted.take();
        Ok(self.worker.store_pass(self.work, self.basis, &writes, noted.as_ref()).await?)
    }

    fn sent(&mut self, behavior: Behavior, is_success: bool) {
        self.worker.observer.sent(behavior, is_success, self.took);
    }
}
