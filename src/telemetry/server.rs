//! The admin server: the admin routes on a bounded [`Server`] with tight limits.
//!
//! Each connection takes one request: clients ask every few seconds at most, and an idle connection would only hold a socket.
//! Slow clients never keep the kubelet out: probes (`/healthz`, `/readyz`) have [`MOST_PROBES`] reserved places.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::admin::{Admin, router};
use crate::http::{AnswerWithin, Limits, Refusal, Reserved, Server, begins_with};

/// Most concurrent requests other than probes. A scraper or two and a person need a handful.
const MOST_REQUESTS: usize = 64;
/// Most concurrent probes. The kubelet needs two.
const MOST_PROBES: usize = 16;
/// Most connections with an incomplete head. An honest client sends it within a round trip.
const MOST_ARRIVING: usize = 64;
/// Most connections of all kinds: more than those that can have a place or an incomplete head.
const MOST_CONNECTIONS: usize = 256;
/// Deadline for a request's head, and for its body. The head is a few hundred bytes.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// Most bytes of a request's head: hyper's minimum.
const LARGEST_HEAD: usize = 8192;
/// Most bytes of a request's body; no route reads one.
const LARGEST_BODY: u64 = 1024;
/// Deadline for reading an answer. The largest are a few megabytes.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// Longest life of a connection. A detach of many thousand objects takes minutes, and continues when its connection ends.
const LONGEST_CONNECTION: Duration = Duration::from_mins(10);
/// Deadline for answers that have begun, at shutdown.
const FAREWELL: Duration = Duration::from_secs(1);

/// Between two upkeeps of the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

fn limits() -> Limits {
    let probes = Reserved {
        serves: |request| ["/healthz", "/readyz"].iter().any(|probe| begins_with(request.uri.path(), probe)),
        most: MOST_PROBES,
        answer_within: AnswerWithin::Whole(LONGEST_ANSWER),
    };
    Limits {
        most_connections: MOST_CONNECTIONS,
        most_arriving: MOST_ARRIVING,
        most_requests: MOST_REQUESTS,
        answer_within: AnswerWithin::Whole(LONGEST_ANSWER),
        reserved: vec![probes],
        longest_head: LONGEST_HEAD,
        largest_head: LARGEST_HEAD,
        largest_body: LARGEST_BODY,
        largest_bodies: Vec::new(),
        longest_body: LONGEST_HEAD,
        keep_alive: None,
        longest_connection: LONGEST_CONNECTION,
        farewell: FAREWELL,
    }
}

/// Serves the admin routes on a listener until `stop`.
pub async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) {
    let upkeep = upkeep(admin.metrics.clone());
    let server = Server::new("admin", limits(), Refusal::into_json);
    tokio::select! {
        () = server.serve(listener, router(Arc::new(admin)), stop) => {}
        () = upkeep => {}
    }
}

/// Folds what histograms have recorded, so that they don't grow if nobody scrapes: each sample is 24 bytes until then.
async fn upkeep(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
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

        fn ask(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// Never answers for the tree.
    struct Silent;

    impl Tree for Silent {
        fn report(&self) -> BoxFuture<'_, Value> {
            futures::future::pending().boxed()
        }

        fn ask(&self) -> Duration {
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

        fn ask(&self) -> Duration {
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
            metrics: recorder([]).expect("the buckets are well formed").handle(),
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
        // An answer that arrived before the connection was reset counts.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn a_request_is_answered_and_the_connection_closed() {
        let running = start().await;
        let answer = converse_with(running.address, "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("{\"unanswered_seconds\":0.0}"), "{answer}");
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
    async fn a_connection_without_a_head_is_cut_off() {
        let running = start().await;
        let begun = Instant::now();
        let answer = converse_with(running.address, "GET /heal").await;
        // The paused clock may jump while the connection is being made, but not as far as the whole life of one.
        let lasted = begun.elapsed();
        assert!(lasted >= LONGEST_HEAD && lasted < LONGEST_CONNECTION, "{lasted:?}: {answer}");
    }

    const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn the_oldest_connection_without_a_head_is_closed_for_a_new_one() {
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
    async fn probes_have_reserved_places_and_requests_beyond_the_limit_are_refused() {
        let running = start_with(Arc::new(Silent)).await;
        let _held = others(&running, MOST_REQUESTS).await;
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
    async fn a_client_that_does_not_read_the_answer_is_cut_off() {
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
