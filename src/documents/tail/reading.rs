//! What a watch reads from the database, with a slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::Entry;
use super::window::{self, Window};
use super::{PAGE_BYTES, Shared, Tail};
use crate::actor::Slot;
use crate::documents::filter::Filter;
use crate::documents::list::{self, ListQuery, Page};
use crate::documents::list_error::ListError;
use crate::documents::object::Object;
use crate::documents::slots::SlotOwner;

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
    pub(super) owner: SlotOwner,
    pub(super) epoch: u64,
    /// How long it waits for a slot to read, and for one for large documents.
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
    /// Reads for the client of a watch. What has a large document needs a slot, until the client has taken it. Without one it is dropped,
    /// and read again when there is one.
    pub(super) async fn read(&self, wanted: Wanted, reader: Reader) -> Result<(Found, Option<Slot>), ListError> {
        let Reader { owner, epoch, patience } = reader;
        let no_slot = || ListError::NoSlot { within: patience };
        let until = Instant::now() + patience;
        let mut large = None;
        loop {
            {
                let left = until.saturating_duration_since(Instant::now());
                let slot = self.read_slot(owner, epoch, left).await;
                let _slot =
                    slot.map_err(|error| if let ListError::NoSlot { .. } = error { no_slot() } else { error })?;
                let found = wanted.read(&self.0).await?;
                let is_small = found.bytes() <= 2 * PAGE_BYTES;
                if !is_small && large.is_none() {
                    large = self.0.large.try_take(owner).ok();
                }
                if is_small || large.is_some() {
                    return Ok((found, large.filter(|_| !is_small)));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            large = Some(self.0.large.take(owner, left).await.map_err(|_| no_slot())?);
        }
    }
}
