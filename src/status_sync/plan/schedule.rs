//! Decides when the next pass begins.

use std::time::Duration;

use tokio::time::Instant;

/// How long changes are gathered: many small transactions in a row lead to one pass.
pub const GATHER: Duration = Duration::from_millis(10);
/// Least pause before a pass that a notification asks for. The pause is also at least as long as the last change
/// detection took, so that a storm of notifications never occupies the database for more than half of the time.
const REST: Duration = Duration::from_millis(25);

/// Least pause before failed writes are retried. They must not wait for the interval, which may be long where the
/// database sends notifications.
const RETRY: Duration = Duration::from_secs(5);

/// When the next pass begins, and how early a notification can move it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSchedule {
    next: Instant,
    not_before: Instant,
}

impl PassSchedule {
    /// The schedule after a successful pass. The interval is measured from beginning to beginning: after a pass that takes
    /// longer than the interval the next one begins at once.
    pub fn after_pass(begun: Instant, ended: Instant, detection: Duration, interval: Duration) -> Self {
        Self { next: begun + interval, not_before: ended + detection.max(REST) }
    }

    /// The schedule after a failed pass. Notifications do not shorten the back-off.
    pub fn after_failure(now: Instant, delay: Duration) -> Self {
        Self { next: now + delay, not_before: now + delay }
    }

    /// The schedule after a notification of the database.
    #[must_use]
    pub fn hinted(self, now: Instant) -> Self {
        Self { next: self.next.min(self.not_before.max(now + GATHER)), ..self }
    }

    /// The schedule when a write of the pass that ended at `ended` is to be retried, not before `at`.
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
        assert_eq!(PassSchedule::after_pass(begun, begun + ms(30), ms(20), ms(5_000)).next(), begun + ms(5_000));
        let long = PassSchedule::after_pass(begun, begun + ms(9_000), ms(20), ms(5_000));
        assert!(long.next() < begun + ms(9_000), "the next one begins at once");
        assert_eq!(long.hinted(begun + ms(9_000)).next(), long.next(), "a notification delays nothing");
    }

    #[test]
    fn a_notification_after_a_quiet_time_begins_a_pass_at_once() {
        let begun = Instant::now();
        let schedule = PassSchedule::after_pass(begun, begun + ms(30), ms(20), ms(5_000));
        assert_eq!(schedule.hinted(begun + ms(1_000)).next(), begun + ms(1_000) + GATHER);
        assert_eq!(schedule.hinted(begun + ms(31)).next(), begun + ms(30) + REST);
        assert_eq!(schedule.hinted(begun + ms(4_995)).next(), begun + ms(5_000));
    }

    #[test]
    fn a_write_that_failed_does_not_wait_for_a_long_interval() {
        let begun = Instant::now();
        let ended = begun + ms(30);
        let hourly = PassSchedule::after_pass(begun, ended, ms(20), ms(3_600_000));
        assert_eq!(hourly.retried(ended, ended).next(), ended + RETRY);
        assert_eq!(hourly.retried(ended, ended + ms(9_000)).next(), ended + ms(9_000));
        let short = PassSchedule::after_pass(begun, ended, ms(20), ms(1_000));
        assert_eq!(short.retried(ended, ended).next(), begun + ms(1_000));
    }

    #[test]
    fn a_notification_does_not_shorten_the_back_off() {
        let now = Instant::now();
        assert_eq!(PassSchedule::after_failure(now, ms(700)).hinted(now + ms(1)).next(), now + ms(700));
    }

    proptest! {
        #[test]
        fn under_a_storm_the_detection_takes_at_most_half_of_the_time(
            detection in 1_u64..2_000,
            writes in 0_u64..2_000,
            interval in 1_000_u64..10_000,
        ) {
            // With a notification every millisecond, the next pass begins as early as it may.
            let begun = Instant::now();
            let ended = begun + ms(detection + writes);
            let next = PassSchedule::after_pass(begun, ended, ms(detection), ms(interval)).hinted(ended).next();
            let period = next.max(ended).saturating_duration_since(begun);
            prop_assert!(period >= ms(2 * detection).min(ms(interval)), "{period:?}");
            prop_assert!(next <= begun + ms(interval), "the pass of the interval is not delayed");
        }
    }
}
