//! Three replicas of the hub on one database, as processes that are killed and frozen, and clients that go from one to another.
//!
//! What was written is known from the database itself: a trigger copies each row of the log to a place of the test's own. What
//! clients were answered, what watches and lists have shown, is compared with that.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

mod chaos;
mod conditional;
mod filter;
mod grants;
mod history;
mod linearizability;
mod pages;
mod restores;
mod storm;
mod watcher;
mod world;
mod writers;
