//! The times of claims.

use std::time::Duration;

/// How long a claim lasts in the database after it was granted or renewed. All other times of claims follow from it.
#[derive(Clone, Copy, Debug)]
pub(in crate::documents) struct Lifetime(pub(super) Duration);

impl Lifetime {
    /// 30 s. Only tests have another one.
    pub(super) const DEFAULT: Self = Self(Duration::from_secs(30));

    /// For statements.
    pub(in crate::documents) fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// How long a holder may act after it sent the request that was granted: 20 s.
    pub(in crate::documents) fn held_for(self) -> Duration {
        self.0 * 2 / 3
    }

    /// Between two renewals: 6 s.
    pub(super) fn renewed_every(self) -> Duration {
        self.0 / 5
    }

    /// Between two attempts to get a role: 10 s.
    pub(super) fn asked_for_every(self) -> Duration {
        self.0 / 3
    }

    /// Longest wait for the answer to a renewal, with the time to connect: 4 s, that is [`Self::locked_out_for`] and a second for the way.
    /// Each round renews leader claims and work claims, one after the other. So a round that fails ends 8 s after its begin, and the next
    /// one, which begins at the latest then, has sent both renewals before the claims' 20 s are over.
    pub(super) fn renewed_within(self) -> Duration {
        self.0 * 2 / 15
    }

    /// A renewal waits for a lock at most this long, 3 s: less than other statements, since another renewal waits behind it.
    pub(super) fn locked_out_for(self) -> Duration {
        self.0 / 10
    }
}
