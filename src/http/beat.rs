//! The instants at which a process does what can wait some seconds: all of it together, since each of them wakes the process, which is
//! most of what an idle one does.
//!
//! Tokio's timers lie in slots of 1 ms, 64 ms, 4,096 ms and longer, counted from the start of the runtime (its `runtime/time/wheel`). One
//! that is further away than a slot is long wakes the process when its slot begins, to be put into a shorter one, and so on until it is
//! due. So the instants are where slots of 4,096 ms begin: a timer for one of them wakes the process only then, and timers that are
//! further away move to shorter slots at the same instants.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// From one instant to the next.
pub(super) const EVERY: Duration = Duration::from_millis(4096);
/// A process at rest probes its connections and folds the samples of its histograms at each sixth instant, every 24.6 s.
pub const SELDOM: u32 = 6;
/// A timer that is due less than a millisecond before a slot begins is in that slot. What passes between the start of the runtime and
/// [`begin`] is less, unless the machine is very busy: then each instant wakes the process twice.
const ROUNDED_UP: Duration = Duration::from_nanos(999_999);

/// Counts the instants from now, right after the runtime has started. Without it they are counted from when one is asked for.
pub fn begin() {
    first();
}

/// Now, and then these instants.
pub fn beats() -> Interval {
    after(first())
}

fn after(first: Instant) -> Interval {
    let now = Instant::now();
    let mut instants = interval_at(now - since_last(first, now, EVERY), EVERY);
    instants.set_missed_tick_behavior(MissedTickBehavior::Skip);
    instants
}

/// The first of each so many instants that is not before this time: the same one for all who give this number.
pub fn not_before(time: Instant, of_each: u32) -> Instant {
    let period = EVERY * of_each;
    let since = since_last(first(), time, period);
    if since.is_zero() { time } else { time + period.saturating_sub(since) }
}

/// The first instant after this time, if they lie so far apart.
pub(super) fn next(time: std::time::Instant, period: Duration) -> std::time::Instant {
    time + period.saturating_sub(since_last(first(), time.into(), period))
}

fn first() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let now = Instant::now();
        now.checked_sub(ROUNDED_UP).unwrap_or(now)
    })
}

/// How long before this time the last instant was. In tests the first one may be later: their clocks differ.
fn since_last(first: Instant, time: Instant, period: Duration) -> Duration {
    let (elapsed, ahead) = (time.saturating_duration_since(first), first.saturating_duration_since(time));
    let period = period.as_nanos();
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
        let waits_for = not_before(begun, 1);
        assert_eq!((first.tick().await, second.tick().await), (waits_for, waits_for));
        assert_eq!(not_before(waits_for, 1), waits_for);
        let sixth = not_before(begun, 6);
        assert_eq!(not_before(sixth, 6), sixth);
        assert_eq!(not_before(sixth + Duration::from_nanos(1), 6), sixth + EVERY * 6);
        assert_eq!(not_before(sixth, 1), sixth);
        tokio::time::advance(EVERY * 5 / 2).await;
        first.tick().await;
        second.tick().await;
        assert_eq!(first.tick().await, second.tick().await, "a late one does not move the next one");
    }

    /// With a clock that goes on when there is nothing else to do, the runtime waits as often as with a real one.
    #[tokio::test(start_paused = true)]
    async fn a_beat_wakes_the_process_once() {
        let handle = tokio::runtime::Handle::current();
        let waits = || handle.metrics().worker_park_count(0);
        let counted = async |mut instants: Interval| {
            instants.tick().await;
            // Whatever there was before.
            instants.tick().await;
            let before = waits();
            for _ in 0..100 {
                instants.tick().await;
            }
            // Between two turns of this test it looks once, without waiting.
            waits() - before - 100
        };
        let start = Instant::now();
        assert_eq!(counted(after(start)).await, 100);
        assert_eq!(counted(after(start - ROUNDED_UP)).await, 100);
        assert_eq!(counted(after(start + ROUNDED_UP)).await, 200, "as if it had begun late");
        // Elsewhere.
        assert!(counted(after(start + EVERY / 3)).await > 200);
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
            assert_eq!(since_last(first, now, EVERY), expected);
        }
    }
}
