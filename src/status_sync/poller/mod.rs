//! The poller of a family: an actor that reads from the database what leaf hubs reported, and writes it to the hub.
//!
//! [`Poller`] is what all runs of the actor have in common, and `PollerState` is the state of one run. The modules
//! build on each other in this order, and none imports a later one:
//! - `hub_view`, `follower`, `owned_index`: the watches of a family, the keys that they show, the objects that a hub
//!   object owns;
//! - `entry`, `table`, `write`: what is remembered of each row of `spec`, and the requests of a change;
//! - `state`: the table, the guard, the mailbox and the progress of one run;
//! - `family_report`, `conflict_report`, `reporter`: what operators see;
//! - `context`: the parts that all runs work with;
//! - `apply`: compares hub objects with the caches, and writes the differences;
//! - `pass`: one pass, and the look between passes;
//! - `actor`: when passes begin.

mod actor;
mod apply;
mod conflict_report;
mod context;
mod entry;
mod family_report;
mod follower;
mod hub_view;
mod owned_index;
mod pass;
mod reporter;
mod state;
mod table;
mod write;

pub use actor::Poller;
pub use context::Shared;
pub use family_report::FamilyReport;
pub(super) use follower::KeyFollower;

#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
