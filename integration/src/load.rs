//! Many requests from the test's side, cheap enough that the test is not what is measured.
//!
//! Bodies are made by the caller and answers are not decoded: the server is asked for metadata alone, and what it
//! sends is read and dropped.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::discovery::ApiResource;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::Error;

/// The smallest answer that a write can have.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

#[derive(Clone, Debug)]
pub struct Write {
    /// What [`Acknowledged`] has for it.
    pub key: String,
    method: Method,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
}

impl Write {
    pub fn create(kind: &ApiResource, namespace: Option<&str>, name: &str, object: &Value) -> Self {
        Self::new(Method::POST, collection_path(kind, namespace), namespace, name, "application/json", Some(object))
    }

    /// Changes an object by a merge patch.
    pub fn merge(kind: &ApiResource, namespace: Option<&str>, name: &str, patch: &Value) -> Self {
        Self::new(Method::PATCH, object_path(kind, namespace, name), namespace, name, MERGE, Some(patch))
    }

    /// Changes an object's status by a merge patch of the subresource.
    pub fn merge_status(kind: &ApiResource, namespace: Option<&str>, name: &str, patch: &Value) -> Self {
        let status = object_path(kind, namespace, name) + "/status";
        Self::new(Method::PATCH, status, namespace, name, MERGE, Some(patch))
    }

    /// Deletes an object, in the background as far as dependents go.
    pub fn delete(kind: &ApiResource, namespace: Option<&str>, name: &str) -> Self {
        Self::new(Method::DELETE, object_path(kind, namespace, name), namespace, name, "application/json", None)
    }

    fn new(
        method: Method,
        path: String,
        namespace: Option<&str>,
        name: &str,
        content_type: &'static str,
        body: Option<&Value>,
    ) -> Self {
        let key = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"));
        Self {
            key,
            method,
            path,
            content_type,
            body: body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
        }
    }
}

const MERGE: &str = "application/merge-patch+json";

/// A write that the server has taken.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    /// [`Write::key`].
    pub key: String,
    /// When the request was begun.
    pub sent: Instant,
    /// When the answer had come whole.
    pub at: Instant,
}

/// Path of a kind, in a namespace or in all of them.
pub(crate) fn collection_path(kind: &ApiResource, namespace: Option<&str>) -> String {
    let root = if kind.group.is_empty() {
        format!("/api/{}", kind.version)
    } else {
        format!("/apis/{}/{}", kind.group, kind.version)
    };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", kind.plural),
        None => format!("{root}/{}", kind.plural),
    }
}

fn object_path(kind: &ApiResource, namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", collection_path(kind, namespace))
}

/// Does all the writes, at most `at_once` at the same time, and begins them in their order. The first refusal ends it.
pub async fn burst(client: &Client, writes: Vec<Write>, at_once: usize) -> Result<Vec<Acknowledged>, Error> {
    let mut results = stream::iter(writes).map(|write| send(client.clone(), write)).buffer_unordered(at_once.max(1));
    let mut acknowledged = Vec::new();
    while let Some(result) = results.next().await {
        acknowledged.push(result?);
    }
    Ok(acknowledged)
}

/// Begins the writes at a steady rate, whether the ones before have ended or not: a slow server gets no respite.
pub async fn paced(client: &Client, writes: Vec<Write>, per_second: u32) -> Result<Vec<Acknowledged>, Error> {
    let mut ticks = interval_at(tokio::time::Instant::now(), Duration::from_secs(1) / per_second.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut running = tokio::task::JoinSet::new();
    let mut acknowledged = Vec::with_capacity(writes.len());
    for write in writes {
        ticks.tick().await;
        running.spawn(send(client.clone(), write));
        while let Some(ended) = running.try_join_next() {
            acknowledged.push(joined(ended)?);
        }
    }
    while let Some(ended) = running.join_next().await {
        acknowledged.push(joined(ended)?);
    }
    Ok(acknowledged)
}

fn joined(ended: Result<Result<Acknowledged, Error>, tokio::task::JoinError>) -> Result<Acknowledged, Error> {
    ended.map_err(|error| Error::Unreadable { what: "a paced write".to_owned(), detail: error.to_string() })?
}

async fn send(client: Client, write: Write) -> Result<Acknowledged, Error> {
    let action = || format!("{} {}", write.method, write.path);
    let request = Request::builder()
        .method(write.method.clone())
        .uri(&write.path)
        .header(ACCEPT, METADATA_ONLY)
        .header(CONTENT_TYPE, write.content_type)
        .body(Body::from(write.body.clone()))
        .map_err(kube::Error::HttpError)
        .map_err(Error::kubernetes(action()))?;
    let sent = Instant::now();
    let response = client.send(request).await.map_err(Error::kubernetes(action()))?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(Error::kubernetes(action()))?.to_bytes();
    let at = Instant::now();
    if status.is_success() {
        return Ok(Acknowledged { key: write.key, sent, at });
    }
    Err(Error::Http { url: action(), detail: refusal(status, &body) })
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    format!("{status}: {}", String::from_utf8_lossy(body))
}
