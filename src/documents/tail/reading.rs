//! What a watch reads from the database, in its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::Entry;
use super::held::Share;
use super::window::{self, Window};
use super::{Shared, Tail};
use crate::documents::filter::Filter;
use crate::documents::list::{self, ListQuery, Page};
use crate::documents::list_error::ListError;
use crate::documents::object::Object;
use crate::documents::room::{self, Party};

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
    pub(super) epoch: u64,
    pub(super) party: Party,
    /// How long it waits for its turn, and for room.
    pub(super) patience: Duration,
}

impl Wanted {
    async fn read(&self, shared: &Shared, bytes: usize) -> Result<Found, ListError> {
        let Shared { database, aside, .. } = shared;
        match self {
            Self::Page(query) => list::list_objects(database, aside, query, bytes).await.map(Found::Page),
            Self::Window { filter, after, until } => {
                window::read(database, aside, filter, *after, *until, bytes).await.map(Found::Window)
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
    /// Reads for the client of a watch, with a limit for the bytes that the client may hold. What exceeds the limit needs room in `large`.
    /// Without room it is dropped, and read again when there is some.
    pub(super) async fn read(&self, wanted: Wanted, reader: Reader) -> Result<(Found, Share), ListError> {
        let Reader { epoch, party, patience } = reader;
        let no_turn = || ListError::NoTurn { within: patience };
        let until = Instant::now() + patience;
        let mut reserved: Option<(room::Share, usize)> = None;
        loop {
            let needed = {
                let left = until.saturating_duration_since(Instant::now());
                let turn = self.turn(epoch, left).await;
                let _turn =
                    turn.map_err(|error| if let ListError::NoTurn { .. } = error { no_turn() } else { error })?;
                let mut share = self.0.held.take(party);
                let found = wanted.read(&self.0, share.bytes()).await?;
                let bytes = found.bytes();
                let is_small = share.covers(bytes);
                let room = match reserved.take() {
                    Some((room, reserved)) if bytes <= reserved => Some(room),
                    _ => Some(self.0.large.share(party)).filter(|room| !is_small && room.reserve(bytes).is_ok()),
                };
                if is_small || room.is_some() {
                    share.set(bytes);
                    share.put_in(room);
                    return Ok((found, share));
                }
                bytes
            };
            let room = self.0.large.share(party);
            room.wait(needed, until).await.map_err(|_| no_turn())?;
            reserved = Some((room, needed));
        }
    }
}
