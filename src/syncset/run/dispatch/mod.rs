//! The dispatcher: turns changes of documents into requests for clusters.
//!
//! It reads the log above its cursor, finds out whom the changes concern, and asks for those clusters in the transaction that moves
//! the cursor. So a crash loses no request, and at worst repeats some. A request for a cluster that has nothing to do is harmless: the
//! pass finds that out with one statement. So wherever it is not certain whom a change concerns, it concerns more clusters.
//!
//! Before it moves the cursor it checks what the changes would delete.
//! Passes delete nothing that was not checked, and nothing that is suspended; [`suspended`](suspended()) lists that, and [`approve`] lets it go.

use std::sync::Arc;

use uuid::Uuid;

use crate::db::{self, Row, column};

mod actor;
mod ask;
mod change;
mod concern;
mod error;
mod guard;
mod read;
mod remove;
mod selection;
mod step;
mod suspended;
mod tidy;
mod tracked;
mod turn;
mod unchecked;

pub use actor::{DispatchObserver, Dispatcher};
pub use error::DispatchError;
pub(in crate::syncset) use selection::{Parameter, Parameters, Selection};
pub use suspended::{SuspendedSyncset, approve, suspended};
pub use turn::{Dispatch, Turn};

/// The ids in the first column of a statement's rows.
fn ids(query: &'static str, rows: &[Row]) -> Result<Vec<Uuid>, DispatchError> {
    let id = |row| -> Result<Uuid, DispatchError> {
        let text: &str = column(query, row, 0)?;
        Ok(text.parse().map_err(|error| db::Error::Decode { query, source: Arc::new(error) })?)
    };
    rows.iter().map(id).collect()
}
