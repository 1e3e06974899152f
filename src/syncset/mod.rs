//! Syncsets: what is written in `SyncSet`s and `SelectorSyncSet`s of the hub is applied to clusters, as `OpenShift` Hive does it.
//!
//! The unit of work is one cluster. A *pass* over a cluster reads its syncsets and what is stored of earlier passes, decides
//! what differs, and sends it. What is decided is in [`rules`], and pure; [`store`] reads and writes what is stored, and [`kubeconfig`]
//! reads what leads to a cluster. [`dispatch`] turns changes of documents into work, and [`slots`] bounds how much of it is done at once. [`api`]
//! has routes for operators.

mod api;
mod command;
pub mod config;
pub mod dispatch;
pub mod idle;
pub mod inspect;
mod job;
pub mod kubeconfig;
mod metrics;
mod overview;
pub mod payloads;
mod report;
pub mod rules;
pub mod slots;
pub mod store;
mod wiring;
pub mod work;

pub use job::{SyncsetJob, section};
pub use metrics::SyncsetMetrics;
#[cfg(test)]
pub use overview::DispatcherState;
pub use overview::{Applied, Counted, SelectorApplied, SyncState};
