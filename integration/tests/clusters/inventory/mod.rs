//! Inventory: what an API is told of the Helm releases of a cluster, and what that costs.
//!
//! Releases are made by Helm itself on a real API server, where the daemon has the rights of `deploy/inventory` and no others; requests
//! are counted where they arrive. Each test has an API server to itself, since a daemon reports all releases of a cluster;
//! it is emptied for the next one.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod alone;
mod belongs;
mod canary;
mod costs;
mod delivery;
mod elected;
mod forged;
mod killed;
mod projects;
mod walk;
mod world;
