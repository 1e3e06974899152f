//! Syncsets while everything changes, workers are killed and frozen, and the database fails over and is restored: seeded, checked by an
//! oracle that shares no code with the product.
//!
//! Ten clusters are documents whose kubeconfigs lead to two real API servers. Each goes through an endpoint of the test, which gives the
//! cluster an identity of its own and notes every request with the process that sent it; templates keep the clusters apart, each in a
//! namespace. A trigger notes every claim, so that each request can be compared with the claim under which it was sent; another one
//! notes each step of a rollout.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod claims;
mod documents;
mod endpoint;
mod fences;
mod fleet;
mod history;
mod incidents;
mod oracle;
mod recoveries;
mod rolled;
mod storm;
pub(crate) mod watched;
