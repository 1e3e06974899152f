//! `[clusters.<name>]`: how a cluster is reached.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::fault::Problem;
use super::fields::Fields;
use super::names::ClusterName;
use super::setting::{PositiveDuration, WatchTimeout};

/// A cluster and how it is reached: `[clusters.<name>]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Where the address and the credentials come from.
    pub access: ClusterAccess,
    /// Deadline of each request that is not a watch; `30s` by default. Too short makes a busy API server look
    /// unreachable, too long keeps the work behind a dead connection waiting.
    pub request_timeout: Duration,
    /// Most requests in flight to this cluster, over all sections; 64 by default. The client goes below it by itself
    /// while the API server throttles (429). More than the server's priority level admits only queues there.
    pub max_in_flight: NonZeroUsize,
    /// A watch is ended by the API server after this and begun anew where it was; `290s` by default. One on which nothing is
    /// heard for 5 s longer counts as lost. Behind a proxy that ends TLS itself, nothing else proves that an idle watch is
    /// alive: there, 40 s notice a dead one within a minute, for a request every 40 s and watch.
    pub watch_timeout: Duration,
}

/// Where a cluster's address and credentials come from: exactly one of `kubeconfig` and `in_cluster = true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAccess {
    /// A kubeconfig file, read again when it changes.
    Kubeconfig {
        /// The file; paths in it are relative to it.
        path: PathBuf,
        /// Which of its contexts; the current one when none is named.
        context: Option<String>,
    },
    /// The service account of the pod that the daemon runs in.
    InCluster,
    /// The pod's service account where there is one, else what kubectl would use: the files of `KUBECONFIG`, or
    /// `~/.kube/config`. No file says so: it is for sections that name no cluster, where no `[clusters.default]` is.
    Inferred,
}

impl ClusterConfig {
    /// A cluster with the default limits.
    pub fn new(access: ClusterAccess) -> Self {
        Self {
            access,
            request_timeout: Duration::from_secs(30),
            max_in_flight: super::DEFAULT_MAX_IN_FLIGHT,
            watch_timeout: Duration::from_secs(290),
        }
    }

    /// None where the access has faults.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let kubeconfig_given = fields.has("kubeconfig");
        let path = fields.optional::<PathBuf>("kubeconfig");
        let context = fields.optional::<String>("context");
        let in_cluster = fields.optional::<bool>("in_cluster").unwrap_or(false);
        let access = match (path, in_cluster) {
            (Some(path), false) => Some(ClusterAccess::Kubeconfig { path, context }),
            (None, true) if !kubeconfig_given && context.is_none() => Some(ClusterAccess::InCluster),
            (None, false) if kubeconfig_given => None,
            (None, false) => {
                let allowed = "exactly one of `kubeconfig` and `in_cluster = true`".to_owned();
                fields.fault(Problem::Missing { allowed });
                None
            }
            (_, true) => {
                let key = if kubeconfig_given { "kubeconfig" } else { "context" };
                let found = format!("`{key}` beside `in_cluster = true`");
                let allowed = "exactly one of `kubeconfig` (with an optional `context`) and `in_cluster = true`";
                fields.fault(Problem::Value { found, allowed: allowed.to_owned(), suggestion: None });
                None
            }
        };
        let mut cluster = Self::new(access.clone().unwrap_or(ClusterAccess::InCluster));
        fields.set_as::<PositiveDuration, _>("request_timeout", &mut cluster.request_timeout);
        fields.set("max_in_flight", &mut cluster.max_in_flight);
        fields.set_as::<WatchTimeout, _>("watch_timeout", &mut cluster.watch_timeout);
        fields.finish();
        access.map(|_| cluster)
    }
}
/// Whether two names mean one cluster: the same name, or the same credentials.
pub fn same_cluster(left: &ClusterName, right: &ClusterName, clusters: &BTreeMap<ClusterName, ClusterConfig>) -> bool {
    let same_access = || match (clusters.get(left), clusters.get(right)) {
        (Some(left), Some(right)) => left.access == right.access,
        _ => false,
    };
    left == right || same_access()
}
