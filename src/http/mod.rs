//! HTTP as every part of the daemon speaks it, without knowing what it is about.
//!
//! Outwards there is one way of making connections: [`direct`], or through a [`Proxy`]. The HTTP stack under kube's client
//! stands on it.

mod alive;
mod connector;
mod files;
mod proxy;
#[cfg(test)]
pub(crate) mod scripted;
mod token;

pub use alive::{Alive, Answers, Counted, Heard};
pub use connector::{Connector, Socket, Stream, Tcp, direct};
pub use files::Files;
pub use proxy::{Proxy, of_environment};
pub use token::{BearerToken, NotAToken};
