//! Nothing lost, nothing done twice, nothing deleted that isn't ours: the daemon among real faults.
//!
//! Every test runs the daemon as its own process, under its own user with the rights of `deploy/` and no others, and
//! ends with a comparison of both clusters, object by object.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod black_hole;
mod churn;
mod configuration;
mod credentials;
mod duplicates;
mod kinds;
mod lists;
mod namespaces;
mod page;
mod permissions;
mod plugins;
mod process;
mod prometheus;
mod rejected;
mod servers;
mod visible;
pub(crate) mod world;
mod wrong_cluster;
