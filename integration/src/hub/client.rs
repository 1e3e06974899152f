//! A client of the REST API with one connection that it keeps.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::watch::Watch;
use crate::Error;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
/// The hub itself ends a request sooner.
const LONGEST_ANSWER: Duration = Duration::from_mins(1);

/// Sends requests one after the other over one connection, and opens another one where that has ended. A request whose answer
/// is lost is never sent twice.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    token: Option<String>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// A request that may be sent any number of times.
#[derive(Clone, Debug)]
pub struct Request {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Reply {
    path: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    /// A client of the API at this address.
    pub fn to(address: SocketAddr) -> Self {
        Self { address, token: None, connection: None }
    }

    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&mut self, request: &Request) -> Result<Reply, Error> {
        let failed = |detail: String| Error::Http { url: request.path.clone(), detail };
        let late = |_| failed(format!("no answer within {} s", LONGEST_ANSWER.as_secs()));
        let exchange = async {
            let response = self.begin(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| failed(format!("{error:?}")))?.to_bytes();
            Ok(Reply { path: request.path.clone(), status: head.status.as_u16(), headers: head.headers, body })
        };
        let answer = timeout(LONGEST_ANSWER, exchange).await.map_err(late).flatten();
        if answer.is_err() {
            // What is left of that exchange must not be taken for the next one's answer.
            self.connection = None;
        }
        answer
    }

    /// Opens a watch on a connection of its own: `path` has the parameters, `watch=true` among them.
    pub async fn watch(&self, path: &str) -> Result<Watch, Error> {
        self.watch_with(&Request::get(path)).await
    }

    /// The same by a request with headers of one's own.
    pub async fn watch_with(&self, request: &Request) -> Result<Watch, Error> {
        let refusal = |reply: Reply| refused(&reply.path, reply.status, &reply.body);
        self.try_watch(request).await?.map_err(refusal)
    }

    /// The same; where the hub refuses the watch, its answer.
    pub async fn try_watch(&self, request: &Request) -> Result<Result<Watch, Reply>, Error> {
        let mut own = Self { address: self.address, token: self.token.clone(), connection: None };
        let (head, body) = own.begin(request).await?.into_parts();
        let (path, status) = (request.path.clone(), head.status.as_u16());
        if status == 200 {
            return Ok(Ok(Watch::new(path, body, own.connection)));
        }
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        Ok(Err(Reply { path, status, headers: head.headers, body }))
    }

    async fn begin(&mut self, request: &Request) -> Result<Response<Incoming>, Error> {
        let failed = |detail: String| Error::Http { url: request.path.clone(), detail };
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && connection.ready().await.is_err()
        {
            kept = None;
        }
        let unreachable = |source| Error::Network { action: "connect to the hub", source };
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(self.address).await.map_err(unreachable)?,
        };
        let mut outgoing = http::Request::builder()
            .method(&request.method)
            .uri(&request.path)
            .header(header::HOST, self.address.to_string())
            .body(Full::new(request.body.clone()))
            .map_err(|error| failed(error.to_string()))?;
        outgoing.headers_mut().extend(request.headers.clone());
        if let Some(token) = &self.token {
            outgoing.headers_mut().insert(header::AUTHORIZATION, value(&format!("Bearer {token}")));
        }
        let response = connection.send_request(outgoing).await.map_err(|error| failed(format!("{error:?}")))?;
        self.connection = Some(connection);
        Ok(response)
    }
}

async fn connect(address: SocketAddr) -> std::io::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub fn delete(path: &str) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub fn post(path: &str, document: &Value) -> Self {
        Self { method: Method::POST, ..Self::get(path) }.body(JSON, document.to_string())
    }

    pub fn put(path: &str, document: &Value) -> Self {
        Self { method: Method::PUT, ..Self::get(path) }.body(JSON, document.to_string())
    }

    pub fn merge_patch(path: &str, changes: &Value) -> Self {
        Self { method: Method::PATCH, ..Self::get(path) }.body(MERGE_PATCH, changes.to_string())
    }

    /// `PATCH` with the operations of a JSON patch.
    pub fn json_patch(path: &str, operations: &Value) -> Self {
        Self { method: Method::PATCH, ..Self::get(path) }.body(JSON_PATCH, operations.to_string())
    }

    /// Any method, without a body.
    pub fn of(method: Method, path: &str) -> Self {
        Self { method, ..Self::get(path) }
    }

    #[must_use]
    pub fn body(self, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }.header(header::CONTENT_TYPE, content_type)
    }

    /// The same with this header.
    ///
    /// # Panics
    /// Where the text can't be a header's value.
    #[must_use]
    pub fn header(mut self, name: HeaderName, text: &str) -> Self {
        self.headers.insert(name, value(text));
        self
    }

    /// The same on the condition that the document has this version.
    #[must_use]
    pub fn if_match(self, version: u64) -> Self {
        self.header(header::IF_MATCH, &format!("\"{version}\""))
    }
}

#[expect(clippy::expect_used, reason = "tests and the bench write their headers themselves")]
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("a header's value has no control characters")
}

impl Reply {
    /// The answer, where it is a success.
    pub fn success(self) -> Result<Self, Error> {
        if (200..300).contains(&self.status) { Ok(self) } else { Err(refused(&self.path, self.status, &self.body)) }
    }

    pub fn json(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::Unreadable { what: self.path.clone(), detail: error.to_string() })
    }

    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The version of the document in the answer, by its `ETag`.
    pub fn version(&self) -> Result<u64, Error> {
        let tag = self.header(header::ETAG).unwrap_or_default();
        let detail = || format!("{}: no version in ETag {tag:?}", self.status);
        tag.trim_matches('"').parse().map_err(|_| Error::Unreadable { what: self.path.clone(), detail: detail() })
    }
}

fn refused(path: &str, status: u16, body: &[u8]) -> Error {
    Error::Http { url: path.to_owned(), detail: format!("{status}: {}", String::from_utf8_lossy(body).trim()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::client::conn::http1::SendRequest;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::{Client, Request};
    use crate::eventually;

    /// Reads requests without bodies, or with short ones, and answers each with the next text.
    async fn scripted(answers: Vec<Vec<&'static str>>) -> (Client, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut received = Vec::new();
            for connection in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                for answer in connection {
                    let mut buffer = vec![0; 4096];
                    let length = stream.read(&mut buffer).await.unwrap();
                    received.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
            received
        });
        (Client::to(address), server)
    }

    const CREATED: &str = "HTTP/1.1 201 Created\r\netag: \"41\"\r\ncontent-length: 2\r\n\r\n{}";

    #[tokio::test]
    async fn requests_share_a_connection_until_it_ends_and_then_there_is_another_one() {
        let (client, server) = scripted(vec![vec![CREATED, CREATED], vec![CREATED]]).await;
        let mut client = client.with_token("secret");
        let request = Request::post("/v1/clusters", &json!({"name": "a"})).if_match(7);
        for number in 0..3 {
            assert_eq!(client.send(&request).await.unwrap().success().unwrap().version().unwrap(), 41);
            if number == 1 {
                eventually("the end of the first connection", Duration::from_mins(1), async || {
                    let has_ended = client.connection.as_ref().is_none_or(SendRequest::is_closed);
                    if has_ended { Ok(()) } else { Err("it is open".to_owned()) }
                })
                .await
                .unwrap();
            }
        }
        let received = server.await.unwrap();
        assert_eq!(received.len(), 3);
        for request in received {
            let request = request.to_lowercase();
            assert!(request.starts_with("post /v1/clusters http/1.1\r\nhost: 127.0.0.1:"), "{request}");
            for expected in ["if-match: \"7\"", "authorization: bearer secret", "content-type: application/json"] {
                assert!(request.contains(expected), "{expected} is not in {request}");
            }
            assert!(request.ends_with("\r\n\r\n{\"name\":\"a\"}"), "{request}");
        }
    }

    #[tokio::test]
    async fn a_watch_gives_lines_that_were_cut_anywhere_and_tells_a_clean_end_from_a_lost_connection() {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let clean = "16\r\n{\"type\":\"ADDED\",\"objec\r\n1d\r\nt\":{\"n\":1}}\n{\"type\":\"DELETED\"\r\n10\r\n,\"object\":null}\n\r\n0\r\n\r\n";
        let lost = "16\r\n{\"type\":\"ADDED\",\"objec\r\n";
        for (body, is_clean) in [(clean, true), (lost, false)] {
            let answer: &'static str = format!("{head}{body}").leak();
            let (client, server) = scripted(vec![vec![answer]]).await;
            let mut watch = client.watch("/v1/clusters?watch=true").await.unwrap();
            if is_clean {
                let added = watch.next().await.unwrap().unwrap();
                assert_eq!((added.kind.as_str(), added.object), ("ADDED", json!({"n": 1})));
                assert_eq!(watch.next().await.unwrap().unwrap().kind, "DELETED");
                assert!(watch.next().await.unwrap().is_none());
            } else {
                watch.next().await.unwrap_err();
            }
            server.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_refused_watch_tells_the_problem() {
        let gone = "HTTP/1.1 410 Gone\r\ncontent-length: 4\r\n\r\ngone";
        let (client, _server) = scripted(vec![vec![gone]]).await;
        let error = client.watch("/v1/clusters?watch=true&resourceVersion=1").await.unwrap_err();
        assert!(error.to_string().contains("410: gone"), "{error}");
    }
}
