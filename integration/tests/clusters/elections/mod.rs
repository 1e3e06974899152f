//! Replicas share sections: each section runs in exactly one of them, whatever happens to them.
//!
//! Every test runs replicas as processes of their own, each as a user of its own, against real API servers. Meanwhile a monitor
//! reads the Leases and each replica's metrics, and in the end it checks for every write that the API servers saw that its
//! replica held the section when the write arrived.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod churn;
mod detached;
mod frozen;
mod monitor;
mod neighbours;
mod outage;
mod plugin;
mod replica;
mod rounds;
mod sharing;
mod world;
