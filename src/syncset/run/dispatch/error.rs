//! Why the dispatcher could not go on.

use crate::db;

/// Why a turn of the dispatcher has failed. Its cursor has not moved, unless an answer was lost.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DispatchError {
    /// The database did not answer, or not as expected. Another attempt may succeed.
    #[error("failed to dispatch changes")]
    Database(#[from] db::Error),
    /// Another process is the dispatcher, or another turn has moved the cursor.
    #[error("the claim of the dispatcher has expired")]
    LeaseExpired,
    /// The database is being restored, or was failed over to: its versions are another server's. Another attempt may succeed.
    #[error("the database is being restored")]
    Restoring,
    /// Several syncsets of a name are held. An approval has to name one of them by its id.
    #[error("deletions of several syncsets {name} are held, approve one of them by its id: {}", .ids.join(", "))]
    Ambiguous {
        name: String,
        /// The ids, each with the reason.
        ids: Vec<String>,
    },
}
