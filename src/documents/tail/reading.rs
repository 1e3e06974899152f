//! What a watch reads from the database, in its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::Entry;
use super::window::{self, Window};
use super::{PAGE_BYTES, Shared, Tail};
use crate::documents::filter::Filter;
use crate::documents::list::{self, ListQuery, Page};
use crate::documents::list_error::ListError;
use crate::documents::object::Object;
use crate::documents::places::{Place, Taker};

pub(super) enum Wanted {
    /// A page of the state.
    Page(ListQuery),
    /// Changes of the log behind a version, up to another one.
    Window { filter: Arc<Filter>, after: i64, until: i64 },
}

pub(super) enum Found {
    Page(Page<Vec<Object>>),
    Window(Window),
}

/// For whom it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) taker: Taker,
    pub(super) epoch: u64,
    /// How long it waits for its turn, and for a place.
    pub(super) patience: Duration,
}

impl Wanted {
    async fn read(&self, shared: &Shared) -> Result<Found, ListError> {
        let Shared { database, blocking, .. } = shared;
        match self {
            Self::Page(query) => list::list_objects(database, blocking, query, PAGE_BYTES).await.map(Found::Page),
            Self::Window { filter, after, until } => {
                window::read(database, blocking, filter, *after, *until, PAGE_BYTES).await.map(Found::Window)
            }
        }
    }
}

impl Found {
    fn bytes(&self) -> usize {
        match self {
            Self::Page(page) => page.items.iter().map(Object::bytes).sum(),
            Self::Window(window) => window.entries.iter().map(Entry::bytes).sum(),
        }
    }
}

impl Tail {
    /// Reads for the client of a watch. What has a large document needs a place, until the client has taken it. Without one it is dropped,
    /// and read again when there is one.
    pub(super) async fn read(&self, wanted: Wanted, reader: Reader) -> Result<(Found, Option<Place>), ListError> {
        let Reader { taker, epoch, patience } = reader;
        let no_turn = || ListError::NoTurn { within: patience };
        let until = Instant::now() + patience;
        let mut place = None;
        loop {
            {
                let left = until.saturating_duration_since(Instant::now());
                let turn = self.turn(taker, epoch, left).await;
                let _turn =
                    turn.map_err(|error| if let ListError::NoTurn { .. } = error { no_turn() } else { error })?;
                let found = wanted.read(&self.0).await?;
                let is_small = found.bytes() <= 2 * PAGE_BYTES;
                if !is_small && place.is_none() {
                    place = self.0.large.try_take(taker).ok();
                }
                if is_small || place.is_some() {
                    return Ok((found, place.filter(|_| !is_small)));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            place = Some(self.0.large.take(taker, left).await.map_err(|_| no_turn())?);
        }
    }
}
