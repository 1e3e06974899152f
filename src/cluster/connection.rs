//! One client with one set of credentials: it sends a request and classifies the outcome.
//!
//! A [`Cluster`](super::Cluster) adds availability, denied permissions and a limit of requests in flight.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, RETRY_AFTER};
use http_body_util::{BodyExt, LengthLimitError};
use jiff::SignedDuration;
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Config};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;
use tower::{BoxError, ServiceExt};

use super::Verb;
use super::bearer::Bearer;
use super::error::{Asked, Cause, Error, NO_STATUS, cautious_message};
use super::fence::{Claim, Expired, SentUnder};
use super::reply::{Dated, Readable, Reading, ReplyBudget, Unreadable, Whole};
use super::request::{Request, Unsendable};
use super::stack::{self, Answer, LARGEST_REFUSAL, Settings, Transport};
use crate::config::ClusterName;
use crate::http::{BearerToken, DeniedNetworks};

/// The media type of a reply without the body of the object: after a write, identity, version and generation are enough.
pub const PARTIAL_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// The longest `Retry-After` that is honoured: a wrong one, of a proxy, must not stop an object for a day.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

/// The most bytes of a request's path and query. Kube's client joins it with the path of the server's URL, and panics above 64 KiB; a
/// server chooses the tokens that continue its lists.
const LONGEST_PATH: usize = 32 << 10;
/// The most bytes of a reply with one object. etcd accepts 1.5 MiB, and managed fields add to that.
const LARGEST_OBJECT: usize = 16 << 20;
/// The most bytes of any other reply: discovery, a page of metadata.
const LARGEST_LIST: usize = 64 << 20;

/// How clusters are treated whose kubeconfigs were written by users of an API.
pub(super) struct Untrusted {
    /// The label under which their requests are counted.
    pub(super) counted_as: &'static str,
    /// The networks to which no connection is made.
    pub(super) denied: DeniedNetworks,
    /// The memory for large replies of their owner's clusters.
    pub(super) budget: ReplyBudget,
}

/// A client, and the cluster's name for its errors. Clones share the client's connections, and the fence.
#[derive(Clone)]
pub struct Connection {
    name: ClusterName,
    transport: Transport,
    client: Client,
    sent_under: SentUnder,
    /// Host and port of the API server.
    address: Arc<str>,
    /// If the kubeconfig was written by a user of an API, the budget for large replies, which all of its owner's clusters share.
    budget: Option<ReplyBudget>,
}

/// Host and port of a URL; the scheme has a default port.
fn address(url: &http::Uri) -> String {
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
    format!("{}:{port}", url.host().unwrap_or_default())
}

impl Connection {
    /// A client for a configuration whose credentials are all in it, except for a token that can be replaced, if there is
    /// one. Nothing is sent yet. `headers_within` bounds the beginning of every answer, also of a watch's.
    ///
    /// Fails if the keys and certificates can't be used.
    pub(super) fn bearing(
        name: ClusterName,
        config: Config,
        headers_within: Duration,
        bearer: Option<Bearer>,
    ) -> Result<Self, kube::Error> {
        let (pool_idle, denied) = (stack::POOL_IDLE, DeniedNetworks::default());
        Self::keeping(name, config, Settings { headers_within, pool_idle, bearer, counted_as: None, denied })
    }

    /// The same for periodic requests: the TCP connection is kept from one to the next, so that not each of them costs a
    /// handshake. `untrusted` says how to treat a server whose kubeconfig was written by a user of an API.
    pub(super) fn steady(
        name: ClusterName,
        config: Config,
        headers_within: Duration,
        untrusted: Option<Untrusted>,
    ) -> Result<Self, kube::Error> {
        let (counted_as, denied, budget) = match untrusted {
            Some(Untrusted { counted_as, denied, budget }) => (Some(counted_as), denied, Some(budget)),
            None => (None, DeniedNetworks::default(), None),
        };
        let settings =
            Settings { headers_within, pool_idle: stack::STEADY_POOL_IDLE, bearer: None, counted_as, denied };
        Ok(Self { budget, ..Self::keeping(name, config, settings)? })
    }

    fn keeping(name: ClusterName, config: Config, settings: Settings) -> Result<Self, kube::Error> {
        let address = address(&config.cluster_url).into();
        let (transport, client) = stack::connect(config, settings)?;
        Ok(Self { name, transport, client, sent_under: SentUnder::None, address, budget: None })
    }

    /// A connection over the client of a test.
    #[cfg(test)]
    pub(super) fn over(name: ClusterName, client: Client) -> Self {
        let transport = stack::through(client.clone());
        Self { name, transport, client, sent_under: SentUnder::None, address: "test".into(), budget: None }
    }

    /// The cluster's name, for errors.
    pub(super) fn name(&self) -> &ClusterName {
        &self.name
    }

    /// Host and port of the API server, to keep.
    pub(super) fn server(&self) -> Arc<str> {
        Arc::clone(&self.address)
    }

    /// Host and port of the API server.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The same connection, for requests that are only sent while this claim holds, if there is one.
    #[must_use]
    pub fn holding(&self, claim: Option<Claim>) -> Self {
        self.guarded(claim.map_or(SentUnder::None, SentUnder::Claim))
    }

    fn is_untrusted(&self) -> bool {
        self.budget.is_some()
    }

    pub(super) fn guarded(&self, sent_under: SentUnder) -> Self {
        Self { sent_under, ..self.clone() }
    }

    /// Kube's client. Its requests are only sent while the fence is open, too.
    pub fn client(&self) -> Client {
        match self.sent_under.clone() {
            SentUnder::None => self.client.clone(),
            sent_under => guarded(self.client.clone(), move || sent_under.claim()),
        }
    }

    /// Sends one request for an object and reads the reply, with the media type `accept`. With it comes how far this machine's clock is
    /// ahead of the server's, as far as the reply tells.
    pub async fn send<T: Readable>(
        &self,
        request: Request<'_>,
        accept: &'static str,
        deadline: Duration,
    ) -> Result<(T, Option<SignedDuration>), Error> {
        let resource = request.full_resource();
        let name = request.key.name.clone();
        let asked = Asked { cluster: &self.name, verb: request.verb, resource: &resource, name: Some(&name) };
        let claim = self.sent_under.claim()?;
        self.exchange(request.into_message(accept), &asked, deadline, claim, Dated::<Whole<T>>::default()).await
    }

    /// Requests the API server's version, which every server has and nearly every user may read; with this token instead of
    /// the current one, if it is given.
    pub(super) async fn probe_as(&self, token: Option<&BearerToken>, deadline: Duration) -> Result<(), Error> {
        let asked = Asked { cluster: &self.name, verb: Verb::Get, resource: "/version", name: None };
        let mut request = http::Request::get("/version").header(ACCEPT, "application/json").body(Body::empty());
        if let (Ok(request), Some(token)) = (&mut request, token) {
            request.extensions_mut().insert(token.clone());
        }
        // Whatever the answer says, it is not kept.
        let whatever = Whole::<IgnoredAny>::default();
        self.exchange(request.map_err(Into::into), &asked, deadline, None, whatever).await.map(drop)
    }

    /// Sends one request while the claim holds, and classifies the outcome. An answer that is complete only after the
    /// deadline does not count, also if the process was stopped meanwhile and finds both when it continues.
    pub(super) async fn exchange<R: Reading>(
        &self,
        request: Result<http::Request<Body>, Unsendable>,
        asked: &Asked<'_>,
        deadline: Duration,
        claim: Option<Claim>,
        mut reading: R,
    ) -> Result<R::Read, Error> {
        let unsendable = |message: String| Error::Rejected { code: 0, reason: "BadRequest".into(), message };
        let mut request = request.map_err(|source| unsendable(format!("failed to build the request: {source}")))?;
        if request.uri().path_and_query().is_some_and(|path| path.as_str().len() > LONGEST_PATH) {
            return Err(unsendable(format!("the path of the request has more than {} KiB", LONGEST_PATH >> 10)));
        }
        if let Some(claim) = &claim {
            request.extensions_mut().insert(claim.clone());
        }
        if let Some(budget) = &self.budget {
            reading.count_in(budget);
        }
        let begun = Instant::now();
        let answer = async {
            let sent = self.transport.clone().oneshot(request).await;
            let response = sent.map_err(|source| asked.failed(of_kube(source)))?;
            let (parts, body) = response.into_parts();
            let limit = match (parts.status.is_success(), asked.name) {
                (false, _) => LARGEST_REFUSAL,
                (true, Some(_)) => LARGEST_OBJECT,
                (true, None) if self.is_untrusted() => LARGEST_OBJECT,
                (true, None) => LARGEST_LIST,
            };
            let undecoded = |source| Error::Decode { source: self.undecoded(parts.status, source) };
            if parts.status.is_success() {
                reading.head(&parts.headers);
            }
            let mut refusal = Vec::new();
            let is_whole = read_up_to(limit, body, |data| {
                if parts.status.is_success() {
                    return reading.take(data).map_err(|unreadable| match unreadable {
                        Unreadable::Json(source) => undecoded(source),
                        Unreadable::TooMuch(told) => Error::Decode { source: told.into() },
                    });
                }
                refusal.extend_from_slice(data);
                Ok(())
            });
            let is_whole = is_whole.await.map_err(|unread| match unread {
                Unread::Body(source) => asked.failed(of_kube(source)),
                Unread::Refused(error) => error,
            })?;
            if parts.status.is_success() {
                let large = || format!("the answer has more than {} MiB", limit >> 20).into();
                return if is_whole {
                    reading.end(parts.status).map_err(undecoded)
                } else {
                    Err(Error::Decode { source: large() })
                };
            }
            if !is_whole {
                // Such a large body is no Status.
                refusal.clear();
            }
            let retry_after = parts
                .headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| value.parse().ok())
                .map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER));
            let status = Status { code: parts.status.as_u16(), ..decoded_status(&refusal) };
            let error = asked.refused(&status, retry_after);
            Err(if self.is_untrusted() { error.saying(cautious_message(&status, asked.resource)) } else { error })
        };
        let timely = tokio::select! {
            biased;
            // Checked before every step of the exchange: a request that waited for a connection when the claim expired is not
            // sent, whatever else happened at the same time.
            expired = ended(claim) => Some(Err(expired.into())),
            () = tokio::time::sleep(deadline) => None,
            answer = answer => (begun.elapsed() < deadline).then_some(answer),
        };
        timely.unwrap_or_else(|| {
            Err(Error::NoAnswer {
                cluster: self.name.clone(),
                source: format!("no answer within {}", humantime::format_duration(deadline)).into(),
            })
        })
    }
}

impl Connection {
    /// Why the body of a success could not be decoded. The decoder quotes the body, which an untrusted server has chosen.
    fn undecoded(&self, status: http::StatusCode, source: serde_json::Error) -> Cause {
        if !self.is_untrusted() {
            return Cause::of(source);
        }
        let (line, column) = (source.line(), source.column());
        format!("HTTP {}, not a Kubernetes API (line {line}, column {column})", status.as_u16()).into()
    }
}

/// Why a body was not read to its end.
enum Unread {
    /// The connection failed.
    Body(BoxError),
    /// The reader refused it.
    Refused(Error),
}

/// Passes on a body while it arrives, up to a number of bytes. False if it is larger.
async fn read_up_to(
    limit: usize,
    mut body: Answer,
    mut take: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<bool, Unread> {
    let mut left = limit;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            // The transport has its own limit for refusals.
            Err(source) if source.is::<LengthLimitError>() => return Ok(false),
            frame => frame.map_err(Unread::Body)?,
        };
        let Ok(data) = frame.into_data() else { continue };
        let Some(rest) = left.checked_sub(data.len()) else { return Ok(false) };
        left = rest;
        take(&data).map_err(Unread::Refused)?;
    }
    Ok(true)
}

/// The API server's status of a refusal. Anything else, like a proxy's page or other JSON, is not repeated.
fn decoded_status(body: &[u8]) -> Status {
    #[derive(Deserialize)]
    struct Decoded {
        kind: String,
        #[serde(flatten)]
        status: Status,
    }
    match serde_json::from_slice::<Decoded>(body) {
        Ok(Decoded { kind, status }) if kind == "Status" => status,
        _ => Status { message: NO_STATUS.to_owned(), ..Status::default() },
    }
}

/// An error of the transport, as kube's client returns it.
fn of_kube(error: BoxError) -> kube::Error {
    error.downcast::<kube::Error>().map_or_else(kube::Error::Service, |error| *error)
}

/// Ends when the claim expires; never if there is none.
async fn ended(claim: Option<Claim>) -> Expired {
    match claim {
        Some(claim) => claim.expired().await,
        None => std::future::pending().await,
    }
}

/// A client whose requests are only sent under a claim. Each request takes its claim when it begins.
pub(super) fn guarded<F>(client: Client, claim: F) -> Client
where
    F: Fn() -> Result<Option<Claim>, Expired> + Clone + Send + Sync + 'static,
{
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: http::Request<Body>| {
        let (client, claim) = (client.clone(), claim());
        async move {
            if let Some(claim) = claim? {
                request.extensions_mut().insert(claim);
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::request::Payload;
    use crate::cluster::{Cluster, Kind, ObjectKey, full_text};

    const DEADLINE: Duration = Duration::from_secs(10);

    /// The outcome of a write with this answer.
    async fn answered(code: u16, body: Value) -> Result<Value, Error> {
        let (cluster, script) = Cluster::scripted("edge");
        script.answer(move |_| (code, body.clone()));
        let (kind, key) = (Kind::core("Secret", "secrets", true), ObjectKey::new("team", "orders"));
        let connection = cluster.session().unwrap().connection;
        let request = Request::patch(&kind, &key, Payload::none()).by("towline");
        connection.send(request, PARTIAL_METADATA, DEADLINE).await.map(|(reply, _)| reply)
    }

    #[tokio::test]
    async fn a_reply_is_read_up_to_a_limit() {
        let error = answered(200, json!("a".repeat(LARGEST_OBJECT))).await.unwrap_err();
        assert_eq!(error.to_string(), "failed to decode the answer: the answer has more than 16 MiB");
        let body = "a".repeat(LARGEST_OBJECT - 2);
        assert_eq!(answered(200, json!(body)).await.unwrap(), json!(body));
        let error = answered(500, json!("a".repeat(LARGEST_REFUSAL))).await.unwrap_err();
        assert_eq!(error.to_string(), format!("server error (500): {NO_STATUS}"));
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_refused_before_it_is_sent() {
        let (cluster, script) = Cluster::scripted("edge");
        script.answer(|_| (200, json!({"answered": true})));
        let connection = cluster.session().unwrap().connection;
        let asked = Asked { cluster: cluster.name(), verb: Verb::Get, resource: "pods", name: None };
        let get = |length: usize| {
            let path = format!("/{}", "a".repeat(length - 1));
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            connection.exchange(Ok(request), &asked, DEADLINE, None, Whole::<Value>::default())
        };
        assert_eq!(get(LONGEST_PATH).await.unwrap(), json!({"answered": true}));
        let error = get(LONGEST_PATH + 1).await.unwrap_err();
        assert_eq!(error.message(), "the path of the request has more than 32 KiB");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("failed to apply the object")]
    struct Failed(#[source] Error);

    #[tokio::test]
    async fn a_failure_to_connect_keeps_its_source_and_prints_it_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        let connection = Connection::steady("edge".parse().unwrap(), Config::new(url), DEADLINE, None).unwrap();
        let error = connection.probe_as(None, DEADLINE).await.unwrap_err();
        let text = "failed to connect to cluster edge: connection refused";
        assert_eq!(error.to_string(), text);
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(inner) = source.filter(|inner| !inner.is::<std::io::Error>()) {
            source = inner.source();
        }
        let cause = source.and_then(|cause| cause.downcast_ref::<std::io::Error>()).expect("the connector's error");
        assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionRefused);

        assert_eq!(full_text(&error), text);
        assert_eq!(full_text(&Failed(error)), format!("failed to apply the object: {text}"));
    }

    #[tokio::test]
    async fn of_a_refusal_only_a_status_is_repeated() {
        let error = answered(502, json!({"message": "canary"})).await.unwrap_err();
        assert_eq!(error.to_string(), format!("server error (502): {NO_STATUS}"));
        let error = answered(502, json!({"kind": "Status", "message": "told"})).await.unwrap_err();
        assert_eq!(error.to_string(), "server error (502): told");
    }
}
