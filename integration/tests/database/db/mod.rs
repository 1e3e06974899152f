//! The layer that status sync and the hub ask the database through, against a real server.
//!
//! All tests share one server, but those that stop it; each has a database of its own with its name.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "the allowance for tests does not reach their helpers"
)]

mod connections;
mod listening;
mod migrations;
mod parameters;
mod prepared;
mod transactions;
pub(crate) mod world;
