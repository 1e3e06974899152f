//! What syncsets rely on of an API server: the answers to their requests, discovery, impersonation.
//!
//! Every test goes through the library's own client, made from a kubeconfig as a user would write it, and counts requests where
//! they arrive. All share one API server, each in a namespace of its own.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod cluster_state;
mod contacts;
mod deletions;
mod discovery;
mod identity;
mod passes;
mod world;
mod writes;
