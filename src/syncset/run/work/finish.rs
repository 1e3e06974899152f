//! How a reconcile ends: with a pass that has run, without one that could begin, without one that was due, or with an error. What has come of it is shown in the
//! `ClusterSync` first, and then stored, by the statement that ends the claim.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::executor::Stop;
use super::observer::{First, first_success_of_cluster, first_successes, log_pass, result_of};
use super::prepare::PrepareError;
use super::worker::{SOON, Worker};
use super::{ClaimEnd, Identified, Read, ReconcileError, Reconciled};
use crate::actor::Backoff;
use crate::cluster::full_text;
use crate::documents::{self, Change, Document, Expected, Item, Row, Work, WorkEnd};
use crate::syncset::plan::action::PassPlan;
use crate::syncset::plan::health::Health;
use crate::syncset::plan::pass::{End, Outcome, Writes};
use crate::syncset::plan::reason::Retry;
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::{Left, LeftAs, Next, after};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status;
use crate::syncset::plan::status::{Conditions, Observed, Reachability, Unreachable};
use crate::syncset::run::store::{ClusterUpdate, StoreError};
use crate::telemetry::ReconcileResult;

/// After a reconcile that failed through no fault of the cluster.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(15));

/// What a pass came to that has run.
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// What was read of the health of syncsets after it.
    pub(super) health: BTreeMap<Uuid, Health>,
    pub(super) stop: Option<Stop>,
    /// The process ends.
    pub(super) is_stopped: bool,
    /// Something failed with a 429, and may not be tried again before.
    pub(super) not_before: Duration,
    /// Whether the cluster has answered anything.
    pub(super) is_answered: bool,
}

/// What the `ClusterSync` is to show.
pub(super) struct Shown<'s> {
    pub(super) reachability: Reachability,
    /// Why the cluster is paused, if it is.
    pub(super) paused: Option<String>,
    /// What the pass came to, if there was one, and what was read of the health of syncsets after it.
    pub(super) ran: Option<(&'s Outcome, &'s BTreeMap<Uuid, Health>)>,
    /// Whether the pass has found another cluster than was noted.
    pub(super) is_another: bool,
}

impl Worker {
    /// Shows and stores what a pass came to. Storing it ends the claim, so it is shown first. If it can't be shown, it is stored all the same.
    pub(super) async fn finish(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        identified: &Identified,
        ran: Ran,
    ) -> Result<Reconciled, ReconcileError> {
        if matches!(ran.stop, Some(Stop::Lost)) {
            return Err(ReconcileError::Lost);
        }
        let (left_as, result) = self.left_as(work, read, pass_plan, identified.is_another, &ran);
        let next = self.next(work, read, (pass_plan, identified), &ran, &left_as);
        let Ran { outcome, health, stop, is_stopped, is_answered, .. } = ran;
        let reachability = match stop {
            Some(Stop::Silent { reason, shown, logged }) => {
                read.log_unreachable(work, reason, &logged);
                Reachability::Unreachable { reason, message: shown }
            }
            None if !is_answered => read.reachability_before(),
            _ => {
                read.log_reachable(work);
                Reachability::Reachable
            }
        };
        let stored = ClusterUpdate { row: next.cluster_row, resyncs: read.snapshot.resyncs };
        if is_stopped {
            // The process may end while it waits for the writer of documents.
            self.store.save(&work.writing(), &outcome.writes, Some(&stored)).await?;
        }
        if !health.is_empty()
            && let Err(error) = self.store.save_health(&work.writing(), &health).await
        {
            self.store.save(&work.writing(), &outcome.writes, Some(&stored)).await?;
            return Err(error.into());
        }
        let ran = Some((&outcome, &health));
        let shown = Shown { reachability, paused: None, ran, is_another: identified.is_another };
        let shown = self.show(work, read, shown, next.ready_at).await;
        // Whoever sees that the claim has ended finds it in the log.
        log_pass(&work.name, &outcome);
        let attempts = u32::try_from(next.attempts).unwrap_or_default();
        let claim_end = match shown {
            Ok(ready_at) => {
                let end = match ready_at {
                    // Another process may go on at once.
                    _ if is_stopped => WorkEnd::go_on(read.now(), work.attempts.saturating_sub(1)),
                    ready_at if left_as.goes_on() => WorkEnd::go_on(ready_at, attempts),
                    ready_at => WorkEnd::done(ready_at, attempts),
                };
                Ok(self.end(work, &end, &outcome.writes, &stored).await?)
            }
            Err(error) => {
                self.store.save(&work.writing(), &outcome.writes, Some(&stored)).await?;
                Err(error)
            }
        };
        for (of, took) in first_successes(&read.snapshot, &outcome.results) {
            self.observer.first_success(of, took);
        }
        Ok(Reconciled::of(result, claim_end?))
    }

    /// How the cluster was left by a pass that has run under its claim to the end, and what metrics call that.
    fn left_as(
        &self,
        work: &Work,
        read: &Read,
        pass_plan: &PassPlan,
        is_another: bool,
        ran: &Ran,
    ) -> (LeftAs, ReconcileResult) {
        match (&ran.stop, ran.outcome.end) {
            (Some(Stop::Throttled { told, .. }), _) => {
                let left = Some(Left::Throttled(*told));
                (LeftAs::Complete { was_full: false, left }, ReconcileResult::Error)
            }
            (Some(Stop::Silent { .. } | Stop::Lost), _) => {
                (self.silent_again(work, Duration::ZERO), ReconcileResult::Error)
            }
            (None, End::Finished) => {
                let outcome = &ran.outcome;
                // The guard asks for the cluster when it has decided, so that what fails need not be tried each second meanwhile.
                let left = match outcome.retry {
                    Some(Retry::Backoff) => Some(Left::Failing),
                    Some(Retry::Look) if !outcome.awaits_check => Some(Left::Ending),
                    _ => outcome.awaits_check.then_some(Left::Unchecked),
                };
                let later = read.cluster_row().left_at.filter(|_| pass_plan.is_early).map(Left::Later);
                let was_full = pass_plan.is_full || is_another;
                (LeftAs::Complete { was_full, left: later.or(left) }, result_of(outcome))
            }
            (None, End::Yielded | End::Interrupted) => (LeftAs::Interrupted, ReconcileResult::Requeue),
        }
    }

    /// When the cluster is reconciled next after a pass, and what is stored of it.
    fn next(
        &self,
        work: &Work,
        read: &Read,
        (pass_plan, identified): (&PassPlan, &Identified),
        ran: &Ran,
        left_as: &LeftAs,
    ) -> Next {
        let generation = read.plan.kubeconfig_generation();
        let mut cluster_row = ClusterRow { asked_generation: generation, ..read.cluster_row() };
        if let Some(identity) = &identified.identity {
            // What was stored of the cluster that was noted is forgotten by the same statement.
            cluster_row = cluster_row.identified(Some(identity.clone()));
            cluster_row.kubeconfig_generation = generation;
            // The full pass that a new kubeconfig demands stays due until one has come to its end.
            cluster_row.next_full = None;
        }
        let now = read.now();
        let attempts = i32::try_from(work.attempts - u32::from(pass_plan.is_early)).unwrap_or(i32::MAX);
        let mut next = retry::next(left_as, cluster_row, attempts, self.config.reapply_interval, now, rand::random());
        if ran.stop.is_some() {
            if ran.is_answered {
                // What came to it before may be why it is silent.
                next.cluster_row.last_contact = Some(now);
            }
            return next;
        }
        if !ran.is_answered {
            // A pass that had nothing to ask says nothing of the cluster.
            let ClusterRow { reachable, last_contact, attempts, retry_at, .. } = read.cluster_row();
            next.cluster_row = ClusterRow { reachable, last_contact, attempts, retry_at, ..next.cluster_row };
        }
        let (results, last_full) = (&ran.outcome.results, next.cluster_row.last_full);
        if let Some(at) = read.plan.health_at(&read.snapshot, results, &ran.health, last_full) {
            next.ready_at = next.ready_at.min(at.max(after(now, SOON)));
        }
        // Also if the pass has yielded: its next request may be the one that was refused. No further pass ends there.
        if !ran.not_before.is_zero() {
            let not_before = after(now, ran.not_before);
            next.ready_at = next.ready_at.max(not_before);
            next.cluster_row.retry_at = Some(not_before);
            next.cluster_row.attempts = read.cluster_row().throttled();
        }
        next
    }

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
                read.log_unreachable(work, reason, &logged);
                let is_duplicate = reason == Unreachable::Duplicate;
                let left_as = if is_duplicate { LeftAs::Refused } else { self.silent_again(work, Duration::ZERO) };
                self.unreachable(work, read, (reason, shown), left_as).await
            }
            // Whether it answers what a pass needs is still to be seen.
            Stop::Throttled { told, message, .. } if read.cluster_row().reachable == Some(false) => {
                let reason = Unreachable::ErrorConnectingToCluster;
                read.log_unreachable(work, reason, &message);
                self.unreachable(work, read, (reason, message), self.silent_again(work, told)).await
            }
            Stop::Throttled { told, .. } => self.throttled(work, read, told).await,
            Stop::Lost => Err(ReconcileError::Lost),
        }
    }

    /// The cluster is shown as unreachable, for which the log has the cause already.
    pub(super) async fn unreachable(
        &self,
        work: &Work,
        read: &Read,
        (reason, message): (Unreachable, String),
        left_as: LeftAs,
    ) -> Result<Reconciled, ReconcileError> {
        let next = self.after_question(read, &left_as, 0);
        let shown = Shown::without_a_pass(Reachability::Unreachable { reason, message });
        // Only the status says why it is silent. It is written first, and the cluster is asked again if that fails.
        let ready_at = self.show(work, read, shown, next.ready_at).await?;
        if ready_at != next.ready_at {
            return Ok(Reconciled::of(ReconcileResult::Error, ClaimEnd::until(ready_at, 0)));
        }
        self.stored(work, read, next.cluster_row, WorkEnd::done(ready_at, 0)).await
    }

    /// The cluster asks to wait, before anything could be done.
    async fn throttled(&self, work: &Work, read: &Read, told: Duration) -> Result<Reconciled, ReconcileError> {
        let left_as = LeftAs::Complete { was_full: false, left: Some(Left::Throttled(told)) };
        let attempts = i32::try_from(work.attempts).unwrap_or(i32::MAX);
        let next = self.after_question(read, &left_as, attempts);
        let end = WorkEnd::go_on(next.ready_at, work.attempts);
        self.stored(work, read, next.cluster_row, end).await
    }

    /// A cluster was asked in vain, and is asked again when its turn comes.
    pub(super) fn silent_again(&self, work: &Work, told: Duration) -> LeftAs {
        LeftAs::Silent { told, turn: self.slots.next_probe(work.namespace()) }
    }

    /// When the cluster is reconciled next, after it was asked with its present kubeconfig.
    fn after_question(&self, read: &Read, left_as: &LeftAs, attempts: i32) -> Next {
        let cluster_row = ClusterRow { asked_generation: read.plan.kubeconfig_generation(), ..read.cluster_row() };
        retry::next(left_as, cluster_row, attempts, self.config.reapply_interval, read.now(), rand::random())
    }

    /// Stores when a cluster is reconciled next over which no pass could begin, and ends the reconcile.
    async fn stored(
        &self,
        work: &Work,
        read: &Read,
        row: ClusterRow,
        work_end: WorkEnd,
    ) -> Result<Reconciled, ReconcileError> {
        let claim_end = if row == read.cluster_row() {
            ClaimEnd::Waits(work_end)
        } else {
            let stored = ClusterUpdate { row, resyncs: read.snapshot.resyncs };
            self.end(work, &work_end, &Writes::default(), &stored).await?
        };
        Ok(Reconciled::of(ReconcileResult::Error, claim_end))
    }

    /// Writes the `ClusterSync` if it differs: after a pass, or without one. Returns when the cluster is ready again: soon, if somebody else
    /// has changed the document.
    pub(super) async fn show(
        &self,
        work: &Work,
        read: &Read,
        shown: Shown<'_>,
        ready_at: Timestamp,
    ) -> Result<Timestamp, ReconcileError> {
        let (plan, snapshot) = (&read.plan, &read.snapshot);
        if snapshot.has_failure {
            let row = ClusterUpdate { row: read.cluster_row(), resyncs: snapshot.resyncs };
            self.store.save(&work.writing(), &Writes::default(), Some(&row)).await?;
        }
        let Some(before) = &snapshot.cluster_sync else { return Ok(ready_at) };
        let (none, Shown { reachability, paused, ran, is_another }) = (BTreeMap::new(), shown);
        let outcome = ran.map(|(outcome, _)| outcome);
        let results = outcome.map_or(&snapshot.results, |outcome| &outcome.results);
        let is_unreachable = matches!(reachability, Reachability::Unreachable { .. });
        let read_health = ran.map_or(&none, |(_, health)| health);
        let shown_for = self.shown_for();
        let conditions = Conditions {
            reachability,
            paused,
            suspended: plan.suspended(snapshot, results),
            has_moved: is_another || status::has_moved(&before.status, read.now(), shown_for),
        };
        let observed = Observed {
            results,
            live: &plan.ids(),
            ending: outcome.filter(|outcome| outcome.end == End::Finished).map(|outcome| &outcome.ending),
            health: &plan.health_entries(snapshot, results, read_health, (is_unreachable, is_another)),
            conditions,
            controlled_by: self.holder.as_str(),
        };
        let status = status::status(&observed, &before.status, read.now());
        if !status::differs(&status, &before.status) {
            return Ok(ready_at);
        }
        let first_success = first_success_of_cluster(snapshot, &before.status, &status);
        if !self.write_status(work, before, status).await? {
            return Ok(ready_at.min(after(read.now(), SOON)));
        }
        if let Some(took) = first_success {
            self.observer.first_success(First::Cluster, took);
        }
        Ok(ready_at)
    }

    /// No pass can begin, since too much is stored of the cluster: its `ClusterSync` says so, without reading what that is.
    pub(super) async fn show_failure(&self, work: &Work, cause: &PrepareError) -> Result<(), ReconcileError> {
        let Some(reason) = cause.reason() else { return Ok(()) };
        let message = cause.to_string();
        let Some(before) = self.store.fail(&work.writing(), reason, &message).await? else { return Ok(()) };
        let status = status::without_passes(reason, message, &before.status, self.now());
        if status::differs(&status, &before.status) {
            self.write_status(work, &before, status).await?;
        }
        Ok(())
    }

    /// Writes a status under the claim. Returns false if the document was changed by somebody else meanwhile.
    async fn write_status(
        &self,
        work: &Work,
        before: &Document,
        status: Map<String, Value>,
    ) -> Result<bool, ReconcileError> {
        let document = Document { status, ..before.clone() };
        let change = Change::put(&document.key(), Expected::Version(before.version), Row::of(&document));
        let item = Item { claim: Some(work.writing()), ..Item::of(Uuid::new_v4(), vec![change]) };
        match self.writer.write(item).await? {
            documents::Outcome::Written { .. } => Ok(true),
            documents::Outcome::Conflict { .. } => Ok(false),
            // It has no quota.
            documents::Outcome::Fenced | documents::Outcome::Exceeded { .. } => Err(ReconcileError::Lost),
        }
    }

    /// When a cluster is reconciled again after an error.
    pub(super) fn end_after(&self, work: &Work, error: &ReconcileError) -> ClaimEnd {
        match error {
            ReconcileError::Lost => return ClaimEnd::Lost,
            ReconcileError::ShutsDown => return ClaimEnd::HandedBack,
            ReconcileError::Store(StoreError::Database(_) | StoreError::Restoring(_))
            | ReconcileError::Show(_)
            | ReconcileError::Prepare(_) => {
                tracing::warn!(
                    cluster = work.name,
                    error = full_text(error),
                    "failed to reconcile a cluster, retrying"
                );
            }
            ReconcileError::Store(_) | ReconcileError::NoKey(_) => {
                tracing::error!(
                    cluster = work.name,
                    error = full_text(error),
                    "failed to reconcile a cluster, retrying"
                );
            }
        }
        let wait = RETRY.next_delay(work.attempts.saturating_sub(1));
        let ready_at = self.now().checked_add(wait).unwrap_or(Timestamp::MAX);
        match error {
            // Urgent work stays urgent, since another replica may have the key.
            ReconcileError::NoKey(_) => ClaimEnd::further(ready_at, work.attempts),
            _ => ClaimEnd::until(ready_at, work.attempts),
        }
    }

    /// Stores what a reconcile came to, and ends its claim.
    pub(super) async fn end(
        &self,
        work: &Work,
        end: &WorkEnd,
        writes: &Writes,
        cluster_row: &ClusterUpdate,
    ) -> Result<ClaimEnd, ReconcileError> {
        let is_ready = self.store.end(work, end, writes, cluster_row).await?;
        Ok(ClaimEnd::Ended(self.queue.ended(is_ready)))
    }

    /// The database's time is `at` now.
    pub(super) fn set_clock(&self, at: Timestamp) {
        let ahead = at.as_millisecond().saturating_sub(Timestamp::now().as_millisecond());
        self.clock.store(ahead, Ordering::Relaxed);
    }

    /// The database's time, as far as it is known.
    pub(super) fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.clock.load(Ordering::Relaxed));
        Timestamp::now().checked_add(ahead).unwrap_or(Timestamp::MAX)
    }

    /// How long is shown what is stored in no other place: until the next full pass after it.
    fn shown_for(&self) -> SignedDuration {
        SignedDuration::try_from(self.config.reapply_interval).unwrap_or(SignedDuration::MAX)
    }
}

impl Shown<'_> {
    pub(super) fn without_a_pass(reachability: Reachability) -> Self {
        Self { reachability, paused: None, ran: None, is_another: false }
    }
}

impl Read {
    /// Whether the cluster answers, as it was found out before.
    pub(super) fn reachability_before(&self) -> Reachability {
        let none = Map::new();
        let status = self.snapshot.cluster_sync.as_ref().map_or(&none, |document| &document.status);
        Reachability::before(self.snapshot.cluster_row.as_ref(), status)
    }
}
