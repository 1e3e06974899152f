//! The bus: events over a message broker (AMQP 0-9-1), beside the database, which holds the whole truth.
//!
//! ```text
//! log ──► Relay (claim `relay`) ──► exchange towline.events ──► queues of other programs
//! who asks for work ──► hint ──► queue towline.work.clusters ──► a worker, which claims the row (`work`)
//! ```
//!
//! The broker decides nothing. The relay moves its cursor after the broker has confirmed what was published, and with the broker away
//! events wait in the log. A hint only says which row may be claimed, and workers look at the database without one, too.
//!
//! [`Broker`] is what the parts of a process share: where the broker is, and how the connection of each part stands. Each part owns its
//! connection.

mod broker;
mod connection_state;
mod hints;
mod message;
mod relay;

pub use broker::{Broker, BusObserver};
pub use connection_state::{ConnectionState, Purpose};
pub use relay::Relay;
