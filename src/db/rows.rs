//! The rows of a running statement, and the connection that it holds.

use std::pin::Pin;
use std::time::Duration;

use bb8_postgres::bb8::PooledConnection;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row, RowStream};

use super::Error;
use super::connection::RawConnection;
use super::manager::Manager;
use super::statement::{Deadline, Param, Text, column, send};
use crate::telemetry;

/// How long a transaction that was dropped may take to roll back before its connection is closed instead.
const ROLL_BACK_WITHIN: Duration = Duration::from_secs(5);

/// A connection for as long as a statement or a transaction needs it.
pub(super) enum Lent<'c> {
    /// Returns to the pool when it is dropped.
    Pool(Box<PooledConnection<'static, Manager>>),
    /// A dedicated connection.
    Own(&'c mut RawConnection),
    /// A connection whose owner drops it when a statement times out.
    Shared(&'c Client),
}

impl Lent<'_> {
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Pool(connection) => &connection.client,
            Self::Own(connection) => &connection.client,
            Self::Shared(client) => client,
        }
    }

    pub(super) fn raw(&mut self) -> Option<&mut RawConnection> {
        match self {
            Self::Pool(connection) => Some(connection),
            Self::Own(connection) => Some(connection),
            Self::Shared(_) => None,
        }
    }

    /// Lends the connection for a shorter time.
    pub(super) fn lend(&mut self) -> Lent<'_> {
        match self {
            Self::Pool(connection) => Lent::Own(connection),
            Self::Own(connection) => Lent::Own(connection),
            Self::Shared(client) => Lent::Shared(client),
        }
    }

    /// A statement is about to be sent.
    pub(super) fn begins(&mut self, query: &'static str) -> Result<(), Error> {
        if let Some(connection) = self.raw() {
            connection.check(query)?;
            connection.is_busy = true;
        }
        Ok(())
    }

    /// The whole answer has been read.
    pub(super) fn ends(&mut self) {
        if let Some(connection) = self.raw() {
            connection.is_busy = false;
        }
    }

    /// The answer was an error, which ends it.
    pub(super) fn failed(&mut self) {
        if let Some(connection) = self.raw() {
            connection.is_busy = false;
            connection.has_failed = true;
        }
    }

    pub(super) fn cancel(&mut self) {
        if let Some(connection) = self.raw() {
            connection.cancel();
        }
    }

    pub(super) async fn send(
        &mut self,
        query: &'static str,
        text: Text<'_>,
        params: &[Param<'_>],
    ) -> Result<RowStream, Error> {
        match (text, self.raw()) {
            (Text::Prepared(text), Some(connection)) => connection.send_prepared(query, text, params).await,
            (Text::Prepared(text) | Text::Once(text), _) => send(self.client(), query, text, params).await,
        }
    }

    /// Rolls back a dropped transaction in the background. The pool gets its connection back after that.
    pub(super) fn roll_back(mut self) {
        if self.raw().is_some_and(|connection| connection.is_busy) {
            return self.cancel();
        }
        match self {
            // The first poll of the future sends the statement; the next statement queues behind it.
            Self::Own(connection) => drop(connection.client.batch_execute("ROLLBACK").now_or_never()),
            // A shared connection has no transactions.
            Self::Shared(_) => {}
            Self::Pool(mut connection) => match tokio::runtime::Handle::try_current() {
                Err(_) => connection.is_spent = true,
                Ok(runtime) => drop(runtime.spawn(async move {
                    let deadline = Deadline::of_rows(ROLL_BACK_WITHIN);
                    if let Err(error) = connection.run("roll_back", "ROLLBACK", deadline).await {
                        tracing::debug!(%error, "failed to roll back the transaction, closing its connection");
                        connection.is_spent = true;
                    }
                })),
            },
        }
    }
}

/// The rows of a running statement. They hold its connection until they are dropped.
pub struct Rows<'c> {
    query: &'static str,
    begun: Instant,
    deadline: Deadline,
    stream: Pin<Box<RowStream>>,
    lent: Lent<'c>,
}

impl<'c> Rows<'c> {
    /// Sends a statement on a connection.
    pub(super) async fn ask(
        mut lent: Lent<'c>,
        deadline: Deadline,
        query: &'static str,
        text: Text<'_>,
        params: &[Param<'_>],
    ) -> Result<Rows<'c>, Error> {
        let begun = Instant::now();
        lent.begins(query)?;
        let sent = deadline.keep(query, lent.send(query, text, params)).await;
        match sent {
            Ok(Ok(stream)) => Ok(Rows { query, begun, deadline, stream: Box::pin(stream), lent }),
            Ok(Err(error)) => {
                lent.failed();
                Err(error)
            }
            Err(silent) => {
                lent.cancel();
                Err(silent)
            }
        }
    }

    /// The next row. Only `None` says that all rows have been read.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        match self.deadline.keep(self.query, self.stream.next()).await {
            Ok(Some(Ok(row))) => Ok(Some(row)),
            Ok(Some(Err(error))) => {
                self.lent.failed();
                Err(Error::of_statement(self.query, error))
            }
            Ok(None) => {
                self.lent.ends();
                telemetry::db_query(self.query, self.begun.elapsed());
                Ok(None)
            }
            Err(silent) => {
                self.lent.cancel();
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
