//! Connections to a message broker that speaks AMQP 0-9-1: its URL, TLS, and one connection at a time, which the caller closes.
//!
//! [`Link`] is a connection. It is never made again by itself: whoever owns it makes another one, and then declares and sends again what
//! it needs. Each has a thread of `lapin`, so a process has one for each purpose, not one for each task. Messages that are published wait in
//! memory until they are sent; whoever publishes bounds what it has not been confirmed.
//!
//! While the broker has blocked a connection (its memory or disk is short), `lapin` writes nothing to it, not even acknowledgements. So
//! what consumes has a connection of its own.

mod error;
mod link;
mod url;

pub use error::Error;
pub use link::Link;
pub use url::{AmqpSource, AmqpUrl, InvalidUrl};
