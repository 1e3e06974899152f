//! Status sync: rolls up what leaf hubs report in a database, and writes the result to the status of the hub's resources.
//!
//! - [`config`]: the keys of the section.
//! - [`plan`]: the families and their roll-ups, the comparison with the hub, the schedule of passes. Pure.
//! - [`run`]: the actors of families, the database, and whether the section may write to its hub.
//! - [`status`]: what the section shows to operators; `metrics`: what it counts.
//! - `job`: makes all this a job of the daemon: actors, permissions, checks, and the command `towline status-sync`, configured
//!   by variables.

pub mod config;
mod job;
mod metrics;
pub mod plan;
pub mod run;
pub mod status;

pub use job::command::alone;
pub use job::{StatusSyncJob, section};
pub use metrics::{StatusSyncMetrics, WriteOutcome};
