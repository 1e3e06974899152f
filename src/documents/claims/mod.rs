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
mod held;
mod lifetime;
mod role;
mod statements;

pub use actor::Claims;
pub use held::HeldClaim;
pub(super) use held::{HeldWork, Registration};
pub use role::{Grant, Holder, Leadership, Role};
