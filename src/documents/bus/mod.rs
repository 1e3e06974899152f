//! The bus: events over a message broker (AMQP 0-9-1), beside the database, which holds the whole truth.
//!
//! ```text
//! log ──► Relay (claim `relay`) ──► exchange towline.events ──► queues of other programs
//! rows of work ──► Announcer (claim `dispatcher`) ──► queues towline.work.clusters, ….urgent ──► Deliveries ──► Intake (`work`)
//! ```
//!
//! The broker decides nothing. The relay moves its cursor after the broker has confirmed what was published, and with the broker away
//! events wait in the log. A message of the work queues only says which row may be claimed, and without messages workers ask the database.
//!
//! [`Broker`] is what the parts of a process share: where the broker is, and how the connection of each part stands. Each part owns its
//! connection.

mod announcements;
mod broker;
mod dead;
mod deliveries;
mod message;
mod relay;
mod standing;
mod topology;

pub(super) use announcements::{Announcements, Waiting};
pub(super) use broker::Pauses;
pub use broker::{Broker, BusObserver};
pub use dead::{DeadLetter, DeadLetters};
pub(super) use deliveries::{Deliveries, Delivery};
pub use relay::Relay;
pub use standing::{Purpose, Standing};
