//! One `[[sync]]` section: the caches it decides from, the index of what it knows, and who wakes whom.
//!
//! The watches tell the section keys of objects ([`Role`] says what kind of key); it translates them to pairs, notes what they
//! show in its [`Index`] and asks the dispatcher for a reconcile (`watch_events`; `peer_watch` for watches of other sections).
//! Nothing is asked for before every cache the section decides from has finished its first list; when the last one has, every
//! pair is asked for once (`run` is a section's time at work). What waits for a cluster or a permission is requested again by
//! the `attendant`, together with what runs asked for (`requests`) and what is due to be written again (`write_again`).
//!
//! `standing` says whether these are the clusters of before, `protection` stands between a mistake and many objects,
//! `namespaces` says whose a local namespace is and whether it may go, from the index `namespace_use`. `approve` and `detach`
//! are operators' commands, `obstacles` is why a section can't decide, `twin` finds another daemon that runs it; `left_behind`,
//! `left_fields` and `left_secrets` find what earlier settings have left.

mod approve;
pub mod attendant;
mod detach;
pub(crate) mod left_behind;
mod left_fields;
mod left_secrets;
mod namespace_use;
mod namespaces;
mod obstacles;
mod peer_watch;
pub(crate) mod protection;
mod requests;
pub(crate) mod run;
pub mod standing;
mod twin;
mod watch_events;
mod write_again;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::namespace_use::NamespaceUse;
use self::peer_watch::{PeerFollower, Side};
use self::protection::Sources;
use self::run::Run;
use self::watch_events::{Role, SectionFollower};
use crate::actor::KeyMailbox;
use crate::cluster::{Cluster, FIELD_MANAGER, Fence, Kind, ObjectKey, Store, Watch, WatchSpec};
use crate::config::SectionName;
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::index::Index;
use crate::resource_sync::index::expectations::Caches;
use crate::resource_sync::index::phase::Mode;
use crate::resource_sync::report::events::{EventMailbox, PairEvent};
use crate::resource_sync::rules::names::{Mapping, PairKey};
use crate::resource_sync::rules::ownership;
use crate::resource_sync::rules::plan::{Absence, Namespace, Observed, Policy, Remote};
use crate::resource_sync::rules::secrets::{self, RemoteSecret, SecretView};
use crate::state::{Keeper, Keeping};

/// The configuration's default: one daemon alone follows the remote objects.
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

/// A section.
pub struct Section {
    pub(crate) config: SyncConfig,
    pub(crate) policy: Policy,
    pub(crate) mapping: Mapping,
    remote_manager: String,
    pub(crate) watches: Watches,
    requests: KeyMailbox<PairKey>,
    events: EventMailbox,
    /// Everything that it knows, for one synchronous call at a time ([`Section::index`]).
    index: Mutex<Index>,
    /// Wakes the attendant: the index has something for it.
    attendant: Notify,
    /// What of this section may keep a local namespace. It has locks of its own, since the trackers of the caches write it.
    pub(crate) namespace_use: Arc<NamespaceUse>,
    /// Held while the remote is asked, so that it is asked once.
    pub(crate) sources: tokio::sync::Mutex<Sources>,
    /// All sections of the process, this one included.
    peers: OnceLock<Vec<Arc<Section>>>,
    /// Both clusters, under the section's fence.
    remote_cluster: Cluster,
    local_cluster: Cluster,
    pub(crate) fence: Option<Fence>,
    /// What it holds while it runs: handles, which are not dropped under the lock of the index.
    pub(crate) run: RwLock<Run>,
    /// What it has to know after its process ended.
    state: Arc<Keeper>,
}

impl Section {
    /// A section over its watches; [`Section::follow`] makes it follow them. Under a fence it sends nothing while that is
    /// closed.
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
        // Several daemons may follow the same remote objects; each has a finalizer, and so a field manager, of its own.
        let remote_manager = if config.finalizer == DEFAULT_FINALIZER {
            FIELD_MANAGER.to_owned()
        } else {
            // A section's name has no dot: this is no section's manager of local objects.
            format!("{FIELD_MANAGER}-{}.remote", config.name)
        };
        let state = Keeper::new(&config, local_cluster.clone(), keeping);
        let mapping = Mapping::new(&config);
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
            attendant: Notify::new(),
            sources: tokio::sync::Mutex::default(),
            peers: OnceLock::new(),
            remote_cluster,
            local_cluster,
            fence,
            run: RwLock::default(),
            state,
        })
    }

    /// Makes its peers known to the section. Returns what it requires of its watches. Before any actor starts.
    #[must_use]
    pub fn follow(self: &Arc<Self>, peers: &[Arc<Section>]) -> Vec<(Arc<Watch>, WatchSpec)> {
        // Once: all sections are there before any of them follows.
        let _ = self.peers.set(peers.to_vec());
        let watches = &self.watches;
        let follow = |watch: &Arc<Watch>, role: Role| {
            let follower = SectionFollower { section: Arc::clone(self), role };
            (Arc::clone(watch), WatchSpec::followed_by(Arc::new(follower)))
        };
        let (remote, spec) = follow(&watches.remote, Role::Remote);
        // A local object that the remote list does not have yet must not look as if its remote one were missing.
        let list_after = vec![Arc::clone(&watches.local)];
        let spec = WatchSpec { remember_terminated: true, index_uids: true, list_after, ..spec };
        let mut specs = vec![(remote, spec), follow(&watches.local, Role::Local)];
        specs.push(follow(&watches.namespaces, Role::Namespaces));
        specs.extend(watches.secrets.iter().map(|watch| follow(watch, Role::Secrets)));
        specs.extend(watches.remote_secrets.iter().map(|watch| follow(watch, Role::RemoteSecrets)));
        if self.fence.is_some() {
            // What happens to a peer's pairs, its own process tells it alone.
            for peer in self.others_here() {
                for (watch, side) in [(&peer.watches.remote, Side::Remote), (&peer.watches.local, Side::Local)] {
                    let follower = PeerFollower { section: Arc::clone(self), peer: Arc::clone(&peer), side };
                    specs.push((Arc::clone(watch), WatchSpec::followed_by(Arc::new(follower))));
                }
            }
        }
        specs
    }

    /// What it knows, for a call that neither waits nor asks the section for anything: it would wait for itself.
    pub(crate) fn index<R>(&self, call: impl FnOnce(&mut Index) -> R) -> R {
        call(&mut self.index.lock())
    }

    /// Wakes the attendant, with something in the index that it is to do.
    pub(crate) fn wake_attendant(&self) {
        self.attendant.notify_one();
    }

    /// Waits until the index has something for the attendant.
    pub(crate) async fn asked(&self) {
        self.attendant.notified().await;
    }

    /// All sections of the process, this one included.
    pub(crate) fn peers(&self) -> &[Arc<Section>] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    /// Its name.
    pub fn name(&self) -> &SectionName {
        &self.config.name
    }

    /// Its configuration.
    pub fn config(&self) -> &SyncConfig {
        &self.config
    }

    /// What the rules depend on.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The rule between names.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its watches.
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

    /// What it is about.
    pub(crate) fn mode(&self) -> Mode {
        self.index(|index| index.phase.mode)
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.index(|index| index.phase.mode = mode);
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

    /// What it has to know after its process ended.
    pub fn state(&self) -> &Arc<Keeper> {
        &self.state
    }

    /// Whether the state is known, or not needed: without the local cluster it can't be read.
    pub(crate) fn state_is_known(&self) -> bool {
        self.state.is_known() || self.mode() == Mode::DetachingLocalGone
    }

    /// Whether it can decide.
    pub fn is_listed(&self) -> bool {
        if !self.state_is_known() {
            return false;
        }
        let run = self.run.read();
        self.needed().iter().all(|watch| run.knows(watch))
    }

    /// Whether the caches are of the clusters that requests now go to: new credentials may lead to other ones, until the
    /// next lists have ended.
    pub(crate) fn is_of_sessions(&self) -> bool {
        let listed_before = |watch: &&Arc<Watch>| watch.store().is_listed() && !watch.is_of_session();
        let secrets = self.watches.secrets.iter().chain(&self.watches.remote_secrets);
        !self.needed().iter().any(listed_before)
            && (self.mode() == Mode::DetachingLocalGone || !secrets.into_iter().any(|watch| listed_before(&watch)))
    }

    /// Whether a list has just ended of which the guard does not know the suspects yet.
    pub(crate) fn is_noting(&self) -> bool {
        self.index(|index| index.phase.is_noting()) || self.needed().iter().any(|watch| watch.is_noting())
    }

    /// Whether both clusters answer.
    pub fn is_available(&self) -> bool {
        self.remote_cluster().is_available()
            && (self.mode() == Mode::DetachingLocalGone || self.local_cluster().is_available())
    }

    /// How long a run of the pair has to wait until the caches show our own writes; `None`: it may go on.
    pub(crate) fn wait_for_caches(&self, key: &PairKey) -> Option<Duration> {
        fn stores(watches: &[Arc<Watch>]) -> Vec<&Store> {
            watches.iter().map(|watch| watch.store()).collect()
        }
        let watches = &self.watches;
        self.index(|index| {
            // Most have nothing outstanding.
            index.expectations.of(key)?;
            let caches = Caches {
                remote: watches.remote.store(),
                local: watches.local.store(),
                namespaces: watches.namespaces.store(),
                secrets: [stores(&watches.remote_secrets), stores(&watches.secrets)],
            };
            index.expectations.wait(key, &caches, Instant::now())
        })
    }

    /// Asks for a reconcile; waits while the dispatcher has no room for another key.
    pub async fn request(&self, key: PairKey) {
        let ended = self.run.read().ended();
        tokio::select! {
            biased;
            // Nobody would ever make room, and whoever tells of the key would wait with all it has to tell others.
            () = ended.cancelled() => {}
            // Closed only when the process ends.
            _ = self.requests.request(key) => {}
        }
    }

    /// How many keys wait in the dispatcher's mailbox.
    pub(crate) fn requests_waiting(&self) -> usize {
        self.requests.gauge().read().depth
    }

    /// Asks for every pair that either side knows.
    pub async fn request_all(&self) {
        for key in self.all_pairs() {
            self.request(key).await;
        }
    }

    /// The local keys of all pairs, and of owned namespaces whose objects are gone.
    pub(crate) fn all_pairs(&self) -> BTreeSet<PairKey> {
        let watches = &self.watches;
        let mut keys: BTreeSet<PairKey> =
            watches.remote.store().keys().iter().filter_map(|key| self.mapping.pair_of_remote(key)).collect();
        keys.extend(watches.local.store().keys().iter().filter_map(|key| self.mapping.pair_of_local(key)));
        for namespace in watches.namespaces.store().objects() {
            keys.extend(self.owner_in(&namespace));
            keys.extend(self.claimed_in(&namespace));
        }
        // Of what went unseen, too, something may be left to be told.
        self.index(|index| keys.extend(index.table.keys().cloned()));
        keys
    }

    /// Waits for the cluster or a permission: asked for again by the attendant.
    pub(crate) fn park(&self, key: PairKey) {
        self.index(|index| index.requests.parked.insert(key));
    }

    /// Asks for everything that was parked.
    pub(crate) async fn unpark(&self) {
        let parked = self.index(|index| index.requests.parked.seen());
        for (key, added) in parked {
            self.request(key.clone()).await;
            self.index(|index| index.requests.parked.requested(&key, added));
        }
    }

    /// How often a denied permission was given, on either side.
    pub(crate) fn permissions(&self) -> u64 {
        self.remote_cluster().permissions() + self.local_cluster().permissions()
    }

    /// Tells an Event; dropped and counted when there is no room.
    pub(crate) fn tell(&self, event: PairEvent) {
        if self.config.dry_run {
            return;
        }
        // A dropped hint is counted by the mailbox.
        let _ = self.events.offer(event);
    }

    /// Everything that a decision about the pair depends on, as the caches show it.
    pub(crate) fn observe(&self, key: &PairKey) -> Observed {
        let PairKey { local: local_key, remote: remote_key } = key;
        let watches = &self.watches;
        let remote = match watches.remote.store().get(remote_key) {
            Some(object) => Remote::Present(object),
            None if watches.remote.store().absence(remote_key).seen_terminating => {
                Remote::Absent(Absence::SeenTerminating)
            }
            None => Remote::Absent(Absence::Unexplained),
        };
        let local = watches.local.store().get(local_key);
        let namespace = if local_key.namespace.is_empty() {
            Namespace::None
        } else {
            match watches.namespaces.store().get(&ObjectKey::new("", Arc::clone(&local_key.namespace))) {
                Some(object) => Namespace::Present { ours: self.owns(&object), object },
                None => Namespace::Missing,
            }
        };
        let ending = !matches!(&remote, Remote::Present(remote) if !remote.deleting);
        let namespace_in_use =
            ending && matches!(namespace, Namespace::Present { ours: true, .. }) && self.is_in_use(key);
        let namespace_end_is_awaited = matches!(&namespace, Namespace::Present { object, ours: true }
            if ownership::namespace_proof(object, &self.policy).is_ok() && self.another_awaits_end_of(object, key));
        let source_lives_at =
            local.as_ref().filter(|_| ending).and_then(|local| self.source_lives_at(local, remote_key));
        let present = match &remote {
            Remote::Present(remote) => Some(&**remote),
            Remote::Absent(_) => None,
        };
        let (server_result, local_was_there) =
            self.index(|index| index.observe(key, present, local.as_deref(), &self.policy, Instant::now()));
        let secrets = self.secrets_of(key, &remote);
        Observed {
            pair: key.clone(),
            remote,
            local,
            local_status_unknown: false,
            remote_generation_unknown: false,
            namespace,
            namespace_in_use,
            namespace_end_is_awaited,
            local_was_there,
            source_lives_at,
            clusters: self.clusters_view(),
            permitted: None,
            secrets,
            server_result,
            contended: Vec::new(),
        }
    }

    fn secrets_of(&self, pair: &PairKey, remote: &Remote) -> Vec<SecretView> {
        if self.watches.secrets.is_empty() || !self.policy.write_back {
            return Vec::new();
        }
        let owner = match remote {
            Remote::Present(remote) => Some(Arc::clone(&remote.uid)),
            Remote::Absent(_) => None,
        };
        let now = Instant::now();
        let mut views = Vec::new();
        for (index, watch) in self.watches.secrets.iter().enumerate() {
            let Some(name) = self.config.secret_names.get(index) else { continue };
            let key = ObjectKey::new(Arc::clone(&pair.local.namespace), name.as_str());
            // From a cache that is void nothing is taken up.
            let Some(secret) = watch.store().get(&key).filter(|_| self.knows(watch)) else { continue };
            let on_remote = match self.watches.remote_secrets.get(index).filter(|watch| self.knows(watch)) {
                Some(watch) => {
                    let key = ObjectKey::new(Arc::clone(&pair.remote.namespace), self.mapping.remote_secret_name(name));
                    RemoteSecret::Watched(watch.store().get(&key).map(|secret| {
                        let hash = secrets::hash(&secret, &self.policy.marks);
                        (hash, secret.controller.as_ref().map(|owner| Arc::clone(&owner.uid)))
                    }))
                }
                None => RemoteSecret::Unwatched { due: self.refresh_is_due(pair, &secret.key.name, now) },
            };
            views.push(SecretView::new(secret, &self.policy.marks, on_remote, owner.clone()));
        }
        views
    }

    /// Whether an unchanged secret is to be written again: counted from its last upload, or from when it was first seen.
    fn refresh_is_due(&self, key: &PairKey, name: &Arc<str>, now: Instant) -> bool {
        let Some(interval) = self.config.secret_refresh else { return false };
        let uploaded = self.index(|index| *index.table.pair(key, now).uploads.entry(Arc::clone(name)).or_insert(now));
        now.saturating_duration_since(uploaded) >= interval
    }

    /// Asks for the pairs with a secret that is due to be written again.
    pub(crate) async fn request_due_secrets(&self) {
        let Some(interval) = self.config.secret_refresh else { return };
        let due = self.index(|index| index.table.with_uploads_before(Instant::now(), interval));
        for key in due {
            self.request(key).await;
        }
    }

    /// How many objects still bear a mark that detaching takes off.
    pub(crate) fn left_to_detach(&self) -> usize {
        let marks = &self.policy.marks;
        let watches = &self.watches;
        let unselected = usize::from(self.index(|index| index.requests.unselected)) + self.unselected_and_held();
        let remotes = watches.remote.store().objects();
        let held = remotes.iter().filter(|remote| {
            marks.holds(remote) && !self.is_held_elsewhere(remote) && self.mapping.covers_remote(&remote.key)
        });
        if self.mode() == Mode::DetachingLocalGone {
            return unselected + held.count();
        }
        let locals = watches.local.store().objects();
        let marked = locals.iter().filter(|local| {
            let is_marked = [&marks.remote_uid, &marks.adopted, &marks.released]
                .iter()
                .any(|mark| marks.value_of(local, mark).is_some());
            is_marked && self.mapping.covers_local(&local.key) && !self.is_from_elsewhere(local)
        });
        let namespaces = watches.namespaces.store().objects();
        let owned = namespaces.iter().filter(|namespace| self.owner_in(namespace).is_some());
        unselected + held.count() + marked.count() + owned.count()
    }

    /// How many remote objects that are not selected are known to bear our finalizer.
    fn unselected_and_held(&self) -> usize {
        if self.config.selector.is_empty() {
            return 0;
        }
        let holding = self.index(|index| index.table.holding());
        holding.iter().filter(|key| self.watches.remote.store().get(&key.remote).is_none()).count()
    }
}
