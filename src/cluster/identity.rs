//! Which cluster answers under a name: the UID of its namespace `kube-system`, which exists as long as the cluster does.
//!
//! After a kubeconfig was replaced, a tunnel redirected or an etcd restored, another cluster answers under the same
//! configured name. So the identity is read with every new set of credentials and after every lost connection, before the
//! cluster counts as available, and decisions that depend on it wait until it has been read. That costs one request each
//! time, and none in the steady state.
//!
//! A section asks before it acts on its clusters whether it may ([`Identification`]), by what is [`Seen`] of them now and by what it
//! remembers of them. Where the identity decides nothing, a job compares what it knows of their objects.

use std::fmt;
use std::sync::Arc;

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

impl Replaced {
    /// Whether another cluster than the remembered one answers. Only two known identities say so.
    pub fn of(cluster: &ClusterName, before: Option<&str>, seen: &Seen) -> Option<Self> {
        let (before, now) = (before?, seen.identity.uid()?);
        let replaced = || Self { cluster: cluster.clone(), before: before.into(), now: Arc::clone(now) };
        (before != &**now).then(replaced)
    }
}

/// Which cluster answers under a name now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub identity: Identity,
    /// The set of credentials, where the identity is unknown: others may lead to another cluster.
    pub epoch: Option<u64>,
    /// How often the identity was read, where it is unknown and each doubt counts.
    pub(super) reading: Option<u64>,
}

impl Seen {
    /// Whether the identity was read since the last doubt, or found to be unreadable.
    pub fn is_read(&self) -> bool {
        self.identity != Identity::Unread
    }
}

/// Whether a section may act on its clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identification {
    Clear,
    /// It is not known yet which clusters they are: an identity, the section's state, or a list was not read.
    Unread,
    /// What the section knows of their objects has yet to be compared with them.
    Undecided,
    /// It may not, until an operator approves or the clusters are the same again.
    Held(Objection),
    /// It may not, and an approval changes nothing: the configuration is wrong.
    Refused(Objection),
}

impl Identification {
    /// Why the section waits for an operator's approval.
    pub fn held(self) -> Option<Objection> {
        match self {
            Self::Held(objection) => Some(objection),
            Self::Clear | Self::Unread | Self::Undecided | Self::Refused(_) => None,
        }
    }
}

/// Why a section may not act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objection {
    /// Both names lead to one cluster.
    OneCluster { remote: ClusterName, local: ClusterName },
    /// Another cluster than before answers under a name.
    AnotherCluster(Replaced),
    /// Pairs that were in step lack their local object, and nothing proves that the local cluster is the same as before.
    LocalObjectsMissing {
        /// The local cluster's name.
        cluster: ClusterName,
        /// How many lack it.
        missing: usize,
        /// Of how many that were in step.
        pairs: usize,
    },
    /// Objects have other UIDs than their rows in the database.
    OtherObjects { cluster: ClusterName, others: usize, objects: usize },
}

impl fmt::Display for Objection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneCluster { remote, local } => write!(
                formatter,
                "clusters {remote} and {local} are one cluster: every object would be paired with itself; where that is \
                 meant, give both sides the same name and a suffix that keeps them apart"
            ),
            Self::AnotherCluster(replaced) => replaced.fmt(formatter),
            Self::LocalObjectsMissing { cluster, missing, pairs } => write!(
                formatter,
                "{missing} of {pairs} objects that were in step are not in cluster {cluster}, which is not known to be \
                 the cluster that they were in"
            ),
            Self::OtherObjects { cluster, others, objects } => write!(
                formatter,
                "{others} of {objects} objects in cluster {cluster} have another UID than their rows in the database: it is \
                 another cluster than the one that the rows are about, or its objects were restored"
            ),
        }
    }
}
