//! The admin server's connections, all of which are bounded: how many there are, how long a request's head may take,
//! how large head and body may be, how long an answer may take to be read, and how long a connection may last.
//!
//! One request a connection: whoever asks does so every few seconds at most, and an idle connection would hold a place.
//!
//! Slow clients never keep the kubelet out. A connection that has not sent its head holds one of [`MOST_ARRIVING`] places
//! and is closed when a newer one needs it, oldest first. With the head it takes one of [`MOST_CONNECTIONS`] places, and is
//! answered 503 where there is none; probes (`/healthz`, `/readyz`) have [`MOST_PROBES`] of their own.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::admin::{Admin, Peer, router};

/// Requests at the same time that are no probes. A scraper or two and a person need a handful.
const MOST_CONNECTIONS: usize = 64;
/// Probes at the same time. The kubelet needs two.
const MOST_PROBES: usize = 16;
/// Connections at the same time whose head is not complete. That of an honest client is there within a round trip.
const MOST_ARRIVING: usize = 64;
/// Time for a request's head. It is a few hundred bytes.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// Bytes for a request's head, hyper's least.
const LARGEST_HEAD: usize = 8192;
/// Bytes for a request's body; no route reads one.
const LARGEST_BODY: u64 = 1024;
/// Time for an answer to be read, once it is there. The largest are a few megabytes.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// A connection's life. A detach of many thousand objects takes minutes; it goes on when its connection ends.
const LONGEST_CONNECTION: Duration = Duration::from_mins(10);
/// How often the metrics' recorder is tidied, so that histograms don't grow where nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted: the process is out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for answers that have begun, at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The places of requests whose head is there.
#[derive(Clone)]
struct Places {
    probes: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Places {
    fn take(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let is_probe = ["/healthz", "/readyz"]
            .iter()
            .any(|probe| path.strip_prefix(probe).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        let places = if is_probe { &self.probes } else { &self.others };
        Arc::clone(places).try_acquire_owned().ok()
    }
}

/// Connections whose head is not complete, the oldest first.
#[derive(Default)]
struct Arriving {
    last: u64,
    by_number: BTreeMap<u64, AbortHandle>,
}

impl Arriving {
    /// Makes room for one more.
    fn make_room(&mut self) {
        while self.by_number.len() >= MOST_ARRIVING
            && let Some((_, oldest)) = self.by_number.pop_first()
        {
            oldest.abort();
        }
    }
}

/// A connection's place among those that arrive, until its head is there or it ends.
struct Arrival {
    number: u64,
    arriving: Arc<Mutex<Arriving>>,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arriving.lock().by_number.remove(&self.number);
    }
}

/// Serves the admin routes on a listener until it is told to stop.
pub async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) {
    let metrics = admin.metrics.clone();
    let router = router(Arc::new(admin));
    let places =
        Places { probes: Arc::new(Semaphore::new(MOST_PROBES)), others: Arc::new(Semaphore::new(MOST_CONNECTIONS)) };
    let arriving: Arc<Mutex<Arriving>> = Arc::default();
    let mut connections = JoinSet::new();
    let mut upkeep = tokio::time::interval(UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let mut list = arriving.lock();
                    list.make_room();
                    list.last += 1;
                    let number = list.last;
                    let arrival = Arrival { number, arriving: Arc::clone(&arriving) };
                    let task = connections.spawn(converse(stream, peer, arrival, places.clone(), router.clone()));
                    // It has not run yet: this is the one thread, or the list is locked.
                    list.by_number.insert(number, task);
                }
                Err(error) => {
                    tracing::warn!(%error, "admin connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = upkeep.tick() => metrics.run_upkeep(),
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Whoever is not done by then is cut off: the set aborts its tasks when it is dropped.
    let _ = tokio::time::timeout(FAREWELL, all_ended).await;
}

/// One request and its answer.
async fn converse(stream: TcpStream, peer: SocketAddr, arrival: Arrival, places: Places, router: Router) {
    let answered = Arc::new(Notify::new());
    let held = Arc::new(Mutex::new((Some(arrival), None)));
    let (tell, place) = (Arc::clone(&answered), Arc::clone(&held));
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, tell, place) = (router.clone(), Arc::clone(&tell), Arc::clone(&place));
        let taken = places.take(request.uri().path());
        async move {
            let has_place = taken.is_some();
            // Held until the connection ends, since its answer takes as long to be read as its peer likes.
            *place.lock() = (None, taken);
            let answer = if has_place { answer(router, peer, request).await } else { busy() };
            tell.notify_one();
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        .keep_alive(false)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let read_too_slowly = async {
        answered.notified().await;
        tokio::time::sleep(LONGEST_ANSWER).await;
    };
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%peer, %error, "admin connection failed");
        },
        () = read_too_slowly => tracing::debug!(%peer, "admin connection cut off: its answer was not read in time"),
        () = tokio::time::sleep(LONGEST_CONNECTION) => tracing::debug!(%peer, "admin connection cut off"),
    }
    drop(held);
}

fn busy() -> Response<Body> {
    let body = axum::Json(serde_json::json!({ "error": "too many requests at the same time" }));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

async fn answer(router: Router, peer: SocketAddr, mut request: Request<Incoming>) -> Response<Body> {
    if request.body().size_hint().lower() > LARGEST_BODY {
        let body = axum::Json(serde_json::json!({ "error": "the body is too large" }));
        return (StatusCode::PAYLOAD_TOO_LARGE, body).into_response();
    }
    request.extensions_mut().insert(Peer(peer));
    match router.oneshot(request.map(Body::new)).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::super::Tree;
    use super::super::metrics::recorder;
    use super::*;

    struct Still;

    impl Tree for Still {
        fn report(&self) -> BoxFuture<'_, Value> {
            async { json!({}) }.boxed()
        }

        fn heartbeat_age(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// Never answers for the tree.
    struct Silent;

    impl Tree for Silent {
        fn report(&self) -> BoxFuture<'_, Value> {
            futures::future::pending().boxed()
        }

        fn heartbeat_age(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// More than the kernel takes in for both sides.
    const LARGE: usize = 64 << 20;

    struct Large;

    impl Tree for Large {
        fn report(&self) -> BoxFuture<'_, Value> {
            async { json!("a".repeat(LARGE)) }.boxed()
        }

        fn heartbeat_age(&self) -> Duration {
            Duration::ZERO
        }
    }

    struct Running {
        address: SocketAddr,
        stop: CancellationToken,
        server: JoinHandle<()>,
    }

    async fn start() -> Running {
        start_with(Arc::new(Still)).await
    }

    async fn start_with(tree: Arc<dyn Tree>) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let admin = Admin {
            started: Instant::now(),
            metrics: recorder().expect("the buckets are well formed").handle(),
            before_scrape: Arc::new(|| {}),
            sections: Vec::new(),
            clusters: Arc::new(Vec::new),
            tree,
            admin_token_file: None,
        };
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, admin, stop.clone()));
        Running { address, stop, server }
    }

    async fn converse_with(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("a request is sent");
        let mut answer = String::new();
        // An answer that came before the connection was reset is one all the same.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn a_request_is_answered_and_the_connection_closed() {
        let running = start().await;
        let answer = converse_with(running.address, "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("{\"heartbeat_age_seconds\":0.0}"), "{answer}");
    }

    #[tokio::test]
    async fn the_peer_of_a_connection_is_known() {
        let running = start().await;
        let answer = converse_with(running.address, "POST /approve/a HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404"), "loopback is let in, to find nothing: {answer}");
    }

    #[tokio::test]
    async fn large_bodies_and_heads_are_refused() {
        let running = start().await;
        let body = "POST /approve/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1025\r\n\r\n";
        let answer = converse_with(running.address, body).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        let head = format!("GET /healthz HTTP/1.1\r\nlong: {}\r\n\r\n", "a".repeat(LARGEST_HEAD));
        let answer = converse_with(running.address, &head).await;
        assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_no_head_is_cut_off() {
        let running = start().await;
        let begun = Instant::now();
        let answer = converse_with(running.address, "GET /heal").await;
        // The paused clock may jump while the connection is being made, but not as far as the whole life of one.
        let lasted = begun.elapsed();
        assert!(lasted >= LONGEST_HEAD && lasted < LONGEST_CONNECTION, "{lasted:?}: {answer}");
    }

    const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn who_sends_no_head_is_closed_for_who_comes_later_and_the_oldest_first() {
        let running = start().await;
        let mut held = Vec::new();
        for _ in 0..=MOST_ARRIVING {
            held.push(TcpStream::connect(running.address).await.expect("a connection"));
        }
        let answer = converse_with(running.address, HEALTHZ).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut nothing = [0; 1];
        for closed in held.iter_mut().take(2) {
            let read = tokio::time::timeout(Duration::from_mins(1), closed.read(&mut nothing)).await;
            assert!(!matches!(read.expect("waited for it to be closed"), Ok(1..)), "it was answered");
        }
        for open in held.iter_mut().skip(2) {
            assert!(open.read(&mut nothing).now_or_never().is_none(), "more were closed than had to be");
        }
    }

    /// Requests of others that get no answer for as long as this lives.
    async fn others(running: &Running, count: usize) -> Vec<TcpStream> {
        let mut held = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(running.address).await.expect("a connection");
            stream.write_all(b"GET /status HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("a request is sent");
            held.push(stream);
        }
        held
    }

    #[tokio::test]
    async fn probes_have_places_of_their_own_and_who_comes_beyond_the_limit_is_told() {
        let running = start_with(Arc::new(Silent)).await;
        let _held = others(&running, MOST_CONNECTIONS).await;
        let metrics = "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
        let deadline = Instant::now() + Duration::from_secs(4);
        let refused = loop {
            let answer = converse_with(running.address, metrics).await;
            if answer.starts_with("HTTP/1.1 503") || Instant::now() > deadline {
                break answer;
            }
        };
        assert!(refused.ends_with("{\"error\":\"too many requests at the same time\"}"), "{refused}");
        for path in ["/healthz", "/readyz"] {
            let probe = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
            let answer = converse_with(running.address, &probe).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }

    #[tokio::test]
    async fn who_does_not_read_the_answer_is_cut_off() {
        let running = start_with(Arc::new(Large)).await;
        let mut held = others(&running, 1).await;
        let mut first = [0; 1];
        held[0].read_exact(&mut first).await.expect("the answer begins");
        tokio::time::pause();
        let begun = Instant::now();
        tokio::time::sleep(LONGEST_ANSWER + Duration::from_secs(1)).await;
        assert!(begun.elapsed() < LONGEST_CONNECTION);
        tokio::time::resume();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_mins(1), held[0].read_to_end(&mut rest)).await;
        // What the kernel had taken in is there; what the server still had is not.
        assert!(read.expect("waited for the connection to end").is_err() || rest.len() < LARGE, "{}", rest.len());
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_stops_though_someone_holds_a_connection() {
        let running = start().await;
        let _held = TcpStream::connect(running.address).await.expect("a connection");
        running.stop.cancel();
        let stopped = tokio::time::timeout(FAREWELL * 2, running.server).await;
        stopped.expect("waited for the server to stop").expect("no panic");
    }
}
