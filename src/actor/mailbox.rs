//! Bounded mailboxes, for messages and for keys: a queue with an exact bound, waiting senders served in order, one reader at
//! a time.
//!
//! tokio's own channel is not used because its receiver ends with the actor that holds it, and because it can't merge. The
//! queue and all counters change under one lock, since senders and the reader of different actors need them at once; it is
//! never held over an `await`. Room is a semaphore, so that senders wait in order, and `permits + depth = capacity` holds
//! whenever no sender is between its permit and its push.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::task::consume_budget;
use tokio::time::Instant;

/// A mailbox of messages, which are all kept.
pub type Mailbox<M> = Sender<VecDeque<M>>;
/// Its other end.
pub type Inbox<M> = Reader<VecDeque<M>>;
/// A mailbox of keys, each of which is in it at most once.
pub type KeyMailbox<K> = Sender<Keys<K>>;
/// Its other end.
pub type KeyInbox<K> = Reader<Keys<K>>;

/// Creates a mailbox that never holds more than `capacity` messages (at least 1).
pub fn mailbox<M: Send + 'static>(capacity: usize) -> (Mailbox<M>, Inbox<M>) {
    channel(capacity)
}

/// Creates a mailbox that never holds more than `capacity` different keys (at least 1).
pub fn key_mailbox<K: Key>(capacity: usize) -> (KeyMailbox<K>, KeyInbox<K>) {
    channel(capacity)
}

fn channel<Q: Queue>(capacity: usize) -> (Sender<Q>, Reader<Q>) {
    let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS);
    let channel = Arc::new(Channel {
        state: Mutex::new(State {
            queue: Q::default(),
            reading: MailboxReading { capacity, ..MailboxReading::default() },
            reader: 0,
            readers: 1,
            senders: 1,
        }),
        room: Semaphore::new(capacity),
        changed: Notify::new(),
    });
    (Sender(Arc::clone(&channel)), Reader { channel, number: 0 })
}

/// What can be requested by key. Keys are cloned freely, so they should be cheap to clone.
pub trait Key: Clone + Eq + Hash + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Key for K {}

/// No actor reads this mailbox any more: its actor finished, was drained, or its supervisor has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is closed: its actor has ended for good")]
pub struct Closed;

impl From<AcquireError> for Closed {
    fn from(_: AcquireError) -> Self {
        Self
    }
}

/// A mailbox's counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MailboxReading {
    pub depth: usize,
    pub capacity: usize,
    /// Messages accepted since the start, merged ones not counted.
    pub accepted: u64,
    /// Requests merged with a queued one since the start.
    pub merged: u64,
    /// Messages dropped because there was no room, since the start.
    pub dropped: u64,
    /// How often a sender had to wait for room.
    pub waits: u64,
    /// How long all senders together have waited for room.
    #[serde(with = "humantime_serde")]
    pub waited: Duration,
}

/// Reads a mailbox's counters without keeping an end of it open.
pub trait Gauge: Send + Sync {
    /// The counters, all of the same moment.
    fn read(&self) -> MailboxReading;
}

/// What a mailbox keeps its messages in.
pub trait Queue: Default + Send + 'static {
    type Item: Send;
    fn depth(&self) -> usize;
    /// Whether one that waits already serves this one too.
    fn merges(&self, item: &Self::Item) -> bool;
    fn push(&mut self, item: Self::Item);
    fn pop(&mut self) -> Option<Self::Item>;
}

impl<M: Send + 'static> Queue for VecDeque<M> {
    type Item = M;

    fn depth(&self) -> usize {
        self.len()
    }

    fn merges(&self, _: &M) -> bool {
        false
    }

    fn push(&mut self, message: M) {
        self.push_back(message);
    }

    fn pop(&mut self) -> Option<M> {
        self.pop_front()
    }
}

/// Keys in the order of their first request, each at most once.
pub struct Keys<K> {
    order: VecDeque<K>,
    waiting: HashSet<K>,
}

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashSet::new() }
    }
}

impl<K: Key> Queue for Keys<K> {
    type Item = K;

    fn depth(&self) -> usize {
        self.order.len()
    }

    fn merges(&self, key: &K) -> bool {
        self.waiting.contains(key)
    }

    fn push(&mut self, key: K) {
        self.waiting.insert(key.clone());
        self.order.push_back(key);
    }

    fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.waiting.remove(&key);
        Some(key)
    }
}

struct Channel<Q> {
    state: Mutex<State<Q>>,
    room: Semaphore,
    /// Wakes the reader: a message has arrived, the last sender was dropped, or a newer inbox reads now.
    changed: Notify,
}

struct State<Q> {
    queue: Q,
    reading: MailboxReading,
    /// The number of the inbox that may read: the newest one.
    reader: u64,
    readers: usize,
    senders: usize,
}

impl<Q: Queue> State<Q> {
    /// Checked under the lock that a message is pushed under: the reader may end while a sender holds a permit.
    fn merge(&mut self, item: &Q::Item) -> Result<bool, Closed> {
        if self.readers == 0 {
            return Err(Closed);
        }
        let merges = self.queue.merges(item);
        self.reading.merged += u64::from(merges);
        Ok(merges)
    }

    fn push(&mut self, item: Q::Item, room: SemaphorePermit<'_>) {
        room.forget();
        self.queue.push(item);
        self.reading.accepted += 1;
    }
}

impl<Q: Queue> Channel<Q> {
    /// Takes a place in the queue, and waits while there is none.
    async fn wait_for_room(&self) -> Result<SemaphorePermit<'_>, Closed> {
        match self.room.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(TryAcquireError::Closed) => Err(Closed),
            Err(TryAcquireError::NoPermits) => {
                let _waiting = Waiting::begin(self);
                Ok(self.room.acquire().await?)
            }
        }
    }
}

impl<Q: Queue> Gauge for Channel<Q> {
    fn read(&self) -> MailboxReading {
        let state = self.state.lock();
        MailboxReading { depth: state.queue.depth(), ..state.reading }
    }
}

/// Counts one wait, and its time also if the sender is cancelled.
struct Waiting<'a, Q: Queue> {
    channel: &'a Channel<Q>,
    since: Instant,
}

impl<'a, Q: Queue> Waiting<'a, Q> {
    fn begin(channel: &'a Channel<Q>) -> Self {
        channel.state.lock().reading.waits += 1;
        Self { channel, since: Instant::now() }
    }
}

impl<Q: Queue> Drop for Waiting<'_, Q> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        let mut state = self.channel.state.lock();
        state.reading.waited = state.reading.waited.saturating_add(waited);
    }
}

/// The end to send to. Its clones share one queue and one bound.
pub struct Sender<Q: Queue>(Arc<Channel<Q>>);

impl<Q: Queue> Sender<Q> {
    /// Reads the mailbox's counters without keeping an end of it open.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(&self.0) as Arc<dyn Gauge>
    }

    async fn put(&self, item: Q::Item) -> Result<(), Closed> {
        consume_budget().await;
        if self.0.state.lock().merge(&item)? {
            return Ok(());
        }
        let room = self.0.wait_for_room().await?;
        {
            let mut state = self.0.state.lock();
            // Another sender may have requested the key while this one waited. Then the permit is returned.
            if state.merge(&item)? {
                return Ok(());
            }
            state.push(item, room);
        }
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<M: Send + 'static> Mailbox<M> {
    /// Sends a message. If there is no room, it waits in order with other senders, and only that time is counted.
    ///
    /// Dropping the future before it completes sends nothing.
    pub async fn send(&self, message: M) -> Result<(), Closed> {
        self.put(message).await
    }

    /// Sends a message if there is room; otherwise drops and counts it. For hints that the next periodic pass repairs.
    pub fn offer(&self, message: M) {
        let room = self.0.room.try_acquire();
        {
            let mut state = self.0.state.lock();
            match room {
                _ if state.readers == 0 => return,
                Ok(room) => state.push(message, room),
                Err(_) => {
                    state.reading.dropped += 1;
                    return;
                }
            }
        }
        self.0.changed.notify_one();
    }
}

impl<K: Key> KeyMailbox<K> {
    /// Requests a key. If it is queued already, the request merges at once, even in a full mailbox; otherwise it waits for
    /// room.
    ///
    /// Dropping the future before it completes requests nothing.
    pub async fn request(&self, key: K) -> Result<(), Closed> {
        self.put(key).await
    }
}

impl<Q: Queue> Clone for Sender<Q> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<Q: Queue> Drop for Sender<Q> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.state.lock();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.changed.notify_waiters();
        }
    }
}

/// The end to read from. It outlives the actor that reads, so that senders don't notice a restart.
///
/// **A clone takes over**: every older inbox returns `None` from then on, so that an instance that was aborted but has not
/// ended yet takes no message from its successor. So a child's factory keeps one inbox as a template and gives each instance
/// a clone. The mailbox is closed when the last inbox is dropped.
pub struct Reader<Q: Queue> {
    channel: Arc<Channel<Q>>,
    number: u64,
}

impl<Q: Queue> Reader<Q> {
    /// The next message, in the order of sending (of keys: of their first request). `None` when every sender was dropped and
    /// the queue is empty, or when a newer inbox has taken over.
    ///
    /// Cancel safe: a future that is dropped before it completes takes no message.
    pub async fn next(&mut self) -> Option<Q::Item> {
        // Without this, a reader whose mailbox is never empty would never yield, and could never be aborted.
        consume_budget().await;
        loop {
            // Created before the queue is checked, so that a change in between is not missed.
            let changed = self.channel.changed.notified();
            {
                let mut state = self.channel.state.lock();
                if state.reader != self.number {
                    return None;
                }
                if let Some(item) = self.pop(&mut state) {
                    return Some(item);
                }
                if state.senders == 0 {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// The next message, if one waits.
    pub fn try_next(&mut self) -> Option<Q::Item> {
        let mut state = self.channel.state.lock();
        if state.reader == self.number { self.pop(&mut state) } else { None }
    }

    /// Reads the mailbox's counters without keeping an end of it open.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(&self.channel) as Arc<dyn Gauge>
    }

    fn pop(&self, state: &mut State<Q>) -> Option<Q::Item> {
        let item = state.queue.pop()?;
        self.channel.room.add_permits(1);
        Some(item)
    }
}

impl<Q: Queue> Clone for Reader<Q> {
    fn clone(&self) -> Self {
        let number = {
            let mut state = self.channel.state.lock();
            state.readers += 1;
            state.reader += 1;
            state.reader
        };
        self.channel.changed.notify_waiters();
        Self { channel: Arc::clone(&self.channel), number }
    }
}

impl<Q: Queue> Drop for Reader<Q> {
    fn drop(&mut self) {
        let left_over = {
            let mut state = self.channel.state.lock();
            state.readers -= 1;
            if state.readers == 0 {
                self.channel.room.close();
                Some(mem::take(&mut state.queue))
            } else {
                None
            }
        };
        // Outside of the lock, since dropping a message may run any code.
        drop(left_over);
    }
}

#[cfg(test)]
mod tests;
