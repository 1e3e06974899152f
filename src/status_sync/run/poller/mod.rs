//! The poller of a family: an actor that reads the reports of leaf hubs from the database, and writes them to the hub.
//!
//! [`Poller`] outlives restarts of the actor. No module imports a later one of this list:
//! - `hub_watches`, `owned_index`: the watches of a family, the keys that they show, the objects that a hub
//!   object owns;
//! - `row_state`, `table`, `write`: the state of each row of `spec`, and the requests that write a change;
//! - `family_guard`: what a pass may clear;
//! - `report`: what operators see;
//! - `state`: the parts that all runs work with, and the state of one run: the table, the mailbox, how the last pass ended;
//! - `apply`: compares desired fields with the objects in the caches, and writes the differences;
//! - `pass`: one pass, and the recheck of some rows between passes;
//! - `actor`: begins the passes.

mod actor;
mod apply;
mod family_guard;
mod hub_watches;
mod owned_index;
mod pass;
mod report;
mod row_state;
mod state;
mod table;
mod write;

pub use actor::Poller;
pub(in crate::status_sync) use hub_watches::KeyFollower;
pub use report::FamilyReport;
pub use state::SectionContext;
pub(in crate::status_sync) use table::clearing_is_held;

#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
