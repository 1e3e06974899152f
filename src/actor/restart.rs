//! How often an actor may be restarted before its supervisor gives up.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::Backoff;

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
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self::ACTOR
    }
}

/// The restarts of one child.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    total: u64,
    recent: VecDeque<Instant>,
}

impl Restarts {
    /// The delay before the next restart, or `None` if the budget is exhausted.
    pub(super) fn after_failure(
        &mut self,
        policy: &RestartPolicy,
        now: Instant,
        random: &mut impl Rng,
    ) -> Option<Duration> {
        while self.recent.front().is_some_and(|restart| now.duration_since(*restart) >= policy.window) {
            self.recent.pop_front();
        }
        let used = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        if used >= policy.budget {
            return None;
        }
        self.recent.push_back(now);
        Some(policy.backoff.delay(used, random))
    }

    pub(super) fn note_restart(&mut self) {
        self.total += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn the_budget_counts_within_a_sliding_window() {
        let policy = RestartPolicy {
            backoff: Backoff { first: Duration::from_secs(1), cap: Duration::from_mins(1), jitter: 0.0 },
            budget: 2,
            window: Duration::from_secs(100),
        };
        let start = Instant::now();
        let mut random = StdRng::seed_from_u64(1);
        let mut restarts = Restarts::default();
        let mut fail = |second| restarts.after_failure(&policy, start + Duration::from_secs(second), &mut random);
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
