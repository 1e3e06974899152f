//! What was written, as a model of what lists and watches show; and the writers that write it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use integration::soak::Random;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use towline::test_api::documents::{Document, Filter, Kind};

use crate::documents_read::world::{LIMIT, World, delete, put, write};

pub(crate) type Labels = BTreeMap<String, String>;
/// Namespace and name.
pub(crate) type Key = (String, String);

/// One version.
#[derive(Clone, Debug)]
struct Written {
    kind: Kind,
    key: Key,
    /// Labels and content; `None` for a removal.
    content: Option<(Labels, u64)>,
}

/// All versions. The writers add to it; the tests compare after the writers have ended.
#[derive(Clone)]
pub(crate) struct Log {
    versions: Arc<Mutex<BTreeMap<i64, Written>>>,
    newest: watch::Sender<i64>,
}

/// What a watch sees, without the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) version: i64,
    pub(crate) what: &'static str,
    pub(crate) key: Key,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { versions: Arc::default(), newest: watch::Sender::new(0) }
    }

    /// The newest version that a writer has seen.
    pub(crate) fn newest(&self) -> i64 {
        *self.newest.borrow()
    }

    /// Waits until so much has been written.
    pub(crate) async fn reaches(&self, version: i64) {
        let mut newest = self.newest.subscribe();
        let reached = tokio::time::timeout(LIMIT, newest.wait_for(|newest| *newest >= version)).await;
        assert!(reached.is_ok_and(|reached| reached.is_ok()), "waited for version {version}");
    }

    /// The documents that a filter matches at a version: version, and content.
    pub(crate) fn state(&self, at: i64, filter: &Filter) -> BTreeMap<Key, (i64, u64)> {
        let mut state = BTreeMap::new();
        for (version, Written { kind, key, content }) in self.versions.lock().range(..=at) {
            match content {
                _ if !filter.covers(*kind, &key.0, &key.1) => continue,
                Some((labels, content)) if filter.selects(labels) => state.insert(key.clone(), (*version, *content)),
                _ => state.remove(key),
            };
        }
        state
    }

    /// What a watch with this filter sees after a version, up to the end.
    pub(crate) fn seen_after(&self, after: i64, filter: &Filter) -> Vec<Seen> {
        let mut matching: BTreeSet<Key> = self.state(after, filter).into_keys().collect();
        let mut seen = Vec::new();
        for (version, Written { kind, key, content }) in self.versions.lock().range(after + 1..) {
            if !filter.covers(*kind, &key.0, &key.1) {
                continue;
            }
            let matches = content.as_ref().is_some_and(|(labels, _)| filter.selects(labels));
            let what = match (matching.contains(key), matches) {
                (false, false) => continue,
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
            };
            if matches {
                matching.insert(key.clone())
            } else {
                matching.remove(key)
            };
            seen.push(Seen { version: *version, what, key: key.clone() });
        }
        seen
    }

    fn add(&self, version: i64, written: Written) {
        assert!(self.versions.lock().insert(version, written).is_none(), "version {version} was given twice");
        self.newest.send_if_modified(|newest| {
            let is_newer = version > *newest;
            *newest = version.max(*newest);
            is_newer
        });
    }
}

/// The content of a document that a writer has written.
pub(crate) fn content(document: &Document) -> u64 {
    document.data["content"].as_u64().expect("a number")
}

/// Writers that write until they are asked to end.
pub(crate) struct Writers {
    is_ending: Arc<AtomicBool>,
    numbers: Arc<AtomicU64>,
    log: Log,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    pub(crate) async fn start(world: &World, log: &Log, random: &mut Random, count: usize) -> Self {
        let (is_ending, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
        let mut tasks = Vec::new();
        for _ in 0..count {
            let sql = world.place.client(integration::postgres::ADMIN).await.expect("a connection");
            let (log, is_ending, numbers) = (log.clone(), Arc::clone(&is_ending), Arc::clone(&numbers));
            let mut random = random.split();
            tasks.push(tokio::spawn(async move {
                while !is_ending.load(Ordering::Relaxed) {
                    let number = numbers.fetch_add(32, Ordering::Relaxed);
                    let drawn: Vec<_> = (0..=random.below(16)).map(|index| draw(&mut random, number + index)).collect();
                    commit(&sql, &log, number, drawn).await;
                }
            }));
        }
        Self { is_ending, numbers, log: log.clone(), tasks }
    }

    /// Ends the writers, and writes a document `zz-end` of each kind into namespace `n0`, that each selector of the tests matches
    /// once: first with a label `tier`, then without.
    pub(crate) async fn end(self, world: &World) {
        self.is_ending.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writer");
        }
        for kind in [Kind::Cluster, Kind::Secret] {
            for labels in [Some("gold"), None] {
                let number = self.numbers.fetch_add(32, Ordering::Relaxed);
                let labels = labels.map(|tier| ("tier".to_owned(), tier.to_owned())).into_iter().collect();
                let key = ("n0".to_owned(), "zz-end".to_owned());
                let written = Written { kind, key, content: Some((labels, number)) };
                commit(&world.sql, &self.log, number, vec![written]).await;
            }
        }
    }
}

/// A change of one of a few documents.
fn draw(random: &mut Random, number: u64) -> Written {
    let kind = if random.below(4) == 0 { Kind::Secret } else { Kind::Cluster };
    // These names show whether the order is bytewise.
    let name = format!("c{}{}", ["-", "", "."][random.index(3)], random.below(14));
    let key = (format!("n{}", random.below(3)), name);
    let tier = ["gold", "silver"].get(random.index(3));
    let labels = tier.map(|tier| ("tier".to_owned(), (*tier).to_owned())).into_iter().collect();
    let content = (random.below(6) > 0).then_some((labels, number));
    Written { kind, key, content }
}

async fn commit(sql: &tokio_postgres::Client, log: &Log, number: u64, drawn: Vec<Written>) {
    let changes: Vec<Value> = drawn
        .iter()
        .map(|Written { kind, key, content }| {
            let key = (key.0.as_str(), key.1.as_str());
            match content {
                Some((labels, content)) => put(*content, *kind, key, &json!(labels), &json!({"content": content})),
                None => delete(*kind, key),
            }
        })
        .collect();
    let versions = write(sql, number, &changes).await;
    for (version, written) in versions.into_iter().zip(drawn) {
        if let Some(version) = version {
            log.add(version, written);
        }
    }
}

/// Compacts the log as far as the rules allow it, until it is dropped.
pub(crate) struct Compaction(JoinHandle<()>);

impl Compaction {
    pub(crate) async fn start(world: &World) -> Self {
        let sql = world.place.client(integration::postgres::ADMIN).await.expect("a connection");
        let claim = "update towline_claim set holder = 'test', token = 1, until = now() + interval '1 day' \
                     where name = 'compaction'";
        sql.batch_execute(claim).await.expect("a claim");
        Self(tokio::spawn(async move {
            loop {
                let step = "select * from towline_compact('test', 1, interval '0')";
                sql.batch_execute(step).await.expect("a step");
                // Without a pause it would take a core for itself.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }))
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.0.abort();
    }
}
