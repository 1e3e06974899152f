//! Connections to servers, for all clients of this process: small packets are not delayed (`TCP_NODELAY`), dead peers are
//! noticed (`TCP_USER_TIMEOUT`, keep-alive), and closing discards unsent data. Through a proxy, the connection carries a
//! tunnel ([`Proxy`](super::Proxy)). TLS to the server goes on top.

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::util::{BoxCloneSyncService, MapResponse};
use tower::{BoxError, ServiceExt};

use super::alive::Counted;
use super::networks::{Checked, DeniedNetworks, Resolver};

/// Deadline for a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is probed after this, then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// Interval between keep-alive probes; three unanswered ones end the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// Data that stays unacknowledged for this long ends the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection to a server or a proxy that counts its reads.
pub type Socket = Counted<TokioIo<TcpStream>>;

/// Makes the TCP connections to servers and proxies.
pub type Tcp = Checked<MapResponse<HttpConnector<Resolver>, fn(TokioIo<TcpStream>) -> Socket>>;

/// The layer below TLS to the server: a connection, or a tunnel in one, which may itself use TLS to the proxy.
pub type Stream = MaybeHttpsStream<Socket>;

/// Makes connections to servers, directly or through a proxy. Clones are cheap.
pub type Connector = BoxCloneSyncService<Uri, Stream, BoxError>;

/// Connections without a proxy, to addresses outside of these networks.
pub fn direct(denied: &DeniedNetworks) -> Connector {
    BoxCloneSyncService::new(tcp(denied).map_response(MaybeHttpsStream::Http))
}

/// The same to one address, whichever server they are for.
pub(super) fn direct_to(address: SocketAddr, denied: &DeniedNetworks) -> Result<Connector, http::Error> {
    let at = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build()?;
    let tcp = tcp(denied).map_response(MaybeHttpsStream::Http).map_request(move |_: Uri| at.clone());
    Ok(BoxCloneSyncService::new(tcp))
}

pub(super) fn tcp(denied: &DeniedNetworks) -> Tcp {
    let mut connector = HttpConnector::new_with_resolver(Resolver::new(denied.clone()));
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE_AFTER));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(3));
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    Checked::new(MapResponse::new(connector, without_linger), denied.clone())
}

/// An abandoned request must not arrive later. Closing discards data that the peer has not acknowledged; otherwise the kernel
/// would keep sending it for minutes, perhaps after another replica has taken over.
fn without_linger(stream: TokioIo<TcpStream>) -> Socket {
    if let Err(error) = stream.inner().set_zero_linger() {
        tracing::debug!(%error, "failed to set the linger option");
    }
    Counted::new(stream)
}
