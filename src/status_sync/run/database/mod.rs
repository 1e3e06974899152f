//! Everything that status sync does with its database.
//!
//! A poller reads it in two statements per family: [`Detection`] finds the hub objects whose `status` rows have changed,
//! and [`StatusRows`] reads the rows of those objects and rolls them up. Both return one row at a time, so that the
//! poller can handle other events while it waits for the database. Their result is complete only after the last row.
//!
//! With `notify = true`, [`triggers`] makes the database send notifications of changes, and the [`Listener`] receives
//! them. They only make a pass begin earlier: every change is found by change detection.

mod check;
mod detection;
mod listener;
mod statements;
mod status_rows;
pub mod triggers;

pub use check::check_database;
pub use detection::{Detected, Detection, Found};
pub use listener::Listener;
pub use statements::Statements;
pub use status_rows::{Reading, RolledUp, StatusRows};
