//! The log, the metrics, and the admin HTTP server.
//!
//! [`install_log`] and [`install_metrics`] must be called first in the process, since handles to metrics belong to the
//! recorder that is installed when they are created. Shared metrics are recorded through `recorders`, never by name.
//! [`serve`] runs the admin server until it is stopped; it knows sections and the actor tree only as [`Section`] and
//! [`Tree`].

mod access;
mod admin;
mod condition;
mod families;
mod logging;
mod metrics;
mod object_state;
mod process;
mod recorders;
mod section;
mod server;

pub use access::ReadToken;
pub(crate) use access::read_token;
pub use admin::Admin;
pub use condition::{ClusterState, ClusterStatus, Condition, Facts, NotReady, Purpose, SectionState, brief};
pub use families::{Family, Series, render as render_families};
pub use logging::{InstallLog, install as install_log};
#[cfg(test)]
pub use metrics::MetricKind;
pub use metrics::{InstallMetrics, Metric, install as install_metrics};
#[cfg(test)]
pub(crate) use metrics::{describe, recorder};
pub use object_state::ObjectState;
#[cfg(test)]
pub(crate) use process::render as render_process;
pub use recorders::{
    ReconcileResult, RestClientMetrics, WorkqueueMetrics, actors, cluster_available, cluster_new_credentials_fail,
    count, db_query, held_changes, leader_election_master_status, section_well, state_undone,
};
pub use section::{Held, HeldObject, Overview, Readiness, Refused, Section, Tree};
pub use server::serve;

/// The running version, as in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
