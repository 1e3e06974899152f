//! A server for any [`Router`] with bounded connections and requests ([`Limits`]).
//!
//! Slow clients never keep others out. The number of connections in a TLS handshake or with an incomplete head is bounded; the
//! oldest of them is closed for a new one. A request with a complete head takes a place of its kind, or is refused, and
//! returns it when its answer has been written. So an idle connection holds no place, and is closed when a new one needs
//! room. A client that does not read its answer in time loses its connection.
//!
//! One task handles all of a connection; its [`Standing`](super::standing) is the connection's state.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::arrival::{Arrival, Outcome};
use super::limits::{Limits, Places, Refusal};
use super::observed::{Answer, Observed, Socket, Transport};
use super::registry::{Entry, Registry};
use super::standing::{Cut, Shared, Watchdog};
use super::tls::ServerTls;

/// Pause after `accept` failed: most likely, the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The client's address; the server adds it to each request as an extension.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// A bounded server.
pub struct Server {
    /// Its name in the log.
    name: &'static str,
    limits: Limits,
    refuse: fn(Refusal) -> Response<Body>,
    observer: Arc<dyn Observer>,
    tls: Option<ServerTls>,
}

/// Sees every answer of a server. It must not block.
pub trait Observer: Send + Sync {
    /// A request of this method is answered, `took` after its head was complete. The answer of a route has the route's extensions, also
    /// if the server refuses the rest of the body after the route has answered.
    fn answers(&self, method: &Method, answer: &Response<Body>, took: Duration);

    /// A head that is too large or no HTTP was answered with this status, and its connection ends.
    fn refuses_head(&self, code: StatusCode);
}

/// Observes nothing.
impl Observer for () {
    fn answers(&self, _: &Method, _: &Response<Body>, _: Duration) {}

    fn refuses_head(&self, _: StatusCode) {}
}

impl Server {
    /// A server without TLS. `refuse` makes the responses to refused requests.
    pub fn new(name: &'static str, limits: Limits, refuse: fn(Refusal) -> Response<Body>) -> Self {
        Self { name, limits, refuse, observer: Arc::new(()), tls: None }
    }

    /// The same with an observer.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// The same with TLS.
    #[must_use]
    pub fn with_tls(self, tls: ServerTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Serves the routes on a listener until `stop`, and then finishes requests within [`Limits::farewell`].
    ///
    /// Handlers of streams should end them on the same signal; otherwise the streams are cut off.
    pub async fn serve(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let Self { name, limits, refuse, observer, mut tls } = self;
        let acceptor = tls.as_ref().map(ServerTls::acceptor);
        let reloading = async {
            match &mut tls {
                Some(tls) => tls.keep_up_to_date().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(reloading);
        let registry = Registry::new(limits.most_connections, limits.most_arriving);
        let (farewell, places) = (limits.farewell, Places::of(&limits));
        // Only the limit of the route applies: axum's default may be smaller.
        let router = router.layer(DefaultBodyLimit::disable());
        let service =
            Arc::new(Service { name, limits, refuse, observer, acceptor, places, router, stop: stop.clone() });
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => if let Some(entry) = registry.admit() {
                        connections.spawn(Arc::clone(&service).converse(stream, peer, entry));
                    } else {
                        tracing::debug!(server = name, %peer, "connection refused: all others are busy");
                    },
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
        let _ = tokio::time::timeout(farewell, all_ended).await;
    }
}

/// The parts of a running server that its connections share.
struct Service {
    name: &'static str,
    limits: Limits,
    refuse: fn(Refusal) -> Response<Body>,
    observer: Arc<dyn Observer>,
    acceptor: Option<TlsAcceptor>,
    places: Places,
    router: Router,
    stop: CancellationToken,
}

/// Why the server ended a connection.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Cut(#[from] Cut),
    #[error("closed to make room for a new connection")]
    Evicted,
    #[error("TLS handshake failed")]
    Tls(#[source] std::io::Error),
    #[error("HTTP failed")]
    Http(#[source] hyper::Error),
}

impl Service {
    async fn converse(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, entry: Entry) {
        let evicted = entry.evicted();
        let standing = Shared::new(entry, &self.limits);
        let mut watchdog = standing.watchdog();
        let ended = tokio::select! {
            biased;
            ended = self.speak(stream, peer, &standing, &mut watchdog) => ended,
            () = evicted.notified() => Err(Ended::Evicted),
        };
        if let Err(reason) = ended {
            let source = std::error::Error::source(&reason);
            tracing::debug!(server = self.name, %peer, %reason, source, "connection ended");
        }
    }

    /// Serves all requests of a connection.
    async fn speak(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        standing: &Shared,
        watchdog: &mut Watchdog,
    ) -> Result<(), Ended> {
        if self.limits.keep_alive.is_some() {
            // Otherwise small chunks of a stream would wait for the acknowledgement of earlier ones.
            let _ = stream.set_nodelay(true);
        }
        let socket = Socket::new(stream, standing.clone());
        let transport = match &self.acceptor {
            None => Transport::Plain(socket),
            Some(acceptor) => tokio::select! {
                biased;
                agreed = acceptor.accept(socket) => Transport::Tls(Box::new(agreed.map_err(Ended::Tls)?)),
                cut = watchdog.barks() => return Err(cut.into()),
            },
        };
        let service = service_fn(|request| self.answer_in_its_place(peer, standing, request));
        let connection = http1::Builder::new()
            // The watchdog enforces separate deadlines for heads and idle connections; hyper has only one.
            .header_read_timeout(None)
            .keep_alive(self.limits.keep_alive.is_some())
            .max_buf_size(self.limits.largest_head)
            .serve_connection(TokioIo::new(Observed::new(transport, standing.clone())), service);
        tokio::pin!(connection);
        let (mut is_told, mut is_ending) = (false, false);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended.map_err(|error| {
                    // A client that has reset the connection has the last word in the error.
                    if let Some(code) = standing.refused_head().or_else(|| answered(&error)) {
                        self.observer.refuses_head(code);
                    }
                    Ended::Http(error)
                }),
                cut = watchdog.barks() => match cut {
                    Cut::Idle if !is_ending => {}
                    cut => return Err(cut.into()),
                },
                () = self.stop.cancelled(), if !is_told => {
                    is_told = true;
                    if standing.is_arriving() {
                        // The rest of the head may still arrive; the answer then closes the connection.
                        continue;
                    }
                }
            }
            // A request under way is finished, and its answer closes the connection.
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
    }

    /// Answers a request, or refuses it if there is no place.
    async fn answer_in_its_place(
        &self,
        peer: SocketAddr,
        standing: &Shared,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, Infallible> {
        let begun = Instant::now();
        let (parts, body) = request.into_parts();
        let method = parts.method.clone();
        let (place, answer_within) = self.places.take(&parts);
        let has_place = place.is_some();
        standing.works(place);
        let request = Request::from_parts(parts, body);
        let mut answer = if has_place { self.answer(peer, request).await } else { (self.refuse)(Refusal::Busy) };
        self.observer.answers(&method, &answer, begun.elapsed());
        let may_be_kept = standing.answers(answer_within) && !self.stop.is_cancelled();
        if self.limits.keep_alive.is_some() && !may_be_kept {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer.map(|body| Answer::new(body, standing.clone())))
    }

    async fn answer(&self, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
        let largest = self.limits.largest_body_of(request.uri().path());
        if request.body().size_hint().lower() > largest {
            return (self.refuse)(Refusal::BodyTooLarge(largest));
        }
        let outcome = Outcome::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Peer(peer));
        let body = if body.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Arrival::new(body, largest, self.limits.longest_body, Arc::clone(&outcome)))
        };
        let answer = match self.router.clone().oneshot(Request::from_parts(parts, body)).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        match outcome.get() {
            None => answer,
            Some(refusal) => {
                let mut refused = (self.refuse)(*refusal);
                *refused.extensions_mut() = answer.into_parts().0.extensions;
                refused
            }
        }
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

#[cfg(test)]
mod tests;
