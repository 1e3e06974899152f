//! The hub as its own process, on a real database, asked with `curl` and by the commands of the binary.
//!
//! All tests share one database server; each has a database of its own with its name.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

mod canary;
mod check;
mod commands;
mod connections;
mod costs;
mod files;
mod grants;
mod history;
mod injection;
mod large;
mod limits;
mod loopback;
mod lost_answers;
mod memory;
mod outages;
mod page;
mod quotas;
mod rotation;
mod rough_bodies;
mod secrets;
mod tls;
mod to_delete;
mod values;
mod walk;
mod watches;
mod world;
