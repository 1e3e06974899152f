//! What the bus needs at the broker. A connection declares what it uses; where that exists with other arguments, it is not used.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use crate::amqp::Error;

/// Where events are published.
pub(super) const EVENTS: &str = "towline.events";
/// Clusters that have work.
pub(super) const WORK: &str = "towline.work.clusters";
/// How long a hint waits, in milliseconds: by then each worker that had a slot has looked at the database many times.
const HINT_LASTS: i32 = 60_000;
/// How many hints wait. Beyond that the oldest is dropped.
const MOST_HINTS: i32 = 10_000;

/// Declares the exchange of events. The channel can't be used after an error.
pub(super) async fn declare_events(channel: &Channel) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(EVENTS.into(), ExchangeKind::Topic, durable, FieldTable::default()).await;
    declared.map_err(Error::of("declare an exchange"))
}

/// Declares the queue of hints. The channel can't be used after an error.
pub(super) async fn declare_work(channel: &Channel) -> Result<(), Error> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(HINT_LASTS));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(MOST_HINTS));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(WORK.into(), durable, arguments).await;
    declared.map(|_| ()).map_err(Error::of("declare a queue"))
}
