//! Status sync: rolls up what leaf hubs report in the database, and writes it to the status of the hub's resources.
//!
//! - [`rules`] holds every rule of the specification, and is pure: the families and their roll-ups, the comparison with
//!   the hub, the guard, the pace.
//! - [`database`] reads: the two statements of a family, and the decoding of their rows.
//! - [`poller`] is the actor, one for each family. It owns what is remembered of the family, and writes to the hub.
//! - [`standing`] decides whether the section may write to its hub, which may have become another cluster.
//! - [`listener`] is the actor that receives notifications of the database, which [`triggers`] send.
//! - [`wiring`] builds the actors from [`config`], [`report`] shows them to operators, `check` serves `towline check
//!   --connect`, `alone` is the configuration of `towline status-sync`, and `job` makes all this a job of the daemon.
//!
//! Imports go one way: `rules` ← `database`, `standing` ← `poller` ← `listener` ← `report` ← `wiring` ← `job`.

mod alone;
mod check;
mod command;
pub mod config;
pub mod database;
mod job;
pub mod listener;
mod metrics;
mod permissions;
pub mod poller;
pub mod report;
pub mod rules;
pub mod standing;
pub mod triggers;
pub mod wiring;

pub use alone::alone;
pub use job::{StatusSyncJob, section};
pub use metrics::{ListenerMetrics, StatusSyncMetrics, WriteOutcome};
