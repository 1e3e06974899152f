//! How often a write of ours is undone, most often by another client.
//!
//! No write is repeated without bound. The third rewrite within a minute is a conflict, which is reported. From then on one rewrite is sent
//! every 30 seconds, until none was needed for a minute. What counts as a rewrite, and of what, the jobs say. Pure: the caller passes the
//! time in.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// So many rewrites within the window are a conflict and no accident.
const REWRITES: usize = 3;
/// The window, unless a job writes more seldom than once in twenty seconds.
pub const WITHIN: Duration = Duration::from_mins(1);
/// The time between two rewrites in a conflict.
const PAUSE: Duration = Duration::from_secs(30);

/// The rewrites of one part of an object.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    times: VecDeque<Instant>,
    is_slow: bool,
}

impl Rewrites {
    /// How long a rewrite has to wait; `None` if it may be sent.
    pub fn wait(&mut self, now: Instant, within: Duration) -> Option<Duration> {
        self.expire(now, within);
        let left = (*self.times.back().filter(|_| self.is_slow)? + PAUSE).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Whether it is a conflict if a rewrite is sent now.
    pub fn would_contend(&mut self, now: Instant, within: Duration) -> bool {
        self.expire(now, within);
        self.is_slow || self.times.len() + 1 >= REWRITES
    }

    /// Records that a rewrite is sent. Returns whether it is a conflict by now.
    pub fn sent(&mut self, now: Instant, within: Duration) -> bool {
        self.is_slow = self.would_contend(now, within);
        if self.times.len() >= REWRITES {
            self.times.pop_front();
        }
        self.times.push_back(now);
        self.is_slow
    }

    /// For how long the conflict lasts unless another rewrite is needed; `None` if there is none.
    pub fn calm_in(&self, now: Instant, within: Duration) -> Option<Duration> {
        let left = (*self.times.back().filter(|_| self.is_slow)? + within).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn expire(&mut self, now: Instant, within: Duration) {
        let is_old = |when: &Instant| now.saturating_duration_since(*when) >= within;
        if self.times.back().is_some_and(is_old) {
            self.is_slow = false;
        }
        while self.times.front().is_some_and(is_old) {
            self.times.pop_front();
        }
        self.is_slow |= self.times.len() >= REWRITES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another client undoes every write at once. Returns the seconds of our rewrites.
    fn rewrites(history: &mut Rewrites, begun: Instant, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let goes = |second: &u64| {
            let now = begun + Duration::from_secs(*second);
            let goes = history.wait(now, WITHIN).is_none();
            if goes {
                history.sent(now, WITHIN);
            }
            goes
        };
        seconds.filter(goes).collect()
    }

    #[test]
    fn three_rewrites_go_at_once_and_then_one_in_half_a_minute_as_long_as_it_lasts() {
        let (mut history, begun) = (Rewrites::default(), Instant::now());
        assert_eq!(rewrites(&mut history, begun, 1..200), [1, 2, 3, 33, 63, 93, 123, 153, 183]);
        let calm = rewrites(&mut history, begun, 244..280);
        assert_eq!(calm, [244, 245, 246, 276], "after a minute without one it begins anew");
    }

    #[test]
    fn the_third_rewrite_within_the_window_is_a_conflict_however_often_it_is_asked() {
        for (distance, within, conflicts) in [
            (19, WITHIN, [false, false, true, true]),
            (31, WITHIN, [false; 4]),
            (31, WITHIN * 3, [false, false, true, true]),
        ] {
            let (mut history, begun) = (Rewrites::default(), Instant::now());
            let found = [0, 1, 2, 3].map(|turn| {
                let now = begun + Duration::from_secs(turn * distance);
                let asked = [(); 3].map(|()| history.would_contend(now, within));
                let is_conflict = history.sent(now, within);
                assert_eq!(asked, [is_conflict; 3]);
                is_conflict
            });
            assert_eq!(found, conflicts, "every {distance} s within {within:?}");
        }
    }
}
