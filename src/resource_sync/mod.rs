//! Resource sync: copies the specs of one kind from a remote cluster to a local one, and writes status and named secrets back.
//!
//! - [`rules`] is pure: it takes what was observed of a pair and returns the next step. Every rule of the specification is
//!   there.
//! - `index` is pure, too. It holds everything that a section knows about its pairs, its guard and its clusters.
//! - [`section`] owns the index. It follows the watches, translates their events into pairs to reconcile, requeues pairs that
//!   wait, carries out the operators' commands, and finds what earlier settings have left behind.
//! - [`reconcile`] is the actor of one pair, which observes, plans and acts. It alone writes objects.
//! - [`report`] writes Events, and shows a section in `/status` and the metrics.
//!
//! `wiring` makes actors of them, [`config`] is the configuration, `permissions` lists what a section may have to do on each
//! cluster, and `check` and `release` are the commands that need no daemon. What a section remembers beyond its process is in
//! [`crate::state`].

mod check;
pub mod config;
#[cfg(test)]
mod harness;
mod index;
mod job;
mod metrics;
mod permissions;
pub mod reconcile;
mod release;
pub mod report;
pub mod rules;
pub mod section;
pub mod wiring;

pub use job::{SyncJob, sections};
pub use metrics::{Direction, HELD_KINDS, SyncMetrics};
