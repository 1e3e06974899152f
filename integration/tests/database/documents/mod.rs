//! The hub's documents on a real server: writes, lost answers, claims, compaction, and versions after a failover.
//!
//! All tests share one server, but those that stop it; each has a database of its own with its name.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the allowance for tests does not reach their helpers"
)]

mod answers;
mod applied;
mod claims;
mod compaction;
mod dispatch;
mod frozen;
mod guard;
mod owning;
mod pass_store;
mod preparing;
mod protocol;
mod raw;
mod revisions;
mod rollouts;
mod schema;
mod snapshots;
pub(crate) mod usage;
mod versions;
mod world;
mod writes;
