//! Claims: leases in the database with a fencing token. A leader claim says which process fills a role that must be filled only once; a
//! work claim says which process works on a cluster (see `work`).
//!
//! In the database a claim ends 30 s after it was granted or renewed, by the server's clock. Its holder stops 20 s after it *sent* the
//! last request for it that was granted or renewed, by its own clock. The 10 s between are the margin for steps of the server's clock,
//! and for a failover to a server whose clock is ahead.
//!
//! [`Claims`] is the actor that renews all claims of the process, on a connection of its own. It also asks for the roles that somebody
//! in the process wants ([`Claims::role`]); who wants one has its [`Leadership`].

mod actor;
mod candidate;
mod role;
mod statements;

use std::time::Duration;

pub use actor::Claims;
pub use role::{Grant, Holder, Leadership, Role};

/// How long a claim lasts in the database after it was granted or renewed. All other times of claims follow from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime(Duration);

impl Lifetime {
    /// 30 s. Only tests have another one.
    pub(super) const DEFAULT: Self = Self(Duration::from_secs(30));

    /// For statements.
    pub(super) fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// How long a holder may act after it sent the request that was granted: 20 s.
    pub(super) fn held_for(self) -> Duration {
        self.0 * 2 / 3
    }

    /// Between two renewals: 6 s.
    fn renewed_every(self) -> Duration {
        self.0 / 5
    }

    /// Between two attempts to get a role: 10 s.
    fn asked_for_every(self) -> Duration {
        self.0 / 3
    }

    /// Longest wait for the answer to a renewal, with the time to connect: 4 s, that is [`Self::locked_out_for`] and a second for the way.
    /// Each round renews leader claims and work claims, one after the other. So a round that fails ends 8 s after its begin, and the next
    /// one, which begins at the latest then, has sent both renewals before the claims' 20 s are over.
    fn renewed_within(self) -> Duration {
        self.0 * 2 / 15
    }

    /// A renewal waits for a lock at most this long, 3 s: less than other statements, since another renewal waits behind it.
    fn locked_out_for(self) -> Duration {
        self.0 / 10
    }
}
