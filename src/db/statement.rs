//! Statements: their text, parameters and rows, and how long they may take.
//!
//! A statement is sent with the type of each parameter, and returns built-in types: nothing is looked up in the catalogue, so it costs
//! one round trip. One that is sent often is [prepared](Text::Prepared).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row, RowStream};

use super::Error;
use super::connection::Held;
use crate::telemetry;

/// A parameter of a statement with its declared type. Text can be cast in the statement (`$1::text::uuid`) where the program
/// has no type for a value.
pub type Param<'p> = (&'p (dyn ToSql + Sync), Type);

/// The text of a statement, and whether each connection prepares it.
#[derive(Clone, Copy, Debug)]
pub enum Text<'t> {
    /// Parsed and planned each time.
    Once(&'t str),
    /// Prepared on first use and each minute, with one round trip more, and kept with its connection: for what is sent again and again, and
    /// needs no other plan for other parameters. Parsing and planning a statement of many parts takes several times as long as running it.
    /// Not on the connection of a [`Session`](super::Session).
    Prepared(&'static str),
}

impl<'t> From<&'t str> for Text<'t> {
    fn from(text: &'t str) -> Self {
        Self::Once(text)
    }
}

impl<'t> From<&'t String> for Text<'t> {
    fn from(text: &'t String) -> Self {
        Self::Once(text)
    }
}

/// How long a statement may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// Deadline for the next row.
    within: Duration,
    /// When the whole transaction must have ended, and its time limit.
    whole: Option<(Instant, Duration)>,
}

impl Deadline {
    /// For a statement: each row has this deadline.
    pub(super) fn of_rows(within: Duration) -> Self {
        Self { within, whole: None }
    }

    /// For all statements of a transaction that begins now.
    pub(super) fn of_transaction(limit: Duration) -> Self {
        Self { within: limit, whole: Some((Instant::now() + limit, limit)) }
    }

    pub(super) async fn keep<T>(&self, query: &'static str, answer: impl Future<Output = T>) -> Result<T, Error> {
        let next = Instant::now() + self.within;
        let (until, within) = match self.whole {
            Some((whole, limit)) if whole < next => (whole, limit),
            _ => (next, self.within),
        };
        if until <= Instant::now() {
            // Polling the future even once would send the statement.
            return Err(Error::Silent { query, within });
        }
        tokio::time::timeout_at(until, answer).await.map_err(|_| Error::Silent { query, within })
    }
}

pub(super) async fn send(
    client: &Client,
    query: &'static str,
    text: &str,
    params: &[Param<'_>],
) -> Result<RowStream, Error> {
    let params = params.iter().map(|(value, of_type)| (*value, of_type.clone()));
    client.query_typed_raw(text, params).await.map_err(|error| Error::of_statement(query, error))
}

/// The rows of a running statement. They hold its connection until they are dropped.
pub struct Rows<'c> {
    query: &'static str,
    begun: Instant,
    deadline: Deadline,
    stream: Pin<Box<RowStream>>,
    held: Held<'c>,
}

impl<'c> Rows<'c> {
    /// Sends a statement on a connection.
    pub(super) async fn ask(
        mut held: Held<'c>,
        deadline: Deadline,
        query: &'static str,
        text: Text<'_>,
        params: &[Param<'_>],
    ) -> Result<Rows<'c>, Error> {
        let begun = Instant::now();
        held.begins(query)?;
        let sent = deadline.keep(query, held.send(query, text, params)).await;
        match sent {
            Ok(Ok(stream)) => Ok(Rows { query, begun, deadline, stream: Box::pin(stream), held }),
            Ok(Err(error)) => {
                held.failed();
                Err(error)
            }
            Err(silent) => {
                held.cancel();
                Err(silent)
            }
        }
    }

    /// The next row. Only `None` says that all rows have been read.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        match self.deadline.keep(self.query, self.stream.next()).await {
            Ok(Some(Ok(row))) => Ok(Some(row)),
            Ok(Some(Err(error))) => {
                self.held.failed();
                Err(Error::of_statement(self.query, error))
            }
            Ok(None) => {
                self.held.ends();
                telemetry::db_query(self.query, self.begun.elapsed());
                Ok(None)
            }
            Err(silent) => {
                self.held.cancel();
                Err(silent)
            }
        }
    }

    pub async fn rest(mut self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        while let Some(row) = self.next().await? {
            rows.push(row);
        }
        Ok(rows)
    }

    /// Discards the remaining rows, and returns how many rows the statement changed or returned.
    pub async fn finish(mut self) -> Result<u64, Error> {
        while self.next().await?.is_some() {}
        Ok(self.stream.rows_affected().unwrap_or_default())
    }

    pub fn column<'r, T: FromSql<'r>>(&self, row: &'r Row, index: usize) -> Result<T, Error> {
        column(self.query, row, index)
    }
}

/// A column of a row of the statement `query`.
pub fn column<'r, T: FromSql<'r>>(query: &'static str, row: &'r Row, index: usize) -> Result<T, Error> {
    row.try_get(index).map_err(|error| Error::Decode { query, source: Arc::new(error) })
}
