//! Status sync: what leaf hubs report into the database is rolled up into the status of the hub's resources.
//!
//! [`families`] has the roll-ups and [`plan`] the comparison with what the cluster holds; both are pure, and with
//! [`guard`] and [`digest`] they hold every rule of the specification. [`family`] says what a family is: its kinds, its
//! fields, its two statements. [`poller`] is the actor, one a family, `pass` its pass, from its change `detection` to the
//! `work` that follows, and [`pace`] when the next one is. [`table`] is what it remembers, an [`entry`] a row of `spec`,
//! `follower` what tells it of changes on the hub, [`listener`] what tells it of changes of the database, by
//! [`triggers`]. `made` finds what was made for a hub object, `write` is how a change becomes requests, [`contest`] and
//! `contention` tell of other writers, [`standing`] says whether the hub is the cluster of before, by [`same_hub`], [`check()`] is for `towline check --connect`, [`report`] what operators see.

mod alone;
mod check;
mod command;
pub mod config;
mod contention;
pub mod contest;
mod detection;
pub mod digest;
pub mod entry;
pub mod families;
pub mod family;
mod follower;
pub mod guard;
mod job;
pub mod listener;
mod made;
mod metrics;
pub mod pace;
mod pass;
mod permissions;
pub mod plan;
pub mod poller;
pub mod report;
pub mod row_id;
pub mod same_hub;
pub mod standing;
pub mod table;
pub mod tally;
pub mod triggers;
pub mod wiring;
mod work;
mod write;

pub use alone::alone;
pub use job::{StatusSyncJob, section};
pub use metrics::{ListenerMetrics, StatusSyncMetrics, WriteOutcome};
