//! The bus: events over a message broker (AMQP 0-9-1), beside the database, which holds the whole truth.
//!
//! ```text
//! log ──► Relay (claim `relay`) ──► exchange towline.events ──► queues of other programs
//! ```
//!
//! The broker decides nothing. The relay moves its cursor after the broker has confirmed what was published, and with the broker away
//! events wait in the log. Work is distributed by the database alone (`work`).
//!
//! [`Broker`] is what the parts of a process share: where the broker is, and how the connection of each part stands. Each part owns its
//! connection.

mod broker;
mod message;
mod relay;
mod standing;
mod topology;

pub use broker::{Broker, BusObserver};
pub use relay::Relay;
pub use standing::{Purpose, Standing};
