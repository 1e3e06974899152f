//! The poller of a family: an actor that reads the reports of leaf hubs from the database, and writes them to the hub.
//!
//! [`Poller`] outlives restarts of the actor, and `PollerState` is the state of one run. No module imports a later one of
//! this list:
//! - `hub_watches`, `follower`, `owned_index`: the watches of a family, the keys that they show, the objects that a hub
//!   object owns;
//! - `row_state`, `table`, `write`: the state of each row of `spec`, and the requests that write a change;
//! - `poller_state`: the state of one run: the table, the mailbox, how the last pass ended;
//! - `family_report`, `conflict_report`, `reporter`: what operators see;
//! - `family_guard`: what a pass may clear;
//! - `context`: the parts that all runs work with;
//! - `apply`: compares desired fields with the objects in the caches, and writes the differences;
//! - `pass`: one pass, and the recheck of some rows between passes;
//! - `actor`: begins the passes.

mod actor;
mod apply;
mod conflict_report;
mod context;
mod family_guard;
mod family_report;
mod hub_watches;
mod owned_index;
mod pass;
mod poller_state;
mod reporter;
mod row_state;
mod table;
mod write;

pub use actor::Poller;
pub use context::SectionContext;
pub use family_report::FamilyReport;
pub(in crate::status_sync) use hub_watches::KeyFollower;
pub(in crate::status_sync) use table::clearing_is_held;

#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
