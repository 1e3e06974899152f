//! The rules of resource sync against real API servers: one test at least for each numbered rule, each mark, each key of
//! the configuration and each sort of kind.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

pub(crate) mod asking;
mod brakes;
mod built_in;
mod check;
mod contention;
mod costs;
mod deletion;
mod detach;
mod failure;
mod followers;
mod generations;
mod guarded;
mod kinds;
mod left_behind;
mod metadata;
mod mirror;
mod namespaces;
mod one_cluster;
mod ownership;
mod pause;
mod secrets;
mod selection;
mod shown;
mod spec;
mod state;
mod status;
mod unkept;
