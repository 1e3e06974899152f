//! When the next pass is: pure.

use std::time::Duration;

use tokio::time::Instant;

/// What changes together is looked at together: many small transactions after each other are one pass.
pub const GATHER: Duration = Duration::from_millis(10);
/// Between two passes that notifications ask for, at least; and as long as the last one's change detection took, so
/// that a storm of notifications never keeps the database busy with it for more than half of the time.
const REST: Duration = Duration::from_millis(25);

/// After writes that failed: an interval may be long where the database tells of changes, and nobody tells of these.
const RETRY: Duration = Duration::from_secs(5);

/// When the next pass is, and how soon a notification can have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    next: Instant,
    not_before: Instant,
}

impl Pace {
    /// After a pass that went well. The interval is from beginning to beginning: after a longer one the next is at once.
    pub fn after_pass(begun: Instant, ended: Instant, detection: Duration, interval: Duration) -> Self {
        Self { next: begun + interval, not_before: ended + detection.max(REST) }
    }

    /// After one that failed: what the database tells does not shorten the back-off.
    pub fn after_failure(now: Instant, delay: Duration) -> Self {
        Self { next: now + delay, not_before: now + delay }
    }

    /// The database has told of a change.
    #[must_use]
    pub fn hinted(self, now: Instant) -> Self {
        Self { next: self.next.min(self.not_before.max(now + GATHER)), ..self }
    }

    /// A write of the pass that `ended` is to be tried again, not before `at`.
    #[must_use]
    pub fn retried(self, ended: Instant, at: Instant) -> Self {
        Self { next: self.next.min(at.max(ended + RETRY)), ..self }
    }

    /// When the next pass begins.
    pub fn next(self) -> Instant {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn without_a_notification_passes_begin_an_interval_apart() {
        let begun = Instant::now();
        assert_eq!(Pace::after_pass(begun, begun + ms(30), ms(20), ms(5_000)).next(), begun + ms(5_000));
        let long = Pace::after_pass(begun, begun + ms(9_000), ms(20), ms(5_000));
        assert!(long.next() < begun + ms(9_000), "the next is at once");
        assert_eq!(long.hinted(begun + ms(9_000)).next(), long.next(), "a notification delays nothing");
    }

    #[test]
    fn a_notification_after_a_calm_time_has_its_pass_at_once() {
        let begun = Instant::now();
        let pace = Pace::after_pass(begun, begun + ms(30), ms(20), ms(5_000));
        assert_eq!(pace.hinted(begun + ms(1_000)).next(), begun + ms(1_000) + GATHER);
        assert_eq!(pace.hinted(begun + ms(31)).next(), begun + ms(30) + REST);
        assert_eq!(pace.hinted(begun + ms(4_995)).next(), begun + ms(5_000));
    }

    #[test]
    fn a_write_that_failed_does_not_wait_for_a_long_interval() {
        let begun = Instant::now();
        let ended = begun + ms(30);
        let hourly = Pace::after_pass(begun, ended, ms(20), ms(3_600_000));
        assert_eq!(hourly.retried(ended, ended).next(), ended + RETRY);
        assert_eq!(hourly.retried(ended, ended + ms(9_000)).next(), ended + ms(9_000));
        let short = Pace::after_pass(begun, ended, ms(20), ms(1_000));
        assert_eq!(short.retried(ended, ended).next(), begun + ms(1_000));
    }

    #[test]
    fn a_notification_does_not_shorten_the_back_off() {
        let now = Instant::now();
        assert_eq!(Pace::after_failure(now, ms(700)).hinted(now + ms(1)).next(), now + ms(700));
    }

    proptest! {
        #[test]
        fn under_a_storm_the_detection_takes_at_most_half_of_the_time(
            detection in 1_u64..2_000,
            writes in 0_u64..2_000,
            interval in 1_000_u64..10_000,
        ) {
            // A notification in every millisecond: the next pass begins as soon as it may.
            let begun = Instant::now();
            let ended = begun + ms(detection + writes);
            let next = Pace::after_pass(begun, ended, ms(detection), ms(interval)).hinted(ended).next();
            let period = next.max(ended).saturating_duration_since(begun);
            prop_assert!(period >= ms(2 * detection).min(ms(interval)), "{period:?}");
            prop_assert!(next <= begun + ms(interval), "the interval's pass still comes");
        }
    }
}
