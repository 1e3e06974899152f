//! `[clusters.<name>]`: how a cluster is reached.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::fault::Problem;
use super::fields::Fields;
use super::names::ClusterName;
use super::setting::{PositiveDuration, WatchTimeout};

/// How to reach a cluster: `[clusters.<name>]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The source of address and credentials.
    pub access: ClusterAccess,
    /// Timeout of each request that is not a watch; `30s` by default. If it is too short, a busy API server looks
    /// unreachable; if it is too long, work waits for a dead connection.
    pub request_timeout: Duration,
    /// Most concurrent requests to this cluster, over all sections; 64 by default. The client lowers the limit by itself
    /// while the API server throttles (429). Requests beyond what the server's priority level admits only queue there.
    pub max_in_flight: NonZeroUsize,
    /// Timeout of a watch; `290s` by default. The API server ends the watch after this time, and the client resumes it. A
    /// watch that receives nothing for 5 s longer counts as lost. Behind a proxy that terminates TLS, nothing else detects a
    /// dead watch: `40s` detects one within a minute, at the cost of one request per watch every 40 s.
    pub watch_timeout: Duration,
}

/// The source of a cluster's address and credentials: exactly one of `kubeconfig` and `in_cluster = true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAccess {
    /// A kubeconfig file, read again when it changes.
    Kubeconfig {
        /// The file; paths in it are relative to its directory.
        path: PathBuf,
        /// The context; the current one by default.
        context: Option<String>,
    },
    /// The service account of the pod that the daemon runs in.
    InCluster,
    /// The pod's service account if there is one, else the files of `KUBECONFIG` or `~/.kube/config`, as kubectl does. For
    /// sections that name no cluster, if there is no `[clusters.default]`; a configuration file can't choose it.
    Inferred,
    /// What a command of kubectl would use: this file, else those of `KUBECONFIG` or `~/.kube/config`, and the pod's service account where
    /// there is none of them. A configuration file can't choose it.
    Kubectl {
        kubeconfig: Option<PathBuf>,
        /// The context; the current one by default.
        context: Option<String>,
    },
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

    /// None if the access has faults.
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

/// Whether two names refer to one cluster: the same name, or the same access.
pub fn same_cluster(left: &ClusterName, right: &ClusterName, clusters: &BTreeMap<ClusterName, ClusterConfig>) -> bool {
    let same_access = || match (clusters.get(left), clusters.get(right)) {
        (Some(left), Some(right)) => left.access == right.access,
        _ => false,
    };
    left == right || same_access()
}
