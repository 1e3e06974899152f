//! What the kubeconfig of a cluster leads to: a way to an edge that notes requests, and loses or holds some of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use integration::soak::Random;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::chaos::oracle::{Kind, Object};

/// How long the process behind a connection is looked for: a worker is known a moment after its start.
const LOOKS: u32 = 20;
/// How long a slow answer takes.
const SLOW: u64 = 700;

/// Microseconds since 1970, as the clock of the machine says, which is the database's as well.
pub(crate) type Moment = i64;

pub(crate) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    i64::try_from(since.as_micros()).expect("not so far in the future")
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Moment,
    /// The process that sent it; none if it was killed before anybody looked.
    pub(crate) process: Option<i32>,
    pub(crate) method: Method,
    pub(crate) path: String,
    /// Of the object that a DELETE is for.
    pub(crate) uid: Option<String>,
    /// Of the object that a POST is for.
    pub(crate) name: Option<String>,
    /// What the edge answered; 0 if it was not asked.
    pub(crate) status: u16,
}

impl Asked {
    /// The object that it is for.
    pub(crate) fn object(&self) -> Object {
        let path = self.path.split('?').next().unwrap_or_default();
        let of_kind = |plural: &str| path.split('/').any(|part| part == plural);
        let kind = if of_kind("secrets") {
            Kind::Secret
        } else if of_kind("deployments") {
            Kind::Deployment
        } else {
            Kind::ConfigMap
        };
        let name = self.name.clone().or_else(|| path.rsplit('/').next().map(str::to_owned));
        (kind, name.unwrap_or_default())
    }
}

/// The processes that may send requests, and how many there were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) processes: Arc<Mutex<Vec<i32>>>,
    pub(crate) requests: watch::Sender<u64>,
    /// Read by each request until it is carried out or lost: whoever has it for writing knows that none is on its way.
    pub(crate) under_way: Arc<RwLock<()>>,
}

/// The endpoint of one cluster. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    server: JoinHandle<()>,
}

struct State {
    /// The UID that `kube-system` seems to have.
    identity: String,
    edge: kube::Client,
    traffic: Traffic,
    asked: Mutex<Vec<Asked>>,
    random: Mutex<Random>,
    /// Of so many requests one goes wrong; none at 0.
    one_fails_of: Mutex<u64>,
    /// The request, counted from 0, that is held, until this is dropped.
    held: watch::Sender<Hold>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("State").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Which request is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    #[default]
    None,
    /// That of this number, when it comes.
    Request(usize),
    /// It has come.
    Holding,
}

/// The connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct Lost;

/// What becomes of a request.
enum Fate {
    Answered,
    Slow,
    /// It does not arrive.
    LostBefore,
    /// It is carried out, and nobody learns so.
    LostAfter,
    Refused(u16),
}

impl Endpoint {
    pub(crate) async fn start(identity: &str, edge: kube::Client, traffic: &Traffic, random: Random) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            identity: identity.to_owned(),
            edge,
            traffic: traffic.clone(),
            asked: Mutex::default(),
            random: Mutex::new(random),
            one_fails_of: Mutex::new(0),
            held: watch::Sender::default(),
        });
        let serving = Arc::clone(&state);
        let server = tokio::spawn(async move {
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                tokio::spawn(serve(Arc::clone(&serving), stream, (peer.port(), address.port())));
            }
        });
        Self { address, state, server }
    }

    /// The kubeconfig that leads here. The token is nobody's; each one is another kubeconfig.
    pub(crate) fn kubeconfig(&self, token: &str) -> String {
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        document.to_string()
    }

    /// From now on one of so many requests goes wrong; none at 0.
    pub(crate) fn one_fails_of(&self, requests: u64) {
        *self.state.one_fails_of.lock() = requests;
    }

    /// Everything that has arrived.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().clone()
    }

    /// Holds the request of this number, or lets go what is held.
    pub(crate) fn hold(&self, hold: Hold) {
        self.state.held.send_replace(hold);
    }

    pub(crate) fn is_holding(&self) -> bool {
        *self.state.held.borrow() == Hold::Holding
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(state: Arc<State>, stream: TcpStream, ports: (u16, u16)) {
    let process = process_of(ports, &state.traffic).await;
    let answer = service_fn(|request| answer(&state, process, request));
    // A client that is killed ends its connection in any way.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
}

async fn answer(
    state: &Arc<State>,
    process: Option<i32>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Lost> {
    let at = now();
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let number = {
        let mut asked = state.asked.lock();
        let method = head.method.clone();
        asked.push(Asked { at, process, method, path: path.clone(), uid: None, name: None, status: 0 });
        asked.len() - 1
    };
    state.traffic.requests.send_modify(|requests| *requests += 1);
    let under_way = Arc::clone(&state.traffic.under_way).read_owned().await;
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    if [Method::DELETE, Method::POST].contains(&head.method) {
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let [uid, name] =
            [&sent["preconditions"]["uid"], &sent["metadata"]["name"]].map(|text| text.as_str().map(str::to_owned));
        let asked = &mut state.asked.lock()[number];
        (asked.uid, asked.name) = (uid, name);
    }
    let is_held = state.held.send_if_modified(|held| {
        let is_held = *held == Hold::Request(number);
        if is_held {
            *held = Hold::Holding;
        }
        is_held
    });
    if is_held {
        state.held.subscribe().wait_for(|held| *held != Hold::Holding).await.map_err(|_| Lost)?;
    }
    let fate = state.fate();
    match fate {
        Fate::LostBefore => return Err(Lost),
        Fate::Refused(code) => return Ok(refusal(code)),
        Fate::Slow => {
            let slow = state.random.lock().below(SLOW);
            sleep(Duration::from_millis(slow)).await;
        }
        Fate::Answered | Fate::LostAfter => {}
    }
    let mut forwarded = Request::builder().method(&head.method).uri(&path);
    for name in [ACCEPT, CONTENT_TYPE] {
        if let Some(value) = head.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let forwarded = forwarded.body(kube::client::Body::from(body)).map_err(|_| Lost)?;
    // What has begun is carried out, and noted, even if the client is gone.
    let asker = Arc::clone(state);
    let exchange = tokio::spawn(async move {
        let (head, body) = asker.edge.send(forwarded).await.map_err(|_| Lost)?.into_parts();
        asker.asked.lock()[number].status = head.status.as_u16();
        let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
        drop(under_way);
        Ok::<_, Lost>((head, body))
    });
    let (answered, mut body) = exchange.await.map_err(|_| Lost)??;
    if matches!(fate, Fate::LostAfter) {
        return Err(Lost);
    }
    if head.uri.path() == "/api/v1/namespaces/kube-system" && answered.status.is_success() {
        let mut namespace: Value = serde_json::from_slice(&body).map_err(|_| Lost)?;
        namespace["metadata"]["uid"] = json!(state.identity);
        body = namespace.to_string().into();
    }
    let mut response = Response::builder().status(answered.status);
    if let Some(value) = answered.headers.get(CONTENT_TYPE) {
        response = response.header(CONTENT_TYPE, value);
    }
    response.body(Full::new(body)).map_err(|_| Lost)
}

impl State {
    fn fate(&self) -> Fate {
        let one_fails_of = *self.one_fails_of.lock();
        let mut random = self.random.lock();
        if one_fails_of == 0 || random.below(one_fails_of) > 0 {
            return Fate::Answered;
        }
        match random.below(10) {
            0 | 1 => Fate::LostBefore,
            2..=4 => Fate::LostAfter,
            5 => Fate::Refused(500),
            6 => Fate::Refused(503),
            7 => Fate::Refused(429),
            8 => Fate::Refused(403),
            _ => Fate::Slow,
        }
    }
}

fn refusal(code: u16) -> Response<Full<Bytes>> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": "", "message": "by lot"});
    let response = Response::builder().status(code).header(CONTENT_TYPE, "application/json").header(RETRY_AFTER, "1");
    response.body(Full::new(status.to_string().into())).expect("a response")
}

/// The process that has the connection from one port of loopback to another one.
async fn process_of(ports: (u16, u16), traffic: &Traffic) -> Option<i32> {
    for _ in 0..LOOKS {
        let known = traffic.processes.lock().clone();
        // The table is not read at one moment, so that a look may miss a socket.
        if let Some(socket) = inode_of(ports).map(|inode| format!("socket:[{inode}]"))
            && let Some(found) = known.into_iter().find(|process| has_open(*process, &socket))
        {
            return Some(found);
        }
        sleep(Duration::from_millis(50)).await;
    }
    None
}

/// The number of the socket of this connection. A port alone is not enough: it may also have connections to other ports, of which those
/// that have ended belong to nobody.
fn inode_of((from, to): (u16, u16)) -> Option<String> {
    let ends = [from, to].map(|port| format!("0100007F:{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let line = table.lines().find(|line| line.split_whitespace().skip(1).take(2).eq(&ends))?;
    line.split_whitespace().nth(9).map(str::to_owned)
}

fn has_open(process: i32, socket: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy() == socket))
}
