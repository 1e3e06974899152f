//! A program outside that receives events from a queue.

use std::sync::Arc;

use futures::StreamExt;
use integration::{Error, RabbitMq};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};

use crate::hub::crowd::Sight;

/// Deliveries under way, and how many are acknowledged at once.
const PREFETCH: u16 = 500;
const ACKNOWLEDGED: u64 = 100;

/// A durable queue of all clusters, as `docs/bus.md` has it.
pub(super) struct Queue {
    name: &'static str,
    channel: Channel,
    _connection: Connection,
}

impl Queue {
    pub(super) async fn open(broker: &RabbitMq, name: &'static str) -> Result<Self, Error> {
        let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await.map_err(failed)?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), durable, arguments).await.map_err(failed)?;
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(name.into(), "towline.events".into(), "clusters.*".into(), options, none);
        bound.await.map_err(failed)?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(failed)?;
        Ok(Self { name, channel, _connection: connection })
    }

    pub(super) async fn delete(self) -> Result<(), Error> {
        let deleted = self.channel.queue_delete(self.name.into(), QueueDeleteOptions::default()).await;
        deleted.map(drop).map_err(failed)
    }

    /// Notes when events arrive, until the connection ends: it should not.
    pub(super) async fn look(self, sight: Arc<Sight>) -> Result<(), Error> {
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer =
            self.channel.basic_consume(self.name.into(), "".into(), options, none).await.map_err(failed)?;
        while let Some(delivery) = consumer.next().await {
            let delivery = delivery.map_err(failed)?;
            sight.sees(&delivery.data);
            if delivery.delivery_tag.is_multiple_of(ACKNOWLEDGED) {
                delivery.acker.ack(BasicAckOptions { multiple: true }).await.map_err(failed)?;
            }
        }
        Err(Error::Unreadable { what: self.name.to_owned(), detail: "the broker has ended it".to_owned() })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: lapin::Error) -> Error {
    Error::Unreadable { what: "the broker's answer".to_owned(), detail: error.to_string() }
}
