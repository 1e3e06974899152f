//! One `[[sync]]` section: the caches it decides from, what it remembers of its pairs, and who wakes whom.
//!
//! The watchers tell the section keys ([`Role`] says what kind of key); it translates them to the *local* key of the
//! pair and asks the dispatcher for a reconcile. Nothing is asked for before every cache the section decides from has
//! finished its first list; when the last one has, every pair is asked for once. Pairs that wait for a cluster or for a
//! permission are parked here and asked for again together by the section's attendant.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::events::{EventMailbox, PairEvent};
use super::guard::Guard;
use super::marks::NamespaceOwner;
use super::names::Mapping;
use super::plan::{self, Absence, Namespace, Observed, Policy, Remote};
use super::secrets::{self, RemoteSecret, SecretView};
use super::table::Table;
use crate::actor::KeyMailbox;
use crate::cluster::{Cluster, FIELD_MANAGER, Follower, Kind, Listed, Object, ObjectKey, Watch};
use crate::config::{SectionName, SyncConfig};

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

/// What the section is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Keeping pairs in step.
    Syncing = 0,
    /// Taking our marks off both sides.
    Detaching = 1,
    /// Taking our finalizer off the remote; the local cluster is gone.
    DetachingLocalGone = 2,
}

/// A section.
pub struct Section {
    config: SyncConfig,
    policy: Policy,
    mapping: Mapping,
    remote_manager: String,
    watches: Watches,
    requests: KeyMailbox<ObjectKey>,
    events: EventMailbox,
    mode: AtomicU8,
    pub(super) table: Mutex<Table>,
    pub(super) guard: Mutex<Guard>,
    parked: Mutex<HashSet<ObjectKey>>,
    /// All sections of the process, this one included.
    peers: RwLock<Vec<Arc<Section>>>,
}

/// What a watch is to a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The kind on the remote.
    Remote,
    /// The kind on the local cluster.
    Local,
    /// Namespaces of the local cluster.
    Namespaces,
    /// A named secret on the local cluster.
    Secrets,
    /// A named secret on the remote.
    RemoteSecrets,
}

impl Section {
    /// A section over its watches; [`Section::follow`] makes it follow them.
    pub fn new(
        config: SyncConfig,
        watches: Watches,
        requests: KeyMailbox<ObjectKey>,
        events: EventMailbox,
    ) -> Arc<Self> {
        // Several daemons may follow the same remote objects; each has a finalizer, and so a field manager, of its own.
        let remote_manager = if config.finalizer == DEFAULT_FINALIZER {
            FIELD_MANAGER.to_owned()
        } else {
            format!("{FIELD_MANAGER}-{}", config.name)
        };
        Arc::new(Self {
            policy: Policy::new(&config),
            mapping: Mapping::new(&config),
            remote_manager,
            config,
            watches,
            requests,
            events,
            mode: AtomicU8::new(Mode::Syncing as u8),
            table: Mutex::default(),
            guard: Mutex::default(),
            parked: Mutex::default(),
            peers: RwLock::default(),
        })
    }

    /// Makes the section follow its watches, and know its peers. Before any actor starts.
    pub fn follow(self: &Arc<Self>, peers: &[Arc<Section>]) {
        *self.peers.write() = peers.to_vec();
        let watches = &self.watches;
        let follow = |watch: &Arc<Watch>, role: Role| {
            watch.follow(Arc::new(Following { section: Arc::clone(self), role }));
        };
        follow(&watches.remote, Role::Remote);
        follow(&watches.local, Role::Local);
        follow(&watches.namespaces, Role::Namespaces);
        watches.secrets.iter().for_each(|watch| follow(watch, Role::Secrets));
        watches.remote_secrets.iter().for_each(|watch| follow(watch, Role::RemoteSecrets));
        // A local object that the remote list does not have yet must not look as if its remote one were missing.
        watches.remote.list_after(&watches.local);
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

    pub(super) fn remote_manager(&self) -> &str {
        &self.remote_manager
    }

    pub(super) fn remote_cluster(&self) -> &Cluster {
        self.watches.remote.cluster()
    }

    pub(super) fn local_cluster(&self) -> &Cluster {
        self.watches.local.cluster()
    }

    pub(super) fn remote_kind(&self) -> Option<Arc<Kind>> {
        self.watches.remote.kind()
    }

    pub(super) fn local_kind(&self) -> Option<Arc<Kind>> {
        self.watches.local.kind()
    }

    /// What it is about.
    pub fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Acquire) {
            1 => Mode::Detaching,
            2 => Mode::DetachingLocalGone,
            _ => Mode::Syncing,
        }
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Release);
    }

    /// The caches that it decides from.
    fn needed(&self) -> Vec<&Arc<Watch>> {
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

    /// Whether it can decide.
    pub fn is_listed(&self) -> bool {
        self.needed().iter().all(|watch| watch.store().is_listed())
    }

    /// The first reason why it can't decide, and whether that is a cluster that does not answer.
    pub fn not_listed_because(&self) -> Option<(String, bool)> {
        self.needed().into_iter().find_map(|watch| {
            let id = watch.id();
            match &*watch.store().listed().borrow() {
                Listed::Yes => None,
                Listed::No { reason, unreachable } => Some((
                    format!(
                        "{} in cluster {}: {}",
                        id.resource,
                        id.cluster,
                        reason.as_deref().unwrap_or("the first list has not ended")
                    ),
                    *unreachable,
                )),
            }
        })
    }

    /// Whether both clusters answer.
    pub fn is_available(&self) -> bool {
        self.remote_cluster().is_available()
            && (self.mode() == Mode::DetachingLocalGone || self.local_cluster().is_available())
    }

    /// How many objects the section has, for the guard.
    pub fn objects(&self) -> usize {
        self.watches.local.store().len()
    }

    /// Asks for a reconcile; waits while the dispatcher has no room for another key.
    pub async fn request(&self, key: ObjectKey) {
        // Closed only when the process ends.
        let _ = self.requests.request(key).await;
    }

    /// How many keys wait in the dispatcher's mailbox.
    pub(super) fn requests_waiting(&self) -> usize {
        self.requests.gauge().read().depth
    }

    /// Asks for every pair that either side knows.
    pub async fn request_all(&self) {
        for key in self.all_pairs() {
            self.request(key).await;
        }
    }

    /// The local keys of all pairs, and of owned namespaces whose objects are gone.
    pub(super) fn all_pairs(&self) -> BTreeSet<ObjectKey> {
        let watches = &self.watches;
        let mut keys: BTreeSet<ObjectKey> =
            watches.remote.store().keys().iter().filter_map(|key| self.mapping.local_of(key)).collect();
        keys.extend(watches.local.store().keys().into_iter().filter(|key| self.mapping.remote_of(key).is_some()));
        for namespace in watches.namespaces.store().objects() {
            keys.extend(self.owner_in(&namespace));
        }
        keys
    }

    /// The pair that an owned namespace was made for.
    fn owner_in(&self, namespace: &Object) -> Option<ObjectKey> {
        let owner = namespace.annotation(&self.policy.marks.owner)?;
        let key = ObjectKey::new(Arc::clone(&namespace.key.name), owner);
        (self.owns(namespace) && self.mapping.remote_of(&key).is_some()).then_some(key)
    }

    /// Waits for the cluster or a permission: asked for again by the attendant.
    pub(super) fn park(&self, key: ObjectKey) {
        self.parked.lock().insert(key);
    }

    /// Asks for everything that was parked.
    pub(super) async fn unpark(&self) {
        let parked = std::mem::take(&mut *self.parked.lock());
        for key in parked {
            self.request(key).await;
        }
    }

    /// Tells an Event; dropped and counted when there is no room.
    pub(super) fn tell(&self, event: PairEvent) {
        // A dropped hint is counted by the mailbox.
        let _ = self.events.offer(event);
    }

    /// Whether the namespace's marks are this section's.
    fn owns(&self, namespace: &Object) -> bool {
        match self.policy.marks.namespace_owner(namespace) {
            NamespaceOwner::Us => true,
            NamespaceOwner::Unnamed => {
                !self.others_here().any(|peer| peer.mapping.remote_namespace_of(&namespace.key.name).is_some())
            }
            NamespaceOwner::Nobody | NamespaceOwner::Others => false,
        }
    }

    /// The other sections with the same local cluster.
    fn others_here(&self) -> impl Iterator<Item = Arc<Section>> {
        let peers = self.peers.read().clone();
        let (cluster, name) = (self.config.local.clone(), self.config.name.clone());
        peers.into_iter().filter(move |peer| peer.config.local == cluster && peer.config.name != name)
    }

    /// Whether a living remote object, other than that of `except`, maps to the local namespace. What is not known
    /// counts as living.
    fn lives_in(&self, namespace: &str, except: Option<&ObjectKey>) -> bool {
        let Some(remote_namespace) = self.mapping.remote_namespace_of(namespace) else { return false };
        let store = self.watches.remote.store();
        !store.is_listed()
            || store.any_in_namespace(remote_namespace, |remote| {
                !remote.deleting && Some(&remote.key) != except && self.mapping.local_of(&remote.key).is_some()
            })
    }

    /// Everything that a decision about the pair depends on, as the caches show it.
    pub(super) fn observe(&self, local_key: &ObjectKey, remote_key: &ObjectKey) -> Observed {
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
        let namespace_in_use = ending
            && matches!(namespace, Namespace::Present { ours: true, .. })
            && (self.lives_in(&local_key.namespace, Some(remote_key))
                || self.others_here().any(|peer| peer.lives_in(&local_key.namespace, None)));
        let (settled, secrets) = {
            let mut table = self.table.lock();
            // After a restart the first lists show both sides, and no event of either tells what had settled.
            if let (Remote::Present(remote), Some(local)) = (&remote, &local) {
                table.pair(local_key).settled.observe(Some(remote), Some(local), &self.policy);
            }
            let settled = table.get(local_key).map(|pair| pair.settled.clone()).unwrap_or_default();
            drop(table);
            (settled, self.secrets_of(local_key, remote_key, &remote))
        };
        Observed {
            local_key: local_key.clone(),
            remote_key: remote_key.clone(),
            remote,
            local,
            local_status_unknown: false,
            namespace,
            namespace_in_use,
            secrets,
            settled,
        }
    }

    fn secrets_of(&self, local_key: &ObjectKey, remote_key: &ObjectKey, remote: &Remote) -> Vec<SecretView> {
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
            let key = ObjectKey::new(Arc::clone(&local_key.namespace), name.as_str());
            let Some(secret) = watch.store().get(&key) else { continue };
            let on_remote = match self.watches.remote_secrets.get(index).filter(|watch| watch.store().is_listed()) {
                Some(watch) => {
                    let key = ObjectKey::new(Arc::clone(&remote_key.namespace), self.mapping.remote_secret_name(name));
                    RemoteSecret::Watched(watch.store().get(&key).map(|secret| {
                        let hash = secrets::hash(&secret, &self.policy.marks.uploaded_hash);
                        (hash, secret.controller.as_ref().map(|owner| Arc::clone(&owner.uid)))
                    }))
                }
                None => RemoteSecret::Unwatched { due: self.refresh_is_due(local_key, &secret.key.name, now) },
            };
            views.push(SecretView::new(secret, &self.policy.marks, on_remote, owner.clone()));
        }
        views
    }

    /// Whether an unchanged secret is to be written again: counted from its last upload, or from when it was first seen.
    fn refresh_is_due(&self, key: &ObjectKey, name: &Arc<str>, now: Instant) -> bool {
        let Some(interval) = self.config.secret_refresh else { return false };
        let mut table = self.table.lock();
        let uploaded = *table.pair(key).uploads.entry(Arc::clone(name)).or_insert(now);
        now.saturating_duration_since(uploaded) >= interval
    }

    /// Compares what the watches show with our last writes, at the very event that shows them.
    fn settle(&self, local_key: &ObjectKey, remote_key: &ObjectKey) {
        let mut table = self.table.lock();
        if let Some(pair) = table.get(local_key) {
            let remote = self.watches.remote.store().get(remote_key);
            let local = self.watches.local.store().get(local_key);
            pair.settled.observe(remote.as_deref(), local.as_deref(), &self.policy);
        }
    }

    /// The local keys that news of a watched object concern.
    fn concerned(&self, role: Role, watch: &Watch, key: &ObjectKey) -> Vec<ObjectKey> {
        match role {
            Role::Remote => self.mapping.local_of(key).into_iter().collect(),
            Role::Local => self.mapping.remote_of(key).map(|_| key.clone()).into_iter().collect(),
            Role::Namespaces => {
                let mut keys: BTreeSet<ObjectKey> = BTreeSet::new();
                if let Some(remote_namespace) = self.mapping.remote_namespace_of(&key.name) {
                    if watch.store().get(key).is_none() {
                        self.watches.remote.store().forget_in(remote_namespace);
                    }
                    let remotes = self.watches.remote.store().in_namespace(remote_namespace);
                    keys.extend(remotes.iter().filter_map(|remote| self.mapping.local_of(&remote.key)));
                    let locals = self.watches.local.store().in_namespace(&key.name);
                    keys.extend(
                        locals
                            .iter()
                            .map(|local| local.key.clone())
                            .filter(|key| self.mapping.remote_of(key).is_some()),
                    );
                }
                keys.extend(watch.store().get(key).and_then(|namespace| self.owner_in(&namespace)));
                // Whose objects are gone on both sides, and who still waits for the namespace to go.
                keys.extend(self.table.lock().deleting_in(&key.name));
                keys.into_iter().collect()
            }
            Role::Secrets => {
                let owner = watch.store().get(key).and_then(|secret| secret.controller.clone());
                let owner = owner.map(|owner| ObjectKey::new(Arc::clone(&key.namespace), owner.name));
                owner.filter(|key| self.mapping.remote_of(key).is_some()).into_iter().collect()
            }
            Role::RemoteSecrets => {
                // By the local secret's owner: a remote one that was deleted or made anew by somebody has none.
                let Some(local) = self.mapping.local_of(key) else { return Vec::new() };
                let secret = self.watches.secrets.iter().find_map(|watch| watch.store().get(&local));
                let owner = secret.and_then(|secret| secret.controller.clone());
                let owner = owner.map(|owner| ObjectKey::new(local.namespace, owner.name));
                owner.filter(|key| self.mapping.remote_of(key).is_some()).into_iter().collect()
            }
        }
    }

    /// Notes that an object is missing without explanation, or is there again; before anybody acts on it.
    fn look_for_suspect(&self, local_key: &ObjectKey, remote_key: &ObjectKey) -> bool {
        let store = self.watches.remote.store();
        let missing = store.get(remote_key).is_none() && !store.absence(remote_key).seen_terminating;
        let local = self.watches.local.store().get(local_key);
        let would_go = local.is_some_and(|local| {
            // What is going already has been counted.
            !local.deleting
                && (plan::is_ours(&local, &self.policy) || self.policy.unclaimed == crate::config::Unclaimed::Delete)
        });
        let mut guard = self.guard.lock();
        if missing && would_go {
            guard.suspect(local_key.clone());
            false
        } else {
            guard.clear(local_key)
        }
    }

    async fn news(&self, role: Role, watch: &Watch, key: &ObjectKey) {
        let mut freed = false;
        for local_key in self.concerned(role, watch, key) {
            let Some(remote_key) = self.mapping.remote_of(&local_key) else { continue };
            if matches!(role, Role::Remote | Role::Local) {
                self.settle(&local_key, &remote_key);
                freed |= self.look_for_suspect(&local_key, &remote_key);
                self.note_arrival(role, &local_key);
            }
            if role == Role::Remote && self.watches.remote.store().get(&remote_key).is_none_or(|remote| remote.deleting)
            {
                self.wake_owner_of(&local_key.namespace).await;
            }
            self.request(local_key).await;
        }
        if freed {
            self.request_suspects().await;
        }
    }

    /// A remote object lives no longer. It may have been the last one in a namespace that another section made, which
    /// then is for that section to delete.
    async fn wake_owner_of(&self, namespace: &str) {
        for peer in self.others_here() {
            let owned = peer.watches.namespaces.store().get(&ObjectKey::new("", namespace));
            if let Some(owner) = owned.and_then(|namespace| peer.owner_in(&namespace)).filter(|_| peer.is_listed()) {
                peer.request(owner).await;
            }
        }
    }

    /// Those who wait for the guard's verdict are asked for again.
    pub(super) async fn request_suspects(&self) {
        let waiting = self.guard.lock().waiting();
        for key in waiting {
            self.request(key).await;
        }
    }

    /// Asks for the pairs with a secret that is due to be written again.
    pub(super) async fn request_due_secrets(&self) {
        let Some(interval) = self.config.secret_refresh else { return };
        let due = self.table.lock().with_uploads_before(Instant::now(), interval);
        for key in due {
            self.request(key).await;
        }
    }

    /// How many objects still bear a mark that detaching takes off.
    pub(super) fn left_to_detach(&self) -> usize {
        let marks = &self.policy.marks;
        let watches = &self.watches;
        let remotes = watches.remote.store().objects();
        let held = remotes
            .iter()
            .filter(|remote| remote.has_finalizer(&marks.finalizer) && self.mapping.local_of(&remote.key).is_some());
        if self.mode() == Mode::DetachingLocalGone {
            return held.count();
        }
        let locals = watches.local.store().objects();
        let marked = locals.iter().filter(|local| {
            local.annotation(&marks.remote_uid).is_some() && self.mapping.remote_of(&local.key).is_some()
        });
        let namespaces = watches.namespaces.store().objects();
        let owned = namespaces.iter().filter(|namespace| self.owner_in(namespace).is_some());
        held.count() + marked.count() + owned.count()
    }

    fn note_arrival(&self, role: Role, key: &ObjectKey) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let pair = table.pair(key);
        let since = if role == Role::Remote { &mut pair.spec_since } else { &mut pair.status_since };
        since.get_or_insert(now);
    }
}

/// A section's ear at one watch.
struct Following {
    section: Arc<Section>,
    role: Role,
}

impl Follower for Following {
    fn wants(&self, key: &ObjectKey) -> bool {
        let mapping = &self.section.mapping;
        match self.role {
            Role::Remote => mapping.local_of(key).is_some(),
            Role::Local => mapping.remote_of(key).is_some(),
            Role::Namespaces => mapping.remote_namespace_of(&key.name).is_some(),
            Role::Secrets => mapping.remote_namespace_of(&key.namespace).is_some(),
            Role::RemoteSecrets => true,
        }
    }

    fn changed<'a>(&'a self, watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.section.is_listed() {
                self.section.news(self.role, watch, key).await;
            }
        })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, first: bool, vanished: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let section = &self.section;
            if !section.is_listed() {
                return;
            }
            // All suspects are known to the guard before the first of them is acted upon.
            let keys = if first {
                section.all_pairs()
            } else {
                vanished.iter().flat_map(|key| section.concerned(self.role, watch, key)).collect()
            };
            for key in &keys {
                if let Some(remote_key) = section.mapping.remote_of(key) {
                    section.look_for_suspect(key, &remote_key);
                }
            }
            if self.role == Role::Remote {
                let emptied: BTreeSet<&Arc<str>> = keys.iter().map(|key| &key.namespace).collect();
                for namespace in emptied {
                    section.wake_owner_of(namespace).await;
                }
            }
            for key in keys {
                section.request(key).await;
            }
        })
    }
}
