//! Status sync: rolls up what leaf hubs report in a database, and writes the result to the status of the hub's resources.
//!
//! - [`rules`] holds every rule of the specification, and is pure: the families and their roll-ups, the comparison with
//!   the hub, the guard, the schedule of passes.
//! - [`database`] is everything about the database: the two statements of a family, the decoding of their rows, the
//!   triggers that send notifications, and the listener, the actor that receives them.
//! - [`poller`] is the actor of a family. It owns the state of the family, and writes to the hub.
//! - [`identity`] decides whether the section may write to its hub, which may have become another cluster.
//! - [`wiring`] builds the actors from [`config`], [`report`] shows them to operators, `check` serves `towline check
//!   --connect`, `alone` is the configuration of `towline status-sync`, and `job` makes all this a job of the daemon.
//!
//! Imports go one way: `rules` ← `database`, `identity` ← `poller` ← `report` ← `wiring` ← `job`.

mod alone;
mod check;
mod command;
pub mod config;
pub mod database;
pub mod identity;
mod job;
mod metrics;
mod permissions;
pub mod poller;
pub mod report;
pub mod rules;
pub mod wiring;

pub use alone::alone;
pub use job::{StatusSyncJob, section};
pub use metrics::StatusSyncMetrics;
#[cfg(test)]
pub use metrics::WriteOutcome;
