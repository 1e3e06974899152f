//! The watcher actor: one watch, one cache, many followers.
//!
//! It owns the [`Store`] of one kind in one cluster (under one selector) and is its only writer. For every event it first
//! changes the cache and then tells each follower the *key*. A follower whose mailbox is full makes the watcher wait, and
//! then the stream is not read further: backpressure reaches the API server. After a restart it lists again; objects that
//! vanished in the meantime are reported as deletions that nobody saw terminating. It runs while somebody
//! [demands](Watch::demand) it; while nobody does, it sends no requests and holds no objects.
//!
//! kube's watcher speaks the protocol (streaming lists where the server has them, paged lists otherwise, resuming, 410).
//! This actor adds what kube leaves to its caller: which errors void the cache, when to wait for the cluster and when for
//! the kind, and a new client when the credentials change.
//!
//! What the users of a watch require of it is a [`WatchSpec`]. The registry merges the specifications of all users before
//! the actor starts; nothing changes them afterwards.

mod definition;
mod demand;
mod end;
mod id;
mod run;
#[cfg(test)]
pub(crate) mod scripted;
mod spec;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::client::Cluster;
use super::kind::Kind;
use super::store::Store;
use crate::actor::Backoff;
use definition::Definition;
pub use demand::Demand;
use demand::Demands;
pub use id::WatchId;
pub use spec::{Follower, Projection, WatchSpec};

/// Back-off while a kind is missing or a permission denied; the cap is the spec's.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// A watch: its cache and its followers.
pub struct Watch {
    id: WatchId,
    cluster: Cluster,
    store: Store,
    /// What its users require. The only lock here: the registry writes it while the sections are wired, and every event
    /// reads it afterwards.
    spec: RwLock<Arc<WatchSpec>>,
    kind: watch::Sender<Option<Arc<Kind>>>,
    /// The epoch of the credentials that the last list was made with.
    listed_epoch: AtomicU64,
    /// The followers are being told about the list that has just ended.
    noting: AtomicBool,
    /// The connection was lost after the last list began: another cluster may answer now.
    lost: AtomicBool,
    /// A new list was requested because of that.
    list_asked: AtomicBool,
    list_again: Notify,
    /// The kind could not be listed because that was not granted.
    was_denied: AtomicBool,
    demands: Demands,
    /// The stream has delivered an event since it last failed.
    is_live: AtomicBool,
    /// It keeps failing although the cluster answers: since when, and why.
    broken: watch::Sender<Option<(Instant, String)>>,
    /// What is known of changes of the kind's definition.
    definition: Definition,
}

impl Watch {
    /// A watch that nobody uses yet; its actor is [`Watch::run`].
    pub fn new(id: WatchId, cluster: Cluster) -> Arc<Self> {
        Arc::new(Self {
            id,
            cluster,
            store: Store::default(),
            spec: RwLock::default(),
            kind: watch::Sender::new(None),
            listed_epoch: AtomicU64::new(0),
            noting: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            list_asked: AtomicBool::new(false),
            list_again: Notify::new(),
            was_denied: AtomicBool::new(false),
            demands: Demands::default(),
            is_live: AtomicBool::new(false),
            broken: watch::Sender::new(None),
            definition: Definition::default(),
        })
    }

    pub fn id(&self) -> &WatchId {
        &self.id
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Adds what a user requires as well. Before the actor starts: the registry alone calls this.
    pub(super) fn specify(self: &Arc<Self>, spec: WatchSpec) {
        self.add(spec, WatchSpec::merge);
    }

    /// Adds another user, and what it requires. Before the actor starts: the registry alone calls this.
    pub(super) fn share(self: &Arc<Self>, spec: WatchSpec) {
        self.add(spec, WatchSpec::share);
    }

    fn add(self: &Arc<Self>, mut spec: WatchSpec, merge: fn(&mut WatchSpec, WatchSpec)) {
        spec.list_after.retain(|other| !Arc::ptr_eq(self, other) && !other.waits_for(self));
        let mut current = self.spec.write();
        let mut merged = WatchSpec::clone(&current);
        merge(&mut merged, spec);
        self.store.keep(merged.remember_terminated, merged.index_uids);
        *current = Arc::new(merged);
    }

    fn spec(&self) -> Arc<WatchSpec> {
        Arc::clone(&self.spec.read())
    }

    fn waits_for(&self, other: &Arc<Self>) -> bool {
        self.spec().list_after.iter().any(|first| Arc::ptr_eq(first, other) || first.waits_for(other))
    }

    /// Whether the cache is complete and shows the cluster that a request sent now would reach. Between a change of
    /// credentials or a lost connection, after which another cluster may answer, and the end of the next list it does not.
    pub fn is_current(&self) -> bool {
        self.store.is_listed()
            && !self.store.is_listing()
            && !self.is_noting()
            && !self.lost.load(Ordering::Acquire)
            && self.is_of_session()
    }

    /// Whether the last list was made with the current credentials.
    pub fn is_of_session(&self) -> bool {
        self.cluster.epoch() == Some(self.listed_epoch.load(Ordering::Acquire))
    }

    /// Whether some followers have yet to note the list that has just ended.
    pub fn is_noting(&self) -> bool {
        self.noting.load(Ordering::Acquire)
    }

    /// Requests a new list, once, if the connection was lost since the last one and the watch was resumed: only a list
    /// proves that the cache shows the cluster that answers now.
    pub fn become_current(&self) {
        if self.lost.load(Ordering::Acquire) && !self.list_asked.swap(true, Ordering::AcqRel) {
            self.list_again.notify_one();
        }
    }

    /// Whether the list has ended and the stream has delivered an event since it last failed: changes become visible.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire) && !self.store.is_listing()
    }

    /// Requests a new list, once, if the stream has failed since it last delivered something: where nothing changes, only a list shows that
    /// the watch goes on.
    pub fn become_live(&self) {
        let is_resumed = self.store.is_listed() && !self.is_live() && !self.store.is_listing();
        if is_resumed && self.cluster.is_available() && !self.list_asked.swap(true, Ordering::AcqRel) {
            self.list_again.notify_one();
        }
    }

    /// For how long the watch has kept failing although the cluster answers, and why: changes do not become visible.
    pub fn broken(&self) -> Option<(Duration, String)> {
        self.broken.borrow().as_ref().map(|(since, reason)| (since.elapsed(), reason.clone()))
    }

    /// The kind, once it was discovered.
    pub fn kind(&self) -> Option<Arc<Kind>> {
        self.kind.borrow().clone()
    }

    /// A list with the credentials of this epoch has ended.
    fn listed_with(&self, epoch: u64) {
        self.listed_epoch.store(epoch, Ordering::Release);
        self.lost.store(false, Ordering::Release);
        self.list_asked.store(false, Ordering::Release);
    }
}
