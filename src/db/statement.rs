//! Statements: their text and parameters, and how long they may take.
//!
//! A statement is sent with the type of each parameter, and returns built-in types: nothing is looked up in the catalogue, so it costs
//! one round trip. One that is sent often is [prepared](Text::Prepared).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row, RowStream};

use super::Error;

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

/// A column of a row of the statement `query`.
pub fn column<'r, T: FromSql<'r>>(query: &'static str, row: &'r Row, index: usize) -> Result<T, Error> {
    row.try_get(index).map_err(|error| Error::Decode { query, source: Arc::new(error) })
}
