//! Resource sync: one kind's spec goes from a remote cluster to a local one, its status and named secrets go back.
//!
//! - [`rules`] is pure: what was observed of a pair in, the next step out. Every rule of the specification is there.
//! - `index` is pure, too: everything that a section knows of its pairs, its guard and its clusters, under one owner.
//! - [`section`] is that owner. It follows the watches and translates what they tell into pairs to be reconciled; its attendant
//!   wakes what waits, its operators' commands are there, and what they and earlier settings leave behind.
//! - [`reconcile`] is the actor of one pair, which observes, plans and does: the only one that writes.
//! - [`report`] tells people (Events) and operators (`/status`, metrics).
//!
//! `wiring` makes actors of them, [`config`] is what is configured, `check` and `release` are what the command line does
//! without a daemon. What a section has to know after its process ended is in [`crate::state`].

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
