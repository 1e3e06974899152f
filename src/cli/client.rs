//! Sends one request to a daemon's admin server.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::job::command::{Exit, compare_releases};
use crate::status::{ReadToken, read_token};

/// Deadline for connecting: the daemon is near.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);
/// Deadline for what is only read: a daemon's reports take five seconds if an actor hangs, and what it asks of clusters or a database has
/// deadlines that are shorter than this.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// Deadline for an order. A detach of many thousand objects takes minutes; the server's own limit is the same.
const LONGEST_ORDER: Duration = Duration::from_mins(10);
/// Largest answer. A report of a thousand sections is far smaller.
const LARGEST_ANSWER: usize = 64 << 20;

/// Why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the admin token")]
    Token(#[source] ReadToken),
    /// The token has characters that are not allowed in an HTTP header.
    #[error("the admin token contains invalid characters")]
    TokenCharacters,
    /// Nothing listens there, or the connection timed out.
    #[error(
        "failed to connect to a daemon at {admin} (it listens on its `daemon.listen`; use `--admin URL` for another address)"
    )]
    Connect { admin: AdminUrl, source: std::io::Error },
    /// The path is not valid in a URL.
    #[error("failed to build the request")]
    Request(#[source] http::Error),
    /// The connection broke.
    #[error("lost the connection to the daemon")]
    Converse(#[source] hyper::Error),
    /// The caller decides whether to send it again.
    #[error("whether the order was carried out is not known")]
    Unanswered(#[source] Box<Error>),
    /// The answer did not arrive in time. The daemon continues with a change.
    #[error("no answer from the daemon within {}", humantime::format_duration(*within))]
    TooLate { within: Duration },
    /// The answer is incomplete or too long.
    #[error("failed to read the daemon's answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not JSON: another server listens there.
    #[error("the answer ({status}) is not from a towline daemon")]
    NotJson { status: StatusCode },
    #[error("{error} ({status})")]
    Refused { status: StatusCode, error: String },
    /// Nothing was sent.
    #[error("section {section} holds nothing under the name {name}; `approve {section} --list` shows the names")]
    NotHeld { section: String, name: String },
    /// As the daemon's status says: it would refuse the request, which was not sent.
    #[error("{reason}")]
    Pointless { reason: String },
    #[error("failed to write the answer")]
    Write(#[source] std::io::Error),
    /// Of `kubectl towline`.
    #[error(transparent)]
    Release(#[from] super::release::Error),
}

/// Who answers as a daemon's admin server does.
pub(super) trait Daemon {
    /// Sends one request and returns the answer.
    async fn ask(&self, method: &Method, path: &str, token_file: Option<&Path>) -> Result<Value, Error> {
        let within = if *method == Method::GET { LONGEST_READ } else { LONGEST_ORDER };
        self.ask_within(within, method, path, token_file).await
    }

    async fn ask_within(
        &self,
        within: Duration,
        method: &Method,
        path: &str,
        token_file: Option<&Path>,
    ) -> Result<Value, Error>;
}

impl Daemon for AdminUrl {
    async fn ask_within(
        &self,
        within: Duration,
        method: &Method,
        path: &str,
        token_file: Option<&Path>,
    ) -> Result<Value, Error> {
        let request = request(self, method, path, token_file).await?;
        converse(connect(self).await?, request, within).await
    }
}

/// Address of an admin server: `http://HOST:PORT`. The scheme may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminUrl(Authority);

impl Default for AdminUrl {
    fn default() -> Self {
        Self(Authority::from_static("127.0.0.1:8384"))
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form http://HOST:PORT (the admin server has no TLS)")]
pub struct InvalidUrl;

impl FromStr for AdminUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let address = match text.split_once("://") {
            Some(("http", address)) => address,
            Some(_) => return Err(InvalidUrl),
            None => text,
        };
        let authority: Authority = address.strip_suffix('/').unwrap_or(address).parse().map_err(|_| InvalidUrl)?;
        let is_plain = !authority.as_str().contains('@') && !authority.host().is_empty();
        if is_plain { Ok(Self(authority)) } else { Err(InvalidUrl) }
    }
}

impl Error {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Release(error) => error.exit(),
            // The file that was named.
            Self::Token(_) | Self::TokenCharacters => Exit::Usage,
            _ => Exit::Failed,
        }
    }

    /// The error of an order: its answer may be what was lost.
    pub(super) fn of_order(self) -> Self {
        match self {
            Self::Converse(_)
            | Self::TooLate { .. }
            | Self::Read(_)
            | Self::Release(super::release::Error::Interrupted { .. }) => Self::Unanswered(self.into()),
            other => other,
        }
    }

    /// Whether the daemon may answer again soon.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Converse(_) | Self::TooLate { .. } | Self::Read(_) => true,
            Self::Refused { status, .. } | Self::NotJson { status } => status.is_server_error(),
            Self::Release(error) => error.is_outage(),
            Self::Unanswered(error) => error.is_outage(),
            Self::Token(_)
            | Self::TokenCharacters
            | Self::Request(_)
            | Self::NotHeld { .. }
            | Self::Pointless { .. }
            | Self::Write(_) => false,
        }
    }
}

/// Sends one request on a new connection, which ends with the answer.
pub(super) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    within: Duration,
) -> Result<Value, Error> {
    let conversation = async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Error::Converse)?;
        // The sender is moved in, so that the connection ends together with the exchange.
        let exchange = async move {
            let response = sender.send_request(request).await.map_err(Error::Converse)?;
            answer(response).await
        };
        // The connection has to be driven as well. If it fails, the exchange fails too, with a better error.
        let (answer, _) = tokio::join!(exchange, connection);
        answer
    };
    tokio::time::timeout(within, conversation).await.map_err(|_| Error::TooLate { within })?
}

/// A request as the daemon at this address takes it.
pub(super) async fn request(
    admin: &AdminUrl,
    method: &Method,
    path: &str,
    token_file: Option<&Path>,
) -> Result<Request<Empty<Bytes>>, Error> {
    let mut request = Request::builder()
        .method(method)
        .uri(path.parse::<Uri>().map_err(|error| Error::Request(error.into()))?)
        .header(HOST, admin.0.as_str())
        .header(ACCEPT, "application/json");
    if let Some(path) = token_file {
        let token = read_token(path).await.map_err(Error::Token)?;
        let bearer = format!("Bearer {}", token.expose_secret());
        let mut bearer = HeaderValue::try_from(bearer).map_err(|_| Error::TokenCharacters)?;
        bearer.set_sensitive(true);
        request = request.header(AUTHORIZATION, bearer);
    }
    request.body(Empty::new()).map_err(Error::Request)
}

async fn connect(admin: &AdminUrl) -> Result<TcpStream, Error> {
    let host = admin.0.host().trim_start_matches('[').trim_end_matches(']');
    let port = admin.0.port_u16().unwrap_or(80);
    let connected = tokio::time::timeout(LONGEST_CONNECT, TcpStream::connect((host, port))).await;
    let connected = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    connected.map_err(|source| Error::Connect { admin: admin.clone(), source })
}

async fn answer(response: http::Response<Incoming>) -> Result<Value, Error> {
    compare_releases(response.headers());
    let status = response.status();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER);
    let bytes = body.collect().await.map_err(Error::Read)?.to_bytes();
    let document: Value = serde_json::from_slice(&bytes).map_err(|_| Error::NotJson { status })?;
    if status.is_success() {
        return Ok(document);
    }
    match document.get("error").and_then(Value::as_str) {
        Some(error) => Err(Error::Refused { status, error: error.to_owned() }),
        None => Err(Error::NotJson { status }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A server for one connection, which returns the request.
    async fn scripted(answer: &str) -> (AdminUrl, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let admin = listener.local_addr().expect("an address").to_string();
        let answer = answer.to_owned();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.expect("a whole head"));
            }
            stream.write_all(answer.as_bytes()).await.expect("an answer is sent");
            // Like a server with keep-alive: the client has to close the connection.
            let _ = stream.read_u8().await;
            String::from_utf8(asked).expect("UTF-8")
        });
        (admin.parse().expect("an address"), server)
    }

    fn http(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn one_request_is_made_and_its_answer_read() {
        let (admin, server) = scripted(&http("200 OK", "{\"version\":\"1\"}")).await;
        let answer = admin.ask(&Method::GET, "/status", None).await.expect("an answer");
        assert_eq!(answer, json!({ "version": "1" }));
        let asked = server.await.expect("no panic");
        assert!(asked.starts_with("GET /status HTTP/1.1\r\n"), "{asked}");
        assert!(!asked.contains("authorization"), "{asked}");
    }

    #[tokio::test]
    async fn the_token_is_sent_where_there_is_one() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "sesame\n").expect("a writable file");
        let (admin, server) = scripted(&http("200 OK", "{}")).await;
        let answer = admin.ask(&Method::POST, "/approve/a", Some(file.path())).await;
        assert_eq!(answer.expect("an answer"), json!({}));
        let asked = server.await.expect("no panic");
        assert!(asked.starts_with("POST /approve/a HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer sesame\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_refusal_says_why() {
        let (admin, _server) = scripted(&http("409 Conflict", "{\"error\":\"nothing held\"}")).await;
        let error = admin.ask(&Method::POST, "/approve/a", None).await.expect_err("a refusal");
        assert_eq!(error.to_string(), "nothing held (409 Conflict)");
    }

    #[tokio::test]
    async fn another_server_is_not_taken_for_a_daemon() {
        let (admin, _server) = scripted(&http("200 OK", "<html>")).await;
        let error = admin.ask(&Method::GET, "/status", None).await.expect_err("not a daemon");
        assert_eq!(error.to_string(), "the answer (200 OK) is not from a towline daemon");
        let (admin, _server) = scripted("nonsense\r\n\r\n").await;
        let error = admin.ask(&Method::GET, "/status", None).await.expect_err("not HTTP");
        assert!(matches!(error, Error::Converse(_)), "{error:?}");
    }

    #[tokio::test]
    async fn an_order_without_an_answer_may_have_been_carried_out() {
        let (admin, _server) = scripted("nonsense\r\n\r\n").await;
        let lost = admin.ask(&Method::POST, "/approve/a", None).await.expect_err("no answer").of_order();
        assert_eq!(lost.to_string(), "whether the order was carried out is not known");
        assert!(lost.is_outage() && lost.exit() == Exit::Failed);
        let (admin, _server) = scripted(&http("409 Conflict", "{\"error\":\"nothing held\"}")).await;
        let refused = admin.ask(&Method::POST, "/approve/a", None).await.expect_err("a refusal").of_order();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    }

    /// The deadlines of the requests that it gets.
    #[derive(Default)]
    struct Deadlines(parking_lot::Mutex<Vec<Duration>>);

    impl Daemon for Deadlines {
        async fn ask_within(
            &self,
            within: Duration,
            _method: &Method,
            _path: &str,
            _token_file: Option<&Path>,
        ) -> Result<Value, Error> {
            self.0.lock().push(within);
            Ok(json!({}))
        }
    }

    #[tokio::test]
    async fn what_is_read_has_30_s_and_an_order_10_minutes() {
        let daemon = Deadlines::default();
        for method in [Method::GET, Method::POST] {
            daemon.ask(&method, "/status", None).await.expect("an answer");
        }
        assert_eq!(*daemon.0.lock(), [Duration::from_secs(30), Duration::from_mins(10)]);
    }

    #[tokio::test]
    async fn a_daemon_that_is_not_there_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let admin: AdminUrl = address.parse().expect("an address");
        let error = admin.ask(&Method::GET, "/status", None).await.expect_err("nobody there");
        let told = error.to_string();
        assert!(told.starts_with(&format!("failed to connect to a daemon at http://{address} (")), "{told}");
        assert!(told.contains("--admin"), "{told}");
    }

    #[tokio::test]
    async fn a_token_file_that_is_not_there_stops_before_anything_is_sent() {
        let gone = Some(Path::new("does-not-exist"));
        let asked = AdminUrl::default().ask(&Method::POST, "/approve/a", gone).await;
        assert!(asked.is_err_and(|error| matches!(error, Error::Token(_)) && error.exit() == Exit::Usage));
    }

    #[test]
    fn addresses_are_http_and_have_no_path() {
        for right in ["http://edge:8384", "edge:8384", "http://[::1]:8384/", "10.0.0.1:1"] {
            assert!(right.parse::<AdminUrl>().is_ok(), "{right}");
        }
        for wrong in ["", "https://edge:1", "http://", "http://edge/status", "http://a@edge:1", ":1"] {
            assert_eq!(wrong.parse::<AdminUrl>(), Err(InvalidUrl), "{wrong}");
        }
    }
}
