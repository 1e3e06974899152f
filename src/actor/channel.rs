//! What both mailboxes share: a queue with an exact bound, waiting senders served in order, one reader at a time.
//!
//! tokio's own channel is not used because its receiver ends with the actor that holds it, and because it can't merge. The
//! queue and all counters change under one lock, since senders and the reader of different actors need them at once; it is
//! never held over an `await`. Room is a semaphore, so that senders wait in order, and
//! `permits + depth - overfull = capacity` holds at every moment.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::task::consume_budget;
use tokio::time::Instant;

use super::report::{Gauge, MailboxReading};

/// No actor reads this mailbox any more: its actor finished, was drained, or its supervisor has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is closed: its actor has ended for good")]
pub struct Closed;

impl From<AcquireError> for Closed {
    fn from(_: AcquireError) -> Self {
        Self
    }
}

/// What a mailbox keeps its messages in.
pub(super) trait Queue: Default + Send + 'static {
    type Item: Send;
    fn len(&self) -> usize;
    fn pop(&mut self) -> Option<Self::Item>;
}

pub(super) struct ChannelState<Q> {
    pub(super) queue: Q,
    pub(super) reading: MailboxReading,
    /// Messages above the capacity, which only [`super::KeyInbox::put_back`] may cause.
    pub(super) overfull: usize,
    /// The number of the inbox that may read: the newest one.
    reader: u64,
    inboxes: usize,
    senders: usize,
}

impl<Q> ChannelState<Q> {
    /// Checked again under the lock that a message is pushed under: the reader may end while a sender holds a permit.
    pub(super) fn is_closed(&self) -> bool {
        self.inboxes == 0
    }
}

pub(super) struct Channel<Q> {
    pub(super) state: Mutex<ChannelState<Q>>,
    pub(super) room: Semaphore,
    /// Wakes the reader: a message has arrived, the last sender was dropped, or a newer inbox reads now.
    changed: Notify,
}

impl<Q: Queue> Channel<Q> {
    /// Takes a place in the queue, and waits while there is none.
    pub(super) async fn wait_for_room(&self) -> Result<SemaphorePermit<'_>, Closed> {
        match self.room.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(TryAcquireError::Closed) => Err(Closed),
            Err(TryAcquireError::NoPermits) => {
                let _waiting = Waiting::begin(self);
                Ok(self.room.acquire().await?)
            }
        }
    }

    pub(super) fn wake_reader(&self) {
        self.changed.notify_one();
    }
}

impl<Q: Queue> Gauge for Channel<Q> {
    fn read(&self) -> MailboxReading {
        let state = self.state.lock();
        MailboxReading { depth: state.queue.len(), ..state.reading }
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
        let waited: Duration = self.since.elapsed();
        let mut state = self.channel.state.lock();
        state.reading.waited = state.reading.waited.saturating_add(waited);
    }
}

/// The sending end. Dropping the last one wakes the reader.
pub(super) struct Sender<Q: Queue>(Arc<Channel<Q>>);

impl<Q: Queue> Sender<Q> {
    pub(super) fn channel(&self) -> &Arc<Channel<Q>> {
        &self.0
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

/// The reading end. A clone takes over from its original; dropping the last one closes the channel.
pub(super) struct Reader<Q: Queue> {
    channel: Arc<Channel<Q>>,
    number: u64,
}

impl<Q: Queue> Reader<Q> {
    pub(super) fn channel(&self) -> &Arc<Channel<Q>> {
        &self.channel
    }

    pub(super) async fn next(&self) -> Option<Q::Item> {
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

    pub(super) fn try_next(&self) -> Option<Q::Item> {
        let mut state = self.channel.state.lock();
        if state.reader == self.number { self.pop(&mut state) } else { None }
    }

    fn pop(&self, state: &mut ChannelState<Q>) -> Option<Q::Item> {
        let item = state.queue.pop()?;
        if state.overfull > 0 {
            state.overfull -= 1;
        } else {
            self.channel.room.add_permits(1);
        }
        Some(item)
    }
}

impl<Q: Queue> Clone for Reader<Q> {
    fn clone(&self) -> Self {
        let number = {
            let mut state = self.channel.state.lock();
            state.inboxes += 1;
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
            state.inboxes -= 1;
            if state.inboxes == 0 {
                self.channel.room.close();
                state.overfull = 0;
                Some(mem::take(&mut state.queue))
            } else {
                None
            }
        };
        // Outside of the lock, since dropping a message may run any code.
        drop(left_over);
    }
}

pub(super) fn channel<Q: Queue>(capacity: usize) -> (Sender<Q>, Reader<Q>) {
    let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS);
    let channel = Arc::new(Channel {
        state: Mutex::new(ChannelState {
            queue: Q::default(),
            reading: MailboxReading { capacity, ..MailboxReading::default() },
            overfull: 0,
            reader: 0,
            inboxes: 1,
            senders: 1,
        }),
        room: Semaphore::new(capacity),
        changed: Notify::new(),
    });
    (Sender(Arc::clone(&channel)), Reader { channel, number: 0 })
}
