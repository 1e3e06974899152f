//! The handle through which every request to a cluster goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use kube::client::Body;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Verb;
use super::access::AccessRequest;
use super::connection::{Connection, PARTIAL_METADATA};
use super::denied_permissions::DeniedPermissions;
use super::error::{Asked, Error};
use super::fence::{Claim, Fence, Guard};
use super::identity::Identity;
use super::kind::Kind;
use super::limiter::{Answer, Limiter};
use super::object::{Decoded, Object, ObjectKey};
use super::request::{JSON, Payload, Request};
use crate::config::{ClusterConfig, ClusterName};
use crate::telemetry::{ClusterStanding, ClusterState};

/// So long after it has come back a cluster counts as settling.
const SETTLING: Duration = Duration::from_mins(1);

/// Whether a cluster can be worked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// Its actor has not found out yet.
    Starting,
    /// It answers.
    Available,
    /// It does not, or there are no usable credentials.
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// A connection and which set of credentials it stands for.
#[derive(Clone)]
pub struct Session {
    /// The connection.
    pub connection: Connection,
    /// Counts the sets of credentials.
    pub epoch: u64,
}

/// Propagation of a delete to what the object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents first.
    Foreground,
    /// Dependents afterwards.
    Background,
    /// Dependents stay.
    Orphan,
}

/// What a write came to, by the server's reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// UID.
    pub uid: Arc<str>,
    /// Version of the object after the write.
    pub resource_version: Arc<str>,
    /// Generation after the write; 0 for kinds that have none.
    pub generation: i64,
}

#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    metadata: ReplyMetadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ReplyMetadata {
    uid: Arc<str>,
    resource_version: Arc<str>,
    generation: i64,
}

/// How the cluster is to those who look at it from outside, and since when.
struct Seen {
    state: ClusterState,
    since: Instant,
}

struct Shared {
    name: ClusterName,
    config: ClusterConfig,
    session: watch::Sender<Option<Session>>,
    availability: watch::Sender<Availability>,
    credentials_fault: watch::Sender<Option<Arc<str>>>,
    seen: Mutex<Seen>,
    identity: watch::Sender<Identity>,
    is_identity_wanted: AtomicBool,
    /// How often an identity was found, or found to be unknown.
    identity_readings: AtomicU64,
    /// A request or a watch got no answer, and nobody has looked into it yet.
    is_suspected: AtomicBool,
    suspicion: Notify,
    limiter: Limiter,
    denied: DeniedPermissions,
}

/// A cluster. Clones are the same cluster, under the same fence.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
    guard: Guard,
    /// The deadline of requests that wait behind no others.
    urgent: Option<Duration>,
}

impl Cluster {
    /// A cluster that its actor has not brought up yet.
    pub fn new(name: ClusterName, config: ClusterConfig) -> Self {
        let limiter = Limiter::new(config.max_in_flight.get());
        Self {
            shared: Arc::new(Shared {
                name,
                config,
                session: watch::Sender::new(None),
                availability: watch::Sender::new(Availability::Starting),
                credentials_fault: watch::Sender::new(None),
                seen: Mutex::new(Seen { state: ClusterState::Starting, since: Instant::now() }),
                identity: watch::Sender::new(Identity::Unread),
                is_identity_wanted: AtomicBool::new(false),
                identity_readings: AtomicU64::new(0),
                is_suspected: AtomicBool::new(false),
                suspicion: Notify::new(),
                limiter,
                denied: DeniedPermissions::default(),
            }),
            guard: Guard::None,
            urgent: None,
        }
    }

    /// The same cluster, for requests that are only sent while the fence is open.
    #[must_use]
    pub fn under(&self, fence: &Fence) -> Self {
        Self { guard: Guard::Fence(fence.clone()), ..self.clone() }
    }

    /// The same cluster, for requests that are only sent while this claim holds, where there is one.
    #[must_use]
    pub(super) fn holding(&self, claim: Option<Claim>) -> Self {
        Self { guard: claim.map_or(Guard::None, Guard::Claim), ..self.clone() }
    }

    /// The same cluster, for requests that wait behind no others and are tried whatever is known of the cluster: those
    /// that a claim depends on. Never for more than a few a second.
    #[must_use]
    pub fn urgent(&self, deadline: Duration) -> Self {
        Self { urgent: Some(deadline.min(self.shared.config.request_timeout)), ..self.clone() }
    }

    /// Its connection, for what speaks to the API server by itself; under this handle's fence.
    pub fn session(&self) -> Option<Session> {
        let session = self.shared.session.borrow().clone()?;
        Some(Session { connection: session.connection.guarded(self.guard.clone()), epoch: session.epoch })
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &ClusterName {
        &self.shared.name
    }

    /// Its configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.shared.config
    }

    /// Follows its client: a new one comes with new credentials.
    pub fn sessions(&self) -> watch::Receiver<Option<Session>> {
        self.shared.session.subscribe()
    }

    /// Which set of credentials requests are sent with now, by its number.
    pub fn epoch(&self) -> Option<u64> {
        self.shared.session.borrow().as_ref().map(|session| session.epoch)
    }

    /// Follows whether it can be worked with.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.shared.availability.subscribe()
    }

    /// Whether it can be worked with now.
    pub fn is_available(&self) -> bool {
        *self.shared.availability.borrow() == Availability::Available
    }

    /// Follows how often a denied permission was given.
    pub fn permissions_given(&self) -> watch::Receiver<u64> {
        self.shared.denied.granted()
    }

    /// How often a denied permission was given.
    pub fn permissions(&self) -> u64 {
        self.shared.denied.grants()
    }

    /// Whether it has just come back. An API server answers before everything in it is ready: kinds are not served yet,
    /// permissions not known, caches empty. What fails meanwhile is tried again soon, however often it failed before.
    pub(super) fn is_settling(&self) -> bool {
        let seen = self.shared.seen.lock();
        seen.state == ClusterState::Available && seen.since.elapsed() < SETTLING
    }

    /// Follows why the newest credentials are not in use, while those before them are.
    pub fn credentials_fault(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.credentials_fault.subscribe()
    }

    /// Returns whether that is news.
    pub(super) fn set_credentials_fault(&self, next: Option<&str>) -> bool {
        self.shared.credentials_fault.send_if_modified(|current| {
            let changed = current.as_deref() != next;
            if changed {
                *current = next.map(Arc::from);
            }
            changed
        })
    }

    /// Says that a request or a watch got no answer: the actor probes, and until then nobody knows which cluster it is.
    pub fn suspect(&self) {
        self.forget_identity();
        self.doubt();
    }

    /// Says that something is wrong with an answer: the actor probes.
    fn doubt(&self) {
        self.shared.is_suspected.store(true, Ordering::Release);
        self.shared.suspicion.notify_one();
    }

    /// Wakes the actor, for a permission that was denied.
    fn wake(&self) {
        self.shared.suspicion.notify_one();
    }

    /// Waits until somebody suspects the cluster or a permission was denied; returns whether it is suspected.
    pub(super) async fn suspected(&self) -> bool {
        self.shared.suspicion.notified().await;
        self.shared.is_suspected.swap(false, Ordering::AcqRel)
    }

    /// What was suspected so far, the probe that begins now finds out.
    pub(super) fn looks_into_suspicion(&self) {
        self.shared.is_suspected.store(false, Ordering::Release);
    }

    /// Says that something was granted that was denied before: the identity may be readable now.
    pub(super) fn permission_was_given(&self) {
        if matches!(self.identity(), Identity::Unknown { .. }) {
            self.suspect();
        }
    }

    /// Has its identity read from now on. Before its actor starts.
    pub fn want_identity(&self) {
        self.shared.is_identity_wanted.store(true, Ordering::Release);
    }

    pub(super) fn is_identity_wanted(&self) -> bool {
        self.shared.is_identity_wanted.load(Ordering::Acquire)
    }

    /// Which cluster it is, as far as that is known.
    pub fn identity(&self) -> Identity {
        self.shared.identity.borrow().clone()
    }

    /// Follows which cluster it is.
    pub fn identities(&self) -> watch::Receiver<Identity> {
        self.shared.identity.subscribe()
    }

    /// How often it has been read so far: after each doubt once more. Where it is unknown, nothing else tells that there was
    /// a doubt.
    pub fn identity_readings(&self) -> u64 {
        self.shared.identity_readings.load(Ordering::Acquire)
    }

    pub(crate) fn set_identity(&self, identity: Identity) {
        if identity != Identity::Unread {
            self.shared.identity_readings.fetch_add(1, Ordering::AcqRel);
        }
        self.shared.identity.send_if_modified(|current| {
            let changed = *current != identity;
            *current = identity;
            changed
        });
    }

    fn forget_identity(&self) {
        if self.is_identity_wanted() {
            self.set_identity(Identity::Unread);
        }
    }

    /// The UID of `kube-system`, whatever the availability says; a denial is not asked about again.
    pub(super) async fn read_identity(&self, connection: &Connection, deadline: Duration) -> Result<Arc<str>, Error> {
        const PATH: &str = "/api/v1/namespaces/kube-system";
        let asked =
            Asked { cluster: &self.shared.name, verb: Verb::Get, resource: "namespaces", name: Some("kube-system") };
        let request = http::Request::get(PATH).header(ACCEPT, PARTIAL_METADATA).body(Body::empty());
        let reply: Reply = connection.exchange(request, &asked, deadline, None).await?;
        Ok(reply.metadata.uid)
    }

    pub(super) fn denied_permissions(&self) -> &DeniedPermissions {
        &self.shared.denied
    }

    pub(super) fn set_session(&self, connection: Connection) {
        // Whom the new credentials lead to is to be found out first.
        self.forget_identity();
        self.shared.session.send_modify(|session| {
            let epoch = session.as_ref().map_or(1, |session| session.epoch + 1);
            *session = Some(Session { connection, epoch });
        });
        self.shared.denied.forget_all();
    }

    /// How it is, since when and why, for whoever looks at it.
    pub fn standing(&self) -> ClusterStanding {
        let availability = self.shared.availability.borrow();
        let reason = match &*availability {
            Availability::Unavailable { reason } => Some(reason.clone()),
            // Those in use go on; it is to be known all the same, before they end.
            Availability::Starting | Availability::Available => self
                .shared
                .credentials_fault
                .borrow()
                .as_ref()
                .map(|fault| format!("new credentials do not work: {fault}")),
        };
        drop(availability);
        let seen = self.shared.seen.lock();
        ClusterStanding { name: self.shared.name.clone(), state: seen.state, since: seen.since.elapsed(), reason }
    }

    /// It can't be worked with, and this is the state that it is in. Returns whether that is news.
    pub(super) fn set_unavailable(&self, state: ClusterState, reason: String) -> bool {
        self.see(state);
        self.set_availability(Availability::Unavailable { reason })
    }

    fn see(&self, state: ClusterState) {
        let mut seen = self.shared.seen.lock();
        if seen.state != state {
            *seen = Seen { state, since: Instant::now() };
        }
    }

    /// Returns whether that is news.
    pub(super) fn set_availability(&self, next: Availability) -> bool {
        if next == Availability::Available {
            self.see(ClusterState::Available);
        }
        self.shared.availability.send_if_modified(|current| {
            let changed = *current != next;
            *current = next;
            changed
        })
    }

    fn ready_connection(&self) -> Result<Connection, Error> {
        let unavailable =
            |reason: &str| Error::Unavailable { cluster: self.shared.name.clone(), reason: reason.into() };
        match &*self.shared.availability.borrow() {
            _ if self.urgent.is_some() => {}
            Availability::Available => {}
            Availability::Starting => return Err(unavailable("not connected yet")),
            Availability::Unavailable { reason } => return Err(unavailable(reason)),
        }
        match &*self.shared.session.borrow() {
            Some(session) => Ok(session.connection.clone()),
            None => Err(unavailable("no credentials")),
        }
    }

    /// Reads one object, as it is now; `None` where the API server says that there is no such object.
    pub async fn get(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        match self.send::<Decoded>(Request::get(kind, key), JSON).await {
            Ok(decoded) => Ok(Some(decoded.into_object())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a write and returns identity and version by the reply.
    pub async fn write(&self, request: Request<'_>) -> Result<Written, Error> {
        let reply: Reply = self.send(request, PARTIAL_METADATA).await?;
        Ok(Written {
            uid: reply.metadata.uid,
            resource_version: reply.metadata.resource_version,
            generation: reply.metadata.generation,
        })
    }

    /// Deletes exactly this incarnation and version of an object; gone already counts as done. The version is empty
    /// where the object is gone at once.
    pub async fn delete(&self, kind: &Kind, object: &Object, propagation: Propagation) -> Result<Written, Error> {
        let policy = match propagation {
            Propagation::Foreground => "Foreground",
            Propagation::Background => "Background",
            Propagation::Orphan => "Orphan",
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": policy,
            "preconditions": {"uid": &*object.uid, "resourceVersion": &*object.resource_version},
        });
        match self.write(Request::new(Verb::Delete, kind, &object.key, Payload::json(&body))).await {
            Err(Error::NotFound { .. }) => Ok(Written::default()),
            result => result,
        }
    }

    /// Reads a path that names no object (discovery, version).
    pub(super) async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.fetch_as(path, JSON).await
    }

    /// Reads a path that names no object, as this media type.
    pub(super) async fn fetch_as<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T, Error> {
        let connection = self.ready_connection()?;
        let asked = Asked { cluster: &self.shared.name, verb: Verb::Get, resource: path, name: None };
        let request = http::Request::get(path).header(ACCEPT, accept).body(Body::empty());
        self.exchange(&connection, request, &asked, self.shared.config.request_timeout, self.guard.claim()?).await
    }

    /// Posts a question (an access review) and returns the answer.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        let connection = self.ready_connection()?;
        let asked = Asked { cluster: &self.shared.name, verb: Verb::Create, resource: path, name: None };
        let request = http::Request::post(path)
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, JSON)
            .body(Body::from(body.to_string().into_bytes()));
        self.exchange(&connection, request, &asked, self.shared.config.request_timeout, self.guard.claim()?).await
    }

    async fn send<T: DeserializeOwned>(&self, request: Request<'_>, accept: &'static str) -> Result<T, Error> {
        // The claim first: whoever waits in what follows is not let through by the next term's.
        let claim = self.guard.claim()?;
        let connection = self.ready_connection()?;
        let full = request.full_resource();
        let (verb, key) = (request.verb, request.key);
        // Made only where something was denied: every request comes by here.
        let access = || AccessRequest::new(verb, &full, &key.namespace, &key.name);
        let asked = Asked { cluster: &self.shared.name, verb, resource: &full, name: Some(&key.name) };
        if self.urgent.is_none() && self.shared.denied.any() && self.shared.denied.is_denied(&access()) {
            return Err(Error::Forbidden {
                cluster: self.shared.name.clone(),
                verb,
                resource: full.clone(),
                message: "denied before, looked at again with back-off".into(),
            });
        }
        let message = request.into_message(accept);
        if let Some(deadline) = self.urgent {
            return self.exchange(&connection, message, &asked, deadline, claim).await;
        }
        // As with the claim: a request that waits for room is not sent if another cluster answers by then.
        let identity = self.identity();
        let Some(permit) = self.shared.limiter.acquire().await else {
            return Err(Error::Unavailable { cluster: self.shared.name.clone(), reason: "shutting down".into() });
        };
        if let Some(uid) = identity.uid()
            && self.identity().uid() != Some(uid)
        {
            self.shared.limiter.done(permit, Answer::Other);
            let reason = "it may be another cluster than before".into();
            return Err(Error::Unavailable { cluster: self.shared.name.clone(), reason });
        }
        let result = self.exchange(&connection, message, &asked, self.shared.config.request_timeout, claim).await;
        let answer = match &result {
            Err(Error::Throttled { retry_after, .. }) => Answer::Throttled(*retry_after),
            _ => Answer::Other,
        };
        self.shared.limiter.done(permit, answer);
        match result {
            Err(Error::Forbidden { message, .. }) if self.shared.denied.is_granted(&access()) => {
                Err(Error::Rejected { code: 403, reason: "Forbidden".into(), message })
            }
            Err(Error::Forbidden { .. }) => {
                if self.shared.denied.deny(&access()) {
                    tracing::warn!(
                        cluster = %self.shared.name, verb = %verb, resource = %full, "permission is missing"
                    );
                    // The actor looks after denied permissions.
                    self.wake();
                }
                result
            }
            Ok(_) => {
                if self.shared.denied.any_unproven() {
                    self.shared.denied.prove(&access());
                }
                result
            }
            Err(_) => result,
        }
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        connection: &Connection,
        request: Result<http::Request<Body>, http::Error>,
        asked: &Asked<'_>,
        deadline: Duration,
        claim: Option<Claim>,
    ) -> Result<T, Error> {
        let result = connection.exchange(request, asked, deadline, claim).await;
        match &result {
            Err(error) if error.is_unreachable() => self.suspect(),
            // It answers, if not as it should: it is probed, and nobody has to wait for that.
            Err(Error::Unauthorized { .. } | Error::Server { .. } | Error::Decode { .. }) => self.doubt(),
            _ => {}
        }
        result
    }
}
