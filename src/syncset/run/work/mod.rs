//! Work on one cluster: from a claim to what is stored of the pass.

mod basis;
mod executor;
mod finish;
mod first;
mod health;
mod identity;
mod observer;
mod pass_log;
mod plan;
mod prepare;
mod reconcile;
mod refusal;
mod seen;
mod shown;
mod silence;
mod slot;
mod takeover;
mod target;
mod worker;
mod write;

pub use executor::{Client, Executor};
pub use observer::{First, WorkObserver};
pub use plan::Plan;
pub use prepare::{NoClient, NoCredentials, PrepareError, Prepared, Preparer};
pub use refusal::Stop;
pub use seen::seen;
pub use takeover::taken_over;
pub use worker::Worker;
pub use write::{By, ObjectOnCluster, check_merge};
