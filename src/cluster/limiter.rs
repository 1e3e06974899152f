//! How many requests may be in flight to one cluster, adapted to its answers.
//!
//! Additive increase, multiplicative decrease: a 429 halves the limit and, if the server names a time, holds all requests
//! back until then; every [`RAISE_AFTER`] answers without one raise it by one, up to the configured bound.
//! Requests that were sent before the limit was halved say nothing about the limit since: however many of them are
//! refused, it is halved once in a round trip.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::Error;

/// So many answers without a 429 raise the limit by one: with 64 in flight it is back after a few thousand answers.
const RAISE_AFTER: usize = 50;

/// The longest hold, whatever the server asks for: a wrong `Retry-After` must not stop a section for hours.
const LONGEST_HOLD: Duration = Duration::from_mins(1);

struct LimiterState {
    limit: usize,
    /// Slots in use beyond the current limit.
    surplus: usize,
    good: usize,
    /// How often the limit was halved.
    halvings: u64,
    hold_until: Option<Instant>,
}

/// A slot for one request in flight.
pub(super) struct RequestSlot {
    permit: OwnedSemaphorePermit,
    /// How often the limit had been halved when the request was sent.
    halvings: u64,
}

/// How the server answered a request, if it did.
#[derive(Clone, Copy)]
pub(super) enum ServerAnswer {
    /// With 429, and perhaps with a time to wait.
    Throttled(Option<Duration>),
    Other,
}

impl ServerAnswer {
    /// The outcome of a request that failed in this way, if it did.
    pub(super) fn of(failure: Option<&Error>) -> Self {
        match failure {
            Some(Error::Throttled { retry_after, .. }) => Self::Throttled(*retry_after),
            _ => Self::Other,
        }
    }
}

pub(super) struct Limiter {
    semaphore: Arc<Semaphore>,
    most: usize,
    state: Mutex<LimiterState>,
}

impl Limiter {
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            semaphore: Arc::new(Semaphore::new(most)),
            most,
            state: Mutex::new(LimiterState { limit: most, surplus: 0, good: 0, halvings: 0, hold_until: None }),
        }
    }

    /// Waits for a slot, and for the end of a hold.
    pub(super) async fn acquire(&self) -> Option<RequestSlot> {
        loop {
            let hold = self.state.lock().hold_until;
            if let Some(until) = hold.filter(|until| *until > Instant::now()) {
                tokio::time::sleep_until(until).await;
                continue;
            }
            // The semaphore is never closed.
            let permit = Arc::clone(&self.semaphore).acquire_owned().await.ok()?;
            let state = self.state.lock();
            // A hold may have begun while this waited.
            if state.hold_until.is_none_or(|until| until <= Instant::now()) {
                return Some(RequestSlot { permit, halvings: state.halvings });
            }
        }
    }

    /// Ends a request; `answer` is how the server answered it.
    pub(super) fn done(&self, slot: RequestSlot, answer: ServerAnswer) {
        let mut state = self.state.lock();
        if let ServerAnswer::Throttled(retry_after) = answer {
            state.good = 0;
            if slot.halvings == state.halvings {
                let lower = (state.limit / 2).max(1);
                state.halvings += 1;
                state.surplus += state.limit - lower;
                state.limit = lower;
            }
            if let Some(delay) = retry_after {
                let until = Instant::now() + delay.min(LONGEST_HOLD);
                state.hold_until = Some(state.hold_until.map_or(until, |held| held.max(until)));
            }
            let idle = self.semaphore.forget_permits(state.surplus);
            state.surplus -= idle;
        } else {
            state.good += 1;
            if state.good >= RAISE_AFTER && state.limit < self.most {
                state.good = 0;
                state.limit += 1;
                if state.surplus > 0 {
                    state.surplus -= 1;
                } else {
                    self.semaphore.add_permits(1);
                }
            }
        }
        if state.surplus > 0 {
            state.surplus -= 1;
            slot.permit.forget();
        }
    }

    #[cfg(test)]
    fn limit(&self) -> usize {
        self.state.lock().limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn a_429_halves_the_limit_and_good_answers_bring_it_back() {
        let limiter = Limiter::new(8);
        let mut slots = Vec::new();
        for _ in 0..8 {
            slots.push(limiter.acquire().await.unwrap());
        }
        assert!(limiter.acquire().now_or_never().is_none(), "a ninth must wait");
        limiter.done(slots.pop().unwrap(), ServerAnswer::Throttled(None));
        assert_eq!(limiter.limit(), 4);
        for _ in 0..3 {
            limiter.done(slots.pop().unwrap(), ServerAnswer::Other);
        }
        assert!(limiter.acquire().now_or_never().is_none(), "four are still in use");
        limiter.done(slots.pop().unwrap(), ServerAnswer::Other);
        let again = limiter.acquire().now_or_never().expect("one of four is free").unwrap();
        limiter.done(again, ServerAnswer::Other);
        drop(slots);
        for _ in 0..RAISE_AFTER * 8 {
            let slot = limiter.acquire().await.unwrap();
            limiter.done(slot, ServerAnswer::Other);
        }
        assert_eq!(limiter.limit(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_one_round_trip_halve_the_limit_once() {
        let limiter = Limiter::new(64);
        let mut slots = Vec::new();
        for _ in 0..64 {
            slots.push(limiter.acquire().await.unwrap());
        }
        for slot in slots {
            limiter.done(slot, ServerAnswer::Throttled(None));
        }
        assert_eq!(limiter.limit(), 32, "64 requests were sent before the first refusal");
        let mut sent_since = Vec::new();
        while let Some(slot) = limiter.acquire().now_or_never() {
            sent_since.push(slot.unwrap());
        }
        assert_eq!(sent_since.len(), 32);
        for slot in sent_since {
            limiter.done(slot, ServerAnswer::Throttled(None));
        }
        assert_eq!(limiter.limit(), 16, "32 were sent since");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_holds_every_request_back() {
        let limiter = Limiter::new(4);
        let slot = limiter.acquire().await.unwrap();
        limiter.done(slot, ServerAnswer::Throttled(Some(Duration::from_secs(3))));
        let before = Instant::now();
        let slot = limiter.acquire().await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(3));
        drop(slot);
    }
}
