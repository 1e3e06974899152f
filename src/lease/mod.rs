//! Leases: a hub is told that an add-on is alive, as long as its pod is ready.
//!
//! `plan` decides when to renew and with which credentials, `turn` which requests that takes; both are pure. `renewer` is
//! the actor around them, one for each section, and `renewal` its requests. What the managed cluster says reaches it
//! through `readiness`, as latest values of the Secret and the pod; `credentials` makes of a Secret's data what a client
//! is built from, and `hub` is such a client with its reachability, shared by all leases with equal credentials.
//! `wiring` puts the parts together, and `report` tells operators about them.

mod check;
mod command;
pub mod config;
mod credentials;
mod hub;
mod job;
mod metrics;
mod permissions;
mod plan;
mod readiness;
mod renewal;
mod renewer;
mod report;
mod side_car;
mod turn;
mod wiring;

pub use job::{LeaseJob, sections};
pub use metrics::LeaseMetrics;
pub use report::LeaseReport;
pub use side_car::LeaseFlags;
