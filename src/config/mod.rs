//! The configuration kit: one TOML file, the environment over it, and every fault of both at once.
//!
//! [`source`] reads the file and lays variables over it, [`fields`] walks a table key by key, [`setting`] says what a value may
//! be, and [`fault`] collects what is wrong, so that whoever writes a file learns of all of it in one go: where, what was
//! found, what is allowed, and what was probably meant. The tables that belong to no job are here (`daemon`, `clusters`,
//! `election`); each job reads its own. [`crate::job::Config`] is the whole.
//!
//! `TOWLINE__DAEMON__LISTEN` sets `daemon.listen`, `TOWLINE__CLUSTERS__EU_WEST__KUBECONFIG` sets it for the cluster
//! `eu-west`, and `TOWLINE__SYNC__MY_DATABASES__DRY_RUN` for the `[[sync]]` section named `my-databases`
//! (`TOWLINE__LEASE__…` likewise): variables reach sections that the file has, and never make a new one. Lists are separated by commas there.
//!
//! Nothing here is secret: tokens and kubeconfigs are named by their files.

mod clusters;
mod daemon;
pub mod election;
pub mod fault;
pub mod fields;
pub mod names;
mod resource;
pub mod setting;
pub mod source;

use std::num::NonZeroUsize;

pub use clusters::{ClusterAccess, ClusterConfig, same_cluster};
pub use daemon::{DaemonConfig, LogConfig, LogFormat};
pub use election::ElectionConfig;
pub use fault::{Error, Fault, Faults, Problem};
pub use names::{ClusterName, InvalidName, SectionName};
pub use resource::{InvalidResource, ResourceId};

/// Enough to hide the latency of a far cluster (64 × 10 requests a second at 100 ms), and far below what an API
/// server admits at once (600 by default).
pub const DEFAULT_MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// The environment of this process. A name that is not text is none of ours, and a value that is not text gets a fault as
/// the wrong value it is.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
}
