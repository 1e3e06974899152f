//! A server with a few routes, and clients that speak with it byte by byte.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use futures::SinkExt;
use futures::channel::mpsc;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::http::scripted::hold_the_clock;

const HEAD: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_secs(20);
const FAREWELL: Duration = Duration::from_secs(2);

fn limits() -> Limits {
    Limits {
        most_connections: 3,
        longest_head: HEAD,
        largest_head: 8192,
        longest_stall: STALL,
        keep_alive: true,
        farewell: FAREWELL,
    }
}

type Piece = Result<Vec<u8>, Infallible>;

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
    let (stream, receiver) = mpsc::channel(0);
    let script =
        Arc::new(Script { begun: Semaphore::new(0), gate: Semaphore::new(0), stream: Mutex::new(Some(receiver)) });
    let router = Router::new()
        .route("/quick", get(async || "quick"))
        .route("/slow", get(slow))
        .route("/stream", get(streamed))
        .route("/denied", get(async || StatusCode::UNAUTHORIZED))
        .with_state(Arc::clone(&script));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = tokio::spawn(Server::new("test", limits).serve(listener, router, stop.clone()));
    Running { address, stop, server, script, stream }
}

impl Running {
    /// One more request to `/slow` has begun.
    async fn has_begun(&self) {
        let begun = self.script.begun.acquire();
        timeout(Duration::from_mins(1), begun).await.expect("waited for a request").unwrap().forget();
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

    /// The body of an answer, and whether it is the connection's last.
    async fn answer(&mut self) -> (String, bool) {
        let head = self.head().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let mut body = vec![0; length.expect("a length").parse().unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        (String::from_utf8(body).unwrap(), head.contains("connection: close\r\n"))
    }

    async fn ask(&mut self, path: &str) -> (String, bool) {
        self.get(path).await;
        self.answer().await
    }

    /// Waits for the end of the connection: whether it came after everything that was sent.
    async fn ended(&mut self) -> bool {
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_hours(1), self.0.read_to_end(&mut rest)).await;
        matches!(ended.expect("waited for the connection to end"), Ok(0))
    }
}

fn is_about(lasted: Duration, expected: Duration) -> bool {
    lasted >= expected && lasted < expected + Duration::from_secs(1)
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_byte_by_byte_has_no_more_time() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    let begun = Instant::now();
    drop(hold);
    for byte in ["G", "E", "T", " ", "/"] {
        client.send(byte).await;
        tokio::time::sleep(HEAD / 6).await;
    }
    client.ended().await;
    assert!(is_about(begun.elapsed(), HEAD), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_that_says_nothing_is_closed_long_before_a_kept_one_and_does_not_hold_up_the_end() {
    let running = start(Limits { longest_head: BEGINS_WITHIN * 6, ..limits() }).await;
    let hold = hold_the_clock();
    let mut silent = Client::connect(&running).await;
    let begun = Instant::now();
    drop(hold);
    assert!(silent.ended().await);
    assert!(is_about(begun.elapsed(), BEGINS_WITHIN), "{:?}", begun.elapsed());
    let _silent = Client::connect(&running).await;
    let begun = Instant::now();
    running.stop.cancel();
    running.server.await.unwrap();
    assert!(begun.elapsed() < FAREWELL, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn whoever_is_not_known_is_not_told_the_release() {
    let running = start(limits()).await;
    let mut client = Client::connect(&running).await;
    for (path, status, is_told) in [("/denied", "401", false), ("/elsewhere", "404", true)] {
        client.get(path).await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert_eq!(head.contains(&format!("server: {RELEASE}\r\n")), is_told, "{head}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_serves_further_requests_and_is_closed_when_none_comes() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    for _ in 0..3 {
        assert_eq!(client.ask("/quick").await, ("quick".to_owned(), false));
    }
    let begun = Instant::now();
    drop(hold);
    assert!(client.ended().await);
    assert!(is_about(begun.elapsed(), HEAD), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_client_beyond_the_limit_of_connections_is_served_when_one_of_them_ends() {
    let running = start(limits()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(&running).await;
        client.get("/slow").await;
        running.has_begun().await;
        held.push(client);
    }
    let mut waiting = Client::connect(&running).await;
    waiting.get("/slow").await;
    held.pop();
    running.has_begun().await;
    running.script.gate.add_permits(3);
    for client in held.iter_mut().chain([&mut waiting]) {
        assert_eq!(client.answer().await, ("slow".to_owned(), false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_not_cut_off() {
    let mut running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.get("/stream").await;
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    drop(hold);
    for _ in 0..3 {
        tokio::time::sleep(STALL * 3).await;
        let _hold = hold_the_clock();
        running.stream.send(Ok(b"event".to_vec())).await.unwrap();
        let mut chunk = [0; 10];
        client.0.read_exact(&mut chunk).await.unwrap();
        assert_eq!(&chunk, b"5\r\nevent\r\n");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_is_cut_off_and_one_that_is_read_slowly_is_not() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.get("/stream").await;
    client.head().await;
    let mut stream = running.stream;
    let feeding = tokio::spawn(async move {
        while stream.send(Ok(vec![b'a'; 1 << 20])).await.is_ok() {}
        Instant::now()
    });
    drop(hold);
    for _ in 0..5 {
        tokio::time::sleep(STALL * 3 / 4).await;
        let _hold = hold_the_clock();
        client.0.read_exact(&mut vec![0; 16 << 20]).await.unwrap();
    }
    let begun = Instant::now();
    let lasted = feeding.await.unwrap().duration_since(begun);
    assert!(lasted >= STALL / 4 && lasted < STALL + Duration::from_secs(1), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_idle_connections_close_and_requests_are_finished() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut idle = Client::connect(&running).await;
    assert_eq!(idle.ask("/quick").await, ("quick".to_owned(), false));
    let mut busy = Client::connect(&running).await;
    busy.get("/slow").await;
    running.has_begun().await;
    running.stop.cancel();
    assert!(idle.ended().await);
    running.script.gate.add_permits(1);
    assert_eq!(busy.answer().await, ("slow".to_owned(), true));
    assert!(busy.ended().await);
    drop(hold);
    timeout(FAREWELL, running.server).await.expect("waited for the server to stop").unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_that_outlast_the_farewell_are_cut_off() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut busy = Client::connect(&running).await;
    busy.get("/slow").await;
    running.has_begun().await;
    let begun = Instant::now();
    running.stop.cancel();
    drop(hold);
    running.server.await.unwrap();
    assert!(is_about(begun.elapsed(), FAREWELL), "{:?}", begun.elapsed());
    busy.ended().await;
}
