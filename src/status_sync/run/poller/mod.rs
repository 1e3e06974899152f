//! The poller of a family: an actor that reads the reports of leaf hubs from the database, and writes them to the hub.
//!
//! [`Poller`] outlives restarts of the actor. In the order of time, which is a good one to read it in:
//!
//! 1. `actor` begins a pass: after the interval, a notification, or what another writer has edited.
//! 2. `pass` is one pass: it detects what has changed, checks the hub, reads the changed rows and rolls them up. Between passes it rechecks some rows.
//! 3. `family_guard` says what the pass may clear.
//! 4. `apply` compares the fields with the objects in the caches (`hub_watches`, `owned_index`), and `write` sends the differences.
//! 5. `row_state` is what is known of a row of `spec` after that, and `table` has it of all rows.
//! 6. `report` is what operators see of it.
//!
//! `state` has what all of them work with: the parts that outlive a run, and the state of one run.

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
