//! A client of one HTTP API: through the environment's proxy like kubectl, with the system's certificate
//! authorities and those of a file, and with one deadline from connecting to the last byte of the answer.
//!
//! Redirects are not followed, since they could send the token to another server. Nothing is sent twice, except when a kept
//! connection was closed before it took the request; callers decide about other retries.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::BoxError;

use super::connector::{Connector, direct, direct_to};
use super::networks::DeniedNetworks;
use super::proxy::{Proxy, of_environment};
use super::token::BearerToken;
use super::trust::{TrustError, client_config};

/// Idle connections are closed after this.
const POOL_IDLE: Duration = Duration::from_secs(20);

/// The server of a client, and how it is reached.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// `http` or `https`, host and port, and a prefix for every path.
    pub server: Uri,
    /// PEM file of certificate authorities that are trusted in addition to the system's.
    pub authorities: Option<PathBuf>,
    /// Most bytes that are read of an answer.
    pub largest_answer: usize,
    /// Where its connections go, if not to its host: something on this machine forwards them. Its TLS is still that of its host.
    pub forwarded: Option<SocketAddr>,
}

#[derive(Clone)]
pub struct Ask<'a> {
    pub method: Method,
    /// Path and query after the server's prefix: empty, or beginning with `/`.
    pub path: &'a str,
    /// Headers in addition to the token.
    pub headers: HeaderMap,
    /// The token, if the server requires one.
    pub token: Option<BearerToken>,
    /// The body; empty for none.
    pub body: Bytes,
    /// Deadline for the whole answer.
    pub deadline: Duration,
}

/// An answer, whatever its status is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Its body; none if it exceeds the limit.
    pub body: Option<Bytes>,
}

/// Why creating a client failed, or a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's address is invalid, contains a user or a password, which would appear in every error, or a query, which
    /// no path can follow.
    #[error("the server's address is not an http:// or https:// URL without user, password and query")]
    Address,
    /// The environment's proxy is of an unsupported kind. Its URL is not repeated, since it may hold a password.
    #[error("the proxy of the environment is not an http://, https:// or socks5:// URL")]
    Proxy,
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The path is not valid in a URL.
    #[error("failed to build the request")]
    Build(#[source] http::Error),
    /// Nothing was sent, to somebody who may be another one.
    #[error("the certificate of {server} is of an authority that is not trusted here")]
    UnknownAuthority {
        /// Host and port.
        server: Arc<str>,
        source: BoxError,
    },
    /// No connection was made; nothing was sent.
    #[error("failed to connect to {server}")]
    Connect {
        /// Host and port.
        server: Arc<str>,
        source: BoxError,
    },
    /// The connection was lost. The server may have carried out the request.
    #[error("failed to get an answer from {server}")]
    Exchange {
        /// Host and port.
        server: Arc<str>,
        source: BoxError,
    },
    /// The answer did not arrive in time. The server may have carried out the request.
    #[error("no answer from {server} within {}", humantime::format_duration(*.within))]
    NoAnswer {
        /// Host and port.
        server: Arc<str>,
        within: Duration,
    },
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::UnknownAuthority { .. } | Self::Connect { .. } | Self::Exchange { .. } | Self::NoAnswer { .. }
        )
    }
}

/// A client; clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: HyperClient<HttpsConnector<Connector>, Full<Bytes>>,
    server: Uri,
    /// Host and port, as errors name them.
    name: Arc<str>,
    largest_answer: usize,
}

impl Client {
    /// A client that uses the environment's proxy. Nothing is sent yet.
    pub async fn new(settings: ClientSettings) -> Result<Self, Error> {
        Self::within(settings, |name| std::env::var(name).ok()).await
    }

    async fn within(settings: ClientSettings, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let ClientSettings { server, authorities, largest_answer, forwarded } = settings;
        let authority = server.authority().filter(|authority| !authority.as_str().contains('@'));
        let is_known = matches!(server.scheme_str(), Some("http" | "https")) && server.query().is_none();
        let name = authority.filter(|_| is_known).ok_or(Error::Address)?.as_str().into();
        let proxy = match of_environment(&server, variable) {
            Some(url) => Some(Proxy::of_url(&url).ok_or(Error::Proxy)?),
            None => None,
        };
        let reading = tokio::task::spawn_blocking(move || client_config(authorities.as_deref()));
        let tls = Arc::new(match reading.await {
            Ok(read) => read?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        });
        // Its server is the operator's choice.
        let denied = DeniedNetworks::default();
        let connector = match (forwarded, proxy) {
            (Some(address), _) => direct_to(address, &denied).map_err(Error::Build)?,
            (None, None) => direct(&denied),
            (None, Some(proxy)) => {
                proxy.connector(&denied, |tcp| Ok::<_, Error>(HttpsConnector::from((tcp, Arc::clone(&tls)))))?
            }
        };
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(HttpsConnector::from((connector, tls)));
        Ok(Self { http, server, name, largest_answer })
    }

    /// Sends any request, and reads the answer whatever its status is.
    pub async fn ask(&self, ask: Ask<'_>) -> Result<Answer, Error> {
        let (within, server) = (ask.deadline, || Arc::clone(&self.name));
        let request = self.asked(ask).map_err(Error::Build)?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|source| self.lost(source))?;
            let (head, body) = response.into_parts();
            let body = self.read(body).await.map_err(|source| Error::Exchange { server: server(), source })?;
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        let exchange = tokio::time::timeout(within, exchange).await;
        exchange.unwrap_or_else(|_| Err(Error::NoAnswer { server: server(), within }))
    }

    /// Sends any request, and returns the answer when its head is there, of which only that has the deadline. The body has no limit.
    pub async fn open(&self, ask: Ask<'_>) -> Result<Response<Incoming>, Error> {
        let within = ask.deadline;
        let request = self.asked(ask).map_err(Error::Build)?;
        let head = tokio::time::timeout(within, self.http.request(request)).await;
        let head = head.map_err(|_| Error::NoAnswer { server: Arc::clone(&self.name), within })?;
        head.map_err(|source| self.lost(source))
    }

    /// The next piece of the body of an opened answer; none at its end.
    pub async fn next(&self, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = body.frame().await {
            let lost = |source: hyper::Error| Error::Exchange { server: Arc::clone(&self.name), source: source.into() };
            if let Ok(bytes) = frame.map_err(lost)?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    fn asked(&self, ask: Ask<'_>) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder().method(ask.method).uri(self.uri(ask.path)?).body(Full::new(ask.body))?;
        *request.headers_mut() = ask.headers;
        if let Some(token) = ask.token {
            request.headers_mut().insert(AUTHORIZATION, token.into_header());
        }
        Ok(request)
    }

    /// The server's prefix and a path.
    fn uri(&self, path: &str) -> Result<Uri, http::Error> {
        let mut parts = self.server.clone().into_parts();
        if !path.is_empty() {
            let path = format!("{}{path}", self.server.path().trim_end_matches('/'));
            parts.path_and_query = Some(PathAndQuery::try_from(path)?);
        }
        Ok(Uri::from_parts(parts)?)
    }

    fn lost(&self, source: hyper_util::client::legacy::Error) -> Error {
        let server = Arc::clone(&self.name);
        if is_unknown_authority(&source) {
            Error::UnknownAuthority { server, source: source.into() }
        } else if source.is_connect() {
            Error::Connect { server, source: source.into() }
        } else {
            Error::Exchange { server, source: source.into() }
        }
    }

    /// The whole body; none if it exceeds the limit.
    async fn read(&self, body: Incoming) -> Result<Option<Bytes>, BoxError> {
        match Limited::new(body, self.largest_answer).collect().await {
            Ok(whole) => Ok(Some(whole.to_bytes())),
            Err(source) if source.is::<http_body_util::LengthLimitError>() => Ok(None),
            Err(source) => Err(source),
        }
    }
}

/// Whether a handshake failed since nobody that is trusted has signed the server's certificate.
fn is_unknown_authority(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    // A known authority's name with another key is another authority.
    if let Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) = error.downcast_ref() {
        return true;
    }
    // What an I/O error holds is not its source.
    let held = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let next = held.map(|held| held as &(dyn std::error::Error + 'static)).or_else(|| error.source());
    next.is_some_and(is_unknown_authority)
}

#[cfg(test)]
mod tests;
