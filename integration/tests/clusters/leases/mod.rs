//! Leases: a hub is told that an add-on is alive, and how much that costs.
//!
//! Every test runs the side-car or the daemon as its own process between two real API servers, under users with the
//! rights of `deploy/side-car` and no others, and counts requests where they arrive.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod clock;
mod costs;
mod credentials;
mod daemon;
mod elected;
mod outage;
mod readiness;
mod refused;
mod rotation;
mod side_car;
mod transitions;
mod world;
