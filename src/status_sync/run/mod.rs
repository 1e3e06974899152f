//! Status sync at work.
//!
//! - [`database`] is everything about the database: the two statements of a family, the decoding of their rows, the
//!   triggers that send notifications, and the listener, the actor that receives them.
//! - [`identity`] decides whether the section may write to its hub, which may have become another cluster.
//! - [`poller`] is the actor of a family. It owns the state of the family, and writes to the hub.

pub mod database;
pub mod identity;
pub mod poller;
