//! The watcher actor: one watch, one cache, many followers.
//!
//! It owns the [`Store`] of one kind in one cluster (under one selector) and writes to it alone. For every event it
//! first changes the cache and then tells each follower the *key*; a follower whose mailbox is full makes it wait, and
//! then the stream is not read on: backpressure reaches the API server. Restarted, it lists again; what vanished in the
//! meantime is told like a deletion, without the claim that it was seen terminating. It runs while somebody
//! [demands](Watch::demand) it; while nobody does it costs nothing, neither requests nor memory.
//!
//! kube's watcher does the conversation (streaming lists where the server has them, paged lists otherwise, resuming,
//! 410). This actor adds what kube leaves to its caller: which errors make the cache void, when to wait for the cluster
//! and when for the kind, a new client when credentials change.

mod definition;
mod end;
mod id;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{BoxFuture, select_all};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, ListSemantic};
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use self::definition::Definition;
use self::end::End;
pub use self::id::WatchId;
use super::access::AccessRequest;
use super::client::{Cluster, Session};
use super::connection::guarded;
use super::demand::Demands;
use super::error::Error;
use super::kind::Kind;
use super::object::{Decoded, Object, ObjectKey};
use super::store::Store;
use super::{Availability, Verb};
use crate::actor::{Backoff, BoxError, Scope};

/// Back-off while a kind is missing or a permission denied; the cap is the spec's.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// A permission that an optional watch lacks may be given at any time: asked for again after this.
const ASK_AGAIN: Duration = Duration::from_mins(5);
/// Objects a page, where the server has no streaming lists.
const PAGE_SIZE: u32 = 500;
/// kubectl's copy of what was applied: as large as the object and of no use here, unless a follower mirrors annotations.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Cuts an object down to what is to be kept of it.
pub type Projection = Arc<dyn Fn(&mut Object) + Send + Sync>;

/// Who is told of changes.
pub trait Follower: Send + Sync {
    /// Whether objects of this key are of interest; what no follower wants is not kept.
    fn wants(&self, key: &ObjectKey) -> bool;
    /// An object appeared, changed or went. Returns when there is room for the news.
    fn changed<'a>(&'a self, watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()>;
    /// A list has ended: these keys vanished since the last one. `first`: the cache was void before. All followers note
    /// what it means before any of them acts on it; returned is what [`Follower::listed`] is given.
    fn note(&self, _watch: &Watch, _first: bool, vanished: Vec<ObjectKey>) -> Vec<ObjectKey> {
        vanished
    }
    /// All followers have noted the end of the list, and who waited for it goes on. Returns when there is room for the news.
    fn listed<'a>(&'a self, _watch: &'a Watch, _first: bool, _noted: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
    /// The definition of the kind may have changed; `another_way`: it is served in another way than before.
    fn redefined(&self, _watch: &Watch, _another_way: bool) {}
    /// Nobody demands the watch any more, and its cache was emptied: what was kept of it is to go, too.
    fn forget(&self) {}
}

/// A watch: its cache and its followers.
pub struct Watch {
    id: WatchId,
    cluster: Cluster,
    store: Store,
    kind: watch::Sender<Option<Arc<Kind>>>,
    /// The set of credentials that the last list was made with.
    listed_epoch: AtomicU64,
    /// Followers are noting what the list that just ended means.
    noting: AtomicBool,
    /// The cluster did not answer since the last list began: what is there now may be another one.
    lost: AtomicBool,
    /// A list was asked for since.
    list_asked: AtomicBool,
    list_again: Notify,
    followers: RwLock<Vec<Arc<dyn Follower>>>,
    /// Listed before this one begins to list.
    after: RwLock<Vec<Arc<Watch>>>,
    /// Watches of kinds that this one is of use for, where they have namespaces. Empty: it is of use always.
    beside: RwLock<Vec<Arc<Watch>>>,
    keep_last_applied: AtomicBool,
    /// Cuts objects down before they are kept.
    projection: RwLock<Option<Projection>>,
    /// Only where it is granted; where not, nobody asks for it in vain.
    optional: AtomicBool,
    /// Who needs it.
    pub(super) demands: Demands,
    /// The kind could not be listed, since that is not granted.
    was_denied: AtomicBool,
    /// The stream has told something since it last failed.
    is_live: AtomicBool,
    /// It fails again and again though the cluster answers: since when, and why.
    broken: RwLock<Option<(Instant, String)>>,
    /// How the kind is served, where that is known beforehand.
    known_kind: OnceLock<Kind>,
    /// What is known of changes of the kind's definition.
    definition: Definition,
}

impl Watch {
    /// A watch without followers; its actor is [`Watch::run`].
    pub fn new(id: WatchId, cluster: Cluster) -> Arc<Self> {
        Arc::new(Self {
            id,
            cluster,
            store: Store::default(),
            kind: watch::Sender::new(None),
            listed_epoch: AtomicU64::new(0),
            noting: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            list_asked: AtomicBool::new(false),
            list_again: Notify::new(),
            followers: RwLock::default(),
            after: RwLock::default(),
            beside: RwLock::default(),
            keep_last_applied: AtomicBool::new(false),
            projection: RwLock::default(),
            optional: AtomicBool::new(false),
            demands: Demands::default(),
            was_denied: AtomicBool::new(false),
            is_live: AtomicBool::new(false),
            broken: RwLock::default(),
            known_kind: OnceLock::new(),
            definition: Definition::default(),
        })
    }

    /// What is watched.
    pub fn id(&self) -> &WatchId {
        &self.id
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cache.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether the cache is whole and of the cluster that a request now goes to: between a change of credentials or a lost
    /// connection, which may lead to another cluster, and the end of the next list it is not.
    pub fn is_current(&self) -> bool {
        self.store.is_listed()
            && !self.store.is_listing()
            && !self.is_noting()
            && !self.lost.load(Ordering::Acquire)
            && self.is_of_session()
    }

    /// Whether the last list was made with the credentials of now.
    pub fn is_of_session(&self) -> bool {
        self.cluster.epoch() == Some(self.listed_epoch.load(Ordering::Acquire))
    }

    /// Whether followers have yet to note what the list that just ended means.
    pub fn is_noting(&self) -> bool {
        self.noting.load(Ordering::Acquire)
    }

    /// Somebody has to know whether the cache is of the cluster that answers now: after a lost connection a watch that
    /// was resumed is begun anew, once.
    pub fn become_current(&self) {
        if self.lost.load(Ordering::Acquire) && !self.list_asked.swap(true, Ordering::AcqRel) {
            self.list_again.notify_one();
        }
    }

    /// Whether the list has ended and the stream has told something since it last failed: what happens shows.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire) && !self.store.is_listing()
    }

    /// For how long the watch has failed again and again though the cluster answers, and why: what happens does not show.
    pub fn broken(&self) -> Option<(Duration, String)> {
        self.broken.read().as_ref().map(|(since, reason)| (since.elapsed(), reason.clone()))
    }

    /// The kind, once it was found.
    pub fn kind(&self) -> Option<Arc<Kind>> {
        self.kind.borrow().clone()
    }

    /// Adds a follower. Before the actor starts.
    pub fn follow(&self, follower: Arc<dyn Follower>) {
        self.followers.write().push(follower);
    }

    /// Keeps kubectl's last-applied annotation in the cache.
    pub fn keep_last_applied(&self) {
        self.keep_last_applied.store(true, Ordering::Relaxed);
    }

    /// Cuts every object down as it comes in, before it is kept: for kinds whose objects are large and of which little
    /// decides. All who share the watch get what is left, so its id names [who cuts](WatchId::projection). Before the actor
    /// starts.
    pub fn project(&self, projection: Projection) {
        *self.projection.write() = Some(projection);
    }

    /// Tells how the kind is served, which saves asking the cluster. For kinds of Kubernetes itself in a version that
    /// every cluster serves. Before the actor starts.
    pub fn assume_kind(&self, kind: Kind) {
        // Told twice, it is the same.
        let _ = self.known_kind.set(kind);
    }

    /// Makes it a watch that is only tried where list and watch are granted, by an access review now and then.
    pub fn only_if_granted(&self) {
        self.optional.store(true, Ordering::Relaxed);
    }

    /// Makes this watch list only after `other` has listed, or was found unreachable. Refused where `other` already
    /// waits for this one. Before the actors start.
    pub fn list_after(self: &Arc<Self>, other: &Arc<Self>) {
        if Arc::ptr_eq(self, other) || other.waits_for(self) {
            return;
        }
        self.after.write().push(Arc::clone(other));
    }

    fn waits_for(&self, other: &Arc<Self>) -> bool {
        self.after.read().iter().any(|first| Arc::ptr_eq(first, other) || first.waits_for(other))
    }

    /// Makes this watch begin only when the kind of `other`, or of another such watch, is known to have namespaces. Before
    /// the actors start.
    pub fn only_beside_namespaced(&self, other: &Arc<Self>) {
        self.beside.write().push(Arc::clone(other));
    }

    /// The actor's body: follows the cluster while somebody needs it, until it drains.
    pub async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut attempt = 0;
        let mut streaming = true;
        if self.store.is_listed() {
            // What the last instance had taken in it may not have told: the next list is told as a first one.
            self.store.set_unlisted("the watcher was restarted".into(), false);
        }
        loop {
            let end = tokio::select! {
                () = scope.draining() => return Ok(()),
                () = self.demands.nobody() => End::Unwanted,
                end = self.follow_cluster(&scope, streaming, &mut attempt) => end,
            };
            self.is_live.store(false, Ordering::Release);
            match end {
                End::Relist => {}
                End::NoStreamingLists => streaming = false,
                End::Unwanted => {
                    self.store.clear();
                    self.followers.read().iter().for_each(|follower| follower.forget());
                    attempt = 0;
                    scope.set_state("idle");
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = self.demands.somebody() => {}
                    }
                }
                End::Unclaimed => {
                    scope.set_state("waiting");
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = self.demands.nobody() => {}
                        () = tokio::time::sleep(RETRY.next_delay(0)) => {}
                    }
                }
                End::Void(error) => {
                    self.was_denied.fetch_or(matches!(error, Error::Forbidden { .. }), Ordering::AcqRel);
                    self.store.set_unlisted(error.to_string(), error.is_unreachable());
                    scope.set_state("waiting");
                    let delay = self.retry_delay(attempt);
                    self.tell_failure(&error, attempt == 0);
                    attempt = attempt.saturating_add(1);
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = tokio::time::sleep(delay) => {}
                        () = self.comes_back() => attempt = 0,
                    }
                }
            }
        }
    }

    /// From a client to the end of what can be done with it.
    async fn follow_cluster(self: &Arc<Self>, scope: &Scope, streaming: bool, attempt: &mut u32) -> End {
        scope.set_state("connecting");
        self.wait_until_of_use().await;
        let mut sessions = self.cluster.sessions();
        let session = self.wait_for_session(&mut sessions).await;
        self.demands.gathered().await;
        // Before the others are waited for: who demands this watch has demanded those first, so that the lists that are
        // waited for are new enough for all whom this number is new enough for. Who comes meanwhile needs the next one.
        let number = self.demands.begin();
        self.wait_for_others().await;
        let Ok(claim) = self.demands.claim() else { return End::Unclaimed };
        let cluster = self.cluster.holding(claim);
        let kind = match self.find_kind(&cluster).await {
            Ok(kind) => Arc::new(kind),
            Err(Error::Unclaimed(_)) => return End::Unclaimed,
            Err(error) => return End::Void(error),
        };
        self.serve(&kind);
        let epoch = session.epoch;
        if self.optional.load(Ordering::Relaxed) {
            match self.is_granted(&cluster, &kind).await {
                Ok(true) => {}
                Ok(false) => {
                    self.store.set_unlisted("not granted".into(), false);
                    scope.set_state("not granted");
                    tokio::select! {
                        _ = sessions.wait_for(|current| current.as_ref().is_some_and(|current| current.epoch != epoch)) => {}
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                    }
                    return End::Relist;
                }
                Err(Error::Unclaimed(_)) => return End::Unclaimed,
                Err(error) => return End::Void(error),
            }
        }
        self.store.may_list();
        let mut stream = self.stream(&session, &kind, streaming);
        scope.set_state("listing");
        let mut is_listing = true;
        let mut next_look = self.next_look();
        loop {
            let next = tokio::select! {
                biased;
                _ = sessions.wait_for(|current| current.as_ref().is_some_and(|current| current.epoch != epoch)) => return End::Relist,
                () = self.list_again.notified() => return End::Relist,
                may_have_changed = self.definition.to_look_at(next_look) => {
                    next_look = self.next_look();
                    let watch = Arc::clone(self);
                    scope.spawn(async move { watch.look_at_definition(may_have_changed).await });
                    continue;
                }
                // Not in the middle of a list: who came first would wait for as long as others come.
                () = self.demands.newer_than(number), if !is_listing => return End::Relist,
                next = stream.next() => next,
            };
            match next {
                None => return End::Relist,
                Some(Ok(event)) => {
                    is_listing = matches!(event, Event::Init | Event::InitApply(_));
                    if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                        *attempt = 0;
                        if self.broken.read().is_some() {
                            *self.broken.write() = None;
                        }
                        self.is_live.store(true, Ordering::Release);
                    }
                    if matches!(event, Event::InitDone) {
                        self.is_of(epoch);
                        if self.was_denied.swap(false, Ordering::AcqRel) {
                            self.cluster.permission_was_given();
                        }
                        scope.set_state("watching");
                    }
                    self.take(event, number).await;
                }
                Some(Err(error)) => {
                    is_listing = false;
                    self.is_live.store(false, Ordering::Release);
                    if let Some(end) = self.after_error(&error, streaming, attempt).await {
                        return end;
                    }
                    self.store.may_list();
                }
            }
        }
    }

    async fn find_kind(&self, cluster: &Cluster) -> Result<Kind, Error> {
        match self.known_kind.get() {
            Some(kind) => Ok(kind.clone()),
            None => Kind::discover(cluster, &self.id.resource).await,
        }
    }

    /// A list with this set of credentials has ended.
    fn is_of(&self, epoch: u64) {
        self.listed_epoch.store(epoch, Ordering::Release);
        self.lost.store(false, Ordering::Release);
        self.list_asked.store(false, Ordering::Release);
    }

    async fn wait_until_of_use(&self) {
        let mut kinds: Vec<_> = self.beside.read().iter().map(|other| other.kind.subscribe()).collect();
        if kinds.is_empty() {
            return;
        }
        let has_namespaces = |kind: &Option<Arc<Kind>>| kind.as_ref().is_some_and(|kind| kind.namespaced);
        // The senders are in the watches, which are right here.
        let known = kinds.iter_mut().map(|kind| Box::pin(kind.wait_for(has_namespaces)));
        drop(select_all(known).await);
    }

    async fn wait_for_session(&self, sessions: &mut watch::Receiver<Option<Session>>) -> Session {
        loop {
            self.wait_until_available().await;
            let session = sessions.borrow_and_update().clone();
            if let Some(session) = session {
                return session;
            }
            if sessions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn wait_until_available(&self) {
        let mut availability = self.cluster.availability();
        loop {
            match &*availability.borrow_and_update() {
                Availability::Available => return,
                Availability::Starting => {}
                Availability::Unavailable { reason } => {
                    if !self.store.is_listed() {
                        self.store.set_unlisted(reason.clone(), true);
                    }
                }
            }
            if availability.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The watches that list first; one whose cluster does not answer holds nobody up.
    async fn wait_for_others(&self) {
        let others = self.after.read().clone();
        for other in others {
            other.settled().await;
        }
    }

    async fn is_granted(&self, cluster: &Cluster, kind: &Kind) -> Result<bool, Error> {
        let name = self.id.fields.strip_prefix("metadata.name=").unwrap_or_default();
        for verb in [Verb::List, Verb::Watch] {
            let request = AccessRequest::new(verb, &kind.full_resource(), &self.id.namespace, name);
            match cluster.review_access(&request).await {
                Ok(decision) if decision.allowed => {}
                // Who may not even ask has not been given much.
                Ok(_) | Err(Error::Forbidden { .. } | Error::NotServed { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn stream(
        self: &Arc<Self>,
        session: &Session,
        kind: &Kind,
        streaming: bool,
    ) -> BoxStream<'static, watcher::Result<Event<Decoded>>> {
        let watch = Arc::clone(self);
        let client = guarded(session.connection.client(), move || watch.demands.claim());
        let client = self.definition.overhearing(client);
        let timeout = self.cluster.config().watch_timeout.as_secs();
        let mut config = watcher::Config::default().timeout(u32::try_from(timeout).unwrap_or(u32::MAX));
        if !self.id.labels.is_empty() {
            config = config.labels(&self.id.labels);
        }
        if !self.id.fields.is_empty() {
            config = config.fields(&self.id.fields);
        }
        config = if streaming {
            config.streaming_lists()
        } else {
            config.list_semantic(ListSemantic::MostRecent).page_size(PAGE_SIZE)
        };
        if self.id.metadata_only {
            let api: Api<PartialObjectMeta<Decoded>> = self.api(client, kind);
            watcher::watcher(api, config)
                .map_ok(|event| match event {
                    Event::Apply(partial) => Event::Apply(Decoded::from(partial)),
                    Event::Delete(partial) => Event::Delete(Decoded::from(partial)),
                    Event::InitApply(partial) => Event::InitApply(Decoded::from(partial)),
                    Event::Init => Event::Init,
                    Event::InitDone => Event::InitDone,
                })
                .boxed()
        } else {
            let api: Api<Decoded> = self.api(client, kind);
            watcher::watcher(api, config).boxed()
        }
    }

    fn api<K>(&self, client: kube::Client, kind: &Kind) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        if self.id.namespace.is_empty() {
            Api::all_with(client, &kind.resource)
        } else {
            Api::namespaced_with(client, &self.id.namespace, &kind.resource)
        }
    }

    async fn take(&self, event: Event<Decoded>, stream: u64) {
        match event {
            Event::Init => self.store.begin_list(),
            Event::InitApply(decoded) | Event::Apply(decoded) => {
                self.store.saw(decoded.object());
                if let Some(object) = self.wanted(decoded) {
                    let key = object.key.clone();
                    if self.store.apply(object) && self.store.is_listed() {
                        self.tell(&key).await;
                    }
                }
            }
            Event::Delete(decoded) => {
                self.store.lost(decoded.object());
                if let Some(object) = self.wanted(decoded) {
                    self.store.delete(&object);
                    if self.store.is_listed() {
                        self.tell(&object.key).await;
                    }
                }
            }
            Event::InitDone => {
                let first = !self.store.is_listed();
                self.noting.store(true, Ordering::Release);
                let vanished = self.store.end_list();
                // What a list means depends on whether it is the one that was demanded.
                self.demands.listed(stream);
                let followers = self.followers.read().clone();
                let mut noted = Vec::with_capacity(followers.len());
                for follower in followers {
                    let theirs = vanished.iter().filter(|key| follower.wants(key)).cloned().collect();
                    let theirs = follower.note(self, first, theirs);
                    noted.push((follower, theirs));
                }
                self.noting.store(false, Ordering::Release);
                // Not before: whoever waits for this list must not find what a follower had noted of an earlier one. Not
                // later: a follower may be waiting for room with somebody who waits for this list.
                self.demands.tell();
                for (follower, theirs) in noted {
                    follower.listed(self, first, theirs).await;
                }
            }
        }
    }

    fn wanted(&self, decoded: Decoded) -> Option<Object> {
        let mut object = decoded.into_object();
        if !self.followers.read().iter().any(|follower| follower.wants(&object.key)) {
            return None;
        }
        if !self.keep_last_applied.load(Ordering::Relaxed) {
            object.hidden_annotations = object.annotations.remove(LAST_APPLIED).is_some();
        }
        if let Some(projection) = &*self.projection.read() {
            projection(&mut object);
        }
        Some(object)
    }

    async fn tell(&self, key: &ObjectKey) {
        let count = self.followers.read().len();
        for index in 0..count {
            let follower = self.followers.read().get(index).cloned();
            if let Some(follower) = follower.filter(|follower| follower.wants(key)) {
                follower.changed(self, key).await;
            }
        }
    }
}
