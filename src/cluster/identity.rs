//! Which cluster answers under a name: the UID of its namespace `kube-system`, which exists as long as the cluster does.
//!
//! After a kubeconfig was replaced, a tunnel redirected or an etcd restored, another cluster answers under the same
//! configured name. So the identity is read with every new set of credentials and after every lost connection, before the
//! cluster counts as available, and decisions that depend on it wait until it has been read. That costs one request each
//! time, and none in the steady state.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::client::Cluster;
use super::connection::Connection;
use super::error::Error;
use crate::config::ClusterName;

/// What is known about a cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It has not been read since the last doubt.
    Unread,
    /// The UID of `kube-system`.
    Known(Arc<str>),
    /// It can't be read.
    Unknown { reason: Arc<str> },
}

impl Identity {
    /// The UID, if it is known.
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
    pub cluster: ClusterName,
    pub before: Arc<str>,
    pub now: Arc<str>,
}

impl fmt::Display for Replaced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, before, now } = self;
        write!(formatter, "another cluster answers as {cluster}: its kube-system has UID {now}, and had {before}")
    }
}

/// Reads the identity, if a section needs it. An error means that the cluster did not answer.
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
