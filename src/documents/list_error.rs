//! Why documents or their log could not be read.

use std::time::Duration;

use super::blocking::ShutsDown;
use super::document::UnreadableRow;
use super::problem::{Problem, ProblemKind};
use super::restored::NOT_WHOLE;
use crate::db;

/// A failed attempt may succeed after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a document, a list or a watch could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListError {
    /// The version is below what the log still has, or above the newest one.
    #[error("the version is no longer available")]
    Gone,
    /// The database did not answer, or not as expected. Another attempt may succeed.
    #[error("failed to read documents")]
    Database(#[from] db::Error),
    /// The documents are not those of its versions, or not all of them. Another attempt may succeed.
    #[error("{}", NOT_WHOLE)]
    Restoring,
    /// The rows of a page lack one between others. They never do.
    #[error("an item of the page is missing")]
    Gap,
    /// A row is not a document. Another attempt fails in the same way.
    #[error("failed to read a document")]
    Row(#[source] std::sync::Arc<UnreadableRow>),
    /// The tail has not read the log in time, since it does not reach the database.
    #[error("the log was not read within {}", humantime::format_duration(*.within))]
    TailBehind { within: Duration },
    /// Too many other watches are reading documents or the log. Another attempt may succeed.
    #[error("other watches were reading for {}", humantime::format_duration(*.within))]
    NoSlot { within: Duration },
    #[error(transparent)]
    ShutsDown(#[from] ShutsDown),
}

impl From<UnreadableRow> for ListError {
    fn from(error: UnreadableRow) -> Self {
        Self::Row(std::sync::Arc::new(error))
    }
}

/// What its sender is told of a failed read: nothing that the server says of its data.
impl From<ListError> for Problem {
    fn from(error: ListError) -> Self {
        let outage = if let ListError::Database(failure) = &error { failure.outage() } else { None };
        let is_outage = outage.is_some() || matches!(error, ListError::Restoring | ListError::TailBehind { .. });
        let title = outage.map_or_else(|| error.to_string(), str::to_owned);
        match error {
            ListError::Gone => Self::new(ProblemKind::Gone, title),
            ListError::Database(_)
            | ListError::Restoring
            | ListError::Gap
            | ListError::Row(_)
            | ListError::TailBehind { .. }
            | ListError::NoSlot { .. }
            | ListError::ShutsDown(_) => {
                Self::new(ProblemKind::Unavailable, title).retry_after(RETRY_AFTER).caused_by(error, is_outage)
            }
        }
    }
}

impl From<&ListError> for Problem {
    fn from(error: &ListError) -> Self {
        error.clone().into()
    }
}
