//! Inventory: reports which Helm releases run in a cluster, and what runs in them, to an HTTP API, when that changes.
//!
//! - [`config`]: the keys of the section.
//! - `plan`: which project counts, what is read of a release and of what runs in it, bodies and their keys, the project's status,
//!   and the index, which decides what to do next. Pure.
//! - `run`: the reconciler, which owns the index, the poster, and the watches that they follow.
//! - `status`: what the section shows to operators.
//! - `job`: makes all this a job of the daemon: actors, permissions, checks, and the command `towline inventory`, configured
//!   by variables.

pub(crate) mod config;
mod job;
mod plan;
mod run;
mod status;

pub use job::InventoryJob;
#[cfg(test)]
pub(crate) use job::section;
