//! A server that answers as a test says, and a client of it with a kubeconfig that a user of an API has written.

use std::sync::Arc;
use std::time::Duration;

use kube::Config;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::super::Client;
use crate::cluster::{Clock, Credentials, DynamicClusters, Fence, Fingerprint};
use crate::config::DEFAULT_MAX_IN_FLIGHT;
use crate::http::DeniedNetworks;

/// What the server does with a request.
pub(super) enum Reply {
    /// A whole answer: status, further headers, body.
    Whole(u16, &'static str, String),
    /// The beginning of a 200, and then nothing.
    Begun(Vec<u8>),
    /// The answer, once the gate is open. The request is noted then.
    Held(Gate, Box<Reply>),
}

/// Holds answers back until it is opened.
#[derive(Clone, Default)]
pub(super) struct Gate(CancellationToken);

impl Gate {
    pub(super) fn open(&self) {
        self.0.cancel();
    }
}

/// A request: `PATCH /api/v1/…?…`, its media types, its body.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) line: String,
    pub(super) accept: String,
    pub(super) media_type: String,
    pub(super) body: String,
}

type Script = dyn FnMut(&str) -> Reply + Send;

/// Answers each request by its line. Discovery of the core group is answered as any server would.
pub(super) struct Server {
    url: http::Uri,
    asked: Arc<Mutex<Vec<Asked>>>,
    script: Arc<Mutex<Box<Script>>>,
}

pub(super) fn whole(code: u16, body: &Value) -> Reply {
    Reply::Whole(code, "", body.to_string())
}

/// A refusal, as an API server writes it.
pub(super) fn status(code: u16, reason: &str, message: &str, details: &Value) -> Reply {
    whole(code, &json!({"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}))
}

/// The metadata of the object that most tests are about.
pub(super) fn metadata() -> Value {
    let labels = json!({"hive.openshift.io/managed": "true"});
    json!({"metadata": {"name": "site", "namespace": "team", "uid": "u-1", "resourceVersion": "7", "labels": labels}})
}

fn core() -> Value {
    json!({"kind": "APIResourceList", "resources": [
        {"name": "configmaps", "kind": "ConfigMap", "namespaced": true},
        {"name": "secrets", "kind": "Secret", "namespaced": true},
        {"name": "namespaces", "kind": "Namespace", "namespaced": false},
        {"name": "services", "kind": "Service", "namespaced": true},
        {"name": "pods", "kind": "Pod", "namespaced": true},
    ]})
}

impl Server {
    pub(super) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let script: Box<Script> = Box::new(|_| whole(200, &metadata()));
        let server = Self { url, asked: Arc::default(), script: Arc::new(Mutex::new(script)) };
        let (asked, script) = (Arc::clone(&server.asked), Arc::clone(&server.script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&asked), Arc::clone(&script)));
            }
        });
        server
    }

    pub(super) fn answer(&self, script: impl FnMut(&str) -> Reply + Send + 'static) {
        *self.script.lock() = Box::new(script);
    }

    /// The requests since the last call.
    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// How many there were since then.
    pub(super) fn noted(&self) -> usize {
        self.asked.lock().len()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }

    pub(super) fn client(&self, request_timeout: Duration) -> Client {
        let mut config = Config::new(self.url.clone());
        // The system's are read anew for each client.
        config.root_cert = Some(Vec::new());
        let none = DeniedNetworks::default();
        let clusters = DynamicClusters::of_many(request_timeout, DEFAULT_MAX_IN_FLIGHT, "many", none);
        Client::new(
            clusters
                .cluster("team-a", &"west".parse().unwrap(), Credentials { config, fingerprint: Fingerprint([7; 32]) })
                .unwrap(),
        )
    }
}

pub(super) fn fence() -> Fence {
    let fence = Fence::new("west", Clock::Boot);
    fence.open(fence.now() + Duration::from_hours(1));
    fence
}

async fn serve(mut stream: TcpStream, asked: Arc<Mutex<Vec<Asked>>>, script: Arc<Mutex<Box<Script>>>) {
    while let Some(request) = read(&mut stream).await {
        let is_discovery = request.line == "GET /api/v1";
        let mut reply = if is_discovery { whole(200, &core()) } else { (script.lock())(&request.line) };
        if let Reply::Held(gate, held) = reply {
            gate.0.cancelled().await;
            reply = *held;
        }
        asked.lock().push(request);
        let answer = match reply {
            Reply::Held(..) => unreachable!("an answer is held back once"),
            Reply::Whole(code, headers, body) => {
                let length = body.len();
                format!("HTTP/1.1 {code} Status\r\ncontent-length: {length}\r\n{headers}\r\n{body}").into_bytes()
            }
            Reply::Begun(body) => [b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", body.as_slice()].concat(),
        };
        // The client may hang up before it has read everything.
        let _written = stream.write_all(&answer).await;
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let header = |name: &str| {
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked {
        line: head.split(" HTTP/1.1").next().unwrap().to_owned(),
        accept: header("accept").unwrap_or_default(),
        media_type: header("content-type").unwrap_or_default(),
        body: String::from_utf8(body).unwrap(),
    })
}
