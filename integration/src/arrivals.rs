//! When changes arrive at whoever watches: the other end of a measurement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, TryStreamExt};
use kube::Client;
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::load::collection_path;
use crate::{Error, eventually};

/// What an event is recorded as: the caller's choice, `None` for what does not matter.
type Mark<T> = dyn Fn(&Change, &T) -> Option<String> + Send + Sync;

/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Added,
    /// It is different.
    Modified,
    /// It is gone.
    Deleted,
}

#[derive(Default, Debug)]
struct Record {
    first: HashMap<String, Instant>,
    failure: Option<String>,
}

/// A watch from now on, that notes when each mark was seen first.
///
/// A mark is whatever identifies one change, for example `team-a/orders: 20Gi`.
#[derive(Debug)]
pub struct Arrivals {
    record: Arc<Mutex<Record>>,
    watching: JoinHandle<()>,
}

impl Arrivals {
    /// Begins to watch a kind in all namespaces. Changes after the return are seen, those before are not.
    pub async fn watch(
        client: &Client,
        kind: &ApiResource,
        mark: impl Fn(&Change, &Value) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::watch_as(client, kind, mark).await
    }

    /// The same for objects read as `T`, which takes anything, and costs less where objects are large.
    pub async fn watch_as<T: DeserializeOwned + Send + 'static>(
        client: &Client,
        kind: &ApiResource,
        mark: impl Fn(&Change, &T) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let path = collection_path(kind, None);
        let action = || format!("watch {path}");
        let request = |uri: String| {
            http::Request::get(uri)
                .body(Vec::new())
                .map_err(kube::Error::HttpError)
                .map_err(Error::kubernetes(action()))
        };
        let listed: Value =
            client.request(request(format!("{path}?limit=1"))?).await.map_err(Error::kubernetes(action()))?;
        let version = listed.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        // An hour is longer than any measurement; the server's own limit is between 30 and 60 minutes.
        let watch = request(format!("{path}?watch=true&resourceVersion={version}&timeoutSeconds=3600"))?;
        let events = client.request_stream(watch).await.map_err(Error::kubernetes(action()))?;
        let record = Arc::new(Mutex::new(Record::default()));
        let watching = tokio::spawn(follow(events, record.clone(), Box::new(mark)));
        Ok(Self { record, watching })
    }

    /// When the mark was seen first.
    pub fn first(&self, mark: &str) -> Option<Instant> {
        self.record.lock().first.get(mark).copied()
    }

    /// How many marks were seen.
    pub fn seen(&self) -> usize {
        self.record.lock().first.len()
    }

    /// Everything that was seen, with the moment.
    pub fn all(&self) -> HashMap<String, Instant> {
        self.record.lock().first.clone()
    }

    /// Waits until so many marks were seen. An error at once where the watch has ended.
    pub async fn wait_for(&self, marks: usize, limit: Duration) -> Result<(), Error> {
        eventually(format!("{marks} changes to arrive"), limit, async || {
            let record = self.record.lock();
            if let Some(detail) = &record.failure {
                return Ok(Err(Error::Unreadable { what: "a watch".to_owned(), detail: detail.clone() }));
            }
            let seen = record.first.len();
            if seen >= marks { Ok(Ok(())) } else { Err(format!("{seen} changes")) }
        })
        .await?
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn follow<T: DeserializeOwned>(
    events: impl futures::AsyncBufRead + Send,
    record: Arc<Mutex<Record>>,
    mark: Box<Mark<T>>,
) {
    let mut lines = std::pin::pin!(events.lines());
    let failure = loop {
        match lines.try_next().await {
            Ok(Some(line)) => {
                let now = Instant::now();
                match read(&line) {
                    Ok(Some((change, object))) => {
                        if let Some(mark) = mark(&change, &object) {
                            record.lock().first.entry(mark).or_insert(now);
                        }
                    }
                    Ok(None) => {}
                    Err(detail) => break detail,
                }
            }
            Ok(None) => break "the server has ended the watch".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    record.lock().failure = Some(failure);
}

#[derive(Deserialize)]
struct Event<T> {
    #[serde(rename = "type")]
    change: String,
    object: T,
}

/// The change that a line tells; `None` for a bookmark, and an error for whatever is no change.
fn read<T: DeserializeOwned>(line: &str) -> Result<Option<(Change, T)>, String> {
    let event: Event<T> = serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))?;
    match event.change.as_str() {
        "ADDED" => Ok(Some((Change::Added, event.object))),
        "MODIFIED" => Ok(Some((Change::Modified, event.object))),
        "DELETED" => Ok(Some((Change::Deleted, event.object))),
        "BOOKMARK" => Ok(None),
        _ => Err(line.to_owned()),
    }
}
