//! The requests of a cluster: each is checked, waits for a slot, gets a deadline, and its outcome is classified.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::SignedDuration;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::Verb;
use super::access::{AccessRequest, Decision, REVIEWS, Review};
use super::built_in::BuiltIn;
use super::client::{Availability, Cluster};
use super::connection::{Connection, PARTIAL_METADATA};
use super::denied_permissions::DeniedPermissions;
use super::error::{Asked, Error};
use super::fence::Claim;
use super::kind::Kind;
use super::limiter::ServerAnswer;
use super::metadata::LONGEST_IDENTITY;
use super::object::{Decoded, Managed, Object, ObjectKey};
use super::reach::{Admission, SHUTTING_DOWN};
use super::reply::{Readable, Reading, Whole};
use super::request::{JSON, Propagation, Request, Unsendable};

/// The result of a write, by the server's reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    pub uid: Arc<str>,
    /// Version of the object after the write.
    pub resource_version: Arc<str>,
    /// Generation after the write; 0 for kinds that have none.
    pub generation: i64,
}

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// With the others, and with the back-off of a cluster that does not answer.
    WhenAdmitted,
    /// At once, because it may succeed now for a reason that the back-off does not know.
    AtOnce,
}

/// The answer to a request, and when it was sent.
pub struct Exchange<T> {
    /// The moment before it was sent.
    pub sent: Instant,
    pub answer: Result<T, Error>,
    /// How far this machine's clock is ahead of the server's at least; negative where it is behind, and `None` where the answer does not
    /// tell.
    pub skew: Option<SignedDuration>,
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

impl Cluster {
    /// Asks the API server whether these credentials may do that.
    pub async fn review_access(&self, request: &AccessRequest) -> Result<Decision, Error> {
        self.ask::<Review>(REVIEWS, &request.review()).await.map(Decision::from)
    }

    /// Asks the API server whether it would accept this new object, without storing it (dry run).
    pub async fn try_create(&self, kind: &Kind, namespace: &str, object: &Value) -> Result<(), Error> {
        let path = format!("{}?dryRun=All", kind.collection_path(namespace));
        self.ask::<Value>(&path, object).await.map(drop)
    }

    /// The UID of `kube-system`, whatever the availability. A denial is not recorded.
    pub(super) async fn read_identity(&self, connection: &Connection, deadline: Duration) -> Result<Arc<str>, Error> {
        const PATH: &str = "/api/v1/namespaces/kube-system";
        let asked =
            Asked { cluster: &self.shared.name, verb: Verb::Get, resource: "namespaces", name: Some("kube-system") };
        let request = http::Request::get(PATH).header(ACCEPT, PARTIAL_METADATA).body(Body::empty());
        let whole = Whole::<Reply>::default();
        let reply = connection.exchange(request.map_err(Into::into), &asked, deadline, None, whole).await?;
        Ok(reply.metadata.uid)
    }

    /// Asks for the server's version at once, whatever is known about its availability. The outcome counts like that of any request:
    /// if it answers, requests that wait are sent.
    pub async fn probe(&self, deadline: Duration) -> Result<(), Error> {
        let connection = self.any_connection()?;
        let sent = Instant::now();
        let result = connection.probe_as(None, deadline).await;
        self.answered(result.as_ref().err(), sent);
        result
    }

    /// The UID of `kube-system`, which tells clusters apart, read at once as [`Self::probe`] does.
    pub async fn read_uid(&self, deadline: Duration) -> Result<Arc<str>, Error> {
        let connection = self.any_connection()?;
        let sent = Instant::now();
        let result = self.read_identity(&connection, deadline).await;
        self.answered(result.as_ref().err(), sent);
        let none = || Error::Decode { source: "namespace kube-system has no UID".to_owned().into() };
        Some(result?).filter(|uid| (1..=LONGEST_IDENTITY).contains(&uid.len())).ok_or_else(none)
    }

    fn any_connection(&self) -> Result<Connection, Error> {
        let session = self.shared.session.borrow();
        session.as_ref().map(|session| session.connection.clone()).ok_or_else(|| self.unavailable("no credentials"))
    }

    pub(super) fn ready_connection(&self) -> Result<Connection, Error> {
        match &*self.shared.availability.borrow() {
            _ if self.urgent.is_some() => {}
            Availability::Available => {}
            Availability::Starting => return Err(self.unavailable("not connected yet")),
            Availability::Unavailable { reason } => return Err(self.unavailable(reason)),
        }
        self.any_connection()
    }

    pub(super) fn unavailable(&self, reason: &str) -> Error {
        Error::Unavailable { cluster: self.shared.name.clone(), reason: reason.into() }
    }

    /// Reads the current state of one object; `None` if the API server answers that there is no such object.
    pub async fn get(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        match self.send::<Decoded>(Request::get(kind, key), JSON).await {
            Ok(decoded) => Ok(Some(decoded.into_object())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same of its portable part, if the kind is in the table of [`BuiltIn`].
    pub async fn get_portable(&self, kind: &Kind, key: &ObjectKey) -> Result<Option<Object>, Error> {
        let Some(built_in) = BuiltIn::of(&kind.resource.group, &kind.resource.plural) else {
            return self.get(kind, key).await;
        };
        match self.send::<Managed>(Request::get(kind, key), JSON).await {
            Ok(managed) => Ok(Some(built_in.portable(managed).into_object())),
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

    /// Deletes exactly this UID and version of an object. An object that does not exist counts as deleted. The version is
    /// empty if the object is gone at once.
    pub async fn delete(&self, kind: &Kind, object: &Object, propagation: Propagation) -> Result<Written, Error> {
        let request = Request::delete(kind, &object.key, &object.uid, Some(&object.resource_version), propagation);
        match self.write(request).await {
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
        self.fetch_in_parts(path, accept, Whole::default()).await
    }

    /// Reads a path that names no object, and decodes the answer while it arrives.
    pub(super) async fn fetch_in_parts<R: Reading>(
        &self,
        path: &str,
        accept: &str,
        reading: R,
    ) -> Result<R::Read, Error> {
        let request = http::Request::get(path).header(ACCEPT, accept).body(Body::empty());
        self.ask_at(path, Verb::Get, request, reading).await
    }

    /// Posts a question (an access review) and returns the answer.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        let request = http::Request::post(path)
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, JSON)
            .body(Body::from(body.to_string().into_bytes()));
        self.ask_at(path, Verb::Create, request, Whole::default()).await
    }

    async fn ask_at<R: Reading>(
        &self,
        path: &str,
        verb: Verb,
        request: Result<http::Request<Body>, http::Error>,
        reading: R,
    ) -> Result<R::Read, Error> {
        let request = request.map_err(Unsendable::from);
        let connection = self.ready_connection()?;
        let claim = self.sent_under.claim()?;
        let asked = Asked { cluster: &self.shared.name, verb, resource: path, name: None };
        let deadline = self.urgent.unwrap_or(self.shared.limits.request_timeout);
        if self.shared.reach.is_none() || self.urgent.is_some() {
            return self.exchange(&connection, request, &asked, deadline, claim, reading).await;
        }
        let admission = self.admit(Some(deadline)).await?;
        let result = self.exchange(&connection, request, &asked, deadline, claim, reading).await;
        self.done(admission, result.as_ref().err());
        result
    }

    /// Its denied permissions, where somebody asks for them again: the session actor. Without one every denial is the answer
    /// to a request of its own, and urgent requests wait for nobody.
    fn remembered_denials(&self) -> Option<&DeniedPermissions> {
        (self.shared.reach.is_none() && self.urgent.is_none()).then_some(&self.shared.denied)
    }

    pub(super) async fn send<T: Readable>(&self, request: Request<'_>, accept: &'static str) -> Result<T, Error> {
        // The claim first: a request that waits below is not sent under the claim of the next term.
        let claim = self.sent_under.claim()?;
        let connection = self.ready_connection()?;
        let full = request.full_resource();
        let (verb, key) = (request.verb, request.key);
        // Built only if something was denied: every request passes here.
        let access = || AccessRequest::new(verb, &full, &key.namespace, &key.name);
        let asked = Asked { cluster: &self.shared.name, verb, resource: &full, name: Some(&key.name) };
        let denials = self.remembered_denials();
        if denials.is_some_and(|denied| denied.any() && denied.is_denied(&access())) {
            return Err(Error::Forbidden {
                cluster: self.shared.name.clone(),
                verb,
                resource: full.clone(),
                message: "denied before; access is reviewed again with back-off".into(),
            });
        }
        let message = request.into_message(accept);
        if let Some(deadline) = self.urgent {
            return self.exchange(&connection, message, &asked, deadline, claim, Whole::default()).await;
        }
        // As with the claim: a request that waits for a slot is not sent if another cluster answers by then.
        let identity = self.identity();
        let deadline = self.shared.limits.request_timeout;
        let admission = self.admit(Some(deadline)).await?;
        if let Some(uid) = identity.uid()
            && self.identity().uid() != Some(uid)
        {
            self.done(admission, None);
            return Err(self.unavailable("it may be another cluster than before"));
        }
        let result = self.exchange(&connection, message, &asked, deadline, claim, Whole::default()).await;
        self.done(admission, result.as_ref().err());
        let Some(denied) = denials else { return result };
        match result {
            Err(Error::Forbidden { message, .. }) if denied.is_granted(&access()) => {
                Err(Error::Rejected { code: 403, reason: "Forbidden".into(), message })
            }
            Err(Error::Forbidden { .. }) => {
                if denied.deny(&access()) {
                    tracing::warn!(
                        cluster = %self.shared.name, verb = %verb, resource = %full, "permission is missing"
                    );
                    // The actor asks for denied permissions.
                    self.wake();
                }
                result
            }
            Ok(_) => {
                if denied.any_unproven() {
                    denied.prove(&access());
                }
                result
            }
            Err(_) => result,
        }
    }

    /// Sends one request, and records what its outcome says about the cluster.
    pub(super) async fn exchange<R: Reading>(
        &self,
        connection: &Connection,
        request: Result<http::Request<Body>, Unsendable>,
        asked: &Asked<'_>,
        deadline: Duration,
        claim: Option<Claim>,
        reading: R,
    ) -> Result<R::Read, Error> {
        let sent = Instant::now();
        let result = connection.exchange(request, asked, deadline, claim, reading).await;
        self.answered(result.as_ref().err(), sent);
        result
    }

    /// Records what the outcome of a request that was sent at this moment says about the cluster.
    pub(super) fn answered(&self, failure: Option<&Error>, sent: Instant) {
        match (&self.shared.reach, failure) {
            // It answers, and the error may be due to the one object: some servers answer 500 to wrong content.
            (Some(reach), Some(Error::Server { .. } | Error::Throttled { .. } | Error::Decode { .. })) => {
                reach.answered(None, sent);
            }
            (Some(reach), _) => reach.answered(failure, sent),
            (None, Some(error)) if error.is_unreachable() => self.report_unreachable(),
            // It answers, but not as it should: the actor probes, and requests do not wait for that.
            (None, Some(Error::Unauthorized { .. } | Error::Server { .. } | Error::Decode { .. })) => {
                self.request_probe();
            }
            (None, _) => {}
        }
    }

    /// Waits for a slot, and without a session actor until the cluster [may be asked](super::reach): for so long if it does not answer.
    pub(super) async fn admit(&self, patience: Option<Duration>) -> Result<Admission<'_>, Error> {
        let limiter = &self.shared.limiter;
        let admission = match &self.shared.reach {
            Some(reach) => reach.admit(limiter, patience).await,
            None => limiter.acquire().await.map(Admission::Together).ok_or_else(|| SHUTTING_DOWN.into()),
        };
        admission.map_err(|reason| self.unavailable(&reason))
    }

    /// Ends the admission of a request that failed in this way, if it did. After `Reach::answered`, which those who wait for
    /// the admission go by.
    pub(super) fn done(&self, admission: Admission<'_>, failure: Option<&Error>) {
        if let Admission::Together(slot) = admission {
            self.shared.limiter.done(slot, ServerAnswer::of(failure));
        }
    }

    /// Sends a request when the cluster [may be asked](super::reach). The request is built at that moment, and its deadline counts
    /// from then on. Denials are not recorded: the caller decides when to ask again.
    pub async fn exchange_when_admitted<'r, T: DeserializeOwned>(
        &self,
        request: impl FnOnce() -> Request<'r>,
        accept: &'static str,
        deadline: Duration,
        urgency: Urgency,
    ) -> Exchange<T> {
        let failed = |error: Error| Exchange { sent: Instant::now(), answer: Err(error), skew: None };
        // Before the request waits for its turn: the claim of the next term does not let it through.
        let claim = match self.sent_under.claim() {
            Ok(claim) => claim,
            Err(expired) => return failed(expired.into()),
        };
        let admission = match urgency {
            Urgency::WhenAdmitted => match self.admit(None).await {
                Ok(admission) => Some(admission),
                Err(error) => return failed(error),
            },
            Urgency::AtOnce => None,
        };
        let connection = match self.ready_connection() {
            Ok(connection) => connection.holding(claim),
            Err(error) => return failed(error),
        };
        let sent = Instant::now();
        let answer = connection.send(request(), accept, deadline).await;
        let failure = answer.as_ref().err();
        match &self.shared.reach {
            Some(reach) => reach.answered(failure, sent),
            None => self.answered(failure, sent),
        }
        if let Some(admission) = admission {
            self.done(admission, failure);
        }
        match answer {
            Ok((answer, skew)) => Exchange { sent, answer: Ok(answer), skew },
            Err(error) => Exchange { sent, answer: Err(error), skew: None },
        }
    }
}
