//! Adds a delay to a moment without overflow, also `Duration::MAX`, which means never.

use std::time::Duration;

use tokio::time::Instant;

/// The longest delay: no process runs for a hundred years, and no platform's clock ends earlier.
const FAR: Duration = Duration::from_hours(100 * 365 * 24);

pub(super) fn after(now: Instant, delay: Duration) -> Instant {
    now + delay.min(FAR)
}
