//! What the bus needs at the broker. Each connection declares it; where it exists with other arguments, the broker is not used.

use lapin::options::ExchangeDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, ExchangeKind};

use crate::amqp::Error;

/// Where events are published.
pub(super) const EVENTS: &str = "towline.events";
/// Declares everything. The channel can't be used after an error.
pub(super) async fn declare(channel: &Channel) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(EVENTS.into(), ExchangeKind::Topic, durable, FieldTable::default()).await;
    declared.map_err(Error::of("declare the exchange of events"))
}
