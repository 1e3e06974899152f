//! One `[[sync]]` section: its caches, the index of what it knows about its pairs, and what requeues them.
//!
//! A watch event carries an object's key ([`Role`] says of which kind). `watch_events` translates it to the keys of pairs,
//! records in the [`Index`] what the caches show, and requests a reconcile from the dispatcher. The section requests nothing
//! before every cache that it decides from has finished its first list, and then requests every pair once (`run` begins and ends
//! that). The actor in `requeue` requeues pairs that wait for a cluster or a permission, those that runs and watches request, and
//! those with something to write again.
//!
//! - `identity` checks that the section talks to the same two clusters as before, and that no other daemon runs it; `protection`
//!   limits how many objects one mistake can delete or overwrite.
//! - `namespaces` decides whether a local namespace is ours and may be deleted, with the help of the index `namespace_use`.
//! - `events` says what is told in Events.
//! - `commands` are those of operators, and `settings` compares the configuration with that of the last run.

mod commands;
pub mod events;
pub mod identity;
mod namespace_use;
mod namespaces;
pub(crate) mod protection;
pub mod requeue;
pub(crate) mod run;
mod settings;
mod watch_events;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::actor::KeyMailbox;
use crate::cluster::events::EventMailbox;
use crate::cluster::{Cluster, FIELD_MANAGER, Fence, Kind, Store, Watch, WatchSpec};
use crate::config::{ClusterName, SectionName};
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::metrics::{Direction, SyncMetrics};
use crate::resource_sync::plan::names::{Mapping, PairKey};
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::run::index::Index;
use crate::resource_sync::run::index::expectations::Caches;
use crate::state::{Keeping, StateStore};
use namespace_use::NamespaceUse;
use protection::Sources;
pub(crate) use run::Mode;
use run::Run;
use watch_events::{PeerFollower, Role, SectionFollower, Side};

/// The default of `finalizer`, which suits a daemon that is the only one to follow the remote objects.
const DEFAULT_FINALIZER: &str = "sync-local";

/// The watches that a section follows.
pub struct Watches {
    /// The kind on the remote.
    pub remote: Arc<Watch>,
    /// The kind on the local cluster.
    pub local: Arc<Watch>,
    /// Namespaces of the local cluster.
    pub namespaces: Arc<Watch>,
    /// The named local secrets, one watch a name.
    pub secrets: Vec<Arc<Watch>>,
    /// The same secrets on the remote, where they may be watched.
    pub remote_secrets: Vec<Arc<Watch>>,
}

pub struct Section {
    pub(crate) config: SyncConfig,
    pub(crate) policy: Policy,
    pub(crate) mapping: Mapping,
    remote_manager: String,
    pub(crate) watches: Watches,
    requests: KeyMailbox<PairKey>,
    events: EventMailbox,
    /// Everything that the section knows. A lock and not an actor: watches, runs, the requeue actor and the report need the answer
    /// before they continue. It is held for one synchronous call ([`Section::index`]).
    index: Mutex<Index>,
    /// A lock of its own because every question about the caches begins with it, those under the lock of the index included.
    mode: Mutex<Mode>,
    pub(crate) metrics: SyncMetrics,
    /// Wakes the requeue actor when the index has work for it.
    requeue: Notify,
    /// Which objects of this section may keep a local namespace. It has locks of its own because the trackers of the caches
    /// write it under the locks of the caches, which are taken after that of the index.
    pub(crate) namespace_use: Arc<NamespaceUse>,
    /// The UIDs of all remote objects. An async lock of its own, held during the request for them, so that of many runs that
    /// need them one makes the request; no other lock is held then.
    pub(crate) sources: tokio::sync::Mutex<Sources>,
    /// All sections of the process, this one included.
    peers: OnceLock<Vec<Arc<Section>>>,
    /// Both clusters, under the section's fence.
    remote_cluster: Cluster,
    local_cluster: Cluster,
    pub(crate) fence: Option<Fence>,
    /// What the section holds while it runs. A lock of its own because dropping one of these handles notifies a watch, which
    /// must not happen under the lock of the index.
    pub(crate) run: RwLock<Run>,
    /// What it remembers beyond the process.
    state: Arc<StateStore>,
}

impl Section {
    /// A section over its watches; [`Section::follow`] makes it follow them. With a fence it sends no request while the fence
    /// is closed.
    pub fn new(
        config: SyncConfig,
        watches: Watches,
        requests: KeyMailbox<PairKey>,
        events: EventMailbox,
        fence: Option<Fence>,
        keeping: &Keeping,
    ) -> Arc<Self> {
        let fenced = |cluster: &Cluster| fence.as_ref().map_or_else(|| cluster.clone(), |fence| cluster.under(fence));
        let (remote_cluster, local_cluster) = (fenced(watches.remote.cluster()), fenced(watches.local.cluster()));
        remote_cluster.want_identity();
        local_cluster.want_identity();
        // Several daemons may follow the same remote objects, each with a finalizer and a field manager of its own.
        let remote_manager = if config.finalizer == DEFAULT_FINALIZER {
            FIELD_MANAGER.to_owned()
        } else {
            // A section's name has no dot, so this can't be a section's field manager on the local cluster.
            format!("{FIELD_MANAGER}-{}.remote", config.name)
        };
        let state = StateStore::new(&config, local_cluster.clone(), keeping);
        let mapping = Mapping::new(&config);
        let metrics = SyncMetrics::new(&config.name);
        let namespace_use = NamespaceUse::over(watches.remote.store(), watches.local.store(), &mapping);
        Arc::new(Self {
            policy: Policy::new(&config),
            mapping,
            namespace_use,
            remote_manager,
            config,
            watches,
            requests,
            events,
            index: Mutex::default(),
            mode: Mutex::default(),
            metrics,
            requeue: Notify::new(),
            sources: tokio::sync::Mutex::default(),
            peers: OnceLock::new(),
            remote_cluster,
            local_cluster,
            fence,
            run: RwLock::default(),
            state,
        })
    }

    /// Sets the peers of the section, and returns what it requires of its watches. To be called before any actor starts.
    #[must_use]
    pub fn follow(self: &Arc<Self>, peers: &[Arc<Section>]) -> Vec<(Arc<Watch>, WatchSpec)> {
        // Called once: the wiring makes all sections before any of them follows.
        let _ = self.peers.set(peers.to_vec());
        let watches = &self.watches;
        let follow = |watch: &Arc<Watch>, role: Role| {
            let follower = SectionFollower { section: Arc::clone(self), role };
            (Arc::clone(watch), WatchSpec::followed_by(Arc::new(follower)))
        };
        let (remote, spec) = follow(&watches.remote, Role::Remote);
        // The remote list has to be the newer one: otherwise a pair that was created between the two lists would look like a
        // local object whose remote object is missing.
        let list_after = vec![Arc::clone(&watches.local)];
        let spec = WatchSpec { remember_terminated: true, index_uids: true, list_after, ..spec };
        let mut specs = vec![(remote, spec), follow(&watches.local, Role::Local)];
        specs.push(follow(&watches.namespaces, Role::Namespaces));
        specs.extend(watches.secrets.iter().map(|watch| follow(watch, Role::Secrets)));
        specs.extend(watches.remote_secrets.iter().map(|watch| follow(watch, Role::RemoteSecrets)));
        if self.fence.is_some() {
            // A peer may run in another replica, and then its runs can't tell this process that a pair has ended.
            for peer in self.others_here() {
                for (watch, side) in [(&peer.watches.remote, Side::Remote), (&peer.watches.local, Side::Local)] {
                    let follower = PeerFollower { section: Arc::clone(self), peer: Arc::clone(&peer), side };
                    specs.push((Arc::clone(watch), WatchSpec::followed_by(Arc::new(follower))));
                }
            }
        }
        specs
    }

    /// Calls `call` with the index locked. The closure must not call methods of the section, which would deadlock.
    pub(crate) fn index<R>(&self, call: impl FnOnce(&mut Index) -> R) -> R {
        call(&mut self.index.lock())
    }

    /// Wakes the requeue actor; the index says what it has to do.
    pub(crate) fn wake_requeue(&self) {
        self.requeue.notify_one();
    }

    pub(crate) async fn requeue_woken(&self) {
        self.requeue.notified().await;
    }

    /// All sections of the process, this one included.
    pub(crate) fn peers(&self) -> &[Arc<Section>] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    pub fn name(&self) -> &SectionName {
        &self.config.name
    }

    pub fn config(&self) -> &SyncConfig {
        &self.config
    }

    /// The settings that the rules depend on.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The mapping between remote and local names.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    pub(crate) fn remote_manager(&self) -> &str {
        &self.remote_manager
    }

    pub(crate) fn remote_cluster(&self) -> &Cluster {
        &self.remote_cluster
    }

    pub(crate) fn local_cluster(&self) -> &Cluster {
        &self.local_cluster
    }

    pub(crate) fn remote_kind(&self) -> Option<Arc<Kind>> {
        self.watches.remote.kind()
    }

    pub(crate) fn local_kind(&self) -> Option<Arc<Kind>> {
        self.watches.local.kind()
    }

    /// Whether it syncs or is being detached.
    pub(crate) fn mode(&self) -> Mode {
        *self.mode.lock()
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    /// The caches that it decides from.
    pub(crate) fn needed(&self) -> Vec<&Arc<Watch>> {
        let watches = &self.watches;
        if self.mode() == Mode::DetachingLocalGone {
            return vec![&watches.remote];
        }
        let mut needed = vec![&watches.remote, &watches.local];
        if self.local_kind().is_none_or(|kind| kind.namespaced) {
            needed.push(&watches.namespaces);
        }
        needed
    }

    pub fn state(&self) -> &Arc<StateStore> {
        &self.state
    }

    /// Whether the stored state has been read, or is not needed because the local cluster, which holds it, is gone.
    pub(crate) fn state_is_known(&self) -> bool {
        self.state.is_known() || self.mode() == Mode::DetachingLocalGone
    }

    /// Whether it can decide: its state and all caches that it decides from have been read.
    pub fn is_listed(&self) -> bool {
        if !self.state_is_known() {
            return false;
        }
        let run = self.run.read();
        self.needed().iter().all(|watch| run.knows(watch))
    }

    /// Whether the caches were listed with the credentials now in use. New credentials may lead to another cluster, so the
    /// caches count again only after the next lists.
    pub(crate) fn caches_match_sessions(&self) -> bool {
        let listed_before = |watch: &&Arc<Watch>| watch.store().is_listed() && !watch.is_of_session();
        let secrets = self.watches.secrets.iter().chain(&self.watches.remote_secrets);
        !self.needed().iter().any(listed_before)
            && (self.mode() == Mode::DetachingLocalGone || !secrets.into_iter().any(|watch| listed_before(&watch)))
    }

    /// Whether the guard does not know all pending changes yet, for example because a list has just ended.
    pub(crate) fn pending_changes_incomplete(&self) -> bool {
        self.index(|index| index.phase.is_noting()) || self.needed().iter().any(|watch| watch.is_noting())
    }

    /// Whether both clusters answer.
    pub fn is_available(&self) -> bool {
        self.remote_cluster().is_available()
            && (self.mode() == Mode::DetachingLocalGone || self.local_cluster().is_available())
    }

    /// The caches that have to show our own writes.
    pub(crate) fn caches(&self) -> Caches<'_, Store> {
        fn stores(watches: &[Arc<Watch>]) -> Vec<&Store> {
            watches.iter().map(|watch| watch.store()).collect()
        }
        let watches = &self.watches;
        Caches {
            remote: watches.remote.store(),
            local: watches.local.store(),
            namespaces: watches.namespaces.store(),
            secrets: [stores(&watches.remote_secrets), stores(&watches.secrets)],
        }
    }

    /// Requests a reconcile; waits while the dispatcher has no room for another key.
    pub async fn request(&self, key: PairKey) {
        let ended = self.run.read().ended();
        tokio::select! {
            biased;
            // A stopped dispatcher never makes room, and the waiting watch would hold up the other sections that follow it.
            () = ended.cancelled() => {}
            // Closed only when the process ends.
            _ = self.requests.request(key) => {}
        }
    }

    /// How many keys wait in the dispatcher's mailbox.
    pub(crate) fn requests_waiting(&self) -> usize {
        self.requests.gauge().read().depth
    }

    /// Requests a reconcile of every pair.
    pub async fn request_all(&self) {
        for key in self.all_pairs() {
            self.request(key).await;
        }
    }

    /// All pairs of which either cache or the index knows something, and those that a namespace names as its owner.
    pub(crate) fn all_pairs(&self) -> BTreeSet<PairKey> {
        let watches = &self.watches;
        let mut keys: BTreeSet<PairKey> =
            watches.remote.store().keys().iter().filter_map(|key| self.mapping.pair_of_remote(key)).collect();
        keys.extend(watches.local.store().keys().iter().filter_map(|key| self.mapping.pair_of_local(key)));
        for namespace in watches.namespaces.store().objects() {
            keys.extend(self.owner_in(&namespace));
            keys.extend(self.claimed_in(&namespace));
        }
        // An object may have gone unobserved, and its pair still has a state to report.
        self.index(|index| keys.extend(index.table.keys().cloned()));
        keys
    }

    /// How many permissions that were denied have been granted since, on both sides.
    pub(crate) fn permissions(&self) -> u64 {
        self.remote_cluster().permissions() + self.local_cluster().permissions()
    }

    /// The cluster to which this direction writes.
    pub(crate) fn written_to(&self, direction: Direction) -> &ClusterName {
        match direction {
            Direction::Spec => &self.config.local,
            Direction::Status => &self.config.remote,
        }
    }
}
