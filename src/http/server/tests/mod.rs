//! A server with a few routes, and clients that speak with it byte by byte.

mod bodies;
mod deadlines;
mod observed;
mod places;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use futures::channel::mpsc;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::http::limits::{AnswerWithin, KeepAlive, Reserved, begins_with};
use crate::http::scripted::hold_the_clock;

const HEAD: Duration = Duration::from_secs(5);
const BODY: Duration = Duration::from_secs(7);
const PROGRESS: Duration = Duration::from_secs(20);
const WHOLE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(50);
const USE: Duration = Duration::from_mins(5);
const LIFE: Duration = Duration::from_mins(10);
const FAREWELL: Duration = Duration::from_secs(2);

/// More than the kernel takes in for both sides.
const HUGE: usize = 64 << 20;

fn limits() -> Limits {
    Limits {
        most_connections: 9,
        most_arriving: 4,
        most_requests: 3,
        answer_within: AnswerWithin::Whole(WHOLE),
        reserved: vec![
            Reserved {
                serves: |request| begins_with(request.uri.path(), "/probe"),
                most: 1,
                answer_within: AnswerWithin::Whole(WHOLE),
            },
            Reserved {
                serves: |request| begins_with(request.uri.path(), "/stream"),
                most: 1,
                answer_within: AnswerWithin::Progress(PROGRESS),
            },
        ],
        longest_head: HEAD,
        largest_head: 8192,
        largest_body: 10,
        largest_bodies: vec![("/large", 100)],
        longest_body: BODY,
        keep_alive: Some(KeepAlive { longest_idle: IDLE, longest_use: USE }),
        longest_connection: LIFE,
        farewell: FAREWELL,
    }
}

/// A piece of a stream.
type Piece = Result<Vec<u8>, Infallible>;

/// What the routes do.
struct Script {
    /// Requests to `/slow` that have begun and were not counted yet.
    begun: Semaphore,
    /// They end when they get a permit.
    gate: Semaphore,
    /// What `/stream` sends.
    stream: Mutex<Option<mpsc::Receiver<Piece>>>,
}

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<()>,
    script: Arc<Script>,
    stream: mpsc::Sender<Piece>,
}

async fn start(limits: Limits) -> Running {
    start_observed(limits, Arc::new(())).await
}

async fn start_observed(limits: Limits, observer: Arc<dyn Observer>) -> Running {
    let (stream, receiver) = mpsc::channel(0);
    let script =
        Arc::new(Script { begun: Semaphore::new(0), gate: Semaphore::new(0), stream: Mutex::new(Some(receiver)) });
    let length = async |body: hyper::body::Bytes| body.len().to_string();
    let router = Router::new()
        .route("/quick", get(async || "quick"))
        .route("/probe", get(async || "probe"))
        .route("/huge", get(async || vec![b'a'; HUGE]))
        .route("/slow", get(slow))
        .route("/stream", get(streamed))
        .route("/small", post(length))
        .route("/large", post(length))
        .route("/unread", post(async || "unread"))
        .with_state(Arc::clone(&script));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = Server::new("test", limits, Refusal::into_json).observed_by(observer);
    let server = tokio::spawn(server.serve(listener, router, stop.clone()));
    Running { address, stop, server, script, stream }
}

impl Running {
    /// So many requests to `/slow` have begun since the last time.
    async fn begun(&self, count: u32) {
        let begun = self.script.begun.acquire_many(count);
        tokio::time::timeout(Duration::from_mins(1), begun).await.expect("waited for a request").unwrap().forget();
    }
}

async fn slow(State(script): State<Arc<Script>>) -> &'static str {
    script.begun.add_permits(1);
    script.gate.acquire().await.unwrap().forget();
    "slow"
}

async fn streamed(State(script): State<Arc<Script>>) -> Body {
    Body::from_stream(script.stream.lock().take().expect("one stream at a time"))
}

/// A connection as a client has it.
struct Client(TcpStream);

/// An answer's status and body, and whether it is the connection's last.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    body: String,
    last: bool,
}

fn told(status: u16, body: &str, last: bool) -> Told {
    Told { status, body: body.to_owned(), last }
}

const BUSY: &str = r#"{"error":"too many requests at the same time"}"#;

impl Client {
    async fn connect(running: &Running) -> Self {
        Self(TcpStream::connect(running.address).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
    }

    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("an answer"));
        }
        String::from_utf8(head).unwrap()
    }

    async fn answer(&mut self) -> Told {
        let head = self.head().await;
        let after = |name: &str| head.split(name).nth(1).and_then(|rest| rest.split("\r\n").next()).map(str::to_owned);
        let length = after("content-length: ").expect("a length").parse().unwrap();
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        let status = head[9..12].parse().unwrap();
        let last = after("connection: ").is_some_and(|value| value == "close");
        Told { status, body: String::from_utf8(body).unwrap(), last }
    }

    async fn ask(&mut self, path: &str) -> Told {
        self.get(path).await;
        self.answer().await
    }

    async fn post(&mut self, path: &str, body: &str) -> Told {
        self.send(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        self.answer().await
    }

    /// Waits for the end of the connection: whether it came after everything that was sent.
    async fn ended(&mut self) -> bool {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_hours(1), self.0.read_to_end(&mut rest)).await;
        matches!(ended.expect("waited for the connection to end"), Ok(0))
    }

    /// Whether nothing has come, not even the end, while all others had time to act.
    async fn is_open(&mut self) -> bool {
        let hold = hold_the_clock();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        drop(hold);
        let mut byte = [0; 1];
        matches!(self.0.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// Asks until the answer has this status.
async fn until(running: &Running, path: &str, status: u16) -> Told {
    let asking = async {
        loop {
            let answer = Client::connect(running).await.ask(path).await;
            if answer.status == status {
                return answer;
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asking)
        .await
        .unwrap_or_else(|_| panic!("waited for {status} at {path}"))
}
