//! The work queue on a real server: claims, requests, renewals, what they cost, and workers that are killed, stopped and cut off.
//!
//! All tests share one server; each has a database of its own with its name.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the allowance for tests does not reach their helpers"
)]

mod claiming;
mod clocks;
mod consumer;
mod costs;
mod faults;
mod hints;
mod oracle;
mod renewals;
mod requests;
mod rounds;
mod worker;
mod world;
