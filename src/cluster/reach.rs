//! Whether a cluster without a session actor answers: its own requests find out.
//!
//! While the cluster does not answer, one request at a time is the probe, with back-off; the others wait for its success
//! and are sent then. So an unreachable cluster costs one connection attempt now and then, however many requests wait, and
//! a cluster that answers again is noticed within half a second.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use super::client::Cluster;
use super::error::Error;
use super::limiter::{Limiter, Permit};
use super::request::Request;
use crate::actor::Backoff;

/// Between two probes of a cluster that gives no answer. Most outages are restarts; the cap bounds how late their end is
/// noticed.
const UNREACHABLE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
/// Between two probes of a cluster that answers with an error of its own, or does not accept the credentials. New
/// credentials do not wait for this.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Whether requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// All of them.
    Up,
    /// One at a time, not before `next`.
    Down { failures: u32, next: Instant },
}

/// Whether the cluster answers, and whose turn it is to find out.
pub(super) struct Reach {
    turn: Semaphore,
    state: watch::Sender<State>,
}

/// The right to send a request, until it is dropped.
enum Pass<'a> {
    /// Together with others.
    Together { _permit: Permit },
    /// As the probe.
    Probe { _turn: SemaphorePermit<'a> },
}

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// In turn, with the back-off of a cluster that does not answer.
    InTurn,
    /// At once, because it may succeed now for a reason that the back-off does not know.
    AtOnce,
}

/// The answer to a request, and when it was sent.
pub struct Exchange<T> {
    /// The moment before it was sent.
    pub sent: Instant,
    /// The answer.
    pub answer: Result<T, Error>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), state: watch::Sender::new(State::Up) }
    }
}

impl Reach {
    /// Waits until a request may be sent; `None` if that will never be so.
    async fn admit<'a>(&'a self, limiter: &Limiter) -> Option<Pass<'a>> {
        let mut state = self.state.subscribe();
        loop {
            if *state.borrow_and_update() == State::Up {
                let permit = limiter.acquire().await?;
                if *self.state.borrow() == State::Up {
                    return Some(Pass::Together { _permit: permit });
                }
                continue;
            }
            let turn = tokio::select! {
                biased;
                () = is_up(&mut state) => continue,
                turn = self.turn.acquire() => turn.ok()?,
            };
            // Read now: the probe before this one may have failed.
            let State::Down { next, .. } = *self.state.borrow() else { continue };
            tokio::select! {
                biased;
                () = is_up(&mut state) => {}
                () = tokio::time::sleep_until(next) => return Some(Pass::Probe { _turn: turn }),
            }
        }
    }

    /// Records the outcome of a request that was sent at this moment.
    pub(super) fn answered(&self, failure: Option<&Error>, sent: Instant) {
        if let Some(Error::LeaseExpired(_)) = failure {
            // It says nothing about the cluster.
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
                State::Up => 0,
                State::Down { failures, next } if sent >= next => failures.saturating_add(1),
                // Sent before the pause began, with others that failed in the same way: all of them are one failure.
                State::Down { .. } if failure.is_some() => return false,
                State::Down { failures, .. } => failures,
            };
            let was_up = *state == State::Up;
            *state = pause(failures).map_or(State::Up, |pause| State::Down { failures, next: Instant::now() + pause });
            was_up != (*state == State::Up)
        });
    }
}

async fn is_up(state: &mut watch::Receiver<State>) {
    // The sender lives as long as the borrowed reach.
    let _ = state.wait_for(|state| *state == State::Up).await;
}

impl Cluster {
    /// Sends a request when the cluster [may be asked](Reach). The request is built at that moment, and its deadline counts
    /// from then on. Denials are not recorded: the caller decides when to ask again.
    pub async fn exchange_in_turn<'r, T: DeserializeOwned>(
        &self,
        request: impl FnOnce() -> Request<'r>,
        accept: &'static str,
        deadline: Duration,
        urgency: Urgency,
    ) -> Exchange<T> {
        let failed = |error: Error| Exchange { sent: Instant::now(), answer: Err(error) };
        // Before the request waits for its turn: the claim of the next term does not let it through.
        let claim = match self.guard.claim() {
            Ok(claim) => claim,
            Err(expired) => return failed(expired.into()),
        };
        let _pass = match (&self.shared.reach, urgency) {
            (Some(reach), Urgency::InTurn) => match reach.admit(&self.shared.limiter).await {
                Some(pass) => Some(pass),
                None => return failed(self.unavailable("shutting down")),
            },
            _ => None,
        };
        let connection = match self.ready_connection() {
            Ok(connection) => connection.holding(claim),
            Err(error) => return failed(error),
        };
        let sent = Instant::now();
        let answer = connection.send(request(), accept, deadline).await;
        self.answered(answer.as_ref().err(), sent);
        Exchange { sent, answer }
    }
}
