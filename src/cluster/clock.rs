//! The clock of claims: it advances while the machine is suspended and while the process is stopped.

use std::time::Duration;

#[cfg(test)]
use tokio::time::Instant;

/// A monotonic clock with an arbitrary zero.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// `CLOCK_BOOTTIME`. `CLOCK_MONOTONIC` stops while the machine is suspended; a claim expires nevertheless.
    Boot,
    /// The runtime's clock, which a test can pause; counted from this instant.
    #[cfg(test)]
    Paused(Instant),
}

impl Clock {
    pub fn now(self) -> Duration {
        match self {
            Self::Boot => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                // Neither part is ever negative on this clock.
                Duration::new(
                    u64::try_from(now.tv_sec).unwrap_or_default(),
                    u32::try_from(now.tv_nsec).unwrap_or_default(),
                )
            }
            #[cfg(test)]
            Self::Paused(start) => start.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_claims_is_never_behind_the_monotonic_one() {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let boot = Clock::Boot.now();
        assert!(boot >= Duration::new(monotonic.tv_sec.unsigned_abs(), 0), "{boot:?} is before {monotonic:?}");
        assert!(Clock::Boot.now() >= boot);
    }
}
