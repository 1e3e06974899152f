//! The calls of the writer, on its own connection.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::batch::Batch;
use crate::actor::Backoff;
use crate::cluster::full_text;
use crate::db::{Connection, Database, Error, Json, Source, Type, column};
use crate::documents::document::Timestamp;
use crate::documents::item::{Outcome, Usage};
use crate::documents::restored::renumber_on;
use crate::documents::tail::Tail;

const WRITE: &str = "write";
const CALL: &str = "call towline_write($1::jsonb, null)";

/// Waits until no call is under way: the lost one has ended then, if it ever began.
const AWAIT_OTHERS: &str = "select pg_advisory_xact_lock_shared('towline_log'::regclass::bigint)";
const FIND: &str = "select request::text, min(version), to_jsonb(min(at)) #>> '{}' from towline_log \
     where version > $1 and request = any($2::uuid[]) group by request";
const FIND_NAME: &str = "find_write";

/// How long a lost answer is looked for, on a server that may just be starting again. Nothing else can be written meanwhile.
const FIND_WITHIN: Duration = Duration::from_secs(10);
/// Between two attempts to look for it.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// The writer's connection and what it knows of the database.
pub(super) struct Calls {
    database: Database,
    connection: Option<Connection>,
    /// Follows the log; none where nobody does.
    tail: Option<Tail>,
    /// The highest version of the last answer; 0 before the first one. A later call's versions are above it.
    newest: i64,
    /// The newest version that was known when the last call was sent.
    sent_above: i64,
}

/// An element of the procedure's answer.
#[derive(Deserialize)]
struct ItemAnswer {
    outcome: ItemOutcome,
    version: Option<String>,
    at: Timestamp,
    #[serde(default)]
    used: Usage,
    #[serde(default)]
    more: Usage,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ItemOutcome {
    Written,
    Conflict,
    Fenced,
    Exceeded,
}

/// The procedure's answer is not as this release expects it.
#[derive(Debug, thiserror::Error)]
enum Unexpected {
    #[error("{items} items got {answers} answers")]
    Count { items: usize, answers: usize },
    #[error("a version is not a number")]
    Version(#[source] std::num::ParseIntError),
}

impl Calls {
    pub(super) fn new(database: Database, tail: Option<Tail>) -> Self {
        Self { database, connection: None, tail, newest: 0, sent_above: 0 }
    }

    /// Sends a batch and returns what became of each item.
    pub(super) async fn write(&mut self, batch: &Batch) -> Result<Vec<Outcome>, Error> {
        let text = batch.text();
        self.sent_above = self.tail.as_ref().map_or(0, |tail| tail.state().version).max(self.newest);
        let connection = self.connection().await?;
        let rows = connection.all(WRITE, CALL, &[(&text, Type::TEXT)]).await?;
        let answers = match rows.first() {
            Some(row) => column::<Json<Vec<ItemAnswer>>>(WRITE, row, 0)?.0,
            None => Vec::new(),
        };
        if answers.len() != batch.len() {
            return Err(unexpected(Unexpected::Count { items: batch.len(), answers: answers.len() }));
        }
        let outcomes = answers.into_iter().map(outcome).collect::<Result<Vec<_>, _>>()?;
        let versions = || {
            outcomes.iter().filter_map(|outcome| match outcome {
                // An item that found nothing to delete has none.
                Outcome::Written { version, .. } => Some(*version).filter(|version| *version > 0),
                Outcome::Conflict { .. } | Outcome::Fenced | Outcome::Exceeded { .. } => None,
            })
        };
        if versions().min().is_some_and(|lowest| lowest <= self.newest) {
            self.lift().await;
        } else if let Some(newest) = versions().max() {
            self.newest = newest;
        }
        Ok(outcomes)
    }

    /// Puts all further versions above those that there were: the database gives out versions again, since the snapshot of a disk
    /// was restored, which has the same origin. What follows the log learns of it by the new base.
    async fn lift(&mut self) {
        let lifted = match self.connection().await {
            Ok(connection) => renumber_on(connection, true).await,
            Err(error) => Err(error),
        };
        match lifted {
            Ok(base) => self.newest = base.unwrap_or_default(),
            // The next answer shows the same.
            Err(error) => tracing::warn!(error = %full_text(&error), "failed to renumber the versions after a restore"),
        }
    }

    /// Puts all further versions above those that there are, if the database has another origin than before.
    pub(super) async fn renumber(&mut self) -> Result<(), Error> {
        let connection = self.connection().await?;
        renumber_on(connection, false).await.map(drop)
    }

    /// The items of a batch that the log shows. If there are none, it is not certain that none will be written: the call may still
    /// be on its way.
    pub(super) async fn find(&mut self, batch: &Batch) -> HashMap<Uuid, Outcome> {
        let requests = batch.requests();
        // The connection has broken, whether that shows by now or not.
        self.connection = None;
        let until = Instant::now() + FIND_WITHIN;
        let mut attempts = 0;
        loop {
            let error = match tokio::time::timeout_at(until, self.look(&requests)).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => error,
                Err(_) => {
                    // The next call would queue behind a look that may never be answered.
                    self.connection = None;
                    return HashMap::new();
                }
            };
            tracing::debug!(error = %full_text(&error), "failed to look for a write whose answer was lost");
            let next = Instant::now() + AGAIN.next_delay(attempts);
            if next >= until {
                return HashMap::new();
            }
            attempts += 1;
            tokio::time::sleep_until(next).await;
        }
    }

    async fn look(&mut self, requests: &[String]) -> Result<HashMap<Uuid, Outcome>, Error> {
        let sent_above = self.sent_above;
        let connection = self.connection().await?;
        connection.execute(FIND_NAME, AWAIT_OTHERS, &[]).await?;
        // A statement of its own: its snapshot is newer than the lock.
        let rows = connection.all(FIND_NAME, FIND, &[(&sent_above, Type::INT8), (&requests, Type::TEXT_ARRAY)]).await?;
        let mut found = HashMap::new();
        for row in &rows {
            let request: &str = column(FIND_NAME, row, 0)?;
            let version = column(FIND_NAME, row, 1)?;
            let at = column::<&str>(FIND_NAME, row, 2)?.parse().map_err(undecoded)?;
            found.insert(request.parse().map_err(undecoded)?, Outcome::Written { version, at });
        }
        Ok(found)
    }

    /// The connection, a new one if the last has ended.
    async fn connection(&mut self) -> Result<&mut Connection, Error> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.database.connect("writer").await?,
        };
        Ok(self.connection.insert(connection))
    }
}

fn outcome(answer: ItemAnswer) -> Result<Outcome, Error> {
    let ItemAnswer { outcome, version, at, used, more } = answer;
    let version = version.map(|version| version.parse::<i64>()).transpose();
    let version = version.map_err(|error| unexpected(Unexpected::Version(error)))?;
    Ok(match outcome {
        ItemOutcome::Written => Outcome::Written { version: version.unwrap_or_default(), at },
        ItemOutcome::Conflict => Outcome::Conflict { present: version },
        ItemOutcome::Fenced => Outcome::Fenced,
        ItemOutcome::Exceeded => Outcome::Exceeded { used, more },
    })
}

fn unexpected(error: Unexpected) -> Error {
    Error::Decode { query: WRITE, source: Source::from(std::sync::Arc::new(error) as std::sync::Arc<_>) }
}

fn undecoded(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Decode { query: FIND_NAME, source: std::sync::Arc::new(error) }
}
