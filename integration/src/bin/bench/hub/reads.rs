//! Reads: one document at a steady rate, and a list in pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use integration::Error;
use integration::hub::{Client, Reply, Request};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::Serialize;
use serde::de::IgnoredAny;
use tokio::task::JoinSet;
use tokio::time::interval;

use super::documents::FLEET;
use super::meter::{Cost, Meter};
use super::world::World;
use crate::measure::Latency;
use crate::options::HubOptions;
use crate::phases::to_float;
use crate::summary::median;

/// Documents of a page.
pub(crate) const PAGE: usize = 500;
/// How often the list is read.
const LISTS: usize = 10;
/// Between the numbers of two documents that are read: far apart, and each one in its turn.
const STRIDE: usize = 7_919;

/// Reads of one document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Read {
    pub(crate) reads: usize,
    pub(crate) per_second: f64,
    /// Of a document with its head.
    pub(crate) document_bytes: usize,
    /// From the request to the end of the answer; each is sent at its time, whatever became of the one before.
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) cost: Cost,
}

/// A whole list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Listed {
    pub(crate) documents: usize,
    pub(crate) pages: usize,
    /// From the first request to the end of the last answer, without what this program takes to find `continue`.
    pub(crate) seconds: f64,
    pub(crate) slowest_seconds: f64,
    pub(crate) cost: Cost,
}

/// What a client looks at in a page.
#[derive(Deserialize)]
pub(crate) struct Page {
    #[serde(rename = "resourceVersion")]
    pub(crate) version: String,
    pub(crate) items: Vec<IgnoredAny>,
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}

/// A list that was read to its end.
pub(crate) struct Walk {
    pub(crate) documents: usize,
    pub(crate) pages: usize,
    pub(crate) taken: Duration,
}

impl Page {
    pub(crate) fn of(reply: &Reply) -> Result<Self, Error> {
        let unreadable =
            |error: serde_json::Error| Error::Unreadable { what: "a page".into(), detail: error.to_string() };
        serde_json::from_slice(&reply.body).map_err(unreadable)
    }
}

/// Reads documents one by one, at a steady rate.
pub(crate) async fn one(world: &World<'_>, options: &HubOptions) -> Result<Read, Error> {
    let meter = Meter::begin(world).await?;
    let reads = usize::try_from(options.window.as_secs()).unwrap_or_default() * options.read_rate as usize;
    // A request takes a connection that is idle, or opens another one.
    let idle: Arc<Mutex<Vec<Client>>> = Arc::default();
    let taken = Arc::new(Mutex::new(Vec::with_capacity(reads)));
    let mut ticks = interval(Duration::from_secs(1) / options.read_rate);
    let mut requests = JoinSet::new();
    let began = Instant::now();
    for number in 0..reads {
        ticks.tick().await;
        let request = Request::get(&world.fleet.path(number * STRIDE % world.fleet.clusters));
        let (idle, taken, other) = (Arc::clone(&idle), Arc::clone(&taken), world.first().client());
        requests.spawn(async move {
            let mut client = idle.lock().pop().unwrap_or(other);
            let sent = Instant::now();
            let reply = client.send(&request).await?;
            taken.lock().push(sent.elapsed());
            idle.lock().push(client);
            reply.success().map(|reply| reply.body.len())
        });
    }
    let mut document_bytes = 0;
    while let Some(read) = requests.join_next().await {
        document_bytes = read.unwrap_or(Ok(0))?;
    }
    let per_second = to_float(reads) / began.elapsed().as_secs_f64();
    let cost = meter.end(world).await?;
    let latency_ms = Latency::taken(std::mem::take(&mut *taken.lock()));
    Ok(Read { reads, per_second, document_bytes, latency_ms, cost })
}

/// Lists the clusters of one namespace.
pub(crate) async fn list(world: &World<'_>) -> Result<Listed, Error> {
    let meter = Meter::begin(world).await?;
    let mut client = world.first().client();
    let mut walks = Vec::new();
    for _ in 0..LISTS {
        walks.push(walk(&mut client, &format!("/v1/clusters?namespace={FLEET}")).await?);
    }
    let cost = meter.end(world).await?;
    let seconds = || walks.iter().map(|walk| walk.taken.as_secs_f64());
    let (documents, pages) = walks.first().map_or((0, 0), |walk| (walk.documents, walk.pages));
    let slowest_seconds = seconds().fold(0.0, f64::max);
    Ok(Listed { documents, pages, seconds: median(seconds().collect()).unwrap_or_default(), slowest_seconds, cost })
}

/// Reads all pages of a list; the path has a parameter already.
pub(crate) async fn walk(client: &mut Client, path: &str) -> Result<Walk, Error> {
    let mut walk = Walk { documents: 0, pages: 0, taken: Duration::ZERO };
    let mut next = String::new();
    loop {
        let request = Request::get(&format!("{path}&limit={PAGE}{next}"));
        let sent = Instant::now();
        let reply = client.send(&request).await?;
        walk.taken += sent.elapsed();
        let page = Page::of(&reply.success()?)?;
        walk.documents += page.items.len();
        walk.pages += 1;
        match page.next.filter(|token| !token.is_empty()) {
            Some(token) => next = format!("&continue={token}"),
            None => return Ok(walk),
        }
    }
}

impl Read {
    pub(crate) fn line(&self) -> String {
        let latency = self.latency_ms.map(|ms| format!("p50 {:.2} p99 {:.2} max {:.1} ms", ms.p50, ms.p99, ms.max));
        format!(
            "  read     {:>6} of {} bytes, {:.0} a second: {}; {}",
            self.reads,
            self.document_bytes,
            self.per_second,
            latency.unwrap_or_default(),
            self.cost.line()
        )
    }
}

impl Listed {
    pub(crate) fn line(&self) -> String {
        format!(
            "  listed   {:>6} in {} pages: {:.3} s (slowest {:.3}); {LISTS} lists: {}",
            self.documents,
            self.pages,
            self.seconds,
            self.slowest_seconds,
            self.cost.line()
        )
    }
}
