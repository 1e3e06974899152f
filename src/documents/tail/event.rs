//! What a watch sends, and why it ends.

use crate::documents::list_error::ListError;
use crate::documents::object::Object;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A document of the state that the watch begins with. Clients see it as `ADDED`. These events are not in the order of
    /// their versions, so that a client must not resume from one.
    Initial(Object),
    /// The filter matches the document, and did not before.
    Added(Object),
    /// The filter matched the document before, and matches it now.
    Modified(Object),
    /// The document was removed, or the filter no longer matches it: its last matching state, with the version of the change.
    Deleted(Object),
    /// All changes up to a version have been sent.
    Bookmark {
        version: i64,
        /// Whether this is the end of the state that the watch began with.
        is_end_of_state: bool,
    },
}

/// Why a watch has ended. All but [`Ending::Gone`] end it cleanly: the client resumes from the last version that it has seen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Ending {
    /// The versions that the client knows are not, or not any more, those of the database. The client starts again.
    #[error("the version is no longer available")]
    Gone,
    /// The client was slower than the changes: the ring no longer has the next one.
    #[error("the watch has fallen behind")]
    FellBehind,
    /// The state or the changes could not be read.
    #[error("the watch can't be continued")]
    Failed(#[source] ListError),
}

impl Event {
    /// The version that a client may resume from after this event.
    pub fn resume_version(&self) -> Option<i64> {
        match self {
            Self::Initial(_) => None,
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => Some(object.version()),
            Self::Bookmark { version, .. } => Some(*version),
        }
    }
}

impl From<ListError> for Ending {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Gone => Self::Gone,
            error => Self::Failed(error),
        }
    }
}
