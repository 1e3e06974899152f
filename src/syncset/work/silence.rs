//! How a visit ends to which the cluster has not answered, or not with anything that a pass could begin with (rules 39 and 40).

use super::observer::Visited;
use super::refusal::Stop;
use super::visit::{Read, Rest, Visit, VisitError, after};
use super::worker::Worker;
use crate::documents::Work;
use crate::syncset::rules::pass::Writes;
use crate::syncset::rules::retry::{self, Ended};
use crate::syncset::rules::rows::PaceRow;
use crate::syncset::rules::status::{Conditions, Reachability, Unreachable};
use crate::syncset::store::{Pace, StoreError};

impl Worker {
    /// The cluster stopped the visit before the pass.
    pub(super) async fn stopped_before(&self, work: &Work, read: &Read, stop: Stop) -> Result<Visit, VisitError> {
        match stop {
            Stop::Silent { reason, message } => self.silent(work, read, reason, message, false).await,
            Stop::Throttled { told, .. } => {
                Ok(Visit::of(Visited::Throttled, Rest::Until(after(read.now(), told), work.attempts)))
            }
            Stop::Lost => Ok(Visit::lost()),
        }
    }

    /// The cluster can't be worked on.
    pub(super) async fn silent(
        &self,
        work: &Work,
        read: &Read,
        reason: Unreachable,
        message: String,
        is_final: bool,
    ) -> Result<Visit, VisitError> {
        let generation = read.plan.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation);
        let pace = PaceRow { asked_generation: generation, ..read.pace() };
        let ended = Ended::Silent { is_final };
        let next = retry::next(&ended, pace, 0, self.config.reapply_interval, read.now(), rand::random());
        let conditions = Conditions {
            reachability: Reachability::Unreachable { reason, message },
            paused: None,
            held: read.held(&read.snapshot.results),
            duplicate: read.snapshot.duplicates.first().cloned(),
        };
        // Why it is silent is nowhere else: that is written first, and the cluster is asked again if it was not.
        let rest = self.show(work, read, None, conditions, next.ready_at, 0).await?;
        match rest {
            Rest::Until(ready_at, _) if ready_at == next.ready_at => {}
            unshown => return Ok(Visit::of(Visited::Silent, unshown)),
        }
        let stored = Pace { row: next.pace, resyncs: read.snapshot.resyncs };
        match self.store.save(&work.writing(), &Writes::default(), Some(&stored)).await {
            Ok(()) => Ok(Visit::of(Visited::Silent, rest)),
            Err(StoreError::LeaseExpired) => Ok(Visit::lost()),
            Err(error) => Err(error.into()),
        }
    }
}
