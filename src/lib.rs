//! Towline keeps many Kubernetes clusters and a hub in step.
pub mod actor;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod resource_sync;
pub mod telemetry;
