//! One connection to a broker.

use std::net::{Shutdown, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_rs::Runtime;
use async_rs::traits::Reactor;
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties};
use rustls::ClientConfig;
use secrecy::ExposeSecret;
use tokio::time::{sleep, timeout};

use super::error::Error;
use super::url::{AmqpSource, AmqpUrl};
use crate::http::{TrustError, client_config_as};

/// Longest wait for a connection that can be used.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for one of the host's addresses to take a TCP connection, with TLS: less, so that a thread which waits ends first.
const REACH_WITHIN: Duration = Duration::from_secs(5);
/// Seconds between heartbeats that the client offers: a broker that is stopped is given up after twice the time.
const HEARTBEAT: u16 = 6;
/// Longest wait for the answer to a close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at what is only a state of the client.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A connection. It ends when this is dropped.
pub struct Link {
    connection: Connection,
    socket: Socket,
    place: String,
}

/// The socket under a connection. The client's thread ends when it reads the end of it, and else may wait for a broker that is stopped.
#[derive(Clone, Default)]
struct Socket(Arc<OnceLock<OwnedFd>>);

/// Ends the socket where a connection was not made in time.
struct Ends(Socket, bool);

impl Link {
    /// Connects. `name` is what the broker's tools show of the connection.
    pub async fn connect(source: &AmqpSource, name: &str) -> Result<Self, Error> {
        let url = source.url()?;
        let tls = tls_config(&url).await?.map(RustlsConnector::from);
        let socket = Socket::default();
        let mut ends = Ends(socket.clone(), true);
        let (kept, host, port) = (socket.clone(), url.host.trim_matches(['[', ']']).to_owned(), url.port);
        let connect = async move |_uri: AMQPUri, runtime: Runtime<async_rs::Tokio>| {
            let reached = async {
                let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
                for address in tokio::net::lookup_host((host.as_str(), port)).await? {
                    match runtime.tcp_connect_addr(address).await {
                        Ok(stream) => {
                            // Of several attempts only the last one is kept; there is no second one.
                            let _ = kept.0.set(stream.get_ref().as_fd().try_clone_to_owned()?);
                            let plain = AsyncTcpStream::Plain(stream);
                            return match &tls {
                                Some(connector) => plain.into_rustls(connector, &host).await,
                                None => Ok(plain),
                            };
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            };
            let reached = timeout(REACH_WITHIN, reached).await;
            Ok(reached.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?)
        };
        let properties = ConnectionProperties::default()
            .with_connection_name(name.into())
            .with_client_property("product".into(), "towline".into());
        let made = Connection::connector(uri(&url), Runtime::tokio_current(), connect, properties);
        let made = timeout(CONNECT_WITHIN, made).await.map_err(|_| Error::Silent { within: CONNECT_WITHIN })?;
        let connection = made.map_err(Error::of("connect to the broker"))?;
        ends.1 = false;
        Ok(Self { connection, socket, place: url.place() })
    }

    /// Host, port and virtual host that this connection was made to. The URL may have changed since.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Another channel.
    pub async fn channel(&self) -> Result<Channel, Error> {
        let channel = timeout(CONNECT_WITHIN, self.connection.create_channel()).await;
        let channel = channel.map_err(|_| Error::Silent { within: CONNECT_WITHIN })?;
        channel.map_err(Error::of("open a channel"))
    }

    /// Whether the broker takes no messages from this connection, since its memory or disk is short. The broker says so only after the
    /// connection has published.
    pub fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Waits until the connection is lost.
    pub async fn lost(&self) {
        while self.connection.status().connected() {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the broker has blocked the connection, or no longer does.
    pub async fn blocked_is(&self, blocked: bool) {
        while self.is_blocked() != blocked {
            sleep(LOOK_EVERY).await;
        }
    }

    /// What a request is answered with, if the answer comes within this limit. The time while the broker has blocked the connection does not
    /// count, since then `lapin` does not send the request; afterwards the limit begins anew.
    pub async fn answered<T>(
        &self,
        within: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let silent = async {
            loop {
                self.blocked_is(false).await;
                if timeout(within, self.blocked_is(true)).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            answer = request => answer,
            () = silent => Err(Error::Silent { within }),
        }
    }

    /// Closes it in order, so that the broker gives back at once what was not acknowledged.
    pub async fn close(self) {
        if !self.is_blocked() {
            let _ended = timeout(CLOSE_WITHIN, self.connection.close(200, "closed".into())).await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.socket.end();
    }
}

impl Socket {
    fn end(&self) {
        if let Some(socket) = self.0.get()
            && let Ok(socket) = socket.try_clone()
        {
            // One that has ended doesn't mind.
            let _ = StdTcpStream::from(socket).shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if self.1 {
            self.0.end();
        }
    }
}

fn uri(url: &AmqpUrl) -> AMQPUri {
    AMQPUri {
        scheme: if url.is_tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username: url.user.clone(), password: url.password.expose_secret().to_owned() },
            host: url.host.clone(),
            port: url.port,
        },
        vhost: url.vhost.clone(),
        query: AMQPQueryString { heartbeat: Some(HEARTBEAT), ..AMQPQueryString::default() },
    }
}

/// TLS for a connection to this URL, with the system's authorities and those of the URL; none without TLS. The files
/// are read for each connection, so that they may change.
async fn tls_config(url: &AmqpUrl) -> Result<Option<Arc<ClientConfig>>, Error> {
    if !url.is_tls {
        return Ok(None);
    }
    let files = url.files.clone();
    let read = move || {
        let identity = files.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        client_config_as(files.authorities.as_deref(), identity)
    };
    let read: Result<ClientConfig, TrustError> = match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        // The runtime is ending.
        Err(_) => std::future::pending().await,
    };
    read.map(|config| Some(Arc::new(config))).map_err(Error::Tls)
}
