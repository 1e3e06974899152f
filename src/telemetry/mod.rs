//! The log and the metrics.
//!
//! [`install_log`] and [`install_metrics`] must be called first in the process, since handles to metrics belong to the
//! recorder that is installed when they are created. Shared metrics are recorded through `recorders`, never by name.

mod families;
mod logging;
mod metrics;
mod process;
mod recorders;
mod totals;

use std::sync::LazyLock;

pub use families::{Family, Series, render as render_families};
pub use logging::{InstallLog, install as install_log};
pub use metrics::{InstallMetrics, Metric, MetricKind, describe, install as install_metrics, recorder};
pub use process::render as render_process;
pub use recorders::{
    ReconcileResult, RestClientMetrics, WorkqueueMetrics, cluster_available, cluster_new_credentials_fail, count,
    db_query, held_changes, leader_election_master_status, oldest_pending, section_objects, section_well,
};
pub use totals::Totals;

/// The running version, as in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The version; a release also says the commit that it was built from, and that commit's date.
pub static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| match (option_env!("TOWLINE_COMMIT"), option_env!("TOWLINE_DATE")) {
        (Some(commit), Some(date)) => format!("{VERSION} ({commit}, {date})"),
        _ => VERSION.to_owned(),
    });
