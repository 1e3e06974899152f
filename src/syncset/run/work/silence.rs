//! How a visit ends to which the cluster has not answered, or not with anything that a pass could begin with.

use std::time::Duration;

use jiff::Timestamp;

use super::observer::Visited;
use super::refusal::Stop;
use super::visit::{Read, Rest, Visit, VisitError};
use super::worker::Worker;
use crate::documents::Work;
use crate::syncset::plan::pass::Writes;
use crate::syncset::plan::retry;
use crate::syncset::plan::retry::{Ended, Left, Next};
use crate::syncset::plan::rows::PaceRow;
use crate::syncset::plan::status::{Conditions, Reachability, Unreachable};
use crate::syncset::run::store::Pace;

impl Worker {
    /// The cluster stopped the visit before the pass.
    pub(super) async fn stopped_before(&self, work: &Work, read: &Read, stop: Stop) -> Result<Visit, VisitError> {
        match stop {
            // Only a change of a document helps, as if the kubeconfig were refused.
            Stop::Silent { reason: reason @ Unreachable::Duplicate, message } => {
                self.unreachable(work, read, (reason, message), Ended::Refused).await
            }
            Stop::Silent { reason, message } => {
                self.unreachable(work, read, (reason, message), self.silent_again(Duration::ZERO)).await
            }
            // Whether it answers what a pass needs is still to be seen.
            Stop::Throttled { told, message, .. } if read.pace().reachable == Some(false) => {
                let reason = Unreachable::ErrorConnectingToCluster;
                self.unreachable(work, read, (reason, message), self.silent_again(told)).await
            }
            Stop::Throttled { told, .. } => self.throttled(work, read, told).await,
            Stop::Lost => Err(VisitError::Lost),
        }
    }

    /// A cluster was asked in vain, and is asked again when its turn comes.
    pub(super) fn silent_again(&self, told: Duration) -> Ended {
        Ended::Silent { told, turn: self.slots.next_probe() }
    }

    /// Stores when a silent cluster is asked that could not be asked now.
    pub(super) async fn store_retry(&self, work: &Work, read: &Read, until: Timestamp) -> Result<(), VisitError> {
        self.store_pace(work, read, PaceRow { retry_at: Some(until), ..read.pace() }).await
    }

    /// The cluster asks to wait, before anything could be done.
    async fn throttled(&self, work: &Work, read: &Read, told: Duration) -> Result<Visit, VisitError> {
        let ended = Ended::Complete { was_full: false, left: Some(Left::Throttled(told)) };
        let attempts = i32::try_from(work.attempts).unwrap_or(i32::MAX);
        let next = self.after_question(read, &ended, attempts);
        let rest = Rest::Further(next.ready_at, work.attempts);
        self.stored(work, read, next.pace, Visit::of(Visited::Throttled, rest)).await
    }

    /// When the cluster is visited next, after it was asked with its present kubeconfig.
    fn after_question(&self, read: &Read, ended: &Ended, attempts: i32) -> Next {
        let generation = read.plan.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation);
        let pace = PaceRow { asked_generation: generation, ..read.pace() };
        retry::next(ended, pace, attempts, self.config.reapply_interval, read.now(), rand::random())
    }

    /// Stores when the cluster is visited next, and ends the visit.
    async fn stored(&self, work: &Work, read: &Read, pace: PaceRow, visit: Visit) -> Result<Visit, VisitError> {
        if pace != read.pace() {
            self.store_pace(work, read, pace).await?;
        }
        Ok(visit)
    }

    async fn store_pace(&self, work: &Work, read: &Read, pace: PaceRow) -> Result<(), VisitError> {
        let stored = Pace { row: pace, resyncs: read.snapshot.resyncs };
        self.store.save(&work.writing(), &Writes::default(), Some(&stored)).await?;
        Ok(())
    }

    /// The cluster is shown as unreachable.
    pub(super) async fn unreachable(
        &self,
        work: &Work,
        read: &Read,
        (reason, message): (Unreachable, String),
        ended: Ended,
    ) -> Result<Visit, VisitError> {
        read.tell_unreachable(work, reason, &message);
        let next = self.after_question(read, &ended, 0);
        let conditions = Conditions {
            reachability: Reachability::Unreachable { reason, message },
            paused: None,
            suspended: read.suspended(&read.snapshot.results),
            has_moved: self.has_moved(read),
        };
        // Why it is silent is nowhere else: that is written first, and the cluster is asked again if it was not.
        let rest = self.show(work, read, None, conditions, next.ready_at, 0).await?;
        match rest {
            Rest::Until(ready_at, _) if ready_at == next.ready_at => {}
            unshown => return Ok(Visit::of(Visited::Silent, unshown)),
        }
        self.stored(work, read, next.pace, Visit::of(Visited::Silent, rest)).await
    }
}
