//! Leases: Towline renews a Lease on a hub, which shows that an add-on is alive, while the add-on's pod is ready.
//!
//! - [`config`]: the keys of a section.
//! - `plan`: when to renew and with which credentials, and which requests one renewal takes. Pure.
//! - `run`: the renewer, which is the one actor of a section, and the watches that it follows.
//! - `status`: what a section shows to operators; `metrics`: what it counts.
//! - `job`: makes all this a job of the daemon: actors, permissions, checks, and the command `towline lease`, configured by flags.

pub mod config;
mod job;
mod metrics;
mod plan;
mod run;
mod status;

pub use job::{LeaseJob, sections};
pub use metrics::LeaseMetrics;
