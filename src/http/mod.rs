//! HTTP as every part of the daemon speaks it, without knowing what it is about.
//!
//! Inwards there is a [`Server`], all of whose connections and requests are bounded by its [`Limits`], with TLS where it is
//! given a certificate ([`ServerTls`]). The admin server is one.
//!
//! Outwards there is one way of making connections: [`direct`], or through a [`Proxy`]. The HTTP stack under kube's client
//! stands on it, and so does a [`Client`], which posts JSON to an API.

mod alive;
mod arrival;
mod client;
mod connector;
mod files;
mod limits;
mod observed;
mod proxy;
mod registry;
#[cfg(test)]
pub(crate) mod scripted;
mod server;
mod standing;
mod tls;
mod token;
mod trust;

pub use alive::{Alive, Answers, Counted, Heard};
pub use client::{Answer, Client, ClientSettings, Error, Post, Retry};
pub use connector::{Connector, Socket, Stream, Tcp, direct};
pub use files::Files;
pub use limits::{AnswerWithin, KeepAlive, Limits, Refusal, Reserved, begins_with};
pub use proxy::{Proxy, of_environment};
pub use server::{Peer, Server};
pub use tls::{CertificateError, CertificateFiles, ServerTls};
pub use token::{BearerToken, NotAToken};
pub use trust::TrustError;
