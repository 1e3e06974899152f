//! What the broker delivers to a worker: clusters that have work.

use std::time::Duration;

use futures::StreamExt;
use lapin::message::Delivery as Message;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::broker::Opens;
use super::topology::{URGENT, WORK};
use crate::amqp::{Error, Link};

/// How many deliveries each queue has under way: what waits at a busy worker waits for nobody else.
const PREFETCH: u16 = 1;
/// Longest wait for an answer: a broker that is stopped or cut off is of no use, long before the connection counts as lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The deliveries of both queues, while they are consumed.
pub(in crate::documents) struct Deliveries {
    channel: Channel,
    consumers: Option<Consumers>,
}

struct Consumers {
    urgent: Consumer,
    other: Consumer,
    since: Instant,
}

/// A message that was delivered and not acknowledged.
pub(in crate::documents) struct Delivery(Message);

impl Opens for Deliveries {
    /// It begins to consume, which shows whether this account may. The database is asked meanwhile, so a slow broker has its time.
    async fn open(link: &Link) -> Result<Self, Error> {
        let channel = link.channel().await?;
        let limited = channel.basic_qos(PREFETCH, BasicQosOptions::default()).await;
        limited.map_err(Error::of("limit deliveries"))?;
        let consumers = Some(Consumers::begin(&channel, true).await?);
        Ok(Self { channel, consumers })
    }
}

impl Deliveries {
    /// Begins to consume, if that is not so yet; first what is preferred, so that its delivery is there when the other one comes. Returns
    /// since when.
    pub(in crate::documents) async fn begin(&mut self, urgent_first: bool) -> Result<Instant, Error> {
        if let Some(Consumers { since, .. }) = self.consumers {
            return Ok(since);
        }
        let begun = timeout(ANSWER_WITHIN, Consumers::begin(&self.channel, urgent_first)).await;
        let consumers = begun.map_err(|_| Error::Silent { within: ANSWER_WITHIN })??;
        let since = consumers.since;
        self.consumers = Some(consumers);
        Ok(since)
    }

    /// The next delivery; of two that are there, the urgent one or the other one. None if the broker has ended a consumer, perhaps since
    /// somebody has deleted its queue; then nothing follows on this channel. Without consumers there is nothing to wait for.
    ///
    /// Cancel safe.
    pub(in crate::documents) async fn next(&mut self, urgent_first: bool) -> Result<Option<Delivery>, Error> {
        let Some(Consumers { urgent, other, .. }) = &mut self.consumers else { return std::future::pending().await };
        let (first, second) = if urgent_first { (urgent, other) } else { (other, urgent) };
        let found = tokio::select! {
            biased;
            found = first.next() => found,
            found = second.next() => found,
        };
        found.transpose().map(|found| found.map(Delivery)).map_err(Error::of("receive work"))
    }

    /// Ends consuming, and returns what has been delivered meanwhile.
    pub(in crate::documents) async fn end(&mut self) -> Result<Vec<Delivery>, Error> {
        let Some(Consumers { urgent, other, .. }) = self.consumers.take() else { return Ok(Vec::new()) };
        for consumer in [&urgent, &other] {
            answered("end deliveries", self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()))
                .await?;
        }
        let mut left = Vec::new();
        for mut consumer in [urgent, other] {
            // It ends, since it was cancelled.
            while let Some(found) = consumer.next().await {
                left.push(Delivery(found.map_err(Error::of("receive work"))?));
            }
        }
        Ok(left)
    }
}

impl Consumers {
    async fn begin(channel: &Channel, urgent_first: bool) -> Result<Self, Error> {
        let (urgent, other) = if urgent_first {
            let urgent = consume(channel, URGENT).await?;
            (urgent, consume(channel, WORK).await?)
        } else {
            let other = consume(channel, WORK).await?;
            (consume(channel, URGENT).await?, other)
        };
        Ok(Self { urgent, other, since: Instant::now() })
    }
}

impl Delivery {
    /// The cluster; none if the message is none of ours.
    pub(in crate::documents) fn cluster(&self) -> Option<Uuid> {
        std::str::from_utf8(&self.0.data).ok()?.parse().ok()
    }

    /// The broker forgets it.
    pub(in crate::documents) async fn ack(self) -> Result<(), Error> {
        answered("acknowledge work", self.0.acker.ack(BasicAckOptions::default())).await.map(drop)
    }

    /// The broker keeps it among the dead letters.
    pub(in crate::documents) async fn reject(self) -> Result<(), Error> {
        answered("reject work", self.0.acker.reject(BasicRejectOptions { requeue: false })).await.map(drop)
    }
}

async fn consume(channel: &Channel, queue: &str) -> Result<Consumer, Error> {
    let tag = ShortString::default();
    let consumer = channel.basic_consume(queue.into(), tag, BasicConsumeOptions::default(), FieldTable::default());
    consumer.await.map_err(Error::of("consume work"))
}

async fn answered<T>(action: &'static str, request: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
    let answer = timeout(ANSWER_WITHIN, request).await.map_err(|_| Error::Silent { within: ANSWER_WITHIN })?;
    answer.map_err(Error::of(action))
}
