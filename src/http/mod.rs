//! HTTP for all parts of the daemon, without any routes of its own.
//!
//! A [`Server`] bounds its connections and requests by its [`Limits`], with TLS if it has a certificate ([`ServerTls`]). The
//! admin server is one.
//!
//! Outgoing connections are made directly ([`direct`]) or through a [`Proxy`], and not into [`DeniedNetworks`]. The HTTP stack below kube's client uses them,
//! and so does a [`Client`] of an API.

mod alive;
mod arrival;
mod client;
mod connector;
mod files;
mod limits;
mod networks;
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
pub use arrival::BodyRefused;
pub use client::{Answer, Ask, Client, ClientSettings, Error, Post, Retry};
pub use connector::{Connector, Socket, Stream, Tcp, direct};
pub use files::{FileWatch, Files, file_looks};
pub use limits::{AnswerWithin, KeepAlive, Limits, Refusal, Reserved, begins_with};
pub use networks::{Checked, Denied, DeniedNetworks, LOCAL_NETWORKS, Network, NotANetwork, Resolver, Unresolved};
pub use proxy::{Proxy, of_environment};
pub use server::{Observer, Peer, Server};
pub use tls::{CertificateError, CertificateFiles, ServerTls};
pub use token::{BearerToken, NotAToken};
pub use trust::{TrustError, client_config_as};
