//! Syncsets: what is written in `SyncSet`s and `SelectorSyncSet`s of the hub is applied to clusters, as `OpenShift` Hive does it.
//!
//! The unit of work is one cluster. A *pass* over a cluster reads its syncsets and what is stored of earlier passes, decides
//! what differs, and sends it. What is decided is in [`rules`], and pure. [`kubeconfig`] reads what leads to a cluster.

pub mod idle;
pub mod kubeconfig;
pub mod payloads;
pub mod permits;
pub mod rules;
