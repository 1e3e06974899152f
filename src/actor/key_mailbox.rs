//! A bounded mailbox for keys: a request for a key that already waits merges with it.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use tokio::task::consume_budget;

use super::channel::{self, ChannelState, Closed, Queue, Reader, Sender};
use super::report::Gauge;

/// Creates a mailbox that never holds more than `capacity` different keys (at least 1).
pub fn key_mailbox<K: Key>(capacity: usize) -> (KeyMailbox<K>, KeyInbox<K>) {
    let (sender, reader) = channel::channel(capacity);
    (KeyMailbox(sender), KeyInbox(reader))
}

/// What can be requested by key. Keys are cloned freely, so they should be cheap to clone.
pub trait Key: Clone + Eq + Hash + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Key for K {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    Queued,
    /// The key was queued already: one run serves both requests.
    Merged,
}

/// Keys in the order of their first request, each at most once.
pub(super) struct Keys<K> {
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

    fn len(&self) -> usize {
        self.order.len()
    }

    fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.waiting.remove(&key);
        Some(key)
    }
}

impl<K: Key> Keys<K> {
    fn push(&mut self, key: K) {
        self.waiting.insert(key.clone());
        self.order.push_back(key);
    }
}

/// The end to request from. Its clones share one queue and one bound.
pub struct KeyMailbox<K: Key>(Sender<Keys<K>>);

/// The end to read from; cloning, taking over and closing are as with [`Inbox`](super::Inbox).
pub struct KeyInbox<K: Key>(Reader<Keys<K>>);

impl<K: Key> KeyMailbox<K> {
    /// Requests a key. If it is queued already, the request merges at once, even in a full mailbox; otherwise it waits for
    /// room.
    ///
    /// Dropping the future before it completes requests nothing.
    pub async fn request(&self, key: K) -> Result<Requested, Closed> {
        consume_budget().await;
        let channel = self.0.channel();
        if merge(&mut channel.state.lock(), &key)? {
            return Ok(Requested::Merged);
        }
        let room = channel.wait_for_room().await?;
        let mut state = channel.state.lock();
        // Another sender may have requested the key while this one waited. Then the permit is returned.
        if merge(&mut state, &key)? {
            return Ok(Requested::Merged);
        }
        room.forget();
        state.queue.push(key);
        state.reading.accepted += 1;
        drop(state);
        channel.wake_reader();
        Ok(Requested::Queued)
    }

    /// Reads the mailbox's counters without keeping an end of it open.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(self.0.channel()) as Arc<dyn Gauge>
    }
}

fn merge<K: Key>(state: &mut ChannelState<Keys<K>>, key: &K) -> Result<bool, Closed> {
    if state.is_closed() {
        return Err(Closed);
    }
    let waits = state.queue.waiting.contains(key);
    if waits {
        state.reading.merged += 1;
    }
    Ok(waits)
}

impl<K: Key> KeyInbox<K> {
    /// The next key, in the order of first requests. `None` when every sender was dropped and the queue is empty, or when a
    /// newer inbox has taken over.
    ///
    /// Cancel safe: a future that is dropped before it completes takes no key.
    pub async fn next(&mut self) -> Option<K> {
        self.0.next().await
    }

    pub fn try_next(&mut self) -> Option<K> {
        self.0.try_next()
    }

    /// Puts back keys that were taken and are not finished, for the next instance. They may exceed the capacity; then
    /// senders wait until they no longer do. They count as neither accepted nor merged.
    pub fn put_back(&self, keys: impl IntoIterator<Item = K>) {
        let channel = self.0.channel();
        let mut state = channel.state.lock();
        if state.is_closed() {
            return;
        }
        for key in keys {
            if state.queue.waiting.contains(&key) {
                continue;
            }
            match channel.room.try_acquire() {
                Ok(room) => room.forget(),
                Err(_) => state.overfull += 1,
            }
            state.queue.push(key);
        }
        drop(state);
        channel.wake_reader();
    }

    /// Reads the mailbox's counters without keeping an end of it open.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(self.0.channel()) as Arc<dyn Gauge>
    }
}

impl<K: Key> Clone for KeyMailbox<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Key> Clone for KeyInbox<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_blocked_receiver_lets_exactly_the_capacity_of_different_keys_in() {
        let (mailbox, inbox) = key_mailbox::<usize>(16);
        for number in 0..1_000 {
            let sender = mailbox.clone();
            tokio::spawn(async move { sender.request(number % 100).await });
        }
        let gauge = inbox.gauge();
        while gauge.read().merged + gauge.read().accepted + gauge.read().waits < 1_000 {
            yield_now().await;
        }
        let reading = gauge.read();
        // 16 of 100 keys fit; the 10 requests for each are 1 accepted and 9 merged, all others wait.
        assert_eq!((reading.depth, reading.accepted, reading.merged, reading.waits), (16, 16, 16 * 9, 84 * 10));
    }

    #[tokio::test]
    async fn the_same_key_merges_at_once_in_a_full_mailbox_and_another_waits() {
        let (mailbox, mut inbox) = key_mailbox::<&str>(2);
        assert_eq!(mailbox.request("a").await, Ok(Requested::Queued));
        assert_eq!(mailbox.request("b").await, Ok(Requested::Queued));
        assert_eq!(mailbox.request("a").now_or_never(), Some(Ok(Requested::Merged)));
        let mut third = std::pin::pin!(mailbox.request("c"));
        assert_eq!(third.as_mut().now_or_never(), None, "a third key did not wait for room");
        assert_eq!(inbox.next().await, Some("a"));
        assert_eq!(third.await, Ok(Requested::Queued));
        assert_eq!(mailbox.gauge().read().depth, 2);
    }

    #[tokio::test]
    async fn a_sender_that_finds_its_key_after_waiting_gives_its_place_away() {
        let (mailbox, mut inbox) = key_mailbox::<&str>(1);
        mailbox.request("a").await.unwrap();
        let mut first = Box::pin(mailbox.request("b"));
        let mut second = Box::pin(mailbox.request("b"));
        let mut other = Box::pin(mailbox.request("c"));
        for waiting in [&mut first, &mut second, &mut other] {
            assert_eq!(waiting.as_mut().now_or_never(), None);
        }
        assert_eq!(inbox.next().await, Some("a"));
        assert_eq!(first.await, Ok(Requested::Queued));
        assert_eq!(second.as_mut().now_or_never(), None, "a waiting sender keeps its turn");
        assert_eq!(inbox.next().await, Some("b"));
        assert_eq!(second.await, Ok(Requested::Queued), "b was taken: the second request needs a run of its own");
        assert_eq!(inbox.next().await, Some("b"));
        assert_eq!(other.await, Ok(Requested::Queued));
    }

    #[tokio::test]
    async fn keys_put_back_are_read_in_order_and_keep_senders_out() {
        let (mailbox, mut inbox) = key_mailbox::<u8>(2);
        mailbox.request(1).await.unwrap();
        mailbox.request(2).await.unwrap();
        inbox.put_back([1, 7, 8]);
        assert_eq!(mailbox.gauge().read().depth, 4, "1 is queued already, 7 and 8 exceed the capacity");
        let mut sender = Box::pin(mailbox.request(9));
        for expected in [1, 2] {
            assert_eq!(inbox.try_next(), Some(expected));
            assert_eq!(sender.as_mut().now_or_never(), None, "let in above the capacity");
        }
        assert_eq!(inbox.try_next(), Some(7));
        assert_eq!(sender.await, Ok(Requested::Queued));
        assert_eq!((inbox.next().await, inbox.next().await, inbox.try_next()), (Some(8), Some(9), None));
    }

    #[tokio::test]
    async fn a_request_to_a_closed_mailbox_fails_even_where_it_would_merge() {
        let (mailbox, inbox) = key_mailbox::<u8>(2);
        mailbox.request(1).await.unwrap();
        drop(inbox);
        assert_eq!(mailbox.request(1).await, Err(Closed));
    }
}
