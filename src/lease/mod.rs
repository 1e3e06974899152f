//! Leases: Towline renews a Lease on a hub, which shows that an add-on is alive, while the add-on's pod is ready.
//!
//! One renewer actor runs for each section (`renewer`). It owns the credentials in use and the requests under way.
//! `plan` decides when it renews and with which credentials, and `steps` decides which requests one renewal takes; both
//! are pure. `renewal` sends these requests. `readiness` publishes the state of the Secret and the pod on the managed
//! cluster as latest values. `credentials` turns a Secret's data into the configuration of a client, from which
//! [`DynamicClusters`](crate::cluster::DynamicClusters) makes one cluster for all leases with equal credentials. `wiring`
//! builds the actors, and `report` shows their state to operators.

mod check;
mod command;
pub mod config;
mod credentials;
mod job;
mod metrics;
mod permissions;
mod plan;
mod readiness;
mod renewal;
mod renewer;
mod report;
mod side_car;
mod steps;
mod wiring;

pub use job::{LeaseJob, sections};
pub use metrics::LeaseMetrics;
