//! Resource sync: copies the specs of one kind from a remote cluster to a local one, and writes status and named secrets back.
//!
//! - [`config`]: the keys of a section, and which sections exclude each other.
//! - [`plan`]: the rules. Pure: what was observed of a pair gives the next step.
//! - [`run`]: a section's actors, what they know, and the I/O of one step.
//! - [`status`]: what a section shows to operators; [`metrics`]: what it counts.
//! - [`job`]: makes all this a job of the daemon: actors, permissions, checks, and the command `towline release`.
//!
//! What a section remembers beyond its process is in [`crate::state`].

pub mod config;
mod job;
mod metrics;
pub mod plan;
pub mod run;
pub mod status;
#[cfg(test)]
mod tests;

pub use job::{SyncJob, sections};
pub use metrics::{Direction, SyncMetrics};
