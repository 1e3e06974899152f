//! The connection pool, and the dedicated connections beside it.

use std::sync::Arc;
use std::time::Duration;

use bb8_postgres::bb8::{ErrorSink, Pool, PooledConnection, RunError};
use tokio::sync::watch;
use tokio_postgres::Row;

use super::Error;
use super::connection::{Messages, RawConnection};
use super::manager::Manager;
use super::rows::{Lent, Rows};
use super::session::Session;
use super::source::{Current, DatabaseSource};
use super::statement::{Deadline, Param, Text};
use super::transaction::Transaction;
use super::url::DEFAULT_MAX_CONNECTIONS;

/// Longest wait for a connection of the pool: another pass may use it for its whole duration, and after the wait the
/// caller retries with back-off.
const PATIENCE: Duration = Duration::from_secs(30);
/// Idle connections are closed after this: a burst may have opened `pool_max_conns` of them.
const IDLE: Duration = Duration::from_mins(5);

/// A database. Clones share the pool.
#[derive(Clone)]
pub struct Database {
    pool: Pool<Manager>,
    /// Makes the connections beside the pool.
    manager: Manager,
    current: Current,
    max: u32,
    /// Deadline for the next row of a statement.
    answer_within: Duration,
    /// Longest wait for a connection of the pool.
    patience: Duration,
    /// The last failure to connect, for the tasks that wait for a connection: the pool itself would only let them time
    /// out.
    failed: watch::Sender<Option<Error>>,
}

/// The number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PoolState {
    pub max: u32,
    /// Open and free.
    pub idle: u32,
    /// Open and running a statement.
    pub in_use: u32,
}

impl Database {
    /// The pool for a URL; it connects on first use. Its size is the URL's, if that can be read now, else the default.
    pub fn new(source: DatabaseSource) -> Self {
        Self::make(source, None)
    }

    /// The same, but every new connection first runs these statements in one round trip. If they fail, so does
    /// connecting, so that the statements can reject a server.
    pub fn with_set_up(source: DatabaseSource, statements: &str) -> Self {
        Self::make(source, Some(statements.into()))
    }

    fn make(source: DatabaseSource, set_up: Option<Arc<str>>) -> Self {
        let current = Current::new(source);
        let manager = Manager::new(current.clone(), set_up);
        let max = current.last().map_or(DEFAULT_MAX_CONNECTIONS, |url| url.max_connections);
        let failed = watch::Sender::new(None);
        let pool = Pool::builder()
            .max_size(max)
            .connection_timeout(PATIENCE)
            .idle_timeout(Some(IDLE))
            .max_lifetime(None)
            // A check before each use costs a round trip, and a broken connection fails by itself.
            .test_on_check_out(false)
            // A failure is reported at once; callers have a back-off of their own.
            .retry_connection(false)
            .error_sink(Box::new(Failures(failed.clone())))
            .build_unchecked(manager.clone());
        Self { pool, manager, current, max, answer_within: super::ANSWER_WITHIN, patience: PATIENCE, failed }
    }

    /// The same with a different deadline for the next row of a statement.
    #[must_use]
    pub fn answering_within(self, answer_within: Duration) -> Self {
        Self { answer_within, ..self }
    }

    /// Host, port and database.
    pub fn place(&self) -> String {
        self.current.place()
    }

    pub fn state(&self) -> PoolState {
        let state = self.pool.state();
        let in_use = state.connections.saturating_sub(state.idle_connections);
        PoolState { max: self.max, idle: state.idle_connections, in_use }
    }

    /// The same with a different limit for the wait for a connection of the pool, at most half a minute.
    #[must_use]
    pub fn waiting_at_most(self, patience: Duration) -> Self {
        Self { patience: patience.min(PATIENCE), ..self }
    }

    /// Sends a statement and streams its rows. `query` names it in metrics and errors.
    pub async fn rows(
        &self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<Rows<'static>, Error> {
        let lent = Lent::Pool(Box::new(self.connection().await?));
        Rows::ask(lent, Deadline::of_rows(self.answer_within), query, text.into(), params).await
    }

    pub async fn all(
        &self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.rows(query, text, params).await?.rest().await
    }

    /// Runs a statement and returns how many rows it changed or returned.
    pub async fn execute(
        &self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<u64, Error> {
        self.rows(query, text, params).await?.finish().await
    }

    /// Begins a transaction on a connection of the pool. It must have ended within `limit`.
    pub async fn begin(&self, name: &'static str, limit: Duration) -> Result<Transaction<'static>, Error> {
        let lent = Lent::Pool(Box::new(self.connection().await?));
        Transaction::begin(lent, name, limit).await
    }

    /// Opens a dedicated connection. `purpose` is appended to the application name that the database shows for it.
    pub async fn connect(&self, purpose: &str) -> Result<Connection, Error> {
        let raw = self.manager.connect_as(Some(purpose)).await?;
        Ok(Connection { raw, within: self.answer_within })
    }

    /// Opens a dedicated connection that the caller drives, for LISTEN.
    pub async fn session(&self, purpose: &str) -> Result<(Session, Messages), Error> {
        let (client, messages) = self.manager.open(purpose).await?;
        Ok((Session::new(client, self.answer_within), messages))
    }

    /// A connection of the pool; those that broke while they were idle are dropped.
    async fn connection(&self) -> Result<PooledConnection<'static, Manager>, Error> {
        let mut failed = self.failed.subscribe();
        failed.mark_unchanged();
        let mut impatient = std::pin::pin!(tokio::time::sleep(self.patience));
        loop {
            let taken = tokio::select! {
                biased;
                taken = self.pool.get_owned() => taken,
                () = &mut impatient => Err(RunError::TimedOut),
                Ok(()) = failed.changed() => match failed.borrow_and_update().clone() {
                    Some(error) => return Err(error),
                    None => continue,
                },
            };
            match taken {
                Ok(connection) if self.manager.is_past(&connection) => drop(connection),
                Ok(connection) => return Ok(connection),
                Err(RunError::User(error)) => return Err(error),
                Err(RunError::TimedOut) => return Err(Error::PoolExhausted { seconds: self.patience.as_secs() }),
            }
        }
    }
}

/// A dedicated connection beside the pool, for statements that must not queue behind others. It is set up like the pool's
/// connections, and closed when a statement times out ([`Connection::is_closed`]).
pub struct Connection {
    raw: RawConnection,
    /// The deadline of a statement.
    within: Duration,
}

impl Connection {
    /// Whether the connection has ended, so that a new one is needed.
    pub fn is_closed(&self) -> bool {
        self.raw.is_spent || self.raw.client.is_closed()
    }

    /// Sends a statement and streams its rows. `query` names it in metrics and errors.
    pub async fn rows(
        &mut self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<Rows<'_>, Error> {
        Rows::ask(Lent::Own(&mut self.raw), Deadline::of_rows(self.within), query, text.into(), params).await
    }

    pub async fn all(
        &mut self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.rows(query, text, params).await?.rest().await
    }

    /// Runs a statement and returns how many rows it changed or returned.
    pub async fn execute(
        &mut self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<u64, Error> {
        self.rows(query, text, params).await?.finish().await
    }

    /// Runs statements, one after the other, without parameters and results.
    pub async fn run(&mut self, query: &'static str, text: &str) -> Result<(), Error> {
        self.raw.run(query, text, Deadline::of_rows(self.within)).await
    }

    /// Begins a transaction that must have ended within `limit`.
    pub async fn begin(&mut self, name: &'static str, limit: Duration) -> Result<Transaction<'_>, Error> {
        Transaction::begin(Lent::Own(&mut self.raw), name, limit).await
    }
}

/// Receives the pool's failures to connect.
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

#[cfg(test)]
mod tests;
