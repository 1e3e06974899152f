//! Syncsets: what is written in `SyncSet`s and `SelectorSyncSet`s of the hub is applied to clusters, as `OpenShift` Hive does it.
//!
//! The unit of work is one cluster. A *pass* over a cluster reads its syncsets and what is stored of earlier passes, decides
//! what differs, and sends it.
//!
//! - [`config`]: the keys of the section.
//! - [`plan`]: what syncsets mean, what a pass does next, what the guard suspends. Pure.
//! - [`run`]: the dispatcher, the workers and what they store.
//! - [`inspect`]: what operators ask about objects and syncsets; `api`: its routes.
//! - `status`: what the section shows to operators; `metrics`: what it counts.
//! - `job`: makes all this a job of the daemon: actors, permissions, checks, and the commands that call the routes.

mod api;
pub mod config;
pub mod inspect;
mod job;
mod metrics;
pub mod plan;
pub mod run;
mod status;

pub use job::{SyncsetJob, section};
pub use metrics::SyncsetMetrics;
