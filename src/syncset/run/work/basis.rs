//! Whether what a pass was planned by still holds.
//!
//! A pass is planned by a snapshot, and may wait after that: for its share of a budget, for a slot, for a cluster that takes its time. Meanwhile
//! somebody may pause the cluster or restore a label. Each write to the database brings what is known of that; and if the last word is
//! old, the database is asked before anything is deleted, and after a wait before anything at all is done. So a pass deletes nothing of
//! which another pass was requested more than [`FRESH`] ago, unless what was changed does not concern what is wanted and who may delete;
//! and one that has waited sends nothing to a cluster whose document has changed. Other changes do not keep it from sending what it has: a
//! cluster that changes more often than it has a turn would never have one.

use std::time::Duration;

use tokio::time::Instant;

use super::plan::{Plan, Read};
use super::worker::{ReconcileError, Worker};
use crate::documents::Work;
use crate::syncset::plan::action::Action;
use crate::syncset::plan::pass::Writes;
use crate::syncset::run::store::{ClusterUpdate, Revision, Snapshot};

/// How long an answer of the database counts as fresh. A pass that deletes something writes its plan right before, and the look at the
/// first object takes milliseconds: usually no further question is needed.
pub(super) const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Basis {
    /// Requests that the snapshot has seen, if none came between the claim and it.
    wanted: i64,
    /// Version of the cluster's document.
    version: Option<i64>,
    /// Whether something has changed, so that the pass has to begin anew before it may delete.
    pub(super) has_changed: bool,
    /// Whether that is the cluster's document, so that the cluster may be paused.
    pub(super) is_another_version: bool,
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
            told: read.at,
            waited: Duration::ZERO,
        }
    }

    /// The reconcile has waited for its turn.
    pub(super) fn has_waited(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// Whether the database has to be asked before the next request.
    pub(super) fn is_stale(&self, deletes: bool, now: Instant) -> bool {
        self.waited > FRESH || (deletes && now.saturating_duration_since(self.told) > FRESH)
    }

    /// What has changed until that time does not matter.
    fn follow(&mut self, revision: Revision, asked: Instant) {
        (self.wanted, self.version) = (revision.wanted, revision.version);
        (self.has_changed, self.is_another_version) = (false, false);
        self.learn(revision, asked);
    }

    /// The database was asked at that time.
    fn learn(&mut self, revision: Revision, asked: Instant) {
        self.is_another_version |= revision.version != self.version;
        self.has_changed |= revision.wanted != self.wanted || self.is_another_version;
        (self.told, self.waited) = (asked, Duration::ZERO);
    }
}

/// Whether what a pass is about to delete is still to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rechecked {
    /// Everything that it rests on is as it was.
    Same,
    /// Not all of it, or some of it is unchecked: what is wanted now has to be found out first.
    Changed,
    /// Nothing is to be done to the cluster any more.
    Ended,
}

impl Rechecked {
    pub(super) fn of((before, planned): (&Snapshot, &Plan), (snapshot, plan): (&Snapshot, &Plan)) -> Self {
        if matches!(plan.action, Action::Gone | Action::Paused(_)) {
            return Self::Ended;
        }
        let of_kubeconfig = |plan: &Plan| plan.facts.as_ref().map(|facts| facts.kubeconfig_generation);
        let wants = |plan: &Plan| {
            let live = plan.live.iter().map(|live| (live.header.id, live.inputs, live.undecodable.is_some()));
            live.collect::<Vec<_>>()
        };
        let of_results = before.results.iter().map(|row| row.syncset);
        let mut all = of_results.chain(before.with_applied.iter().copied());
        let is_same = of_kubeconfig(plan) == of_kubeconfig(planned)
            && plan.awaited == planned.awaited
            && wants(plan) == wants(planned)
            && all.all(|syncset| snapshot.deletions(syncset) == before.deletions(syncset));
        if is_same { Self::Same } else { Self::Changed }
    }
}

impl Worker {
    /// Asks the database whether everything is as it was.
    pub(super) async fn ask_anew(&self, work: &Work, basis: &mut Basis) -> Result<(), ReconcileError> {
        let asked = Instant::now();
        basis.learn(self.store.revision(&work.writing()).await?, asked);
        Ok(())
    }

    /// Asks the database whether what a pass is about to delete is still to be deleted, after something has changed: most changes do not
    /// concern that, and a document may change more often than its passes come to a deletion.
    pub(super) async fn check_again(
        &self,
        work: &Work,
        read: &Read,
        basis: &mut Basis,
    ) -> Result<Rechecked, ReconcileError> {
        let asked = Instant::now();
        // What was requested until now is in the snapshot that follows.
        let revision = self.store.revision(&work.writing()).await?;
        let snapshot = self.store.snapshot(work.cluster).await?;
        let rechecked = Rechecked::of((&read.snapshot, &read.plan), (&snapshot, &Plan::of(&snapshot)));
        if rechecked == Rechecked::Same {
            basis.follow(revision, asked);
        }
        Ok(rechecked)
    }

    /// Stores what a pass has done or is about to do.
    pub(super) async fn store_pass(
        &self,
        work: &Work,
        basis: &mut Basis,
        writes: &Writes,
        cluster_row: Option<&ClusterUpdate>,
    ) -> Result<(), ReconcileError> {
        let asked = Instant::now();
        basis.learn(self.store.save(&work.writing(), writes, cluster_row).await?, asked);
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
            told: now,
            waited: Duration::ZERO,
        }
    }

    const SAME: Revision = Revision { wanted: 7, version: Some(40) };

    #[test]
    fn a_request_a_change_of_the_cluster_and_its_end_are_changes_and_stay_so() {
        let now = Instant::now();
        for changed in
            [Revision { wanted: 8, ..SAME }, Revision { version: Some(41), ..SAME }, Revision { version: None, ..SAME }]
        {
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
}
