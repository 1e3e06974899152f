//! Clusters that come and go while the process runs, with credentials from a Secret or a database.
//!
//! Equal credentials share one cluster. It exists as long as somebody uses it: when its last user drops it, and the handles
//! that were cloned from it, its connections are closed and nothing of it stays here. It has no actor, sends no probes of its own, and closes a connection that is
//! not used for a while, so an idle cluster costs memory for a client and nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kube::Config;
use parking_lot::Mutex;

use super::client::{Cluster, Limits};
use super::connection::Connection;
use crate::config::{ClusterName, DEFAULT_MAX_IN_FLIGHT};

/// An answer that has not begun by then never comes; the deadlines of single requests are shorter.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// A renewal takes milliseconds, so 64 in flight are thousands a second. The timeouts are for requests without a deadline
/// of their own.
const LIMITS: Limits = Limits {
    request_timeout: Duration::from_secs(10),
    watch_timeout: Duration::from_secs(290),
    max_in_flight: DEFAULT_MAX_IN_FLIGHT,
};

/// A hash that distinguishes credentials without revealing anything about them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Prints a few digits, which are enough to distinguish two fingerprints in a log.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

type Entries = Mutex<BTreeMap<Fingerprint, Weak<DynamicCluster>>>;

/// The clusters in use, by their credentials. The lock is held for one look-up, never over a request.
#[derive(Default)]
pub struct DynamicClusters(Arc<Entries>);

/// A cluster with one set of credentials. It goes with its last user.
pub struct DynamicCluster {
    cluster: Cluster,
    fingerprint: Fingerprint,
    entries: Arc<Entries>,
}

impl DynamicClusters {
    /// The cluster with these credentials, which refer to no file: the one in use, or a new one that is connected with the
    /// first request. `name` is what its errors call it.
    ///
    /// Fails where no client can be built from the keys and certificates.
    pub fn cluster(
        &self,
        name: &ClusterName,
        config: Config,
        fingerprint: Fingerprint,
    ) -> Result<Arc<DynamicCluster>, kube::Error> {
        let mut entries = self.0.lock();
        if let Some(cluster) = entries.get(&fingerprint).and_then(Weak::upgrade) {
            return Ok(cluster);
        }
        let cluster = Cluster::connected(Connection::steady(name.clone(), config, HEADERS_WITHIN)?, LIMITS);
        let cluster = Arc::new(DynamicCluster { cluster, fingerprint, entries: Arc::clone(&self.0) });
        entries.insert(fingerprint, Arc::downgrade(&cluster));
        Ok(cluster)
    }
}

impl DynamicCluster {
    /// Which credentials it has.
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
        let mut entries = self.entries.lock();
        // The same credentials may be in use again by now.
        if entries.get(&self.fingerprint).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::cluster::{Error, Kind, ObjectKey, PARTIAL_METADATA, Request, Urgency};

    const WITHIN: Duration = Duration::from_secs(10);

    struct Server {
        listener: TcpListener,
        url: http::Uri,
    }

    impl Server {
        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            Self { listener, url }
        }

        /// The cluster with these credentials on this server.
        fn cluster(&self, clusters: &DynamicClusters, credentials: u8) -> Arc<DynamicCluster> {
            let config = Config::new(self.url.clone());
            clusters.cluster(&"hub".parse().unwrap(), config, Fingerprint([credentials; 32])).unwrap()
        }

        /// Accepts a connection and answers one request on it.
        async fn answer(&self) -> TcpStream {
            let (mut stream, _) = timeout(WITHIN, self.listener.accept()).await.expect("nobody connects").unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(timeout(WITHIN, stream.read_u8()).await.expect("no request").unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            stream
        }
    }

    async fn get(cluster: &Cluster) -> Result<Value, Error> {
        let (kind, key) = (Kind::lease(), ObjectKey::new("n", "a"));
        let request = || Request::get(&kind, &key);
        cluster.exchange_in_turn(request, PARTIAL_METADATA, WITHIN, Urgency::InTurn).await.answer
    }

    async fn is_closed(mut stream: TcpStream) -> bool {
        timeout(WITHIN, stream.read(&mut [0])).await.is_ok_and(|read| !read.is_ok_and(|bytes| bytes > 0))
    }

    #[tokio::test]
    async fn equal_credentials_share_a_cluster_and_its_connection_until_the_last_user_is_gone() {
        let (server, clusters) = (Server::new().await, DynamicClusters::default());
        let one = server.cluster(&clusters, 1);
        let same = server.cluster(&clusters, 1);
        assert!(Arc::ptr_eq(&one, &same));
        let (answer, connection) = tokio::join!(get(&one), server.answer());
        answer.unwrap();
        drop(one);
        assert_eq!(clusters.0.lock().len(), 1, "it is still in use");
        drop(same);
        assert!(clusters.0.lock().is_empty(), "an entry is left");
        assert!(is_closed(connection).await, "the connection stays open");
    }

    #[tokio::test]
    async fn other_credentials_replace_a_cluster_without_disturbing_who_still_uses_it() {
        let (server, clusters) = (Server::new().await, DynamicClusters::default());
        let before = server.cluster(&clusters, 1);
        let (answer, first) = tokio::join!(get(&before), server.answer());
        answer.unwrap();
        let after = server.cluster(&clusters, 2);
        assert_ne!(before.fingerprint(), after.fingerprint());
        let (answer, second) = tokio::join!(get(&after), server.answer());
        answer.unwrap();
        drop(before);
        assert!(is_closed(first).await, "the connection of the old credentials stays open");
        assert_eq!(clusters.0.lock().keys().copied().collect::<Vec<_>>(), [Fingerprint([2; 32])]);
        // Put back: a new cluster, since the old one is gone.
        let again = server.cluster(&clusters, 1);
        assert_eq!(clusters.0.lock().len(), 2);
        drop((after, again));
        assert!(clusters.0.lock().is_empty() && is_closed(second).await);
    }

    #[tokio::test]
    async fn idle_clusters_have_no_connections() {
        let (server, clusters) = (Server::new().await, DynamicClusters::default());
        let all: Vec<_> = (0..=255).map(|number| server.cluster(&clusters, number)).collect();
        assert_eq!(clusters.0.lock().len(), all.len());
        let waited = timeout(Duration::from_millis(50), server.listener.accept()).await;
        assert!(waited.is_err(), "an idle cluster has a connection");
        drop(all);
        assert!(clusters.0.lock().is_empty());
    }
}
