//! A client of one HTTP API, which posts JSON: through the environment's proxy as kubectl, with the system's certificate
//! authorities and those of a file, and within one deadline for everything from the connection to the answer's last byte.
//!
//! A redirect is followed nowhere: a token must not end up elsewhere. Nothing is sent twice, but what a kept connection did not
//! take up since the server had just closed it; whoever posts decides about anything else by [`Error::retry`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::BoxError;

use super::connector::{Connector, direct};
use super::proxy::{Proxy, of_environment};
use super::token::BearerToken;
use super::trust::{TrustError, client_config};

/// Idle connections are closed after this.
const POOL_IDLE: Duration = Duration::from_secs(20);

/// Where a client leads.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// `http` or `https`, host and port, and what stands before every path.
    pub server: Uri,
    /// PEM: certificate authorities that are trusted beside the system's.
    pub authorities: Option<PathBuf>,
    /// Bytes of an answer that are read.
    pub largest_answer: usize,
}

/// One post.
#[derive(Clone)]
pub struct Post<'a> {
    /// What comes after the server's own path: empty, or beginning with `/`.
    pub path: &'a str,
    /// Headers beside the content's type and the token.
    pub headers: HeaderMap,
    /// The token, where the server wants one.
    pub token: Option<BearerToken>,
    /// The body, JSON.
    pub body: Bytes,
    /// The whole answer is there within this.
    pub deadline: Duration,
}

/// The answer to a post that was taken: 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body; none where that is larger than what is read.
    pub body: Option<Bytes>,
}

/// Why there is no client, or no answer to a post.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's address is not one, has a user or a password in front of the host, which would be in every error, or a
    /// query, which no path could come after.
    #[error("the server's address is no http:// or https:// URL, or has a user, a password or a query in it")]
    Address,
    /// The environment's proxy is of a kind that is not known here. Its URL may have a password.
    #[error("the environment's proxy is none of http://, https:// and socks5://")]
    Proxy,
    /// Nobody can be trusted to prove who the server is.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The path is none that a URL can have.
    #[error("failed to build the request")]
    Build(#[source] http::Error),
    /// No connection was made; nothing was sent.
    #[error("failed to connect to {server}")]
    Connect {
        /// Host and port.
        server: Arc<str>,
        /// What went wrong.
        source: BoxError,
    },
    /// The connection was lost. What was posted may have been taken.
    #[error("failed to get an answer from {server}")]
    Exchange {
        /// Host and port.
        server: Arc<str>,
        /// What went wrong.
        source: BoxError,
    },
    /// The answer was not there in time. What was posted may have been taken.
    #[error("no answer from {server} within {}", humantime::format_duration(*.within))]
    NoAnswer {
        /// Host and port.
        server: Arc<str>,
        /// The deadline.
        within: Duration,
    },
    /// The server answered, and not with 2xx.
    #[error("{server} answered {status}")]
    Refused {
        /// Host and port.
        server: Arc<str>,
        /// What it answered.
        status: StatusCode,
        /// When it may be asked again, as it says in seconds.
        retry_after: Option<Duration>,
    },
}

/// How to go on after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// With exponential back-off.
    Backoff,
    /// After this time, which the server named. It may be any.
    After(Duration),
    /// When there are other credentials.
    WithOtherCredentials,
    /// Not as it is: the same would fail in the same way.
    Never,
}

impl Error {
    /// How to go on.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Address | Self::Proxy | Self::Trust(_) | Self::Build(_) => Retry::Never,
            Self::Connect { .. } | Self::Exchange { .. } | Self::NoAnswer { .. } => Retry::Backoff,
            Self::Refused { status, retry_after, .. } => match *status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Retry::WithOtherCredentials,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => again(*retry_after),
                status if status.is_server_error() => again(*retry_after),
                _ => Retry::Never,
            },
        }
    }

    /// Which kind it is of, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Address | Self::Proxy | Self::Trust(_) | Self::Build(_) => "settings",
            Self::Connect { .. } => "connect",
            Self::Exchange { .. } => "exchange",
            Self::NoAnswer { .. } => "no_answer",
            Self::Refused { .. } => "refused",
        }
    }
}

fn again(retry_after: Option<Duration>) -> Retry {
    retry_after.map_or(Retry::Backoff, Retry::After)
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
    /// A client that takes the environment's proxy. Nothing is sent yet.
    pub async fn new(settings: ClientSettings) -> Result<Self, Error> {
        Self::within(settings, |name| std::env::var(name).ok()).await
    }

    async fn within(settings: ClientSettings, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let ClientSettings { server, authorities, largest_answer } = settings;
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
        let connector = match proxy {
            None => direct(),
            Some(proxy) => proxy.connector(|tcp| Ok::<_, Error>(HttpsConnector::from((tcp, Arc::clone(&tls)))))?,
        };
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(HttpsConnector::from((connector, tls)));
        Ok(Self { http, server, name, largest_answer })
    }

    /// Posts, and reads the answer.
    pub async fn post(&self, post: Post<'_>) -> Result<Answer, Error> {
        let within = post.deadline;
        let request = self.request(post).map_err(Error::Build)?;
        let exchange = tokio::time::timeout(within, self.exchange(request)).await;
        exchange.unwrap_or_else(|_| Err(Error::NoAnswer { server: Arc::clone(&self.name), within }))
    }

    fn request(&self, post: Post<'_>) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut parts = self.server.clone().into_parts();
        if !post.path.is_empty() {
            let path = format!("{}{}", self.server.path().trim_end_matches('/'), post.path);
            parts.path_and_query = Some(PathAndQuery::try_from(path)?);
        }
        let mut request = Request::post(Uri::from_parts(parts)?).body(Full::new(post.body))?;
        *request.headers_mut() = post.headers;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = post.token {
            request.headers_mut().insert(AUTHORIZATION, token.into_header());
        }
        Ok(request)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, Error> {
        let server = || Arc::clone(&self.name);
        let response = self.http.request(request).await.map_err(|source| {
            if source.is_connect() {
                Error::Connect { server: server(), source: source.into() }
            } else {
                Error::Exchange { server: server(), source: source.into() }
            }
        })?;
        let status = response.status();
        let retry_after = retry_after(&response);
        // Also of a refusal, so that the connection can be kept.
        let body = self.read(response.into_body()).await;
        if !status.is_success() {
            return Err(Error::Refused { server: server(), status, retry_after });
        }
        let body = body.map_err(|source| Error::Exchange { server: server(), source })?;
        Ok(Answer { status, body })
    }

    /// The whole body; none where it is larger than what is read.
    async fn read(&self, body: Incoming) -> Result<Option<Bytes>, BoxError> {
        match Limited::new(body, self.largest_answer).collect().await {
            Ok(whole) => Ok(Some(whole.to_bytes())),
            Err(source) if source.is::<http_body_util::LengthLimitError>() => Ok(None),
            Err(source) => Err(source),
        }
    }
}

fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?;
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
