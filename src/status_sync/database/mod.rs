//! What a poller reads from the database: the two statements of a family, and the decoding of their rows.
//!
//! [`Detection`] finds the hub objects whose `status` rows have changed, and [`StatusRows`] reads the rows of those
//! objects and rolls them up. Both hand on one row at a time, so that a poller can do other things while the database
//! takes its time. What they return is complete only when they have reached their end.

mod detection;
mod statements;
mod status_rows;

pub use detection::{Detected, Detection, Found};
pub use statements::Statements;
pub use status_rows::{Reading, RolledUp, StatusRows};
