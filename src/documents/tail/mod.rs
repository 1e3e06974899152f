//! The tail of the log, and the watches that it feeds.
//!
//! One actor per replica reads the log, on a connection of its own, and puts what it reads into a ring of the newest events that
//! all watches share. A watch is a filter and a position: it takes the next matching event from the ring when its client is ready
//! for it, and has no queue that a client could let grow. Nothing waits for a watch: one that is slower than the ring is ended,
//! and its client resumes from the log.
//!
//! The ring is behind a lock: the tail writes it, and many watches read it at the same time, each for one synchronous look.

mod actor;
mod entry;
mod event;
mod head;
mod reading;
mod ring;
mod watch;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch as latest;
use tokio::time::timeout;

use super::blocking::BlockingPool;
use super::changes::Changes;
use super::list_error::ListError;
use super::slots::{CallerSlots, SlotOwner};
use crate::actor::Slot;
use crate::db::{self, Database};
use ring::Ring;

pub(super) use entry::{COLUMNS, Entry, EntryError};
pub use event::{Ending, Event};
pub use watch::{Watch, WatchQuery};

/// The channel that every write notifies.
pub const CHANNEL: &str = "towline";
/// How often the log is also read without a notification, since one may be lost.
pub const EVERY: Duration = Duration::from_secs(1);
const RING_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of a page of the state, or of a window of the log, that a watch reads at once: it has them until its client has taken them. It
/// may exceed this by a document as large, or larger if it has a slot for that.
const PAGE_BYTES: usize = 128 * 1024;
/// Pages and windows with large documents that clients have not taken.
const MOST_LARGE: usize = 8;
/// Most watches that read documents or the log at the same time.
const MOST_READERS: usize = 8;
/// How long a watch that starts waits for the tail, and for a slot to read. As long as a request waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a watch that has begun waits for a slot to read on. Longer: its client would begin again with the first page. As long as
/// a watch may take no byte.
const LATER_PATIENCE: Duration = Duration::from_secs(30);

/// The tail of the log. Clones share it.
#[derive(Clone)]
pub struct Tail(Arc<Shared>);

struct Shared {
    database: Database,
    ring: RwLock<Ring>,
    progress: latest::Sender<Progress>,
    /// How often a watch has asked for a read.
    wanted: latest::Sender<u64>,
    readers: CallerSlots,
    /// Where the large documents of a state are printed, and large rows of the log that watches resume before are read.
    blocking: BlockingPool,
    /// Rows of the log that the tail could not read.
    unreadable: AtomicU64,
    /// Slots for pages and windows with large documents.
    large: CallerSlots,
    /// Where the rows of each namespace are counted.
    changes: Option<Changes>,
    /// Until the end of the log is reached after a start: what is read is older, and counted by nobody or before.
    refills: AtomicBool,
}

/// What the tail has done. Each change wakes the watches that wait for events.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Reads to the end of the log.
    complete: u64,
    /// The last of the wanted reads that one of these has served.
    served: u64,
    is_listening: bool,
    failure: Option<db::Error>,
}

/// What operators see of the tail.
#[derive(Clone, Debug)]
pub struct TailState {
    /// Whether the log has been read to its end since the start of the process, so that watches can start.
    pub is_ready: bool,
    /// Whether its connection receives notifications.
    pub is_listening: bool,
    /// The newest version that has been read.
    pub version: i64,
    /// The lowest version that a watch can resume from, as of the last read.
    pub base: i64,
    /// Events in the ring, and their size in bytes.
    pub ring: (usize, usize),
    /// Rows of the log that could not be read since the start of the process: a foreign program wrote them. Each ended the watches of its
    /// place.
    pub unreadable: u64,
    /// Why the last connection was lost; `None` since the log could be read again.
    pub failure: Option<db::Error>,
}

impl Tail {
    /// A tail that is not started. It counts what each namespace fills of the log.
    pub fn new(database: Database, changes: Changes) -> Self {
        Self::with(database, RING_BYTES, Some(changes))
    }

    /// One that counts nothing, with a ring of this size.
    pub fn with_ring(database: Database, bytes: usize) -> Self {
        Self::with(database, bytes, None)
    }

    fn with(database: Database, bytes: usize, changes: Option<Changes>) -> Self {
        let readers = readers(database.state().max);
        Self(Arc::new(Shared {
            database,
            ring: RwLock::new(Ring::new(bytes)),
            progress: latest::Sender::default(),
            wanted: latest::Sender::default(),
            readers: CallerSlots::new("watches that read", readers, usize::from(readers > 1)),
            blocking: BlockingPool::default(),
            unreadable: AtomicU64::new(0),
            large: CallerSlots::new("watches with large documents", MOST_LARGE, 1),
            changes,
            refills: AtomicBool::new(true),
        }))
    }

    pub fn state(&self) -> TailState {
        let ring = self.0.ring.read();
        let progress = self.0.progress.borrow();
        TailState {
            is_ready: progress.complete > 0,
            is_listening: progress.is_listening,
            version: ring.position(),
            base: ring.base(),
            ring: ring.size(),
            unreadable: self.0.unreadable.load(Ordering::Relaxed),
            failure: progress.failure.clone(),
        }
    }

    /// Waits until the log has been read to its end once.
    async fn ready(&self) -> Result<(), ListError> {
        self.until(|progress| progress.complete > 0).await
    }

    /// Waits until the log has been read to its end by a read that begins after this call.
    async fn read_now(&self) -> Result<(), ListError> {
        let mut number = 0;
        self.0.wanted.send_modify(|wanted| {
            *wanted += 1;
            number = *wanted;
        });
        self.until(|progress| progress.served >= number).await
    }

    /// Waits for a slot to read documents or the log, while the versions are those of this epoch, and not longer than this.
    async fn read_slot(&self, owner: SlotOwner, epoch: u64, within: Duration) -> Result<Slot, ListError> {
        let mut progress = self.0.progress.subscribe();
        let restarted = async {
            // The sender lives as long as this handle.
            while self.0.ring.read().epoch() == epoch && progress.changed().await.is_ok() {}
        };
        tokio::select! {
            biased;
            () = restarted => Err(ListError::Gone),
            slot = self.0.readers.take(owner, within) => slot.map_err(|_| ListError::NoSlot { within }),
        }
    }

    async fn until(&self, holds: impl FnMut(&Progress) -> bool) -> Result<(), ListError> {
        let mut progress = self.0.progress.subscribe();
        // The sender lives as long as this handle.
        if let Ok(Ok(_)) = timeout(PATIENCE, progress.wait_for(holds)).await {
            return Ok(());
        }
        let failure = self.0.progress.borrow().failure.clone();
        Err(failure.map_or(ListError::TailBehind { within: PATIENCE }, ListError::Database))
    }
}

/// How many watches read at the same time with a pool of so many connections: at most half of them, so that watches which start
/// together leave connections to other requests.
fn readers(connections: u32) -> usize {
    usize::try_from(connections / 2).unwrap_or(MOST_READERS).clamp(1, MOST_READERS)
}

#[cfg(test)]
mod tests {
    use super::readers;

    #[test]
    fn watches_leave_half_of_the_connections_to_other_requests() {
        assert_eq!([1, 2, 3, 8, 16, 100].map(readers), [1, 1, 1, 4, 8, 8]);
    }
}
