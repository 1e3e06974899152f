//! What is stored of passes, in the hub's database.
//!
//! A pass reads its [`Snapshot`](crate::syncset::plan::snapshot::Snapshot) with one statement, and, if something is due that the process has not read before, its [`Content`] with
//! another. What it writes is written only under its live claim, which the same statement checks: a pass that was frozen and replaced changes nothing.
//!
//! Which of the candidate syncsets are to be applied is not decided here: an index finds them, and labels and patterns decide.

mod columns;
mod content;
mod identity;
mod proposal;
mod save;
mod snapshot;
mod tracked;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::db::{self, Database};
use crate::documents::{ListError, UnreadableRow};

use columns::UnreadableColumn;
pub use content::{Content, Lacking, MOST_ROWS, PayloadRow, SealedSecret};
pub use proposal::{AskedObject, ClusterPlace, Selected};
pub use save::{ClusterRevision, ClusterUpdate};
use snapshot::Asked;
pub use snapshot::TooLarge;

pub(in crate::syncset) use save::RESYNC;
pub(in crate::syncset) use tracked::tracked_objects;

/// Most snapshots of one statement: one of a few small syncsets takes half a millisecond by itself.
const TOGETHER: usize = 16;

/// Reads and writes what is stored of passes. Clones share the pool, and the half of its connections that they may use at once: passes
/// wait for each other, and not requests of clients for hundreds of passes.
#[derive(Clone)]
pub struct PassStore {
    database: Database,
    slots: Arc<Semaphore>,
    /// Snapshots that somebody waits for. Locked only to put one in or to take some.
    asked: Arc<Mutex<VecDeque<Asked>>>,
    /// How many of them are read at once.
    together: usize,
}

impl PassStore {
    pub fn new(database: Database) -> Self {
        let slots = usize::try_from(database.state().max / 2).unwrap_or(usize::MAX).max(1);
        Self { database, slots: Arc::new(Semaphore::new(slots)), asked: Arc::default(), together: TOGETHER }
    }

    /// The same for those who only look at clusters: up to a quarter of the connections, in slots for which no pass waits. There are not
    /// as many connections as all slots together, so that a pass may wait for one, but then no longer than for a statement. Nobody's look
    /// waits for what somebody else looks at.
    #[must_use]
    pub fn apart(&self) -> Self {
        let slots = usize::try_from(self.database.state().max / 4).unwrap_or(usize::MAX).max(1);
        Self { slots: Arc::new(Semaphore::new(slots)), together: 1, ..Self::new(self.database.clone()) }
    }

    /// Waits until another statement may be run.
    async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.slots.acquire().await.ok()
    }
}

/// Why the state of a cluster could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, or not as expected. Another attempt may succeed.
    #[error("failed to read or write the state of the cluster")]
    Database(#[from] db::Error),
    /// Not all documents are there, or not those of their versions: less than everything looks like deletions. Another attempt may
    /// succeed.
    #[error("the documents can't be read now")]
    Restoring(#[source] ListError),
    /// The claim on the cluster has ended or belongs to another process. Nothing was written.
    #[error("the claim on the cluster has expired")]
    ClaimLost,
    /// A document can't be read. Another attempt fails in the same way.
    #[error("failed to read a document of the cluster")]
    Document(#[source] UnreadableRow),
    /// A row can't be read. Another attempt fails in the same way.
    #[error("failed to read a row of table {table}")]
    Row { table: &'static str, source: UnreadableColumn },
    /// Rows are not JSON of their table.
    #[error("failed to read or write rows of table {table}")]
    Json { table: &'static str, source: serde_json::Error },
}

/// The rows of a table that were read as JSON.
fn read<C, T: TryFrom<C, Error = UnreadableColumn>>(
    columns: Vec<C>,
    table: &'static str,
) -> Result<Vec<T>, StoreError> {
    let rows: Result<Vec<T>, _> = columns.into_iter().map(T::try_from).collect();
    rows.map_err(|source| StoreError::Row { table, source })
}
