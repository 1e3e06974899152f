//! The instants at which a process does what can wait some seconds: all of it together, since each of them wakes the process, which is
//! most of what an idle one does.
//!
//! Tokio's timers lie in slots of 1 ms, 64 ms, 4,096 ms and so on (its `runtime/time/wheel`), counted from the start of the runtime. One
//! that is further away than a slot wakes the process when its slot begins, only to be put into a finer one: up to three times until it
//! is due. So the instants are where a slot of 4,096 ms begins, which is the same for whatever else is due later than the next one.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// From one instant to the next.
pub(super) const EVERY: Duration = Duration::from_millis(4096);

/// Counts the instants from now, which is right after the runtime has started. Without it they are counted from when one is asked for.
pub fn begin() {
    first();
}

/// Now, and then these instants.
pub fn beats() -> Interval {
    let now = Instant::now();
    let mut instants = interval_at(now - since_last(first(), now), EVERY);
    instants.set_missed_tick_behavior(MissedTickBehavior::Skip);
    instants
}

/// The first of the instants that is not before this time.
pub(super) fn not_before(time: Instant) -> Instant {
    let since = since_last(first(), time);
    if since.is_zero() { time } else { time + EVERY.saturating_sub(since) }
}

fn first() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    *FIRST.get_or_init(Instant::now)
}

/// How long before this time the last instant was. In tests the first one may be later: their clocks differ.
fn since_last(first: Instant, time: Instant) -> Duration {
    let (elapsed, ahead) = (time.saturating_duration_since(first), first.saturating_duration_since(time));
    let period = EVERY.as_nanos();
    Duration::from_nanos_u128((elapsed.as_nanos() + period - ahead.as_nanos() % period) % period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_beats_fall_on_the_same_instants() {
        let mut first = beats();
        first.tick().await;
        // Between two, whenever the first one of this process was.
        let between = first.tick().await + EVERY / 3;
        tokio::time::sleep_until(between).await;
        let (begun, mut second) = (Instant::now(), beats());
        second.tick().await;
        assert_eq!(Instant::now(), begun, "the first one waited");
        let waits_for = not_before(begun);
        assert_eq!((first.tick().await, second.tick().await), (waits_for, waits_for));
        assert_eq!(not_before(waits_for), waits_for);
        tokio::time::advance(EVERY * 5 / 2).await;
        first.tick().await;
        second.tick().await;
        assert_eq!(first.tick().await, second.tick().await, "a late one does not move the next one");
    }

    #[test]
    fn beats_fall_on_multiples_of_the_period_before_and_after_the_first() {
        let first = Instant::now() + EVERY * 10;
        let after = |part: u32| EVERY * part / 4;
        for (now, expected) in [
            (first, Duration::ZERO),
            (first + after(3), after(3)),
            (first + after(5), after(1)),
            (first - after(1), after(3)),
            (first - after(8), Duration::ZERO),
        ] {
            assert_eq!(since_last(first, now), expected);
        }
    }
}
