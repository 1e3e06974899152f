//! How a pass ends that has run: what is stored and shown of it.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::first;
use super::identity::Identified;
use super::observer::result_of;
use super::pass_log;
use super::plan::{Read, after};
use super::refusal::Stop;
use super::worker::{ReconcileError, Reconciled, SOON, Worker};
use crate::documents::{Work, WorkEnd};
use crate::syncset::plan::action::PassPlan;
use crate::syncset::plan::health::Health;
use crate::syncset::plan::pass::{End, Outcome};
use crate::syncset::plan::reason::Retry;
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::{Ended, Left};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status::{Conditions, Reachability};
use crate::syncset::run::store::ClusterUpdate;
use crate::telemetry::ReconcileResult;

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
        let Ran { outcome, health, stop, is_stopped, not_before, is_answered } = ran;
        let was_full = pass_plan.is_full || identified.is_another;
        let (ended, result) = match (&stop, outcome.end) {
            (Some(Stop::Silent { .. }), _) => (self.silent_again(work, Duration::ZERO), ReconcileResult::Error),
            (Some(Stop::Throttled { told, .. }), _) => {
                let left = Some(Left::Throttled(*told));
                (Ended::Complete { was_full: false, left }, ReconcileResult::Error)
            }
            (Some(Stop::Lost), _) => return Err(ReconcileError::Lost),
            (None, End::Finished) => {
                // The guard asks for the cluster when it has decided, so that what fails need not be tried each second meanwhile.
                let left = match outcome.retry {
                    Some(Retry::Backoff) => Some(Left::Failing),
                    Some(Retry::Look) if !outcome.awaits_check => Some(Left::Ending),
                    _ => outcome.awaits_check.then_some(Left::Unchecked),
                };
                let later = read.cluster_row().left_at.filter(|_| pass_plan.is_early).map(Left::Later);
                (Ended::Complete { was_full, left: later.or(left) }, result_of(&outcome))
            }
            (None, End::Yielded | End::Interrupted) => (Ended::Interrupted, ReconcileResult::Requeue),
        };
        let facts = read.plan.facts.as_ref();
        let generation = facts.map_or(0, |facts| facts.kubeconfig_generation);
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
        let mut next = retry::next(&ended, cluster_row, attempts, self.config.reapply_interval, now, rand::random());
        if stop.is_some() && is_answered {
            // What came to it before may be why it is silent.
            next.cluster_row.last_contact = Some(now);
        }
        if stop.is_none() && !is_answered {
            // A pass that had nothing to ask says nothing of the cluster.
            let ClusterRow { reachable, last_contact, attempts, retry_at, .. } = read.cluster_row();
            next.cluster_row = ClusterRow { reachable, last_contact, attempts, retry_at, ..next.cluster_row };
        }
        if stop.is_none()
            && let Some(at) = read.health_at(&outcome.results, &health, next.cluster_row.last_full)
        {
            next.ready_at = next.ready_at.min(at.max(after(now, SOON)));
        }
        // Also if the pass has yielded: its next request may be the one that was refused.
        if stop.is_none() && !not_before.is_zero() {
            next.ready_at = next.ready_at.max(after(now, not_before));
            next.cluster_row.retry_at = Some(after(now, not_before));
        }
        let reachability = match stop {
            Some(Stop::Silent { reason, shown, logged }) => {
                read.tell_unreachable(work, reason, &logged);
                Reachability::Unreachable { reason, message: shown }
            }
            None if !is_answered => Self::reachability_before(read),
            _ => {
                read.tell_reachable(work);
                Reachability::Reachable
            }
        };
        let conditions = Conditions {
            reachability,
            paused: None,
            suspended: read.suspended(&outcome.results),
            released: self.released(read, Some(&outcome)),
            has_moved: identified.is_another || self.has_moved(read),
        };
        let stored = ClusterUpdate { row: next.cluster_row.clone(), resyncs: read.snapshot.resyncs };
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
        let shown =
            self.show(work, read, (Some(&outcome), &health, identified.is_another), conditions, next.ready_at).await;
        // Whoever sees that the claim has ended finds it in the log.
        pass_log::write(&work.name, &outcome);
        let attempts = u32::try_from(next.attempts).unwrap_or_default();
        let claim_end = match shown {
            Ok(ready_at) => {
                let end = match ready_at {
                    // Another process may go on at once.
                    _ if is_stopped => WorkEnd::go_on(now, work.attempts.saturating_sub(1)),
                    ready_at if ended.goes_on() => WorkEnd::go_on(ready_at, attempts),
                    ready_at => WorkEnd::done(ready_at, attempts),
                };
                Ok(self.end(work, &end, &outcome.writes, &stored).await?)
            }
            Err(error) => {
                self.store.save(&work.writing(), &outcome.writes, Some(&stored)).await?;
                Err(error)
            }
        };
        for (of, took) in first::of_syncsets(&read.snapshot, &outcome.results) {
            self.observer.first_success(of, took);
        }
        Ok(Reconciled::of(result, claim_end?))
    }
}
