//! What the bus needs at the broker. Each connection declares it; where it exists with other arguments, the broker is not used.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use crate::amqp::Error;

/// Where events are published.
pub(super) const EVENTS: &str = "towline.events";
/// Clusters that have work.
pub(super) const WORK: &str = "towline.work.clusters";
/// Clusters that have urgent work.
pub(super) const URGENT: &str = "towline.work.clusters.urgent";
/// Where what can't be served is sent.
const DEAD: &str = "towline.dead";
/// Who keeps that.
pub(super) const DEAD_WORK: &str = "towline.dead.work";
/// How often a message is delivered that nobody acknowledges.
const DELIVERY_LIMIT: i32 = 20;
/// A look at dead letters gives them back, which counts. Brokers from 4.0 on have a limit of their own, and would drop them.
const LOOKS_AT_THE_DEAD: i32 = i32::MAX;

/// Declares everything. The channel can't be used after an error.
pub(super) async fn declare(channel: &Channel) -> Result<(), Error> {
    for (exchange, kind) in [(EVENTS, ExchangeKind::Topic), (DEAD, ExchangeKind::Fanout)] {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default()).await;
        declared.map_err(Error::of("declare an exchange"))?;
    }
    queue(channel, DEAD_WORK, &[("x-delivery-limit", AMQPValue::LongInt(LOOKS_AT_THE_DEAD))]).await?;
    let bound = channel.queue_bind(
        DEAD_WORK.into(),
        DEAD.into(),
        "".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.map_err(Error::of("bind the queue of dead letters"))?;
    for name in [WORK, URGENT] {
        let arguments = [
            ("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT)),
            ("x-overflow", AMQPValue::LongString("reject-publish".into())),
            ("x-dead-letter-exchange", AMQPValue::LongString(DEAD.into())),
            ("x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into())),
        ];
        queue(channel, name, &arguments).await?;
    }
    Ok(())
}

async fn queue(channel: &Channel, name: &str, further: &[(&str, AMQPValue)]) -> Result<(), Error> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    for (key, value) in further {
        arguments.insert((*key).into(), value.clone());
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(name.into(), durable, arguments).await;
    declared.map(|_| ()).map_err(Error::of("declare a queue"))
}

/// How many messages wait in a queue, which exists.
pub(super) async fn waiting(channel: &Channel, name: &str) -> Result<u32, Error> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(name.into(), passive, FieldTable::default()).await;
    found.map(|queue| queue.message_count()).map_err(Error::of("look at a queue"))
}
