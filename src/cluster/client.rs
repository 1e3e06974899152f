//! The handle through which every request to a cluster goes.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::Verb;
use super::access::AccessRequest;
use super::error::{Asked, Error};
use super::gates::Gates;
use super::kind::Kind;
use super::limiter::{Answer, Limiter};
use super::object::{Decoded, Object, ObjectKey};
use crate::config::{ClusterConfig, ClusterName};

/// A reply without the body of the object: identity, version and generation are enough to go on after a write.
const PARTIAL_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A `Retry-After` is never taken for longer than this: a proxy's wrong one must not stop an object for a day.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

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

/// A client and which set of credentials it stands for.
#[derive(Clone)]
pub struct Session {
    /// The client.
    pub client: Client,
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

/// One request for one object or collection.
pub struct Request<'a> {
    /// What it does.
    pub verb: Verb,
    /// The kind.
    pub kind: &'a Kind,
    /// Namespace and name; for a create the name is the new object's.
    pub key: &'a ObjectKey,
    /// Subresource, or empty.
    pub subresource: &'static str,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// Field manager, for writes.
    pub manager: Option<&'a str>,
}

struct Shared {
    name: ClusterName,
    config: ClusterConfig,
    session: watch::Sender<Option<Session>>,
    availability: watch::Sender<Availability>,
    suspicion: Notify,
    limiter: Limiter,
    gates: Gates,
}

/// A cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
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
                suspicion: Notify::new(),
                limiter,
                gates: Gates::default(),
            }),
        }
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
        self.shared.gates.opened()
    }

    /// How often a denied permission was given.
    pub fn permissions(&self) -> u64 {
        self.shared.gates.openings()
    }

    /// Says that a request or a watch got no answer: the actor probes.
    pub fn suspect(&self) {
        self.shared.suspicion.notify_one();
    }

    pub(super) async fn suspected(&self) {
        self.shared.suspicion.notified().await;
    }

    pub(super) fn gates(&self) -> &Gates {
        &self.shared.gates
    }

    pub(super) fn set_session(&self, client: Client) {
        self.shared.session.send_modify(|session| {
            let epoch = session.as_ref().map_or(1, |session| session.epoch + 1);
            *session = Some(Session { client, epoch });
        });
        self.shared.gates.open_all();
    }

    /// Returns whether that is news.
    pub(super) fn set_availability(&self, next: Availability) -> bool {
        self.shared.availability.send_if_modified(|current| {
            let changed = *current != next;
            *current = next;
            changed
        })
    }

    fn ready_client(&self) -> Result<Client, Error> {
        let unavailable =
            |reason: &str| Error::Unavailable { cluster: self.shared.name.clone(), reason: reason.into() };
        match &*self.shared.availability.borrow() {
            Availability::Available => {}
            Availability::Starting => return Err(unavailable("not connected yet")),
            Availability::Unavailable { reason } => return Err(unavailable(reason)),
        }
        match &*self.shared.session.borrow() {
            Some(session) => Ok(session.client.clone()),
            None => Err(unavailable("no credentials")),
        }
    }

    /// Reads one object, as it is now; `None` where the API server says that there is no such object.
    pub async fn get(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        let request = Request {
            verb: Verb::Get,
            kind,
            key,
            subresource: "",
            content_type: "application/json",
            body: Vec::new(),
            manager: None,
        };
        match self.send::<Decoded>(request, "application/json").await {
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
        let request = Request {
            verb: Verb::Delete,
            kind,
            key: &object.key,
            subresource: "",
            content_type: "application/json",
            body: body.to_string().into_bytes(),
            manager: None,
        };
        match self.write(request).await {
            Err(Error::NotFound { .. }) => Ok(Written::default()),
            result => result,
        }
    }

    /// Reads a path that names no object (discovery, version).
    pub(super) async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.fetch_as(path, "application/json").await
    }

    /// Reads a path that names no object, as this media type.
    pub(super) async fn fetch_as<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T, Error> {
        let client = self.ready_client()?;
        let asked = Asked { cluster: &self.shared.name, verb: Verb::Get, resource: path, name: None };
        let request = http::Request::get(path).header(ACCEPT, accept).body(Body::empty());
        self.exchange(&client, request, &asked, self.shared.config.request_timeout).await
    }

    /// Posts a question (an access review) and returns the answer.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        let client = self.ready_client()?;
        let asked = Asked { cluster: &self.shared.name, verb: Verb::Create, resource: path, name: None };
        let request = http::Request::post(path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()));
        self.exchange(&client, request, &asked, self.shared.config.request_timeout).await
    }

    /// A request that is sent whatever the availability says: how the actor finds out.
    pub(super) async fn probe(&self, client: &Client, deadline: Duration) -> Result<Value, Error> {
        let asked = Asked { cluster: &self.shared.name, verb: Verb::Get, resource: "/version", name: None };
        let request = http::Request::get("/version").header(ACCEPT, "application/json").body(Body::empty());
        self.exchange(client, request, &asked, deadline).await
    }

    async fn send<T: DeserializeOwned>(&self, request: Request<'_>, accept: &'static str) -> Result<T, Error> {
        let client = self.ready_client()?;
        let resource = request.kind.full_resource();
        let full =
            if request.subresource.is_empty() { resource } else { format!("{resource}/{}", request.subresource) };
        let access = AccessRequest::new(request.verb, &full, &request.key.namespace, &request.key.name);
        let asked =
            Asked { cluster: &self.shared.name, verb: request.verb, resource: &full, name: Some(&request.key.name) };
        if self.shared.gates.is_closed(&access) {
            return Err(Error::Forbidden {
                cluster: self.shared.name.clone(),
                verb: request.verb,
                resource: full.clone(),
                message: "denied before, looked at again with back-off".into(),
            });
        }
        let mut path = match request.verb {
            Verb::Create => request.kind.collection_path(&request.key.namespace),
            _ => request.kind.object_path(request.key),
        };
        if !request.subresource.is_empty() {
            path.push('/');
            path.push_str(request.subresource);
        }
        if let Some(manager) = request.manager {
            path.push_str("?fieldManager=");
            path.push_str(manager);
        }
        let method = match request.verb {
            Verb::Create => http::Method::POST,
            Verb::Update => http::Method::PUT,
            Verb::Patch => http::Method::PATCH,
            Verb::Delete => http::Method::DELETE,
            Verb::Get | Verb::List | Verb::Watch => http::Method::GET,
        };
        let message = http::Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, request.content_type)
            .body(Body::from(request.body));
        let Some(permit) = self.shared.limiter.acquire().await else {
            return Err(Error::Unavailable { cluster: self.shared.name.clone(), reason: "shutting down".into() });
        };
        let result = self.exchange(&client, message, &asked, self.shared.config.request_timeout).await;
        let answer = match &result {
            Err(Error::Throttled { retry_after, .. }) => Answer::Throttled(*retry_after),
            _ => Answer::Other,
        };
        self.shared.limiter.done(permit, answer);
        match result {
            Err(Error::Forbidden { message, .. }) if self.shared.gates.is_granted(&access) => {
                Err(Error::Rejected { code: 403, reason: "Forbidden".into(), message })
            }
            Err(Error::Forbidden { .. }) => {
                if self.shared.gates.close(&access) {
                    tracing::warn!(
                        cluster = %self.shared.name, verb = %request.verb, resource = %full, "permission is missing"
                    );
                    // The actor looks after denied permissions; wake it.
                    self.suspect();
                }
                result
            }
            Ok(_) => {
                self.shared.gates.prove(&access);
                result
            }
            Err(_) => result,
        }
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        client: &Client,
        request: Result<http::Request<Body>, http::Error>,
        asked: &Asked<'_>,
        deadline: Duration,
    ) -> Result<T, Error> {
        let request = request.map_err(|source| Error::Rejected {
            code: 0,
            reason: "BadRequest".into(),
            message: format!("failed to build the request: {source}"),
        })?;
        let exchange = async {
            let response = client.send(request).await.map_err(|source| asked.failed(&source))?;
            let (parts, body) = response.into_parts();
            let bytes = body.collect_bytes().await.map_err(|source| asked.failed(&source))?;
            if parts.status.is_success() {
                return serde_json::from_slice(&bytes).map_err(|source| Error::Decode { reason: source.to_string() });
            }
            let retry_after = parts
                .headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| value.parse().ok())
                .map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER));
            let status = serde_json::from_slice::<Status>(&bytes).unwrap_or_default();
            let message = if status.message.is_empty() {
                String::from_utf8_lossy(bytes.get(..bytes.len().min(200)).unwrap_or_default()).into_owned()
            } else {
                status.message.clone()
            };
            Err(asked.refused(&Status { code: parts.status.as_u16(), message, ..status }, retry_after))
        };
        let result = match tokio::time::timeout(deadline, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Error::NoAnswer {
                cluster: self.shared.name.clone(),
                reason: format!("no answer within {}", humantime::format_duration(deadline)),
            }),
        };
        if let Err(error) = &result
            && (error.is_unreachable()
                || matches!(error, Error::Unauthorized { .. } | Error::Server { .. } | Error::Decode { .. }))
        {
            self.suspect();
        }
        result
    }
}
