//! What of the process's slots and permits a visit has, and how it waits for them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::visit::Visit;
use super::worker::Worker;
use crate::documents::Work;
use crate::syncset::permits::{ProbeSlot, Slot, WorkPermit};

/// A request that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);
/// A visit that finds no room is repeated after this time, up to half as much earlier or later: other passes have the budget that the
/// cluster's syncsets need.
const PUT_OFF: Duration = Duration::from_secs(10);

/// What a visit has in hand while it connects, and then while it works.
pub(super) enum Hand {
    Connecting(#[expect(dead_code, reason = "it is given back when it is dropped")] OwnedSemaphorePermit),
    Probing(#[expect(dead_code, reason = "it is given back when it is dropped")] ProbeSlot),
    /// It waits for a slot to connect to a cluster that answers again, or stores that it does not answer.
    Nothing,
    Working(#[expect(dead_code, reason = "it is given back when it is dropped")] WorkPermit),
    Slow(#[expect(dead_code, reason = "it is given back when it is dropped")] Slot),
}

/// When a visit that finds no room is repeated.
pub(super) fn put_off(now: Timestamp) -> Timestamp {
    let wait = PUT_OFF.mul_f64(0.5 + rand::random::<f64>());
    now.checked_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
}

impl Hand {
    /// Whether it may ask a silent cluster.
    pub(super) fn may_probe(&self) -> bool {
        matches!(self, Self::Probing(_))
    }
}

impl Worker {
    /// Waits for a permit to work, and gives the slot back. Returns how long that took; none if the claim has ended meanwhile. If the
    /// process ends, it goes on without, to its end.
    pub(super) async fn begin_work(
        &self,
        work: &Work,
        hand: &mut Hand,
        stopping: &CancellationToken,
    ) -> Option<Duration> {
        if matches!(hand, Hand::Working(_)) {
            return Some(Duration::ZERO);
        }
        let began = Instant::now();
        tokio::select! {
            biased;
            _ = work.expired() => None,
            () = stopping.cancelled() => Some(began.elapsed()),
            permit = self.permits.work(work.urgent) => {
                *hand = Hand::Working(permit);
                Some(began.elapsed())
            }
        }
    }

    /// Waits for a slot to connect to a cluster that has answered a probe, without the one to probe: others wait for that. If it does
    /// not come to that, how the visit ends.
    pub(super) async fn wait_to_connect(
        &self,
        work: &Work,
        hand: &mut Hand,
        stopping: &CancellationToken,
    ) -> Option<Visit> {
        *hand = Hand::Nothing;
        tokio::select! {
            biased;
            _ = work.expired() => Some(Visit::lost()),
            () = stopping.cancelled() => Some(Visit::handed_back()),
            // The semaphore is never closed.
            Some(slot) = self.permits.connect() => {
                *hand = Hand::Connecting(slot);
                None
            }
        }
    }

    /// Waits for an answer. A cluster that takes long gives its permit back meanwhile, if a slot for those is free: it is no longer one
    /// that answers.
    pub(super) async fn patiently<T>(&self, answer: impl Future<Output = T>, hand: &mut Hand) -> T {
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answered = &mut answer => return answered,
            () = sleep(SLOW) => {}
        }
        if matches!(hand, Hand::Working(_))
            && let Some(slot) = self.permits.slow()
        {
            *hand = Hand::Slow(slot);
        }
        answer.await
    }
}
