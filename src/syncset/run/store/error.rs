//! Why the state of a cluster could not be read or written.

use super::columns::UnreadableColumn;
use crate::db;
use crate::documents::{ListError, UnreadableRow};

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
    LeaseExpired,
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
