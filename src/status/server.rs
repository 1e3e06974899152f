//! The admin server: the admin routes on a bounded [`Server`] with tight limits.
//!
//! Each connection takes one request: clients ask every few seconds at most, and an idle connection would only hold a socket. No
//! route reads a body.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::admin::{Admin, router};
use crate::http::{Limits, Server};
use crate::telemetry::Totals;

const LIMITS: Limits = Limits {
    // The kubelet, a scraper or two and a person need a handful. A client that says nothing must not keep the kubelet waiting.
    most_connections: 1024,
    // Probes of all replicas on a node come from one.
    // The head is a few hundred bytes.
    longest_head: Duration::from_secs(1),
    // hyper's minimum.
    largest_head: 8192,
    longest_stall: Duration::from_secs(30),
    keep_alive: false,
    farewell: Duration::from_secs(1),
};

/// Between two upkeeps of the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves the admin routes on a listener until `stop`.
pub async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) {
    let admin = Arc::new(admin);
    let server = Server::new("admin", LIMITS);
    tokio::select! {
        () = server.serve(listener, router(Arc::clone(&admin)), stop) => {}
        () = upkeep(admin.metrics.clone()) => {}
        () = sample(&admin) => {}
    }
}

/// Keeps the last hour, if it is shown.
async fn sample(admin: &Admin) {
    let Some(history) = &admin.history else { return std::future::pending().await };
    let recorded = admin.sections.iter().filter_map(|section| section.lag()).collect();
    let (mut every, mut earlier) = (interval(history.step()), None);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let now = Totals::read(&admin.metrics.render(), &recorded);
        history.take(&admin.sections, &(admin.clusters)(), earlier.as_ref(), &now);
        earlier = Some(now);
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
    use tokio::time::Instant;

    use super::super::{Denials, Tree};
    use super::*;
    use crate::telemetry::recorder;

    struct Still;

    impl Tree for Still {
        fn report(&self) -> BoxFuture<'_, Value> {
            async { json!({}) }.boxed()
        }

        fn ask(&self) -> Duration {
            Duration::ZERO
        }
    }

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let admin = Admin {
            started: Instant::now(),
            metrics: recorder([]).expect("the buckets are well formed").handle(),
            before_scrape: Arc::new(|| {}),
            sections: Vec::new(),
            clusters: Arc::new(Vec::new),
            tree: Arc::new(Still),
            history: None,
            hosts: Vec::new(),
            token_file: None,
            denials: Denials::default(),
        };
        tokio::spawn(serve(listener, admin, CancellationToken::new()));
        address
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
        let address = start().await;
        let answer = converse_with(address, "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(&format!("\r\nserver: {}\r\n", crate::http::RELEASE)), "{answer}");
        assert!(answer.ends_with("{\"unanswered_seconds\":0.0}"), "{answer}");
    }

    #[tokio::test]
    async fn the_peer_of_a_connection_is_known() {
        let address = start().await;
        let answer = converse_with(address, "POST /approve/a HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404"), "loopback is let in, to find nothing: {answer}");
    }
}
