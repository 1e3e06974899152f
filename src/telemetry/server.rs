//! The admin server's connections, all of which are bounded: how many there are, how long a request's head may take,
//! how large head and body may be, and how long one may last.
//!
//! One request a connection: whoever asks does so every few seconds at most, and an idle connection would hold a place.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::admin::{Admin, Peer, router};

/// Connections at the same time; more wait in the listener's backlog. Probes, a scraper or two and a person need a
/// handful.
const MOST_CONNECTIONS: usize = 64;
/// Time for a request's head. It is a few hundred bytes.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// Bytes for a request's head, hyper's least.
const LARGEST_HEAD: usize = 8192;
/// Bytes for a request's body; no route reads one.
const LARGEST_BODY: u64 = 1024;
/// A connection's life. A detach of many thousand objects takes minutes; it goes on when its connection ends.
const LONGEST_CONNECTION: Duration = Duration::from_mins(10);
/// How often the metrics' recorder is tidied, so that histograms don't grow where nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted: the process is out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for answers that have begun, at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves the admin routes on a listener until it is told to stop.
pub async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) {
    let metrics = admin.metrics.clone();
    let router = router(Arc::new(admin));
    let mut connections = JoinSet::new();
    let mut upkeep = tokio::time::interval(UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(converse(stream, peer, router.clone()));
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
async fn converse(stream: TcpStream, peer: SocketAddr, router: Router) {
    let service = service_fn(move |request| answer(router.clone(), peer, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        .keep_alive(false)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LONGEST_CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "admin connection failed"),
        Err(_) => tracing::debug!(%peer, "admin connection cut off"),
    }
}

async fn answer(
    router: Router,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.body().size_hint().lower() > LARGEST_BODY {
        let body = axum::Json(serde_json::json!({ "error": "the body is too large" }));
        return Ok((StatusCode::PAYLOAD_TOO_LARGE, body).into_response());
    }
    request.extensions_mut().insert(Peer(peer));
    router.oneshot(request.map(Body::new)).await
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

    struct Running {
        address: SocketAddr,
        stop: CancellationToken,
        server: JoinHandle<()>,
    }

    async fn start() -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let admin = Admin {
            started: Instant::now(),
            metrics: recorder().expect("the buckets are well formed").handle(),
            before_scrape: Arc::new(|| {}),
            sections: Vec::new(),
            tree: Arc::new(Still),
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

    #[tokio::test]
    async fn who_comes_beyond_the_limit_waits_until_another_is_gone() {
        let running = start().await;
        let mut held = Vec::new();
        for _ in 0..MOST_CONNECTIONS {
            held.push(TcpStream::connect(running.address).await.expect("a connection"));
        }
        let request = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut waiting = Box::pin(converse_with(running.address, request));
        for turn in 0..10_000 {
            assert!(futures::poll!(&mut waiting).is_pending(), "answered at turn {turn}");
            tokio::task::yield_now().await;
        }
        held.pop();
        let answer = tokio::time::timeout(Duration::from_mins(1), waiting).await;
        let answer = answer.expect("waited for the answer after a place was free");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
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
