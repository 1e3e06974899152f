//! Inventory: reports which Helm releases run in a cluster, and what runs in them, to an HTTP API, when that changes.
//!
//! - [`rules`] holds every rule of the specification, and is pure: which project counts, what is read of a release and of what runs in
//!   it, bodies and their keys, the project's status, and the index, which decides what is to be done next.
//! - [`reconciler`] is the actor that owns the index and carries out its steps; `caches` says what the watches show, `follower` what
//!   has changed, `record` reads a release, `ignored` keeps the condition of ignored projects. [`poster`] is the actor that posts.
//! - `wiring` builds the actors from [`config`], `report` shows them to operators, `alone` is the configuration of `towline
//!   inventory`, `crd` what a cluster's CRD drops, and `job` makes all this a job of the daemon.
//!
//! Imports go one way: `rules` ← `kinds`, `record`, `caches` ← `poster`, `reconciler` ← `report` ← `wiring` ← `job`.

mod alone;
mod caches;
mod command;
pub(crate) mod config;
mod crd;
mod follower;
mod ignored;
mod job;
mod kinds;
mod metrics;
mod permissions;
mod poster;
mod reconciler;
mod record;
mod report;
mod rules;
mod shown;
mod wiring;

pub use job::InventoryJob;
#[cfg(test)]
pub(crate) use job::section;
pub use metrics::InventoryMetrics;
