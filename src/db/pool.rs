//! The pool of connections, and the one way to run a statement.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8::{ErrorSink, Pool, PooledConnection, RunError};
use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Row, RowStream};

use super::Error;
use super::manager::Manager;
use super::session::{Messages, Session};
use super::source::{Current, DatabaseSource};
use super::url::DEFAULT_MAX_CONNECTIONS;
use crate::telemetry;

/// A connection is waited for so long; whoever has one may need it for as long as a pass takes, and the next try is
/// only a back-off away.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that nobody needs are closed: a burst may have opened `pool_max_conns` of them.
const IDLE: Duration = Duration::from_mins(5);

/// A database. Clones are the same pool.
#[derive(Clone)]
pub struct Database {
    pool: Pool<Manager>,
    /// Makes connections outside of the pool.
    manager: Manager,
    current: Current,
    max: u32,
    /// A statement whose next row does not come within this is cancelled.
    answer_within: Duration,
    /// The last failure to connect: who waits for a connection is told of it, since the pool itself would only let the
    /// time run out.
    failed: watch::Sender<Option<Error>>,
}

/// How many connections there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PoolState {
    /// Most there can be.
    pub max: u32,
    /// Open and free.
    pub idle: u32,
    /// Open and running a statement.
    pub in_use: u32,
}

/// A parameter of a statement. Text is cast in the statement where it needs another type, so that no type is looked up.
#[derive(Debug)]
pub enum Param {
    /// `text`.
    Text(String),
    /// `text[]`.
    Texts(Vec<String>),
}

impl Database {
    /// The pool behind a URL; connects when it is first asked. Its size is what the URL says now, where that can be read.
    pub fn new(source: DatabaseSource) -> Self {
        let current = Current::new(source);
        let manager = Manager::new(current.clone());
        let max = current.last().map_or(DEFAULT_MAX_CONNECTIONS, |url| url.max_connections);
        let failed = watch::Sender::new(None);
        let pool = Pool::builder()
            .max_size(max)
            .connection_timeout(PATIENCE)
            .idle_timeout(Some(IDLE))
            .max_lifetime(None)
            // A look before each use costs a round trip, and a broken connection is noticed by itself.
            .test_on_check_out(false)
            // What can't be reached is told at once; who asks has a back-off of his own.
            .retry_connection(false)
            .error_sink(Box::new(Failures(failed.clone())))
            .build_unchecked(manager.clone());
        Self { pool, manager, current, max, answer_within: super::ANSWER_WITHIN, failed }
    }

    /// The same with another deadline for the next row of a statement.
    #[must_use]
    pub fn answering_within(self, answer_within: Duration) -> Self {
        Self { answer_within, ..self }
    }

    /// Host, port and database.
    pub fn place(&self) -> String {
        self.current.place()
    }

    /// How many connections there are now.
    pub fn state(&self) -> PoolState {
        let state = self.pool.state();
        let in_use = state.connections.saturating_sub(state.idle_connections);
        PoolState { max: self.max, idle: state.idle_connections, in_use }
    }

    /// Sends a statement and gives its rows as they come. `query` names it in metrics and errors.
    pub async fn rows(&self, query: &'static str, text: &str, params: Vec<Param>) -> Result<Rows, Error> {
        let mut connection = self.connection().await?;
        let begun = Instant::now();
        let within = self.answer_within;
        let asked = tokio::time::timeout(within, connection.client.query_typed_raw(text, typed(&params))).await;
        let Ok(stream) = asked else {
            connection.cancel();
            return Err(Error::Silent { query, within });
        };
        let stream = stream.map_err(|error| Error::of_statement(query, error))?;
        Ok(Rows { query, begun, within, stream: Box::pin(stream), connection })
    }

    /// Opens a connection outside of the pool, for what lasts as long as a connection does. `purpose` stands behind the
    /// application's name, where the database shows its connections.
    pub async fn session(&self, purpose: &str) -> Result<(Session, Messages), Error> {
        let (session, messages) = self.manager.open(purpose).await?;
        Ok((session.answering_within(self.answer_within), messages))
    }

    /// A connection that is open as far as anybody knows: those that broke while nobody used them are dropped.
    async fn connection(&self) -> Result<PooledConnection<'static, Manager>, Error> {
        let mut failed = self.failed.subscribe();
        failed.mark_unchanged();
        loop {
            let taken = tokio::select! {
                biased;
                taken = self.pool.get_owned() => taken,
                Ok(()) = failed.changed() => match failed.borrow_and_update().clone() {
                    Some(error) => return Err(error),
                    None => continue,
                },
            };
            match taken {
                Ok(connection) if self.manager.is_past(&connection) => drop(connection),
                Ok(connection) => return Ok(connection),
                Err(RunError::User(error)) => return Err(error),
                Err(RunError::TimedOut) => return Err(Error::PoolExhausted { seconds: PATIENCE.as_secs() }),
            }
        }
    }
}

/// Parameters with their types.
pub(super) fn typed(params: &[Param]) -> impl ExactSizeIterator<Item = (&(dyn ToSql + Sync), Type)> {
    params.iter().map(|param| match param {
        Param::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
        Param::Texts(texts) => (texts as &(dyn ToSql + Sync), Type::TEXT_ARRAY),
    })
}

/// Takes the pool's failures to connect.
#[derive(Debug)]
struct Failures(watch::Sender<Option<Error>>);

impl ErrorSink<Error> for Failures {
    fn sink(&self, error: Error) {
        self.0.send_replace(Some(error));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<Error>> {
        Box::new(Self(self.0.clone()))
    }
}

/// The rows of a running statement. The connection is the statement's until this is dropped.
pub struct Rows {
    query: &'static str,
    begun: Instant,
    within: Duration,
    stream: Pin<Box<RowStream>>,
    connection: PooledConnection<'static, Manager>,
}

impl Rows {
    /// The next row; `None` at the end, which alone says that all rows were read.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        let Ok(next) = tokio::time::timeout(self.within, self.stream.next()).await else {
            self.connection.cancel();
            return Err(Error::Silent { query: self.query, within: self.within });
        };
        match next {
            Some(Ok(row)) => Ok(Some(row)),
            Some(Err(error)) => Err(Error::of_statement(self.query, error)),
            None => {
                telemetry::db_query(self.query, self.begun.elapsed());
                Ok(None)
            }
        }
    }

    /// A column of a row.
    pub fn column<'r, T: FromSql<'r>>(&self, row: &'r Row, index: usize) -> Result<T, Error> {
        column(self.query, row, index)
    }
}

/// A column of a row of the statement `query`.
pub fn column<'r, T: FromSql<'r>>(query: &'static str, row: &'r Row, index: usize) -> Result<T, Error> {
    row.try_get(index).map_err(|error| Error::Decode { query, source: Arc::new(error) })
}

#[cfg(test)]
mod tests;
