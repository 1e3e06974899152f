//! How long to wait before trying again: doubling, capped, with jitter.

use std::time::Duration;

use rand::Rng;

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
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let longest = self.first.checked_mul(factor).map_or(self.cap, |delay| delay.min(self.cap));
        let chance: f64 = random.random();
        longest.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn without_jitter_it_doubles_up_to_the_cap() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(10), jitter: 0.0 };
        let mut random = StdRng::seed_from_u64(1);
        let delays: Vec<u64> = (0..6).map(|attempt| backoff.delay(attempt, &mut random).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
    }

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
}
