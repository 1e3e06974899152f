//! A bounded mailbox for messages that must not be merged.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::consume_budget;

use super::channel::{self, Closed, Queue, Reader, Sender};
use super::report::Gauge;

impl<M: Send + 'static> Queue for VecDeque<M> {
    type Item = M;

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn pop(&mut self) -> Option<M> {
        self.pop_front()
    }
}

/// Creates a mailbox that never holds more than `capacity` messages (at least 1).
pub fn mailbox<M: Send + 'static>(capacity: usize) -> (Mailbox<M>, Inbox<M>) {
    let (sender, reader) = channel::channel(capacity);
    (Mailbox(sender), Inbox(reader))
}

/// The end to send to. Its clones share one queue and one bound.
pub struct Mailbox<M: Send + 'static>(Sender<VecDeque<M>>);

/// The end to read from. It outlives the actor that reads, so that senders don't notice a restart.
///
/// **A clone takes over**: every older inbox returns `None` from then on, so that an instance that was aborted but has not
/// ended yet takes no message from its successor. So a child's factory keeps one inbox as a template and gives each instance
/// a clone. The mailbox is closed when the last inbox is dropped.
pub struct Inbox<M: Send + 'static>(Reader<VecDeque<M>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Offered {
    Accepted,
    /// There was no room; the message was dropped and counted.
    Dropped,
    Closed,
}

impl<M: Send + 'static> Mailbox<M> {
    /// Sends a message. If there is no room, it waits in order with other senders, and only that time is counted.
    ///
    /// Dropping the future before it completes sends nothing.
    pub async fn send(&self, message: M) -> Result<(), Closed> {
        consume_budget().await;
        let room = self.0.channel().wait_for_room().await?;
        let mut state = self.0.channel().state.lock();
        if state.is_closed() {
            return Err(Closed);
        }
        room.forget();
        state.queue.push_back(message);
        state.reading.accepted += 1;
        drop(state);
        self.0.channel().wake_reader();
        Ok(())
    }

    /// Sends a message if there is room; otherwise drops and counts it. For hints that the next periodic pass repairs.
    pub fn offer(&self, message: M) -> Offered {
        let channel = self.0.channel();
        let room = channel.room.try_acquire();
        let mut state = channel.state.lock();
        if state.is_closed() {
            return Offered::Closed;
        }
        let Ok(room) = room else {
            state.reading.dropped += 1;
            return Offered::Dropped;
        };
        room.forget();
        state.queue.push_back(message);
        state.reading.accepted += 1;
        drop(state);
        channel.wake_reader();
        Offered::Accepted
    }

    /// Reads the mailbox's counters without keeping an end of it open.
    #[cfg(test)]
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(self.0.channel()) as Arc<dyn Gauge>
    }
}

impl<M: Send + 'static> Inbox<M> {
    /// The next message, in the order of sending. `None` when every sender was dropped and the queue is empty, or when a newer
    /// inbox has taken over.
    ///
    /// Cancel safe: a future that is dropped before it completes takes no message.
    pub async fn next(&mut self) -> Option<M> {
        self.0.next().await
    }

    /// Reads the mailbox's counters without keeping an end of it open.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(self.0.channel()) as Arc<dyn Gauge>
    }
}

impl<M: Send + 'static> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Send + 'static> Clone for Inbox<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocked_receiver_lets_exactly_the_capacity_in_however_many_send() {
        let (mailbox, inbox) = mailbox::<usize>(16);
        let tasks: Vec<_> = (0..1_000)
            .map(|number| {
                let sender = mailbox.clone();
                tokio::spawn(async move { sender.send(number).await })
            })
            .collect();
        while inbox.gauge().read().waits < 984 {
            yield_now().await;
        }
        let reading = inbox.gauge().read();
        assert_eq!((reading.depth, reading.accepted, reading.waits), (16, 16, 984));
        assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 16, "senders that got through");

        let offers = (0..50).filter(|number| mailbox.offer(*number) == Offered::Dropped).count();
        assert_eq!((offers, inbox.gauge().read().dropped, inbox.gauge().read().depth), (50, 50, 16));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_waits_until_there_is_room_and_only_that_time_counts() {
        let (mailbox, mut inbox) = mailbox::<&str>(1);
        mailbox.send("first").await.unwrap();
        assert_eq!(mailbox.gauge().read().waited, Duration::ZERO, "a send with room counted as waiting");

        let mut second = std::pin::pin!(mailbox.send("second"));
        assert_eq!(second.as_mut().now_or_never(), None, "the second send did not wait for room");
        advance(Duration::from_secs(3)).await;
        assert_eq!(inbox.next().await, Some("first"));
        second.await.unwrap();
        let reading = mailbox.gauge().read();
        assert_eq!((reading.waits, reading.waited), (1, Duration::from_secs(3)));
        assert_eq!(inbox.next().await, Some("second"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_sender_sends_nothing_and_frees_its_turn() {
        let (mailbox, mut inbox) = mailbox::<u8>(1);
        mailbox.send(1).await.unwrap();
        {
            let mut cancelled = std::pin::pin!(mailbox.send(2));
            assert_eq!(cancelled.as_mut().now_or_never(), None);
            advance(Duration::from_secs(2)).await;
        }
        assert_eq!(mailbox.gauge().read().waited, Duration::from_secs(2), "time of a cancelled sender");
        assert_eq!(inbox.next().await, Some(1));
        mailbox.send(3).await.unwrap();
        assert_eq!(inbox.next().await, Some(3));
    }

    #[tokio::test]
    async fn a_cloned_inbox_takes_over_and_loses_nothing() {
        let (mailbox, template) = mailbox::<u8>(4);
        let mut old = template.clone();
        mailbox.send(1).await.unwrap();
        mailbox.send(2).await.unwrap();
        assert_eq!(old.next().await, Some(1));
        let mut young = template.clone();
        assert_eq!(old.next().await, None, "an inbox that was taken over still reads");
        drop(old);
        assert_eq!(young.next().await, Some(2));
        assert_eq!(mailbox.offer(3), Offered::Accepted, "the mailbox closed while an inbox was left");
    }

    #[tokio::test]
    async fn a_waiting_reader_learns_that_a_newer_one_took_over() {
        let (_mailbox, mut old) = mailbox::<u8>(4);
        let template = old.clone();
        let mut old_again = template.clone();
        assert_eq!(old.next().await, None);
        let waiting = tokio::spawn(async move { old_again.next().await });
        yield_now().await;
        let _young = template.clone();
        assert_eq!(waiting.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_mailbox_closes_with_its_last_inbox_and_waiting_senders_learn_it() {
        let (mailbox, inbox) = mailbox::<u8>(1);
        let second = inbox.clone();
        drop(inbox);
        mailbox.send(1).await.unwrap();
        let waiting = tokio::spawn({
            let sender = mailbox.clone();
            async move { sender.send(2).await }
        });
        yield_now().await;
        drop(second);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
        assert_eq!(mailbox.offer(3), Offered::Closed);
        assert_eq!(mailbox.gauge().read().dropped, 0, "a send to a closed mailbox counted as dropped");
    }

    #[tokio::test]
    async fn messages_of_a_dropped_sender_are_still_read() {
        let (mailbox, mut inbox) = mailbox::<u8>(4);
        mailbox.send(1).await.unwrap();
        drop(mailbox);
        assert_eq!((inbox.next().await, inbox.next().await), (Some(1), None));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_threads_lose_and_double_nothing() {
        const SENDERS: usize = 16;
        const EACH: usize = 2_000;
        let (mailbox, mut inbox) = mailbox::<usize>(8);
        for sender in 0..SENDERS {
            let mailbox = mailbox.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    mailbox.send(sender * EACH + number).await.unwrap();
                }
            });
        }
        drop(mailbox);
        let mut next_of = [0; SENDERS];
        while let Some(message) = inbox.next().await {
            assert_eq!(next_of[message / EACH], message % EACH, "out of order from sender {}", message / EACH);
            next_of[message / EACH] += 1;
            assert!(inbox.gauge().read().depth <= 8);
        }
        assert_eq!(next_of, [EACH; SENDERS]);
    }
}
