//! Access to Kubernetes clusters.
//!
//! Every request to a cluster goes through a [`Cluster`]: it has the client with the current credentials, bounds the
//! requests in flight, gives every request a deadline and classifies every error once ([`Error`]). A cluster of the
//! configuration has an actor ([`session::run`]), which loads and reloads credentials, probes with back-off while the
//! cluster does not answer (requests are refused meanwhile), and asks again for denied permissions. A [`DynamicCluster`]
//! has fixed credentials and no actor, and can come and go at any time: its own requests are the probes, and no denied
//! permission is remembered.
//!
//! A [`Watch`] keeps a [`Store`] of one kind's objects, reduced to [`Object`]s, and tells its followers the keys that
//! changed. It is shared by cluster, kind and selector, does what the [`WatchSpec`]s of its users require, and runs while
//! there is a [`Demand`].
//!
//! Requests under a [`Fence`] are sent only while the election has it open, which is checked directly above the connection.

mod access;
mod availability;
mod bearer;
pub mod built_in;
mod certificate;
mod client;
mod clock;
mod connection;
mod credentials;
mod denied_permissions;
mod dynamic;
mod error;
pub mod events;
mod fence;
mod fenced;
mod identity;
mod keys;
mod kind;
mod kinds;
pub mod kubeconfig;
mod limiter;
mod managers;
mod metadata;
pub mod object;
mod pages;
mod reach;
mod registry;
mod reply;
mod request;
pub mod rewrites;
mod sending;
mod server_clock;
pub mod session;
mod stack;
mod store;
pub mod tool_marks;
pub mod watch;

pub use access::{AccessRequest, Decision};
pub use built_in::BuiltIn;
#[cfg(test)]
pub use client::ClusterState;
pub use client::{Availability, Cluster, ClusterStatus};
pub use clock::Clock;
pub use connection::PARTIAL_METADATA;
pub use credentials::context_of;
pub use dynamic::{Credentials, DynamicCluster, DynamicClusters, Fingerprint};
pub use error::{Cause, Error, Retry, full_text, harmless};
pub use fence::{Claim, Expired, Fence};
pub use identity::{Identification, Identity, Objection, Replaced, Seen};
pub use kind::Kind;
pub use kinds::{KindError, KindId, Kinds};
pub use managers::shown_manager;
pub use metadata::{Deletion, ManagedFields, Metadata};
pub use object::{CanonicalJson, FIELD_MANAGER, Object, ObjectKey, OwnedKeys, is_at_least};
pub use pages::{Element, Pages};
pub use registry::WatchRegistry;
pub use reply::Stated;
pub use request::{Payload, Propagation, Request};
pub use sending::{Exchange, Urgency, Written};
pub use store::{ListMoment, Listed, Store, Tracker};
pub use watch::{Demand, Follower, Projection, Watch, WatchId, WatchSpec};

/// The verb of a request, as in RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
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
