//! Moments in time that can't overflow: "never" is said with `Duration::MAX`.

use std::time::Duration;

use tokio::time::Instant;

/// As far as a timer need reach: no process lives for a hundred years, and no platform's clock ends before.
const FAR: Duration = Duration::from_hours(100 * 365 * 24);

/// The moment `delay` after `now`.
pub(super) fn after(now: Instant, delay: Duration) -> Instant {
    now + delay.min(FAR)
}
