//! Asks a daemon's admin server one thing.

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
use tokio::net::TcpStream;

use crate::telemetry::{ReadToken, read_token};

/// Time to connect: the daemon is near.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);
/// Time for an answer. A detach of many thousand objects takes minutes; the server cuts off after as long.
const LONGEST_ANSWER: Duration = Duration::from_mins(10);
/// Largest answer: a report with a thousand sections stays far below.
const LARGEST_ANSWER: usize = 64 << 20;

/// Why there is no answer, or none that was asked for. Each ends the process with code 1.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token file can't be used.
    #[error("failed to read the admin token")]
    Token(#[source] ReadToken),
    /// The token has characters that no HTTP header can have.
    #[error("the admin token has characters that can't be sent")]
    TokenCharacters,
    /// Nothing listens there, or not in time.
    #[error(
        "failed to connect to a daemon at {admin} (it listens where its `daemon.listen` says; `--admin URL` names another \
         address)"
    )]
    Connect {
        /// Where it was looked for.
        admin: AdminUrl,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path makes no URL.
    #[error("failed to build the request")]
    Request(#[source] http::Error),
    /// The conversation broke off; whether a change was made is not known.
    #[error("failed to talk to the daemon")]
    Converse(#[source] hyper::Error),
    /// No answer in time. A change goes on in the daemon.
    #[error("no answer from the daemon within {}", humantime::format_duration(LONGEST_ANSWER))]
    TooLate,
    /// The answer broke off, or is too long.
    #[error("failed to read the daemon's answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not JSON: this is some other server.
    #[error("the answer ({status}) is not a daemon's")]
    NotJson {
        /// The answer's status.
        status: StatusCode,
    },
    /// The daemon refuses.
    #[error("{error} ({status})")]
    Refused {
        /// The answer's status.
        status: StatusCode,
        /// What the daemon says.
        error: String,
    },
    /// The answer could not be written.
    #[error("failed to write the answer")]
    Write(#[source] std::io::Error),
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

/// A text that is no admin server's address.
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

/// One request on a connection of its own.
pub(super) async fn ask(
    admin: &AdminUrl,
    method: &Method,
    path: &str,
    token_file: Option<&Path>,
) -> Result<Value, Error> {
    let request = request(admin, method, path, token_file).await?;
    let stream = connect(admin).await?;
    let conversation = async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Error::Converse)?;
        // Moved in, so that the sender ends with the exchange, and the connection with the sender.
        let exchange = async move {
            let response = sender.send_request(request).await.map_err(Error::Converse)?;
            answer(response).await
        };
        // The connection has to be driven along; when it fails, so does the exchange, which says more.
        let (answer, _) = tokio::join!(exchange, connection);
        answer
    };
    tokio::time::timeout(LONGEST_ANSWER, conversation).await.map_err(|_| Error::TooLate)?
}

async fn request(
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

    /// A server for one connection, which tells what it was asked.
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
            // As servers do that keep connections alive: the client is the one to hang up.
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
        let answer = ask(&admin, &Method::GET, "/status", None).await.expect("an answer");
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
        let answer = ask(&admin, &Method::POST, "/approve/a", Some(file.path())).await;
        assert_eq!(answer.expect("an answer"), json!({}));
        let asked = server.await.expect("no panic");
        assert!(asked.starts_with("POST /approve/a HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer sesame\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_refusal_says_why() {
        let (admin, _server) = scripted(&http("409 Conflict", "{\"error\":\"nothing held\"}")).await;
        let error = ask(&admin, &Method::POST, "/approve/a", None).await.expect_err("a refusal");
        assert_eq!(error.to_string(), "nothing held (409 Conflict)");
    }

    #[tokio::test]
    async fn another_server_is_not_taken_for_a_daemon() {
        let (admin, _server) = scripted(&http("200 OK", "<html>")).await;
        let error = ask(&admin, &Method::GET, "/status", None).await.expect_err("not a daemon");
        assert_eq!(error.to_string(), "the answer (200 OK) is not a daemon's");
        let (admin, _server) = scripted("nonsense\r\n\r\n").await;
        let error = ask(&admin, &Method::GET, "/status", None).await.expect_err("not HTTP");
        assert!(matches!(error, Error::Converse(_)), "{error:?}");
    }

    #[tokio::test]
    async fn a_daemon_that_is_not_there_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let admin = address.parse().expect("an address");
        let error = ask(&admin, &Method::GET, "/status", None).await.expect_err("nobody there");
        let told = error.to_string();
        assert!(told.starts_with(&format!("failed to connect to a daemon at http://{address} (")), "{told}");
        assert!(told.contains("--admin"), "{told}");
    }

    #[tokio::test]
    async fn a_token_file_that_is_not_there_stops_before_anything_is_sent() {
        let gone = Some(Path::new("does-not-exist"));
        let asked = ask(&AdminUrl::default(), &Method::POST, "/approve/a", gone).await;
        assert!(matches!(asked, Err(Error::Token(_))), "{asked:?}");
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
