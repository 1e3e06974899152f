//! How long to wait before trying again, and how often an actor may be restarted before its supervisor gives up.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// The longest delay: no process runs for a hundred years, and no platform's clock ends earlier.
const FAR: Duration = Duration::from_hours(100 * 365 * 24);

/// `now` and a delay, without overflow; `Duration::MAX` means never.
pub(super) fn after(now: Instant, delay: Duration) -> Instant {
    now + delay.min(FAR)
}

/// Ends at that moment; never if there is none.
pub async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Exponential back-off with jitter.
///
/// The n-th delay (counted from 0) is drawn from the upper part of `min(first * 2^n, cap)`: with a `jitter` of 0.5 it
/// lies between half of that and all of it. So it never exceeds `cap`, and actors that failed together don't retry
/// together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The longest first delay.
    pub first: Duration,
    /// The longest delay of all.
    pub cap: Duration,
    /// The random part of a delay: 0 is none, 1 is all of it.
    pub jitter: f64,
}

impl Backoff {
    /// A back-off with a jitter of one half.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, jitter: 0.5 }
    }

    /// [`delay`](Self::delay) with the thread's own generator.
    pub fn next_delay(&self, attempt: u32) -> Duration {
        self.delay(attempt, &mut rand::rng())
    }

    /// The delay before the `attempt`-th retry, the first being 0. `random` decides the jitter: a seeded generator gives the
    /// same delays again.
    pub fn delay(&self, attempt: u32, random: &mut impl Rng) -> Duration {
        let chance: f64 = random.random();
        self.longest(attempt).mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance)
    }

    /// The delay before the `attempt`-th retry without its jitter.
    pub fn longest(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.cap)
    }
}

/// The restarts of one child: at most `budget` within any `window`, after growing delays; the next failure escalates.
///
/// The delays must fit into the window, or a crash loop is never detected: they add up to at most
/// `first * (2^budget - 1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartPolicy {
    /// The delay before the n-th restart of the current window.
    pub backoff: Backoff,
    /// Restarts within the window; 0 escalates the first failure.
    pub budget: u32,
    /// How long a restart counts.
    pub window: Duration,
}

impl RestartPolicy {
    /// For a single actor. Its eight delays are at most 0.2 s to 25.6 s, 51 s together: a crash loop escalates within a
    /// minute, and a restart of what the actor talks to (seconds, rarely half a minute) is survived. The window is
    /// twice that, so that failing every 15 s on average is still a crash loop.
    pub const ACTOR: Self = Self {
        backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
        budget: 8,
        window: Duration::from_mins(2),
    };

    /// For a nested supervisor. Below it an actor in a crash loop takes up to a minute to escalate, and a subtree in it up to
    /// five minutes: the window holds four of either, so that two levels of nesting still reach the root. The budget is
    /// three: a subtree that has failed that often is not going to recover without a new process.
    pub const SUBTREE: Self = Self {
        backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
        budget: 3,
        window: Duration::from_mins(30),
    };

    /// The delay before the next restart, or `None` if the budget is exhausted. `recent` are the restarts that may still count.
    pub(super) fn after_failure(
        &self,
        recent: &mut VecDeque<Instant>,
        now: Instant,
        random: &mut impl Rng,
    ) -> Option<Duration> {
        while recent.front().is_some_and(|restart| now.duration_since(*restart) >= self.window) {
            recent.pop_front();
        }
        let used = u32::try_from(recent.len()).unwrap_or(u32::MAX);
        if used >= self.budget {
            return None;
        }
        recent.push_back(now);
        Some(self.backoff.delay(used, random))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    proptest! {
        #[test]
        fn a_delay_keeps_within_its_bounds(attempt: u32, seed: u64, first in 1_u64..100_000, cap in 1_u64..1_000_000) {
            let backoff = Backoff::new(Duration::from_millis(first), Duration::from_millis(cap));
            let longest = u128::from(first).saturating_mul(1 << attempt.min(64)).min(u128::from(cap));
            let delay = backoff.delay(attempt, &mut StdRng::seed_from_u64(seed)).as_nanos();
            prop_assert!(delay <= longest * 1_000_000, "{delay} ns is more than {longest} ms");
            prop_assert!(delay + 1 >= longest * 500_000, "{delay} ns is less than half of {longest} ms");
            prop_assert_eq!(delay, backoff.delay(attempt, &mut StdRng::seed_from_u64(seed)).as_nanos());
        }
    }

    #[test]
    fn the_budget_counts_within_a_sliding_window() {
        let policy = RestartPolicy {
            backoff: Backoff { first: Duration::from_secs(1), cap: Duration::from_mins(1), jitter: 0.0 },
            budget: 2,
            window: Duration::from_secs(100),
        };
        let start = Instant::now();
        let mut random = StdRng::seed_from_u64(1);
        let mut recent = VecDeque::new();
        let mut fail = |second| policy.after_failure(&mut recent, start + Duration::from_secs(second), &mut random);
        assert_eq!(fail(0), Some(Duration::from_secs(1)));
        assert_eq!(fail(50), Some(Duration::from_secs(2)));
        assert_eq!(fail(99), None, "a third restart within the window");
        assert_eq!(fail(100), Some(Duration::from_secs(2)), "the first restart still counts");
        assert_eq!(
            fail(300),
            Some(Duration::from_secs(1)),
            "the back-off did not start over after a window without failures"
        );
    }

    #[test]
    fn the_delays_of_a_crash_loop_fit_into_its_window() {
        for policy in [RestartPolicy::ACTOR, RestartPolicy::SUBTREE] {
            let most = policy.backoff.first * (2_u32.pow(policy.budget) - 1);
            assert!(most < policy.window, "{policy:?} never escalates");
        }
    }
}
