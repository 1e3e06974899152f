//! How long changes of documents take to arrive: from the time that the database gives a change, just before its commit, to its line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use integration::hub::Client;
use integration::{Error, eventually};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::hub_world::LONGEST_STEP;

/// Of each change at each receiver. The lock is held for one push.
#[derive(Default)]
pub(crate) struct Delays(Mutex<Vec<Duration>>);

impl Delays {
    /// A line of a watch, or an event of a queue.
    pub(crate) fn sees(&self, line: &[u8]) {
        if let Some(changed) = changed(line) {
            let delay = Timestamp::now().duration_since(changed);
            self.0.lock().push(Duration::try_from(delay).unwrap_or_default());
        }
    }
}

/// Receivers of changes, until this is dropped.
#[derive(Default)]
pub(crate) struct Receivers {
    delays: Arc<Delays>,
    all: JoinSet<Result<(), Error>>,
}

impl Receivers {
    /// Adds a watch: the path has a version, so that changes alone arrive.
    pub(crate) async fn watch(&mut self, client: &Client, path: &str) -> Result<(), Error> {
        let mut watch = client.watch(path).await?;
        let what = path.to_owned();
        self.receive(|delays| async move {
            while let Some(line) = watch.next_line().await? {
                delays.sees(line);
            }
            Err(Error::Unreadable { what, detail: "the hub has ended it".to_owned() })
        });
        Ok(())
    }

    /// Adds any other receiver. It ends with an error only.
    pub(crate) fn receive<R>(&mut self, receiver: impl FnOnce(Arc<Delays>) -> R)
    where
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        self.all.spawn(receiver(Arc::clone(&self.delays)));
    }

    /// Waits until so many changes have arrived. Returns how long that took since the first one.
    pub(crate) async fn wait_for(&mut self, changes: usize) -> Result<Duration, Error> {
        let mut first = None;
        eventually(format!("{changes} changes to arrive"), LONGEST_STEP, async || {
            if let Some(Ok(Err(error))) = self.all.try_join_next() {
                return Ok(Err(error));
            }
            let arrived = self.delays.0.lock().len();
            let since = if arrived > 0 { *first.get_or_insert_with(Instant::now) } else { Instant::now() };
            if arrived >= changes { Ok(Ok(since.elapsed())) } else { Err(format!("{arrived} have arrived")) }
        })
        .await?
    }

    pub(crate) fn delays(&self) -> Vec<Duration> {
        self.delays.0.lock().clone()
    }
}

/// When the change of an event was made; `None` of a bookmark. It is searched for and not parsed: clients share the cores with the hub.
fn changed(line: &[u8]) -> Option<Timestamp> {
    let line = std::str::from_utf8(line).ok()?;
    let (head, _) = line.split_once("\"object\"")?;
    if !head.contains("MODIFIED") {
        return None;
    }
    let (_, behind) = line.split_once("\"updatedAt\"")?;
    behind.split('"').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn the_time_of_a_change_is_found_with_and_without_blanks_and_a_bookmark_has_none() {
        for line in [
            r#"{"type":"MODIFIED","object":{"kind":"Cluster","updatedAt":"2026-11-22T22:00:00.000001Z","status":{}}}"#,
            r#"{"type": "MODIFIED", "object": {"kind": "Cluster", "updatedAt": "2026-11-22T22:00:00.000001Z"}}"#,
        ] {
            assert_eq!(changed(line.as_bytes()).unwrap().to_string(), "2026-11-22T22:00:00.000001Z");
        }
        assert!(changed(br#"{"type":"BOOKMARK","object":{"updatedAt":"2026-11-22T22:00:00Z"}}"#).is_none());
    }
}
