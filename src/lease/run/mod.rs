//! A lease at work.
//!
//! [`renewer`] is the actor of a section. It owns the credentials in use and the requests under way, which [`renewal`] sends.
//! [`readiness`] publishes the state of the Secret and the pod on the managed cluster as latest values. [`credentials`] turns a
//! Secret's data into the configuration of a client, from which [`DynamicClusters`](crate::cluster::DynamicClusters) makes one
//! cluster for all leases with equal credentials. [`latest`] is the latest state, for the report.

pub mod credentials;
pub mod latest;
pub mod readiness;
pub mod renewal;
pub mod renewer;
