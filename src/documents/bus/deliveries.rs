//! What the broker delivers to a worker: clusters that have work (M2 and M3).

use futures::StreamExt;
use lapin::message::Delivery as Message;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use uuid::Uuid;

use super::topology::{URGENT, WORK};
use crate::amqp::{Error, Link};

/// How many deliveries each queue has under way: what waits at a busy worker waits for nobody else.
const PREFETCH: u16 = 1;

/// The deliveries of both queues, while they are consumed.
pub(in crate::documents) struct Deliveries {
    channel: Channel,
    consumers: Option<Consumers>,
}

struct Consumers {
    urgent: Consumer,
    other: Consumer,
}

/// A message that was delivered and not acknowledged.
pub(in crate::documents) struct Delivery(Message);

impl Deliveries {
    /// None yet.
    pub(in crate::documents) async fn open(link: &Link) -> Result<Self, Error> {
        let channel = link.channel().await?;
        let limited = channel.basic_qos(PREFETCH, BasicQosOptions::default()).await;
        limited.map_err(Error::of("limit deliveries"))?;
        Ok(Self { channel, consumers: None })
    }

    /// Begins to consume, if that is not so yet.
    pub(in crate::documents) async fn begin(&mut self) -> Result<(), Error> {
        if self.consumers.is_none() {
            let (urgent, other) = (consume(&self.channel, URGENT).await?, consume(&self.channel, WORK).await?);
            self.consumers = Some(Consumers { urgent, other });
        }
        Ok(())
    }

    /// The next delivery; of two that are there, the urgent one or the other one. None if the broker has ended a consumer, perhaps since
    /// somebody has deleted its queue; then nothing follows on this channel. Without consumers there is nothing to wait for.
    ///
    /// Cancel safe.
    pub(in crate::documents) async fn next(&mut self, urgent_first: bool) -> Result<Option<Delivery>, Error> {
        let Some(Consumers { urgent, other }) = &mut self.consumers else { return std::future::pending().await };
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
        let Some(Consumers { urgent, other }) = self.consumers.take() else { return Ok(Vec::new()) };
        for consumer in [&urgent, &other] {
            let ended = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
            ended.map_err(Error::of("end deliveries"))?;
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

impl Delivery {
    /// The cluster; none if the message is none of ours.
    pub(in crate::documents) fn cluster(&self) -> Option<Uuid> {
        std::str::from_utf8(&self.0.data).ok()?.parse().ok()
    }

    /// The broker forgets it.
    pub(in crate::documents) async fn ack(self) -> Result<(), Error> {
        let acked = self.0.acker.ack(BasicAckOptions::default()).await;
        acked.map(|_| ()).map_err(Error::of("acknowledge work"))
    }

    /// The broker keeps it among the dead letters.
    pub(in crate::documents) async fn reject(self) -> Result<(), Error> {
        let rejected = self.0.acker.reject(BasicRejectOptions { requeue: false }).await;
        rejected.map(|_| ()).map_err(Error::of("reject work"))
    }
}

async fn consume(channel: &Channel, queue: &str) -> Result<Consumer, Error> {
    let tag = ShortString::default();
    let consumer =
        channel.basic_consume(queue.into(), tag, BasicConsumeOptions::default(), FieldTable::default()).await;
    consumer.map_err(Error::of("consume work"))
}
