//! A watch: a filter, and a position in the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch as latest;
use tokio::time::Instant;

use super::entry::Unreadable;
use super::event::{Ending, Event};
use super::reading::{Found, Reader, Wanted};
use super::ring::{Next, Start};
use super::{LATER_PATIENCE, PATIENCE, Progress, Tail};
use crate::actor::Slot;
use crate::documents::filter::{Fields, Filter};
use crate::documents::list::{Continue, ListQuery};
use crate::documents::list_error::ListError;
use crate::documents::slots::SlotOwner;

/// A bookmark follows the first read that begins so long after the last one and reaches the end of the log. A read begins at least once a
/// second, so that at most 10 s are between two bookmarks.
const BOOKMARK_AFTER: Duration = Duration::from_secs(8);
/// Versions of the log that a statement goes through.
const WINDOW: i64 = 10_000;
/// Most documents of a page of the state that a watch begins with.
const PAGE_ITEMS: u32 = 250;

/// A read under way.
type Reading = BoxFuture<'static, Result<(Found, Option<Slot>), ListError>>;

/// A watch that is asked for.
#[derive(Clone, Debug)]
pub struct WatchQuery {
    pub filter: Filter,
    /// How much of each will be shown. With [`Fields::Metadata`] the objects of the state may lack the rest.
    pub fields: Fields,
    /// The version behind which it begins. Without one, and with 0, it begins with the present state.
    pub from: Option<i64>,
}

/// A watch. Dropping it ends it.
pub struct Watch {
    tail: Tail,
    /// Whose it is.
    owner: SlotOwner,
    filter: Arc<Filter>,
    fields: Fields,
    epoch: u64,
    /// All changes up to this version have been returned or are in `ready`.
    position: i64,
    phase: Phase,
    /// How long it waits for a slot to read.
    patience: Duration,
    /// Events of the page or window that was read last. Empty in the phase [`Phase::Ring`].
    ready: VecDeque<Event>,
    /// Their slot, if there is a large document among them. The client has taken the last one when it asks for another one.
    slot: Option<Slot>,
    /// A read under way. It is kept here so that a caller which stops waiting for an event does not interrupt it.
    reading: Option<Reading>,
    progress: latest::Receiver<Progress>,
    bookmark_due: Instant,
    /// The end of the log as of the first read since then: the next bookmark comes when the events up to it were returned, however many
    /// have been read by then.
    bookmark_at: Option<i64>,
    /// When the tail has read the event that was returned last.
    read_at: Option<Instant>,
    ending: Option<Ending>,
}

/// Where the next events come from.
#[derive(Debug)]
enum Phase {
    /// The documents behind this place, as of the version of the first page.
    State(Option<Continue>),
    /// The log, since the position is before the ring.
    Log,
    Ring,
}

impl Tail {
    /// Starts a watch that needs no token: tests have none.
    #[cfg(any(test, feature = "test-api"))]
    pub async fn watch(&self, query: WatchQuery) -> Result<Watch, ListError> {
        self.watch_of(SlotOwner { token: None, is_administrator: true }, query).await
    }

    /// Starts a watch. Whether it can start at all is known before its first event.
    pub async fn watch_of(&self, owner: SlotOwner, query: WatchQuery) -> Result<Watch, ListError> {
        self.ready().await?;
        let from = query.from.filter(|version| *version != 0);
        if let Some(version) = from
            && self.start(version).0 == Start::Ahead
        {
            // Another replica may have written it.
            self.read_now().await?;
        }
        let progress = self.0.progress.subscribe();
        let (start, epoch) = self.start(from.unwrap_or_default());
        let (phase, position) = match (from, start) {
            (None, _) => (Phase::State(None), 0),
            (Some(version), Start::Ring) => (Phase::Ring, version),
            (Some(version), Start::Log) => (Phase::Log, version),
            (Some(_), Start::Ahead | Start::Gone) => return Err(ListError::Gone),
        };
        let mut watch = Watch {
            tail: self.clone(),
            owner,
            filter: Arc::new(query.filter),
            fields: query.fields,
            epoch,
            position,
            phase,
            patience: PATIENCE,
            ready: VecDeque::new(),
            slot: None,
            reading: None,
            progress,
            bookmark_due: Instant::now() + BOOKMARK_AFTER,
            bookmark_at: None,
            read_at: None,
            ending: None,
        };
        watch.read_on().await?;
        watch.patience = LATER_PATIENCE;
        Ok(watch)
    }

    fn start(&self, version: i64) -> (Start, u64) {
        let ring = self.0.ring.read();
        (ring.start(version), ring.epoch())
    }
}

impl Watch {
    /// The next event, as soon as there is one. A caller may stop waiting at any time without losing an event.
    pub async fn next(&mut self) -> Result<Event, Ending> {
        loop {
            // Others wait for the same thread while the client takes all that is there.
            tokio::task::coop::consume_budget().await;
            if let Some(next) = self.next_if_there() {
                return next;
            }
            if matches!(self.phase, Phase::Ring) {
                // The tail, whose handle the watch has, holds the sender.
                drop(self.progress.changed().await);
            } else if let Err(error) = self.read_on().await {
                return Err(self.end(error.into()));
            }
        }
    }

    /// The next event, if there is one now that needs no read: a read that has begun holds a connection until it ends, so that the
    /// caller would have to wait for it.
    pub fn next_if_there(&mut self) -> Option<Result<Event, Ending>> {
        if let Some(ending) = &self.ending {
            return Some(Err(ending.clone()));
        }
        self.read_at = None;
        if let Some(event) = self.ready.pop_front() {
            return Some(Ok(event));
        }
        // With the memory of the queue.
        (self.slot, self.ready) = (None, VecDeque::new());
        if !matches!(self.phase, Phase::Ring) {
            return None;
        }
        // Before the look, so that no later change is missed.
        self.progress.mark_unchanged();
        let next = {
            let ring = self.tail.0.ring.read();
            self.bookmark_at = self.bookmark_at.or_else(|| ring.end_since(self.bookmark_due));
            ring.next(self.epoch, &mut self.position, &self.filter, self.bookmark_at)
        };
        match next {
            Next::Found(event, read_at) => {
                self.read_at = Some(read_at);
                Some(Ok(event))
            }
            Next::Bookmark => Some(Ok(self.bookmark(false))),
            Next::Nothing => None,
            Next::Missed => Some(Err(self.end(Ending::FellBehind))),
            Next::Gone => Some(Err(self.end(Ending::Gone))),
        }
    }

    /// How long ago the tail has read the event that was returned last; `None` for what does not come from the ring.
    pub fn lag(&self) -> Option<Duration> {
        self.read_at.map(|read_at| read_at.elapsed())
    }

    /// Records the ending, and lets go of everything.
    fn end(&mut self, ending: Ending) -> Ending {
        self.ready = VecDeque::new();
        (self.slot, self.reading) = (None, None);
        self.ending = Some(ending.clone());
        ending
    }

    fn bookmark(&mut self, is_end_of_state: bool) -> Event {
        (self.bookmark_due, self.bookmark_at) = (Instant::now() + BOOKMARK_AFTER, None);
        Event::Bookmark { version: self.position, is_end_of_state }
    }

    /// Reads the next page of the state or the next window of the log, or finds that the ring has what is next.
    async fn read_on(&mut self) -> Result<(), ListError> {
        if self.reading.is_none() {
            self.reading = self.next_read()?;
        }
        let Some(reading) = &mut self.reading else { return Ok(()) };
        let read = reading.await;
        self.reading = None;
        let (found, slot) = read?;
        match found {
            Found::Page(page) => {
                self.ready.extend(page.items.into_iter().map(Event::Initial));
                if page.next.is_some() {
                    self.phase = Phase::State(page.next);
                } else {
                    (self.phase, self.position) = (Phase::Log, page.version);
                    let end = self.bookmark(true);
                    self.ready.push_back(end);
                }
            }
            Found::Window(window) => {
                let seen = window.entries.iter().filter_map(|entry| entry.seen_through(&self.filter).transpose());
                let seen = seen.collect::<Result<Vec<_>, Unreadable>>().map_err(|Unreadable| ListError::Gone)?;
                self.position = window.position;
                self.ready.extend(seen);
            }
        }
        self.slot = slot.filter(|_| !self.ready.is_empty());
        Ok(())
    }

    fn next_read(&mut self) -> Result<Option<Reading>, ListError> {
        let floor = {
            let ring = self.tail.0.ring.read();
            if ring.epoch() != self.epoch {
                return Err(ListError::Gone);
            }
            ring.floor()
        };
        let wanted = match &self.phase {
            Phase::State(after) => {
                let (filter, fields, after) = (Filter::clone(&self.filter), self.fields, after.clone());
                Wanted::Page(ListQuery { filter, fields, limit: PAGE_ITEMS, after })
            }
            Phase::Log if self.position < floor => {
                let until = floor.min(self.position.saturating_add(WINDOW));
                Wanted::Window { filter: Arc::clone(&self.filter), after: self.position, until }
            }
            Phase::Log | Phase::Ring => {
                self.phase = Phase::Ring;
                return Ok(None);
            }
        };
        let reader = Reader { owner: self.owner, epoch: self.epoch, patience: self.patience };
        let tail = self.tail.clone();
        Ok(Some(Box::pin(async move { tail.read(wanted, reader).await })))
    }
}

#[cfg(test)]
mod tests;
