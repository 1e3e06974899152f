//! Hints: keys of clusters that have work, on their way to workers.
//!
//! A hint decides nothing. The worker that takes one acknowledges it, and claims the row in the database, as it claims any other. So one
//! that is lost, comes twice or comes late costs nothing but the worker's next look at the database, and nobody remembers what was
//! published.
//!
//! One connection publishes and consumes. While the broker blocks it, nothing is acknowledged either, and workers look at the database.

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
    ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Consumer};
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::broker::{Broker, Opens, Pauses, WORK, declare_work};
use super::connection_state::Purpose;
use crate::amqp::{Error, Link};

/// How many messages a worker has that it has not taken yet. What waits at a busy worker, others find in the database.
const PREFETCH: u16 = 4;
/// Most hints that wait to be published: more than workers take until they look at the database.
const MOST_PENDING: usize = 10_000;
/// How many are published before their confirms are waited for.
const BATCH: usize = 256;
/// Longest wait for confirms. A queue that has no leader confirms nothing while its connection is alive; it has another leader within
/// seconds, unless most of its nodes are away. As long as for opening a connection.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(20);

/// A channel that publishes hints, with confirms, and what it receives.
struct Hints {
    channel: Channel,
    received: Consumer,
}

impl Opens for Hints {
    async fn open(link: &Link) -> Result<Self, Error> {
        let channel = link.channel().await?;
        declare_work(&channel).await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirms.map_err(Error::of("ask for confirms"))?;
        let limited = channel.basic_qos(PREFETCH, BasicQosOptions::default()).await;
        limited.map_err(Error::of("limit deliveries"))?;
        let (tag, options) = ("".into(), BasicConsumeOptions::default());
        let received = channel.basic_consume(WORK.into(), tag, options, FieldTable::default()).await;
        let received = received.map_err(Error::of("consume hints"))?;
        Ok(Self { channel, received })
    }
}

impl Broker {
    /// Tells workers that these clusters have work, as soon as the broker can be used. It does not wait; too many hints are dropped.
    pub fn hint(&self, clusters: &[Uuid]) {
        self.hints.send_if_modified(|pending| {
            let room = MOST_PENDING.saturating_sub(pending.len());
            pending.extend(clusters.iter().take(room));
            !pending.is_empty()
        });
    }

    /// Publishes hints, and passes on those that the broker delivers, as long as the future lives. A key is acknowledged when `keys` has
    /// taken it.
    pub(in crate::documents) async fn exchange_hints(&self, keys: mpsc::Sender<Uuid>) -> Infallible {
        // As long as none was confirmed after one was refused, nobody knows whether the broker takes them.
        let (mut pauses, mut is_refused) = (Pauses::default(), false);
        loop {
            let (link, mut hints) = self.reach::<Hints>(Purpose::Worker).await;
            let opened = Instant::now();
            if !is_refused {
                self.works(Purpose::Worker, &link);
            }
            let failed = tokio::select! {
                biased;
                error = self.publish_hints(&link, &hints.channel, &mut is_refused) => Some(error),
                error = pass_on(&mut hints.received, &keys) => Some(error),
                () = self.follow(Purpose::Worker, &link) => None,
            };
            if let Some(error) = failed {
                self.fails(Purpose::Worker, &error);
                link.close().await;
            }
            pauses.wait_after_life_from(opened).await;
        }
    }

    /// Publishes what is hinted at until that fails.
    async fn publish_hints(&self, link: &Link, channel: &Channel, is_refused: &mut bool) -> Error {
        let mut hinted = self.hints.subscribe();
        loop {
            // The sender lives as long as this value.
            let _hinted = hinted.wait_for(|pending| !pending.is_empty()).await.map(drop);
            let mut batch = Vec::new();
            self.hints.send_if_modified(|pending| {
                batch.extend(std::iter::from_fn(|| pending.pop_first()).take(BATCH));
                false
            });
            if let Err(error) = link.answered(CONFIRMED_WITHIN, publish(channel, &batch)).await {
                *is_refused = error.is_of_channel();
                return error;
            }
            *is_refused = false;
            self.works(Purpose::Worker, link);
        }
    }
}

/// Publishes keys, and waits for the confirms of all. One that the queue does not take is lost.
async fn publish(channel: &Channel, clusters: &[Uuid]) -> Result<(), Error> {
    let mut confirms = Vec::with_capacity(clusters.len());
    for cluster in clusters {
        let (body, properties) = (cluster.to_string(), BasicProperties::default());
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish("".into(), WORK.into(), options, body.as_bytes(), properties).await;
        confirms.push(sent.map_err(Error::of("publish a hint"))?);
    }
    for confirm in confirms {
        confirm.await.map_err(Error::of("publish a hint"))?;
    }
    Ok(())
}

/// Passes keys on until the broker ends that. A worker that is busy takes one more at most.
async fn pass_on(received: &mut Consumer, keys: &mpsc::Sender<Uuid>) -> Error {
    loop {
        // Whoever takes the keys outlives this.
        let Ok(room) = keys.reserve().await else { return std::future::pending().await };
        let delivery = match received.next().await {
            None => return Error::Cancelled,
            Some(Err(error)) => return Error::of("receive hints")(error),
            Some(Ok(delivery)) => delivery,
        };
        let handled = if let Some(cluster) = cluster(&delivery) {
            room.send(cluster);
            delivery.acker.ack(BasicAckOptions::default()).await
        } else {
            tracing::warn!("a message of the work queue is no cluster's id, rejecting it");
            delivery.acker.reject(BasicRejectOptions { requeue: false }).await
        };
        if let Err(error) = handled {
            return Error::of("acknowledge a hint")(error);
        }
    }
}

/// The cluster; none if the message is none of ours.
fn cluster(delivery: &Delivery) -> Option<Uuid> {
    std::str::from_utf8(&delivery.data).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::amqp::AmqpSource;

    #[test]
    fn hints_that_are_more_than_workers_take_are_dropped_while_nobody_publishes_them() {
        let url = "amqp://localhost".parse().expect("a URL");
        let broker = Broker::new(AmqpSource::Url(Box::new(url)), Arc::new(()));
        let clusters: Vec<Uuid> = (0..10_001).map(Uuid::from_u128).collect();
        let kept = || broker.hints.borrow().iter().copied().collect::<Vec<_>>();
        broker.hint(&clusters[..9_999]);
        broker.hint(&clusters[9_999..]);
        assert!(kept() == clusters[..10_000], "{} are kept", kept().len());
        broker.hint(&clusters[10_000..]);
        assert!(kept() == clusters[..10_000], "{} are kept", kept().len());
    }
}
