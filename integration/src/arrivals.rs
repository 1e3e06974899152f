//! When changes arrive at whoever watches: the other end of a measurement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use kube::Client;
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::load::collection_path;
use crate::{Error, eventually};

/// Before a watch that has told nothing is asked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// What an event is recorded as: the caller's choice, `None` for what does not matter.
type Mark<T> = dyn Fn(&Change, &T) -> Option<String> + Send + Sync;

/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
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
        let stream = EventStream { client: client.clone(), path: collection_path(kind, None) };
        let version = stream.current().await?;
        let record = Arc::new(Mutex::new(Record::default()));
        let watching = tokio::spawn(follow(stream, version, record.clone(), Box::new(mark)));
        Ok(Self { record, watching })
    }

    pub fn first(&self, mark: &str) -> Option<Instant> {
        self.record.lock().first.get(mark).copied()
    }

    pub fn seen(&self) -> usize {
        self.record.lock().first.len()
    }

    /// Everything that was seen, with the moment.
    pub fn all(&self) -> HashMap<String, Instant> {
        self.record.lock().first.clone()
    }

    /// Waits until so many marks were seen. An error at once where the watch can't go on.
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

/// The changes of a collection, from any version on.
struct EventStream {
    client: Client,
    path: String,
}

impl EventStream {
    /// The version that the collection has now.
    async fn current(&self) -> Result<String, Error> {
        let request = self.request(format!("{}?limit=1", self.path))?;
        let listed: Versioned = self.client.request(request).await.map_err(Error::kubernetes(self.action()))?;
        Ok(listed.metadata.resource_version)
    }

    async fn since(&self, version: &str) -> Result<impl AsyncBufRead + Send + use<>, Error> {
        let request = self.request(format!("{}?watch=true&resourceVersion={version}", self.path))?;
        self.client.request_stream(request).await.map_err(Error::kubernetes(self.action()))
    }

    fn request(&self, uri: String) -> Result<http::Request<Vec<u8>>, Error> {
        http::Request::get(uri)
            .body(Vec::new())
            .map_err(kube::Error::HttpError)
            .map_err(Error::kubernetes(self.action()))
    }

    fn action(&self) -> String {
        format!("watch {}", self.path)
    }
}

/// Notes what a stream tells. A server ends a watch after a while, and at once where its reader falls behind: it is
/// resumed where it ended.
async fn follow<T: DeserializeOwned>(
    stream: EventStream,
    mut version: String,
    record: Arc<Mutex<Record>>,
    mark: Box<Mark<T>>,
) {
    loop {
        let events = match stream.since(&version).await {
            Ok(events) => events,
            Err(error) => return record.lock().failure = Some(error.to_string()),
        };
        match take(events, &record, &*mark).await {
            // The version is read of the last event alone: of each, it would cost as much as the mark.
            Ok(Some(last)) => match serde_json::from_str::<Event<Versioned>>(&last) {
                Ok(last) => version = last.object.metadata.resource_version,
                Err(error) => return record.lock().failure = Some(format!("{error} in {last}")),
            },
            Ok(None) => tokio::time::sleep(PAUSE).await,
            Err(detail) => return record.lock().failure = Some(detail),
        }
    }
}

/// Notes what comes until the server ends it, and returns the last line.
async fn take<T: DeserializeOwned>(
    events: impl AsyncBufRead + Send,
    record: &Mutex<Record>,
    mark: &Mark<T>,
) -> Result<Option<String>, String> {
    let mut lines = std::pin::pin!(events.lines());
    let mut last = None;
    while let Some(line) = lines.try_next().await.map_err(|error| error.to_string())? {
        let now = Instant::now();
        if let Some((change, object)) = read(&line)?
            && let Some(mark) = mark(&change, &object)
        {
            record.lock().first.entry(mark).or_insert(now);
        }
        last = Some(line);
    }
    Ok(last)
}

/// What has a version: a list, or an object.
#[derive(Deserialize)]
struct Versioned {
    metadata: VersionedMetadata,
}

#[derive(Deserialize)]
struct VersionedMetadata {
    #[serde(rename = "resourceVersion")]
    resource_version: String,
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
