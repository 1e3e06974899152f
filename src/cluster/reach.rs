//! Whether a cluster without a session actor answers: its own requests find out.
//!
//! While the cluster does not answer, one request at a time is the probe, with back-off; the others wait for its success
//! and are sent then. So an unreachable cluster costs one connection attempt now and then, however many requests wait, and
//! a cluster that answers again is noticed within half a second.
//!
//! All requests of such a cluster go this way, except for urgent ones. Those of [`Cluster::exchange_when_admitted`](super::Cluster::exchange_when_admitted) wait for as long
//! as it takes, and also while the server answers with errors of its own, so that their senders need no back-off. All others
//! wait no longer than their deadline, and an error of the server holds back none of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use super::error::Error;
use super::limiter::{Limiter, RequestSlot};
use crate::actor::{Backoff, sleep_until};

/// Between two probes of a cluster that gives no answer. Most outages are restarts; the cap bounds how late their end is
/// noticed.
const UNREACHABLE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
/// Between two probes of a cluster that answers with an error of its own, or does not accept the credentials. New
/// credentials do not wait for this.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// The reason where nothing will ever be sent again.
pub(super) const SHUTTING_DOWN: &str = "shutting down";

/// Whether requests are sent.
enum Reachability {
    /// All of them.
    Up,
    /// One at a time, not before `next`. The reason is the last failure.
    Down { failures: u32, next: Instant, reason: Arc<str> },
}

impl Reachability {
    fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }

    /// When the next probe is due, and why the last one failed.
    fn down(&self) -> Option<(Instant, Arc<str>)> {
        match self {
            Self::Up => None,
            Self::Down { next, reason, .. } => Some((*next, Arc::clone(reason))),
        }
    }
}

/// Whether the cluster answers, and the one slot to find out.
pub(super) struct Reach {
    probe: Semaphore,
    state: watch::Sender<Reachability>,
}

/// The right to send a request. It ends with [`Cluster::done`](super::Cluster::done), or when it is dropped because the request was cancelled.
pub(super) enum Admission<'a> {
    /// Together with others, as many as the limiter allows.
    Together(RequestSlot),
    Probe {
        _slot: SemaphorePermit<'a>,
    },
}

impl Default for Reach {
    fn default() -> Self {
        Self { probe: Semaphore::new(1), state: watch::Sender::new(Reachability::Up) }
    }
}

impl Reach {
    /// Waits until a request may be sent, for so long if the cluster does not answer; the error is why it doesn't.
    pub(super) async fn admit<'a>(
        &'a self,
        limiter: &Limiter,
        patience: Option<Duration>,
    ) -> Result<Admission<'a>, Arc<str>> {
        let mut state = self.state.subscribe();
        let mut impatient = pin!(sleep_until(patience.map(|time| Instant::now() + time)));
        loop {
            let Some((_, reason)) = self.down() else {
                let slot = limiter.acquire().await.ok_or(SHUTTING_DOWN)?;
                if self.down().is_none() {
                    return Ok(Admission::Together(slot));
                }
                continue;
            };
            let slot = tokio::select! {
                biased;
                () = is_up(&mut state) => continue,
                slot = self.probe.acquire() => slot.map_err(|_| SHUTTING_DOWN)?,
                () = &mut impatient => return Err(reason),
            };
            // Read now: the probe before this one may have failed.
            let Some((next, reason)) = self.down() else { continue };
            tokio::select! {
                biased;
                () = is_up(&mut state) => {}
                () = tokio::time::sleep_until(next) => return Ok(Admission::Probe { _slot: slot }),
                () = &mut impatient => return Err(reason),
            }
        }
    }

    fn down(&self) -> Option<(Instant, Arc<str>)> {
        self.state.borrow().down()
    }

    /// Records the outcome of a request that was sent at this moment.
    pub(super) fn answered(&self, failure: Option<&Error>, sent: Instant) {
        // It says nothing about the cluster: the fence ended the request, or it could not even be built.
        if let Some(Error::LeaseExpired(_) | Error::Rejected { code: 0, .. }) = failure {
            return;
        }
        let pause = |failures: u32| -> Option<Duration> {
            match failure? {
                Error::Throttled { retry_after: Some(delay), .. } => Some(*delay),
                error if error.is_unreachable() => Some(UNREACHABLE.next_delay(failures)),
                Error::Unauthorized { .. } | Error::Server { .. } | Error::Throttled { .. } | Error::Decode { .. } => {
                    Some(REFUSED.next_delay(failures))
                }
                _ => None,
            }
        };
        self.state.send_if_modified(|state| {
            let failures = match *state {
                Reachability::Up => 0,
                Reachability::Down { failures, next, .. } if sent >= next => failures.saturating_add(1),
                // Sent before the pause began, with others that failed in the same way: all of them are one failure.
                Reachability::Down { .. } if failure.is_some() => return false,
                Reachability::Down { failures, .. } => failures,
            };
            let was_up = state.is_up();
            *state = match (failure, pause(failures)) {
                (Some(error), Some(pause)) => {
                    Reachability::Down { failures, next: Instant::now() + pause, reason: error.to_string().into() }
                }
                _ => Reachability::Up,
            };
            was_up != state.is_up()
        });
    }
}

async fn is_up(state: &mut watch::Receiver<Reachability>) {
    // The sender lives as long as the borrowed reach.
    let _ = state.wait_for(Reachability::is_up).await;
}

#[cfg(test)]
mod tests;
