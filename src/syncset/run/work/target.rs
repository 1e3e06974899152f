//! What a pass runs on: one cluster and the database, under the claim on the cluster.
//!
//! Between its requests a pass waits for its slot, stops if the process ends, and finds out whether what it was planned by still holds
//! ([`Basis`]). A cluster that takes long gives its slot back meanwhile.
//!
//! A pass is planned by a snapshot, and may wait after that: for its share of a budget, for a slot, for a cluster that takes its time. Meanwhile
//! somebody may pause the cluster or restore a label. Each write to the database brings what is known of that; and if the last word is
//! old, the database is asked before anything is deleted, and after a wait before the next request about an object. So a pass deletes nothing of
//! which another pass was requested more than [`FRESH`] ago, unless what was changed does not concern what is wanted and who may delete;
//! and one that has waited reads and sends no object where the cluster's document has changed. Other changes do not keep it from sending what it has: a
//! cluster that changes more often than it has a turn would never have one.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::executor::{self, Executor, Stop};
use super::slot::ReconcileSlot;
use super::worker::Worker;
use super::{Read, ReconcileError};
use crate::documents::Work;
use crate::syncset::plan::pass::{
    Address, Ending, Failed, List, Page, Refusal, Refused, Resolution, Seen, Target, Write, Writes, Written,
};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::snapshot::{Plan, Rechecked};
use crate::syncset::plan::spec::Behavior;
use crate::syncset::run::store::{ClusterRevision, ClusterUpdate, PassStore};

/// How long an answer of the database counts as fresh. A pass that deletes something writes its plan right before, and the look at the
/// first object takes milliseconds: usually no further question is needed.
const FRESH: Duration = Duration::from_secs(1);
/// After so many passes in a row that met a 429 the next one may be about its request alone.
const MOST_THROTTLED: u32 = 2;

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
    worker: &'p Worker,
    work: &'p Work,
    read: &'p Read,
    executor: &'p mut Executor<'c>,
    basis: &'p mut Basis,
    own_slot: &'p mut ReconcileSlot,
    stopping: &'p CancellationToken,
    /// A new identity is stored with the first writes. If it is another one, these forget what was stored of the cluster before.
    noted: Option<ClusterUpdate>,
    began: Instant,
    waited: Duration,
    /// How long the last request took.
    took: Duration,
    /// How many requests were refused with a 429, without ending the pass.
    refused: u32,
    /// After how long they may be tried again.
    pub(super) not_before: Duration,
}

impl<'p, 'c> PassTarget<'p, 'c> {
    pub(super) fn new(
        (worker, work, read): (&'p Worker, &'p Work, &'p Read),
        executor: &'p mut Executor<'c>,
        basis: &'p mut Basis,
        own_slot: &'p mut ReconcileSlot,
        stopping: &'p CancellationToken,
        noted: Option<ClusterUpdate>,
    ) -> Self {
        let (waited, took, refused, not_before) = <_>::default();
        let began = Instant::now();
        Self {
            worker,
            work,
            read,
            executor,
            basis,
            own_slot,
            stopping,
            noted,
            began,
            waited,
            took,
            refused,
            not_before,
        }
    }

    async fn answered<A>(&mut self, asked: Instant, answer: Result<A, executor::Failed>) -> Result<A, Failed<Halt>> {
        self.took = asked.elapsed();
        match answer {
            Ok(answer) => Ok(answer),
            Err(Failed::Refused(refused)) => Err(Failed::Refused(refused)),
            Err(Failed::Stopped(Stop::Throttled { told, message, .. })) => {
                self.throttled(told, &message).await.map_err(Failed::Stopped)?;
                Err(Failed::Refused(Refused { refusal: Refusal::Rejected, message }))
            }
            Err(Failed::Stopped(stop)) => Err(Failed::Stopped(Self::halt(stop))),
        }
    }

    /// A 429 ends the pass. If each of the last ones has ended so, it may be about this request alone, such as that of a webhook, which would keep
    /// everything else from being sent for ever. Then it is a refusal like any other, as long as the API server answers at all. The next one ends
    /// the pass all the same, and each further pass takes one more: an API server that sheds load is not asked for everything.
    async fn throttled(&mut self, told: Duration, message: &str) -> Result<(), Halt> {
        let before = self.read.snapshot.cluster_row.as_ref().map_or(0, ClusterRow::throttled);
        self.not_before = self.not_before.max(told);
        let may_be_alone = before >= self.refused.saturating_add(MOST_THROTTLED);
        if may_be_alone && (self.refused > 0 || self.executor.probe().await.is_ok()) {
            self.refused += 1;
            return Ok(());
        }
        let told = self.not_before;
        Err(Halt::Cluster(Stop::Throttled { told, message: message.to_owned(), lists: Vec::new() }))
    }

    fn halt(stop: Stop) -> Halt {
        if stop == Stop::Lost { Halt::Failed(ReconcileError::Lost) } else { Halt::Cluster(stop) }
    }

    /// Before each request to the cluster but those by which it finds out how kinds are served: the note comes after them.
    async fn may_send(&mut self) -> Result<(), Halt> {
        let may_send = self.basis.may_send(&self.worker.store, self.work).await?;
        if may_send { Ok(()) } else { Err(Halt::Outdated) }
    }

    /// Asks the database whether what a pass is about to delete is still to be deleted, after something has changed: most changes do not
    /// concern that, and a document may change more often than its passes come to a deletion.
    async fn check_again(&mut self) -> Result<Rechecked, ReconcileError> {
        let (asked, store) = (Instant::now(), &self.worker.store);
        // What was requested until now is in the snapshot that follows.
        let revision = store.revision(&self.work.writing()).await?;
        let snapshot = store.snapshot_within(self.work.cluster, self.read.room.bytes).await?;
        // It has grown.
        let Ok(snapshot) = snapshot else { return Ok(Rechecked::Changed) };
        let rechecked = Rechecked::of((&self.read.snapshot, &self.read.plan), (&snapshot, &Plan::of(&snapshot)));
        if rechecked == Rechecked::Same {
            self.basis.follow(revision, asked);
        }
        Ok(rechecked)
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
        if self.stopping.is_cancelled() { Err(Halt::ShutsDown) } else { Ok(()) }
    }

    async fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Result<Resolution, Failed<Halt>> {
        let asked = Instant::now();
        let resolved = self.executor.resolve(api_version, kind, wait);
        let resolved = self.worker.patiently(self.work, resolved, self.own_slot).await;
        self.answered(asked, resolved).await
    }

    async fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Failed<Halt>> {
        self.may_send().await.map_err(Failed::Stopped)?;
        let asked = Instant::now();
        let found = self.worker.patiently(self.work, self.executor.look(at), self.own_slot).await;
        let mut found = self.answered(asked, found).await?;
        if let Some(seen) = &mut found
            && let Some(syncset) = seen.marks.syncset
        {
            let is_known = self.worker.store.knows(&self.read.snapshot, syncset).await;
            seen.of_this_hub = is_known.map_err(|error| Failed::Stopped(Halt::Failed(error.into())))?;
        }
        Ok(found)
    }

    async fn list(&mut self, lists: &[List<'_>]) -> Result<Vec<Result<Page, Refused>>, Halt> {
        self.may_send().await?;
        match self.worker.patiently(self.work, self.executor.list(lists), self.own_slot).await {
            Ok(pages) => Ok(pages),
            Err(Stop::Throttled { told, message, lists }) => self.throttled(told, &message).await.map(|()| lists),
            Err(stop) => Err(Self::halt(stop)),
        }
    }

    async fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed<Halt>> {
        self.may_send().await.map_err(Failed::Stopped)?;
        let asked = Instant::now();
        let written = self.worker.patiently(self.work, self.executor.write(at, write), self.own_slot).await;
        self.answered(asked, written).await
    }

    /// What has changed may be that the object is wanted again, or that nothing is to be done to the cluster.
    async fn may_delete(&mut self) -> Result<bool, Halt> {
        self.may_send().await?;
        if self.basis.is_stale(true, Instant::now()) {
            self.basis.ask_anew(&self.worker.store, self.work).await?;
        }
        if !self.basis.has_changed {
            return Ok(true);
        }
        match self.check_again().await? {
            Rechecked::Same => Ok(true),
            Rechecked::Changed => Ok(false),
            Rechecked::Ended => Err(Halt::Outdated),
        }
    }

    async fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed<Halt>> {
        let asked = Instant::now();
        let deleted = self.worker.patiently(self.work, self.executor.delete(at, uid, version), self.own_slot).await;
        self.answered(asked, deleted).await
    }

    async fn store(&mut self, writes: Writes) -> Result<(), Halt> {
        let (asked, noted) = (Instant::now(), self.noted.take());
        let saved = self.worker.store.save(&self.work.writing(), &writes, noted.as_ref()).await;
        self.basis.learn(saved.map_err(ReconcileError::from)?, asked);
        Ok(())
    }

    fn sent(&mut self, behavior: Behavior, is_success: bool) {
        self.worker.observer.sent(behavior, is_success, self.took);
    }
}

/// What a pass was planned by, and whether that still holds.
#[derive(Debug)]
pub(super) struct Basis {
    /// Requests that the snapshot has seen, if none came between the claim and it.
    wanted: i64,
    /// Version of the cluster's document.
    version: Option<i64>,
    /// Whether something has changed, so that the pass has to begin anew before it may delete.
    has_changed: bool,
    /// Whether that is the cluster's document, so that the cluster may be paused.
    is_another_version: bool,
    /// Whether that was found out after the reconcile has waited, so that it sends nothing more.
    is_outdated: bool,
    /// When the database last answered.
    told: Instant,
    /// How long the reconcile has waited for its turn since then.
    waited: Duration,
}

impl Basis {
    pub(super) fn of(work: &Work, read: &Read) -> Self {
        Self {
            wanted: work.wanted,
            version: read.snapshot.cluster.as_ref().map(|cluster| cluster.document.version),
            has_changed: false,
            is_another_version: false,
            is_outdated: false,
            told: read.at,
            waited: Duration::ZERO,
        }
    }

    /// The reconcile has waited for its turn.
    pub(super) fn has_waited(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// Whether the database has to be asked before the next request.
    fn is_stale(&self, deletes: bool, now: Instant) -> bool {
        self.waited > FRESH || (deletes && now.saturating_duration_since(self.told) > FRESH)
    }

    /// What has changed until that time does not matter.
    fn follow(&mut self, revision: ClusterRevision, asked: Instant) {
        (self.wanted, self.version) = (revision.wanted, revision.version);
        (self.has_changed, self.is_another_version) = (false, false);
        self.learn(revision, asked);
    }

    /// The database was asked at that time.
    fn learn(&mut self, revision: ClusterRevision, asked: Instant) {
        self.is_another_version |= revision.version != self.version;
        self.has_changed |= revision.wanted != self.wanted || self.is_another_version;
        self.is_outdated |= self.is_another_version && self.waited > FRESH;
        (self.told, self.waited) = (asked, Duration::ZERO);
    }

    /// Whether anything may be sent to the cluster: not after a wait in which its document was changed. What the pass has stored since then says
    /// so, too.
    pub(super) async fn may_send(&mut self, store: &PassStore, work: &Work) -> Result<bool, ReconcileError> {
        if self.is_stale(false, Instant::now()) {
            self.ask_anew(store, work).await?;
        }
        Ok(!self.is_outdated)
    }

    /// Asks the database whether everything is as it was.
    async fn ask_anew(&mut self, store: &PassStore, work: &Work) -> Result<(), ReconcileError> {
        let asked = Instant::now();
        self.learn(store.revision(&work.writing()).await?, asked);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basis(now: Instant) -> Basis {
        Basis {
            wanted: 7,
            version: Some(40),
            has_changed: false,
            is_another_version: false,
            is_outdated: false,
            told: now,
            waited: Duration::ZERO,
        }
    }

    const SAME: ClusterRevision = ClusterRevision { wanted: 7, version: Some(40) };

    #[test]
    fn a_request_a_change_of_the_cluster_and_its_end_are_changes_and_stay_so() {
        let now = Instant::now();
        for changed in [
            ClusterRevision { wanted: 8, ..SAME },
            ClusterRevision { version: Some(41), ..SAME },
            ClusterRevision { version: None, ..SAME },
        ] {
            let mut basis = basis(now);
            basis.learn(SAME, now);
            assert!(!basis.has_changed);
            basis.learn(changed, now);
            basis.learn(SAME, now);
            assert!(basis.has_changed, "{changed:?}");
            assert_eq!(basis.is_another_version, changed.version != SAME.version);
        }
    }

    #[test]
    fn the_database_is_asked_before_a_deletion_if_it_has_not_spoken_for_long_and_after_a_wait_in_any_case() {
        let now = Instant::now();
        let mut basis = basis(now);
        let later = now + FRESH * 2;
        assert_eq!(
            [(true, now), (false, later), (true, later)].map(|(deletes, at)| basis.is_stale(deletes, at)),
            [false, false, true]
        );
        basis.learn(SAME, later);
        assert!(!basis.is_stale(true, later));
        basis.has_waited(FRESH);
        assert!(!basis.is_stale(false, later));
        basis.has_waited(FRESH);
        assert!(basis.is_stale(false, later));
        basis.learn(SAME, later);
        assert!(!basis.is_stale(false, later));
    }

    /// It learns so by what it is told before its next request, whether it has asked for that or has stored something.
    #[test]
    fn one_that_has_waited_sends_nothing_more_to_a_cluster_whose_document_has_changed() {
        let now = Instant::now();
        for (waited, requested, version, is_outdated) in
            [(2, 8, 40, false), (2, 7, 41, true), (1, 7, 41, false), (0, 7, 41, false)]
        {
            let mut basis = basis(now);
            basis.has_waited(FRESH * waited);
            basis.learn(ClusterRevision { wanted: requested, version: Some(version) }, now);
            assert_eq!(basis.is_outdated, is_outdated, "{waited} {requested} {version}");
            basis.has_waited(FRESH * 2);
            basis.learn(SAME, now);
            assert_eq!(basis.is_outdated, version == 41, "once it has waited");
        }
    }
}
