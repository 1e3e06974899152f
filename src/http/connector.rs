//! Connections to servers, as every client of this process makes them: small packets are not delayed (`TCP_NODELAY`), dead
//! peers are noticed (`TCP_USER_TIMEOUT`, keep-alive), and what is given up is dropped. Through a proxy it is the same
//! connection with a tunnel on it ([`Proxy`](super::Proxy)). TLS to the server goes on top.

use std::time::Duration;

use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::util::{BoxCloneSyncService, MapResponse};
use tower::{BoxError, ServiceExt};

use super::alive::Counted;

/// A TCP connection is made within this or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is probed after this, then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// Between keep-alive probes; three unanswered ones end the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// Data that stays unacknowledged for this long ends the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection to a server or to a proxy, which counts what is read of it.
pub type Socket = Counted<TokioIo<TcpStream>>;

/// Makes connections to servers and proxies themselves.
pub type Tcp = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> Socket>;

/// What TLS to a server goes on: a connection, or a tunnel on one, which may be through TLS to the proxy.
pub type Stream = MaybeHttpsStream<Socket>;

/// Makes connections to servers, directly or through a proxy. A clone of it is cheap.
pub type Connector = BoxCloneSyncService<Uri, Stream, BoxError>;

/// Connections without a proxy.
pub fn direct() -> Connector {
    BoxCloneSyncService::new(tcp().map_response(MaybeHttpsStream::Http).map_err(Into::into))
}

pub(super) fn tcp() -> Tcp {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE_AFTER));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(3));
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    MapResponse::new(connector, without_linger)
}

/// A request that was given up is not to arrive later: closing drops what the peer has not acknowledged yet, where the
/// kernel would go on sending it, for minutes and perhaps when somebody else has taken over what it is about.
fn without_linger(stream: TokioIo<TcpStream>) -> Socket {
    if let Err(error) = stream.inner().set_zero_linger() {
        tracing::debug!(%error, "linger could not be set");
    }
    Counted::new(stream)
}
