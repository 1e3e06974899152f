//! What is stored of passes, in the hub's database (rules 7 to 10, 13, 16).
//!
//! A pass reads its [`Snapshot`] with one statement, and, if something is due, its [`Content`] with another. What it writes is
//! written only under its live claim, which the same statement checks: a pass that was frozen and replaced changes nothing.
//!
//! Which of the candidate syncsets are to be applied is not decided here: an index finds them, and labels and patterns decide.

mod columns;
mod content;
mod error;
mod save;
mod snapshot;

use crate::db::Database;

pub use columns::UnreadableColumn;
pub use content::{Content, PayloadRow, SealedSecret};
pub use error::StoreError;
pub use save::Pace;
pub use snapshot::{Candidate, SecretFacts, Snapshot, StoredCluster};

pub(super) use save::RESYNC;

/// Reads and writes what is stored of passes. Clones share the pool.
#[derive(Clone)]
pub struct PassStore {
    database: Database,
}

impl PassStore {
    /// In this database.
    pub fn new(database: Database) -> Self {
        Self { database }
    }
}
