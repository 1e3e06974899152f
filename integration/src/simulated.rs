//! Many API servers that one process plays, for a bench of thousands of clusters: objects of any kind in the core group, their metadata,
//! and nothing else that a real API server does. A list has one page. All have one address; the first part of the path says which one is asked.
//!
//! Each one answers, or is slow, or stops in the midst of each answer. For one that refuses connections or swallows packets, a
//! [`Link`](crate::Link) goes between.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificates::Certificates;
use crate::room::Room;
use crate::{Error, users};

/// The most bytes of a request.
const LARGEST_REQUEST: usize = 4 << 20;
/// A slow server answers after this time.
const SLOW: Duration = Duration::from_millis(5_500);
/// What a real one notes of an object with ten fields.
const FIELDS: &str = "{\"f:data\":{\".\":{},\"f:text\":{},\"f:value\":{}},\"f:metadata\":{\"f:annotations\":{\"f:towline.dev/syncset\":{},\
                      \"f:towline.dev/syncset-id\":{}},\"f:labels\":{\"f:hive.openshift.io/managed\":{}}}}";

/// How a server treats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    Answers,
    /// It answers after 5.5 s, and a cluster has to answer within 5.
    IsSlow,
    /// It sends the beginning of an answer, and then nothing.
    StopsHalfWay,
}

impl Behavior {
    const ALL: [Self; 3] = [Self::Answers, Self::IsSlow, Self::StopsHalfWay];
}

/// Servers, by number. They end when this is dropped.
#[derive(Debug)]
pub struct ApiServers {
    address: SocketAddr,
    authority: String,
    all: Arc<All>,
    accepting: JoinHandle<()>,
}

/// What the connections share. The locks are held for one request each.
#[derive(Debug)]
struct All {
    servers: Vec<Server>,
    requests: AtomicU64,
    expected: Mutex<Expected>,
}

#[derive(Debug)]
struct Server {
    behavior: AtomicU8,
    objects: Mutex<BTreeMap<Box<str>, Stored>>,
}

#[derive(Debug)]
struct Stored {
    uid: u64,
    version: u64,
    /// Labels and annotations, as they were sent.
    labels: Box<str>,
    annotations: Box<str>,
}

/// The value in whose arrival somebody is interested, and what has arrived.
#[derive(Debug, Default)]
struct Expected {
    value: Option<String>,
    seen: HashMap<(usize, Box<str>), Instant>,
}

impl ApiServers {
    pub async fn start(count: usize) -> Result<Self, Error> {
        let network = |action| move |source| Error::Network { action, source };
        let room = Room::new("simulated")?;
        let certificates = Certificates::make(&room)?;
        let acceptor = acceptor(&certificates)?;
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.map_err(network("listen for simulated API servers"))?;
        let address = listener.local_addr().map_err(network("listen for simulated API servers"))?;
        let server = |_| Server { behavior: AtomicU8::new(0), objects: Mutex::default() };
        let servers = (0..count).map(server).collect();
        let all = Arc::new(All { servers, requests: AtomicU64::new(0), expected: Mutex::default() });
        let accepting = tokio::spawn(accept(listener, acceptor, Arc::clone(&all)));
        Ok(Self { address, authority: certificates.authority_pem, all, accepting })
    }

    /// Where all of them are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig for the server with this number by this address.
    pub fn kubeconfig(&self, number: usize, address: SocketAddr) -> Result<String, Error> {
        let text = users::kubeconfig(users::named(users::EDGE_CONTROLLER)?, "simulated", address, &self.authority);
        Ok(text.replace(&format!("https://{address}"), &format!("https://{address}/{number}")))
    }

    /// From now on a server behaves like this.
    pub fn set_behavior(&self, number: usize, behavior: Behavior) {
        let position = Behavior::ALL.iter().position(|known| *known == behavior);
        if let (Some(server), Some(position)) = (self.all.servers.get(number), position) {
            server.behavior.store(u8::try_from(position).unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// How many requests have arrived at all of them.
    pub fn requests(&self) -> u64 {
        self.all.requests.load(Ordering::Relaxed)
    }

    /// Begins to note which objects are written with this `data.value`, and when each was first.
    pub fn expect(&self, value: &str) {
        *self.all.expected.lock() = Expected { value: Some(value.to_owned()), seen: HashMap::new() };
    }

    /// How many objects were written with the expected value, and when the last of them was.
    pub fn arrived(&self) -> (usize, Option<Instant>) {
        let expected = self.all.expected.lock();
        (expected.seen.len(), expected.seen.values().max().copied())
    }

    /// How many objects there are on all of them.
    pub fn objects(&self) -> usize {
        self.all.servers.iter().map(|server| server.objects.lock().len()).sum()
    }
}

impl Drop for ApiServers {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn acceptor(certificates: &Certificates) -> Result<TlsAcceptor, Error> {
    let unreadable =
        |detail: String| Error::Unreadable { what: "the certificate of simulated API servers".to_owned(), detail };
    let chain =
        CertificateDer::from_pem_file(&certificates.server_certificate).map_err(|e| unreadable(e.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&certificates.server_key).map_err(|e| unreadable(e.to_string()))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![chain], key))
        .map_err(|error| unreadable(error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, all: Arc<All>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (acceptor, all) = (acceptor.clone(), Arc::clone(&all));
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            // What goes wrong here, the client sees for itself.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| {
                let all = Arc::clone(&all);
                async move { Ok::<_, Infallible>(all.answer(request).await) }
            });
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

/// An answer; of one that stops half way nothing follows after the first half.
#[derive(Debug)]
struct Text {
    rest: Option<Bytes>,
    length: u64,
    stops: bool,
}

impl Text {
    fn new(text: Vec<u8>, stops: bool) -> Self {
        let mut rest = Bytes::from(text);
        let length = rest.len() as u64;
        if stops {
            rest.truncate(rest.len() / 2);
        }
        Self { rest: Some(rest), length, stops }
    }
}

impl Body for Text {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.rest.take() {
            Some(rest) => Poll::Ready(Some(Ok(Frame::data(rest)))),
            None if self.stops => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

/// What matters of an object that is sent.
#[derive(Deserialize)]
struct Sent<'t> {
    #[serde(borrow)]
    metadata: SentMetadata<'t>,
    #[serde(default)]
    data: SentData,
}

#[derive(Deserialize)]
struct SentMetadata<'t> {
    name: Option<String>,
    #[serde(borrow)]
    labels: Option<&'t RawValue>,
    #[serde(borrow)]
    annotations: Option<&'t RawValue>,
}

#[derive(Default, Deserialize)]
struct SentData {
    value: Option<String>,
}

/// A status and a body.
type Reply = (StatusCode, Vec<u8>);

impl All {
    async fn answer(&self, request: Request<Incoming>) -> Response<Text> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (head, body) = request.into_parts();
        let body = Limited::new(body, LARGEST_REQUEST).collect().await.map(Collected::to_bytes).unwrap_or_default();
        let path = head.uri.path().trim_start_matches('/');
        let (number, path) = path.split_once('/').unwrap_or((path, ""));
        let numbered = number.parse().ok().and_then(|number: usize| Some((number, self.servers.get(number)?)));
        let Some((number, server)) = numbered else {
            return respond(refusal(StatusCode::NOT_FOUND, "NotFound", path), false);
        };
        let behavior = server.behavior();
        if behavior == Behavior::IsSlow {
            tokio::time::sleep(SLOW).await;
        }
        let reply = match path {
            "version" => (StatusCode::OK, json!({"major": "1", "minor": "35"}).to_string().into_bytes()),
            "api/v1" => (StatusCode::OK, core().to_string().into_bytes()),
            "api/v1/namespaces/kube-system" => (
                StatusCode::OK,
                json!({"metadata": {"name": "kube-system", "uid": format!("cluster-{number}")}})
                    .to_string()
                    .into_bytes(),
            ),
            _ => self.object(number, server, &head.method, path, &body),
        };
        respond(reply, behavior == Behavior::StopsHalfWay)
    }

    fn object(&self, number: usize, server: &Server, method: &Method, path: &str, body: &[u8]) -> Reply {
        let mut objects = server.objects.lock();
        let segments: Vec<&str> = path.split('/').collect();
        let (is_list, plural) = match segments.as_slice() {
            ["api", "v1", plural] | ["api", "v1", "namespaces", _, plural] => (true, *plural),
            ["api", "v1", "namespaces", _, plural, _] => (false, *plural),
            _ => return refusal(StatusCode::NOT_FOUND, "NotFound", path),
        };
        if method == Method::GET && is_list {
            return list(&objects, plural);
        }
        let sent = serde_json::from_slice::<Sent<'_>>(body).ok();
        let path = match sent.as_ref().and_then(|sent| sent.metadata.name.as_ref()) {
            Some(name) if is_list => format!("{path}/{name}"),
            _ => path.to_owned(),
        };
        if method == Method::GET {
            return match objects.get(path.as_str()) {
                Some(stored) => (StatusCode::OK, stored.metadata(&path)),
                None => refusal(StatusCode::NOT_FOUND, "NotFound", &path),
            };
        }
        if method == Method::DELETE {
            return match objects.remove(path.as_str()) {
                Some(stored) => (StatusCode::OK, stored.metadata(&path)),
                None => refusal(StatusCode::NOT_FOUND, "NotFound", &path),
            };
        }
        let Some(sent) = sent else { return refusal(StatusCode::BAD_REQUEST, "BadRequest", &path) };
        if method == Method::POST && objects.contains_key(path.as_str()) {
            return refusal(StatusCode::CONFLICT, "AlreadyExists", &path);
        }
        let version = self.requests.load(Ordering::Relaxed);
        let text = |raw: Option<&RawValue>| raw.map_or("null", RawValue::get).into();
        let (labels, annotations) = (text(sent.metadata.labels), text(sent.metadata.annotations));
        let mut is_new = false;
        let stored = objects.entry(path.as_str().into()).or_insert_with(|| {
            is_new = true;
            Stored { uid: version, version, labels: "null".into(), annotations: "null".into() }
        });
        *stored = Stored { uid: stored.uid, version, labels, annotations };
        let answer = stored.metadata(&path);
        drop(objects);
        let mut expected = self.expected.lock();
        if sent.data.value.is_some() && sent.data.value == expected.value {
            expected.seen.entry((number, path.into())).or_insert_with(Instant::now);
        }
        (if is_new { StatusCode::CREATED } else { StatusCode::OK }, answer)
    }
}

impl Server {
    fn behavior(&self) -> Behavior {
        let position = usize::from(self.behavior.load(Ordering::Relaxed));
        Behavior::ALL.get(position).copied().unwrap_or(Behavior::Answers)
    }
}

impl Stored {
    fn metadata(&self, path: &str) -> Vec<u8> {
        let mut text = Vec::with_capacity(1024);
        self.write(path, &mut text);
        text
    }

    fn write(&self, path: &str, text: &mut Vec<u8>) {
        let mut segments = path.rsplit('/');
        let (name, namespace) = (segments.next().unwrap_or_default(), segments.nth(1).unwrap_or_default());
        let Self { uid, version, labels, annotations } = self;
        // Writing to a vector can't fail.
        let _ = write!(
            text,
            "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{{\"name\":\"{name}\",\
             \"namespace\":\"{namespace}\",\"uid\":\"{uid}\",\"resourceVersion\":\"{version}\",\
             \"creationTimestamp\":\"2026-11-19T08:00:03Z\",\"labels\":{labels},\"annotations\":{annotations},\
             \"managedFields\":[{{\"manager\":\"towline\",\"operation\":\"Apply\",\"apiVersion\":\"v1\",\
             \"time\":\"2026-11-19T08:00:03Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{FIELDS}}}]}}}}"
        );
    }
}

fn list(objects: &BTreeMap<Box<str>, Stored>, plural: &str) -> Reply {
    let mut text =
        b"{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{},\"items\":["
            .to_vec();
    let of_kind = objects.iter().filter(|(path, _)| path.rsplit('/').nth(1) == Some(plural));
    for (number, (path, stored)) in of_kind.enumerate() {
        if number > 0 {
            text.push(b',');
        }
        stored.write(path, &mut text);
    }
    text.extend_from_slice(b"]}");
    (StatusCode::OK, text)
}

fn core() -> Value {
    let kind = |kind: &str, plural: &str| json!({"name": plural, "kind": kind, "namespaced": true, "verbs": ["get"]});
    json!({"kind": "APIResourceList", "groupVersion": "v1",
        "resources": [kind("ConfigMap", "configmaps"), kind("Secret", "secrets")]})
}

/// A refusal that names the object with this path, as a real one does: of another 404 nobody concludes that there is no such object.
fn refusal(code: StatusCode, reason: &str, path: &str) -> Reply {
    let mut segments = path.rsplit('/');
    let (name, plural) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": reason, "details": {"name": name, "kind": plural}});
    (code, status.to_string().into_bytes())
}

fn respond((status, text): Reply, stops: bool) -> Response<Text> {
    let mut response = Response::new(Text::new(text, stops));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{ListParams, Patch, PatchParams};
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use kube::{Api, Client, Config};

    use super::*;

    async fn client(servers: &ApiServers, number: usize) -> Client {
        let text = servers.kubeconfig(number, servers.address()).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    #[tokio::test]
    async fn what_one_server_is_sent_another_does_not_have_and_arrivals_are_noted() {
        let servers = ApiServers::start(2).await.unwrap();
        let maps = |client| Api::<ConfigMap>::namespaced(client, "team");
        let (one, other) = (maps(client(&servers, 0).await), maps(client(&servers, 1).await));
        servers.expect("7");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"value": "7"}});
        let applied = one.patch_metadata("a", &PatchParams::apply("t"), &Patch::Apply(&body)).await.unwrap();
        assert_eq!(
            (applied.metadata.namespace.as_deref(), applied.metadata.labels.unwrap()["x"].as_str()),
            (Some("team"), "y")
        );
        assert!(other.get_metadata_opt("a").await.unwrap().is_none());
        assert_eq!(one.list_metadata(&ListParams::default()).await.unwrap().items.len(), 1);
        assert_eq!(other.list_metadata(&ListParams::default()).await.unwrap().items.len(), 0);
        assert_eq!((servers.arrived().0, servers.requests(), servers.objects()), (1, 4, 1));
        let delete = http::Request::delete("/api/v1/namespaces/team/configmaps/a").body(Vec::new()).unwrap();
        client(&servers, 0).await.request_text(delete).await.unwrap();
        assert_eq!(servers.objects(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_stops_half_way_never_ends() {
        let servers = ApiServers::start(1).await.unwrap();
        let client = client(&servers, 0).await;
        let version = || http::Request::get("/version").body(Vec::new()).unwrap();
        assert!(client.request_text(version()).await.unwrap().contains("35"));
        servers.set_behavior(0, Behavior::StopsHalfWay);
        let stopped = tokio::time::timeout(Duration::from_millis(300), client.request_text(version())).await;
        assert!(stopped.is_err(), "{stopped:?}");
        assert_eq!(servers.requests(), 2);
    }
}
