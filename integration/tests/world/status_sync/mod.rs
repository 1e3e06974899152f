//! Status sync against a real database and a real API server.
//!
//! All tests share one hub and one database server. A test has a namespace and a database of its own, both with its
//! name, and a daemon that is told to look at that namespace alone.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "the allowance for tests does not reach their helpers"
)]

mod alone;
mod another_hub;
mod check;
mod costs;
mod decisions;
mod families;
mod faults;
mod halfway;
mod kills;
mod notify;
mod others;
mod outages;
mod policies;
mod sums;
mod tls;
mod world;
