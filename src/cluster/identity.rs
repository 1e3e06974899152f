//! Which cluster answers under a name: the UID of its namespace `kube-system`, which lives as long as the cluster does.
//!
//! A kubeconfig that is replaced, a tunnel that ends elsewhere, an etcd that was restored: the name in the configuration stays
//! and the cluster behind it is another one. So the identity is read with every new set of credentials and after every doubt,
//! before the cluster counts as available, and whoever decides by it waits until it has been read. It costs one request then,
//! and none in the steady state.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::client::Cluster;
use super::connection::Connection;
use super::error::Error;
use crate::config::ClusterName;

/// What is known of a cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It has not been read since there was a doubt.
    Unread,
    /// The UID of `kube-system`.
    Known(Arc<str>),
    /// It can't be read.
    Unknown {
        /// Why.
        reason: Arc<str>,
    },
}

impl Identity {
    /// The UID, where it is known.
    pub fn uid(&self) -> Option<&Arc<str>> {
        match self {
            Self::Known(uid) => Some(uid),
            Self::Unread | Self::Unknown { .. } => None,
        }
    }
}

/// Another cluster than before answers under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// The name.
    pub cluster: ClusterName,
    /// The identity that is remembered.
    pub before: Arc<str>,
    /// The identity that is found.
    pub now: Arc<str>,
}

impl fmt::Display for Replaced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, before, now } = self;
        write!(formatter, "another cluster answers as {cluster}: its kube-system has UID {now}, and had {before}")
    }
}

/// Reads the identity, where somebody wants to know it. An error: the cluster did not answer.
pub(super) async fn read(cluster: &Cluster, connection: &Connection, deadline: Duration) -> Result<(), Error> {
    if !cluster.is_identity_wanted() {
        return Ok(());
    }
    let identity = match cluster.read_identity(connection, deadline).await {
        Ok(uid) if !uid.is_empty() => Identity::Known(uid),
        Ok(_) => Identity::Unknown { reason: "namespace kube-system has no UID".into() },
        Err(error @ (Error::Forbidden { .. } | Error::NotFound { .. } | Error::NotServed { .. })) => {
            Identity::Unknown { reason: error.to_string().into() }
        }
        Err(error) => return Err(error),
    };
    cluster.set_identity(identity);
    Ok(())
}
