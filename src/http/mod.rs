//! HTTP for all parts of the daemon, without any routes of its own.
//!
//! A [`Server`] bounds its connections by its [`Limits`], with TLS if it has a certificate ([`ServerTls`]). The
//! admin server is one.
//!
//! Outgoing connections are made directly ([`direct`]) or through a [`Proxy`], and not into [`DeniedNetworks`]. The HTTP stack below kube's client uses them,
//! and so does a [`Client`] of an API.

mod alive;
mod client;
mod connector;
mod files;
mod foreign;
mod networks;
mod proxy;
mod reloaded;
#[cfg(test)]
pub(crate) mod scripted;
mod server;
mod tls;
mod token;
mod trust;

pub use alive::{Alive, Answers};
pub use client::{Answer, Ask, Client, ClientSettings, Error};
pub use connector::direct;
pub use files::{FileWatch, Files};
pub use foreign::{foreign, has_own_host};
#[cfg(test)]
pub use networks::LOCAL_NETWORKS;
pub use networks::{Denied, DeniedNetworks, Network, NotANetwork, Unresolved};
pub use proxy::{Proxy, of_environment};
pub use reloaded::{FileError, Reloaded, keep_up_to_date};
pub use server::{Limits, Peer, RELEASE, Server};
pub use tls::{CertificateFiles, ServerTls};
pub use token::{BearerToken, NotAToken};
pub use trust::{TrustError, authorities_in, client_config_as, showing, system_authorities};
