//! Access to Kubernetes clusters.
//!
//! A [`Cluster`] is the one way to a cluster: it holds the current credentials' client, refuses requests at once while
//! the cluster does not answer (a probe with back-off finds out when it does again), bounds the requests in flight,
//! gives every request a deadline and sorts every error once ([`Error`]). Its actor ([`session::run`]) loads and reloads
//! credentials, probes, and looks whether denied permissions have been given.
//!
//! Under it is a [`Connection`]: one client with one set of credentials.
//!
//! A [`Watch`] keeps a [`Store`] of one kind's objects, cut down to [`Object`]s, and tells its followers the keys that
//! changed. It is shared by cluster, kind and selector, and runs while somebody [demands](Demand) it.
//!
//! Requests under a [`Fence`] are sent only while the election has it open, which is looked at right above the connection.

mod access;
mod bearer;
mod certificate;
mod client;
mod clock;
mod connection;
mod credentials;
mod demand;
mod denied_permissions;
mod dynamic;
mod error;
mod fence;
mod fenced;
mod held;
mod identity;
mod kind;
mod limiter;
mod managers;
pub mod object;
mod proxy;
mod reach;
mod registry;
mod request;
mod requests;
pub mod session;
mod stack;
mod standing;
mod store;
pub mod watch;

pub use access::{AccessRequest, Decision};
pub use client::Cluster;
pub use clock::Clock;
pub use connection::PARTIAL_METADATA;
pub use credentials::{Unusable, configured};
pub use demand::Demand;
pub use dynamic::{DynamicCluster, DynamicClusters, Fingerprint};
pub use error::{Error, Retry, full_text};
pub use fence::{Claim, Expired, Fence};
pub use held::Marked;
pub use identity::{Identity, Replaced};
pub use kind::Kind;
pub use managers::other_managers;
pub use object::{CanonicalJson, FIELD_MANAGER, Object, ObjectKey, OwnedKeys, is_at_least};
pub use reach::{Exchange, Urgency};
pub use registry::WatchRegistry;
pub use request::{Payload, Request};
pub use requests::{Propagation, Written};
pub use standing::Availability;
pub use store::{Absence, ListMoment, Listed, Store, Tracker};
pub use watch::{Follower, Projection, Watch, WatchId, WatchSpec};

/// What a request does, in the words of RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Follow changes.
    Watch,
    /// Make.
    Create,
    /// Replace.
    Update,
    /// Change parts.
    Patch,
    /// Delete one.
    Delete,
}

impl Verb {
    /// RBAC's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

impl std::fmt::Display for Verb {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}
