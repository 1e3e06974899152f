//! Clusters that come and go while the process runs, with credentials from a Secret or a database.
//!
//! Equal credentials under one name share one cluster. It exists as long as somebody uses it: when its last user drops it, and
//! the handles that were cloned from it, its connections are closed and nothing of it stays here. It has no actor, sends no
//! probes of its own, and closes a connection that is not used for a while, so an idle cluster costs memory for a client and
//! nothing else.
//!
//! Every kind of request works as with a configured cluster: under a fence, within limits, with deadlines, while the cluster
//! [may be asked](super::reach). Nobody does here what a session actor does. So its availability and identity never change,
//! no denied permission is remembered (whoever gets a 403 decides when to ask again), and nothing is watched.
//!
//! Kubeconfigs that users of an API have written may lead anywhere, and so their clusters are *untrusted*
//! ([`DynamicClusters::of_many`]): connections into some networks are refused, less is read of an answer, large answers share a limit of
//! memory, and less of an answer is repeated in an error.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kube::Config;
use parking_lot::Mutex;

use super::client::{Cluster, Limits};
use super::connection::{Connection, Untrusted};
use super::reply::ReplyBudgets;
use crate::config::{ClusterName, DEFAULT_MAX_IN_FLIGHT};
use crate::http::DeniedNetworks;

/// An answer that has not begun by then never comes; the deadlines of single requests are shorter.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// The deadline of requests that have none of their own, unless the job sets one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// What the replies of the untrusted clusters of one owner take together, beside the first 256 KiB of each, and all others' at most once more.
/// Replies with metadata are small, so this is for discovery, and for servers that send slowly what they may send at most.
const UNTRUSTED_REPLIES: usize = 32 << 20;
/// The timeout of watches, which the connection requires. No watch runs here.
const WATCH_TIMEOUT: Duration = Duration::from_secs(290);

/// A hash that distinguishes credentials without revealing anything about them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Prints a few digits, which are enough to distinguish two fingerprints in a log.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Credentials, from which a client can be built.
#[derive(Clone)]
pub struct Credentials {
    /// The complete configuration. It refers to no file.
    pub config: Config,
    /// The fingerprint of everything in it.
    pub fingerprint: Fingerprint,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

type Key = (ClusterName, Fingerprint);
type Entries = Mutex<BTreeMap<Key, Weak<DynamicCluster>>>;

/// The clusters in use, by name and credentials. The lock is held for one look-up, never while a client is built or over a
/// request.
pub struct DynamicClusters {
    entries: Arc<Entries>,
    limits: Limits,
    untrusted: Option<Untrusting>,
}

/// How clusters are treated whose kubeconfigs were written by users of an API.
struct Untrusting {
    counted_as: &'static str,
    denied: DeniedNetworks,
    replies: ReplyBudgets,
}

/// A cluster with one set of credentials. It goes with its last user.
pub struct DynamicCluster {
    cluster: Cluster,
    fingerprint: Fingerprint,
    entries: Arc<Entries>,
}

/// For a few clusters, whose requests are counted by the server's address. Ten seconds for a request, and as many in flight as
/// in a configured cluster by default: a renewal of a lease takes milliseconds, so these are thousands a second.
impl Default for DynamicClusters {
    fn default() -> Self {
        let limits = Limits {
            request_timeout: REQUEST_TIMEOUT,
            watch_timeout: WATCH_TIMEOUT,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
        };
        Self { entries: Arc::default(), limits, untrusted: None }
    }
}

impl DynamicClusters {
    /// For thousands of clusters of untrusted users. A time series is never dropped, so all their requests are counted under one label,
    /// `counted_as`, and not by address. No connection is made into the networks `denied`. `request_timeout` is the deadline of a
    /// request that has none of its own, and bounds how long it waits before for a cluster that does not answer. `max_in_flight` is
    /// the most requests in flight to one cluster.
    pub fn of_many(
        request_timeout: Duration,
        max_in_flight: NonZeroUsize,
        counted_as: &'static str,
        denied: DeniedNetworks,
    ) -> Self {
        let limits = Limits { request_timeout, watch_timeout: WATCH_TIMEOUT, max_in_flight };
        let untrusted = Untrusting { counted_as, denied, replies: ReplyBudgets::of_bytes(UNTRUSTED_REPLIES) };
        Self { entries: Arc::default(), limits, untrusted: Some(untrusted) }
    }

    /// The cluster with these credentials: the one in use, or a new one that is connected with the
    /// first request. `name` is what its errors call it. Its large replies share the memory of its `owner`, if it is untrusted.
    ///
    /// Fails where no client can be built from the keys and certificates.
    pub fn cluster(
        &self,
        owner: &str,
        name: &ClusterName,
        Credentials { config, fingerprint }: Credentials,
    ) -> Result<Arc<DynamicCluster>, kube::Error> {
        let key = (name.clone(), fingerprint);
        let in_use = |entries: &BTreeMap<Key, Weak<DynamicCluster>>| entries.get(&key).and_then(Weak::upgrade);
        let found = in_use(&self.entries.lock());
        if let Some(cluster) = found {
            return Ok(cluster);
        }
        let headers_within = HEADERS_WITHIN.max(self.limits.request_timeout);
        let untrusted = self.untrusted.as_ref().map(|Untrusting { counted_as, denied, replies }| Untrusted {
            counted_as,
            denied: denied.clone(),
            budget: replies.budget(owner),
        });
        let connection = Connection::steady(name.clone(), config, headers_within, untrusted)?;
        let cluster = Cluster::connected(connection, self.limits);
        let made = Arc::new(DynamicCluster { cluster, fingerprint, entries: Arc::clone(&self.entries) });
        let mut entries = self.entries.lock();
        // Another task may have been faster. The one that was made here is dropped after the lock, which its end takes.
        if let Some(cluster) = in_use(&entries) {
            return Ok(cluster);
        }
        entries.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

impl DynamicCluster {
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Deref for DynamicCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl fmt::Debug for DynamicCluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DynamicCluster").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Drop for DynamicCluster {
    fn drop(&mut self) {
        let key = (self.cluster.name().clone(), self.fingerprint);
        let mut entries = self.entries.lock();
        // The same credentials may be in use again by now.
        if entries.get(&key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
