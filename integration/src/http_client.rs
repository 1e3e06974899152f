//! Plain HTTP to servers on loopback: etcd and the daemon's admin server.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::Error;

/// Both servers are on this machine and answer at once; the daemon's report may take five seconds.
const LONGEST_ANSWER: Duration = Duration::from_secs(15);

/// A server's answer, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Http {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Http {
    pub(crate) fn to(address: SocketAddr) -> Self {
        // A connection for each request: a server may end one that is kept at the moment of the next request.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { base: format!("http://{address}"), client }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Error> {
        self.request(Method::GET, path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Result<Answer, Error> {
        self.request(Method::POST, path, body).await
    }

    async fn request(&self, method: Method, path: &str, body: &str) -> Result<Answer, Error> {
        let url = format!("{}{path}", self.base);
        let failed = |detail: String| Error::Http { url: url.clone(), detail };
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .body(Full::new(Bytes::from(body.to_owned())))
            .map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| failed(error.to_string()))?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
            Ok(Answer { status, body: String::from_utf8_lossy(&bytes).into_owned() })
        };
        let late = |_| failed(format!("no answer within {} s", LONGEST_ANSWER.as_secs()));
        timeout(LONGEST_ANSWER, exchange).await.map_err(late)?
    }
}

impl Answer {
    /// The body of an answer that is a success.
    pub(crate) fn success(self, url: &str) -> Result<String, Error> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        Err(Error::Http { url: url.to_owned(), detail: format!("{}: {}", self.status, self.body.trim()) })
    }
}
