//! A server for any [`Router`], with bounded connections and deadlines ([`Limits`]).
//!
//! A client that is slow with the head of a request, or takes nothing of an answer, loses its connection. What a request may take
//! (its body, its slot among others) is its route's business.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::map_response;
use axum::response::Response;
use http::header::{CONNECTION, CONTENT_TYPE, SERVER};
use http::{HeaderName, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::reloaded::keep_up_to_date;
use super::tls::ServerTls;

/// What answers say of this program: its minor release, with which clients compare theirs.
pub const RELEASE: &str = concat!("towline/", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// A client has to begin within this time: with the first byte, and with TLS with a whole handshake. [`Limits::longest_head`] may be far
/// longer, since kept connections wait for it between two requests.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);
/// That all connections are in use is logged once in this time.
const TELL_AGAIN: Duration = Duration::from_mins(1);
/// What somebody gets who speaks plain HTTP where there is TLS.
const TLS_ALONE: &str = r#"{"type":"urn:towline:problem:malformed","status":400,"title":"it answers over TLS alone: name it https://… (`towline`: --hub https://NAME)"}"#;
/// Pause after `accept` failed: most likely, the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of a server. They apply to each server of the process separately.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most open connections. A further client waits until one of them ends.
    pub most_connections: usize,
    /// Deadline for the head of each request: since the connection began, or since the last answer was written. So a connection
    /// without requests is closed after this time, and a new one on which nothing arrives after ten seconds at most.
    pub longest_head: Duration,
    /// Most bytes of a request's head. hyper requires at least 8,192.
    pub largest_head: usize,
    /// The longest time in which a client takes nothing of what is written to it.
    pub longest_stall: Duration,
    /// Whether connections are kept for further requests.
    pub keep_alive: bool,
    /// Deadline for requests under way when the server stops. Idle connections are closed at once.
    pub farewell: Duration,
}

/// The client's address; the server adds it to each request as an extension.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

pub struct Server {
    /// Its name in the log.
    name: &'static str,
    limits: Limits,
    refused_head: fn(StatusCode),
    tls: Option<ServerTls>,
}

impl Server {
    /// A server without TLS.
    pub fn new(name: &'static str, limits: Limits) -> Self {
        Self { name, limits, refused_head: |_| {}, tls: None }
    }

    /// The same, which counts what never reaches a route: a head that is too large or no HTTP was answered with this status.
    #[must_use]
    pub fn counting_refused_heads(self, refused_head: fn(StatusCode)) -> Self {
        Self { refused_head, ..self }
    }

    #[must_use]
    pub fn with_tls(self, tls: ServerTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Serves the routes on a listener until `stop`, and then finishes requests within [`Limits::farewell`].
    ///
    /// Handlers of streams should end them on the same signal; otherwise the streams are cut off.
    pub async fn serve(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let router = router.layer(map_response(with_release));
        let Self { name, limits, refused_head, tls } = self;
        let acceptor = tls.as_ref().map(ServerTls::acceptor);
        let reloading = keep_up_to_date(tls.as_ref().map(ServerTls::certificate));
        tokio::pin!(reloading);
        let slots = Arc::new(Semaphore::new(limits.most_connections));
        let Limits { most_connections, farewell, .. } = limits;
        let service = Arc::new(Service { limits, refused_head, acceptor, router, stop: stop.clone() });
        let mut connections = JoinSet::new();
        let mut told: Option<Instant> = None;
        loop {
            let accepted = async {
                if slots.available_permits() == 0 && told.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
                    told = Some(Instant::now());
                    tracing::warn!(server = name, most_connections, "all connections are in use, further clients wait");
                }
                let slot = Arc::clone(&slots).acquire_owned().await;
                listener.accept().await.map(|(stream, peer)| (stream, peer, slot))
            };
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => match accepted {
                    Ok((stream, peer, slot)) => {
                        let service = Arc::clone(&service);
                        connections.spawn(async move {
                            if let Err(reason) = service.converse(stream, peer).await {
                                let source = std::error::Error::source(&reason);
                                tracing::debug!(server = name, %peer, %reason, source, "connection ended");
                            }
                            drop(slot);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(server = name, %error, "failed to accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                never = &mut reloading => match never {},
            }
        }
        drop(listener);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        // Dropping the set aborts the tasks that are left.
        let _ = timeout(farewell, all_ended).await;
    }
}

/// The parts of a running server that its connections share.
struct Service {
    limits: Limits,
    refused_head: fn(StatusCode),
    acceptor: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
}

/// Why a connection ended otherwise than by its client or after its last answer.
#[derive(Debug, thiserror::Error)]
enum ConnectionFault {
    #[error("the client did not begin in time")]
    Silent,
    #[error("the connection or its TLS handshake failed")]
    Begin(#[source] std::io::Error),
    #[error("the server stops")]
    Stops,
    #[error("HTTP failed")]
    Http(#[source] hyper::Error),
}

impl Service {
    async fn converse(&self, stream: TcpStream, peer: SocketAddr) -> Result<(), ConnectionFault> {
        // Otherwise small chunks of a stream would wait for the acknowledgement of earlier ones.
        let _ = stream.set_nodelay(true);
        // To be readable may be a false alarm.
        let mut first = [0];
        self.beginning(stream.peek(&mut first)).await?;
        let mut stream = TimeoutStream::new(stream);
        // Below TLS, which would take a little of what the client does not.
        stream.set_write_timeout(Some(self.limits.longest_stall));
        let stream = Box::pin(stream);
        match &self.acceptor {
            None => self.speak(stream, peer, &self.router).await,
            // A method. TLS begins with 22.
            Some(_) if first[0].is_ascii_uppercase() => {
                let refused_head = self.refused_head;
                let told = Router::new().fallback(async move || {
                    refused_head(StatusCode::BAD_REQUEST);
                    without_tls()
                });
                self.speak(stream, peer, &told).await
            }
            Some(acceptor) => self.speak(self.beginning(acceptor.accept(stream)).await?, peer, &self.router).await,
        }
    }

    /// What comes before the first request: it is given up when it takes too long or the server stops.
    async fn beginning<T>(&self, step: impl Future<Output = std::io::Result<T>>) -> Result<T, ConnectionFault> {
        tokio::select! {
            () = self.stop.cancelled() => Err(ConnectionFault::Stops),
            done = timeout(BEGINS_WITHIN.min(self.limits.longest_head), step) => {
                done.map_err(|_| ConnectionFault::Silent)?.map_err(ConnectionFault::Begin)
            }
        }
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        router: &Router,
    ) -> Result<(), ConnectionFault> {
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // It begins again when an answer has been written.
            .header_read_timeout(self.limits.longest_head)
            .keep_alive(self.limits.keep_alive)
            .max_buf_size(self.limits.largest_head)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            // A request that has arrived is answered.
            biased;
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        ended.map_err(|error| {
            if let Some(code) = answered(&error) {
                (self.refused_head)(code);
            }
            ConnectionFault::Http(error)
        })
    }
}

/// The status with which hyper has answered a head that it can't read, before it ends the connection with this error.
fn answered(error: &hyper::Error) -> Option<StatusCode> {
    if error.is_parse_too_large() {
        // A head is far shorter than the longest URI, so that it is never 414.
        return Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    (error.is_parse() && !error.is_parse_version_h2()).then_some(StatusCode::BAD_REQUEST)
}

/// Nothing of the request is used, which may have a token.
fn without_tls() -> (StatusCode, [(HeaderName, &'static str); 2], &'static str) {
    let headers = [(CONTENT_TYPE, "application/problem+json"), (CONNECTION, "close")];
    (StatusCode::BAD_REQUEST, headers, TLS_ALONE)
}

/// Whoever has no token is not told which release this is.
async fn with_release(mut answer: Response) -> Response {
    if answer.status() != StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(SERVER, HeaderValue::from_static(RELEASE));
    }
    answer
}

#[cfg(test)]
mod tests;
