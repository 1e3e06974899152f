//! The slots of the process that a reconcile holds, and how it waits for them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::ReconcileError;
use super::worker::Worker;
use crate::documents::{ClaimSlot, Work};
use crate::syncset::run::slots::WorkSlot;

/// A request that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);
/// A reconcile that finds no budget is repeated after this time, up to half as much earlier or later: other passes have the budget that the
/// cluster's syncsets need.
const PUT_OFF: Duration = Duration::from_secs(10);

/// The slot that a reconcile has while it connects, and then while it works.
pub(super) enum ReconcileSlot {
    Connecting(#[expect(dead_code, reason = "it is given back when it is dropped")] ClaimSlot),
    Probing(#[expect(dead_code, reason = "it is given back when it is dropped")] ClaimSlot),
    /// It stores that its cluster does not answer.
    Nothing,
    Working(#[expect(dead_code, reason = "it is given back when it is dropped")] WorkSlot),
    Slow(#[expect(dead_code, reason = "it is given back when it is dropped")] ClaimSlot),
}

/// When a reconcile that finds no budget is repeated.
pub(super) fn put_off(now: Timestamp) -> Timestamp {
    let wait = PUT_OFF.mul_f64(0.5 + rand::random::<f64>());
    now.checked_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
}

impl ReconcileSlot {
    /// Whether it may ask a silent cluster.
    pub(super) fn may_probe(&self) -> bool {
        matches!(self, Self::Probing(_))
    }
}

impl Worker {
    /// Waits for a slot to work, and gives the one to connect or to probe back. Returns how long that took. If the process ends, it goes on without, to
    /// its end.
    pub(super) async fn begin_work(
        &self,
        work: &Work,
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<Duration, ReconcileError> {
        if matches!(own_slot, ReconcileSlot::Working(_)) {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        tokio::select! {
            biased;
            _ = work.expired() => Err(ReconcileError::Lost),
            () = stopping.cancelled() => Ok(began.elapsed()),
            slot = self.slots.work(work) => {
                *own_slot = ReconcileSlot::Working(slot);
                Ok(began.elapsed())
            }
        }
    }

    /// Waits for an answer. A cluster that takes long gives its slot to work back meanwhile, if its namespace may have a slot for those: it
    /// is no longer one that answers.
    pub(super) async fn patiently<T>(
        &self,
        work: &Work,
        answer: impl Future<Output = T>,
        own_slot: &mut ReconcileSlot,
    ) -> T {
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answered = &mut answer => return answered,
            () = sleep(SLOW) => {}
        }
        if matches!(own_slot, ReconcileSlot::Working(_))
            && let Some(slot) = self.slots.slow(work)
        {
            *own_slot = ReconcileSlot::Slow(slot);
        }
        answer.await
    }
}
