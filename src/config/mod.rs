//! Reading configurations: one TOML file, overridden by environment variables, with all faults of both at once.
//!
//! [`source`] reads the file and applies the variables, [`fields`] reads a table key by key, [`setting`] defines the allowed
//! values, and [`fault`] collects the faults, each with its path, what was found, what is allowed and what was probably meant.
//! The tables that belong to no job are here (`daemon`, `clusters`, `election`); each job reads its own.
//! [`crate::job::Config`] is the whole. How a message shows a text of somebody else is in [`text`].
//!
//! `TOWLINE__DAEMON__LISTEN` sets `daemon.listen`, `TOWLINE__CLUSTERS__EU_WEST__KUBECONFIG` sets `kubeconfig` of the cluster
//! `eu-west`, and `TOWLINE__SYNC__MY_DATABASES__DRY_RUN` sets `dry_run` of the `[[sync]]` section named `my-databases`
//! (`TOWLINE__LEASE__…` likewise). Variables change sections of the file and never add one. Commas separate the elements of
//! lists.
//!
//! Nothing here is secret: tokens and kubeconfigs are referred to by their files.

mod clusters;
mod daemon;
pub mod election;
pub mod fault;
pub mod fields;
pub mod go_duration;
pub mod names;
mod resource;
mod selector;
pub mod setting;
pub mod source;
pub mod text;
pub mod url;

use std::num::NonZeroUsize;

pub use clusters::{ClusterAccess, ClusterConfig, same_cluster};
pub use daemon::{DaemonConfig, LogConfig, LogFormat};
pub use election::ElectionConfig;
#[cfg(test)]
pub use fault::Problem;
pub use fault::{Error, Fault};
pub use names::{ClusterName, InvalidName, SectionName};
pub use resource::ResourceId;
pub use selector::{LabelSelector, Requirement, Test};

/// Enough to hide the latency of a distant cluster (64 × 10 requests per second at 100 ms), and far below the 600 concurrent
/// requests that an API server admits by default.
pub const DEFAULT_MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// The environment of this process. Variables whose name is not UTF-8 are skipped. In a value that is not UTF-8 the invalid
/// bytes are replaced, so that it is reported as a wrong value.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
}
