//! A connection: one that the pool lends for a statement or a transaction, or a dedicated one beside the pool.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bb8_postgres::bb8::PooledConnection;
use futures::FutureExt;
use tokio::time::Instant;
use tokio_postgres::{Client, Row, RowStream};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;
use super::error::ConnectError;
use super::manager::Manager;
use super::statement::{Deadline, Param, Rows, Text, send};
use super::transaction::Transaction;

/// How long the server is asked to cancel a statement.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);
/// How long a transaction that was dropped may take to roll back before its connection is closed instead.
const ROLL_BACK_WITHIN: Duration = Duration::from_secs(5);

/// A connection. A task of its own reads and writes it, and closes it once it is dropped and the server has answered.
pub(super) struct RawConnection {
    client: Client,
    tls: MakeRustlsConnect,
    /// The connection must not be used any more.
    is_spent: bool,
    /// A statement has been sent whose answer was not read to its end.
    is_busy: bool,
    /// A statement has failed since [`RawConnection::forget_failure`].
    has_failed: bool,
    /// How often the connection string had changed when the connection was made.
    changes: u64,
    /// What was prepared, by its text.
    prepared: HashMap<&'static str, Prepared>,
}

/// A statement that the server keeps for a connection, and the plan that it has made of it.
///
/// The plan may be of a time when the tables were empty, and would go on reading them from end to end until the server analyses them. So
/// the statement is prepared anew after [`PLANNED_FOR`].
struct Prepared {
    statement: tokio_postgres::Statement,
    at: Instant,
}

/// In this time an empty table does not become large, and planning once more costs nothing beside all uses.
const PLANNED_FOR: Duration = Duration::from_mins(1);

impl RawConnection {
    pub(super) fn new(client: Client, tls: MakeRustlsConnect, changes: u64) -> Self {
        Self { client, tls, is_spent: false, is_busy: false, has_failed: false, changes, prepared: HashMap::new() }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether an answer has not been read to its end.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub(super) fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// Sends a statement that is prepared if it was not before, or long ago.
    async fn send_prepared(
        &mut self,
        query: &'static str,
        text: &'static str,
        params: &[Param<'_>],
    ) -> Result<RowStream, Error> {
        let failed = |error| Error::of_statement(query, error);
        let kept = self.prepared.get(text).filter(|kept| kept.at.elapsed() < PLANNED_FOR);
        let statement = if let Some(kept) = kept {
            kept.statement.clone()
        } else {
            let types: Vec<_> = params.iter().map(|(_, of_type)| of_type.clone()).collect();
            let statement = self.client.prepare_typed(text, &types).await.map_err(failed)?;
            self.prepared.insert(text, Prepared { statement: statement.clone(), at: Instant::now() });
            statement
        };
        let values = params.iter().map(|(value, _)| *value);
        let sent = self.client.query_raw(&statement, values).await;
        if sent.is_err() {
            // The tables may be others than before, so that its result has other columns. If the server refused it, nothing was run.
            self.prepared.remove(text);
        }
        sent.map_err(failed)
    }

    pub(super) fn forget_failure(&mut self) {
        self.has_failed = false;
    }

    /// Cancels the running statement on the server and closes the connection: the next statement would wait for it. The cancel request goes over a separate connection, in the background.
    pub(super) fn cancel(&mut self) {
        self.is_spent = true;
        let (token, tls) = (self.client.cancel_token(), self.tls.clone());
        // Without a runtime, the connection's task has ended too.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            match tokio::time::timeout(CANCEL_WITHIN, token.cancel_query(tls)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "failed to cancel the statement"),
                Err(_) => tracing::debug!("failed to cancel the statement: no answer"),
            }
        });
    }

    /// An error after a statement timed out: the server would queue the next one behind it.
    fn check(&self, query: &'static str) -> Result<(), Error> {
        if self.is_spent { Err(Error::Lost { query, source: Arc::new(ConnectError::Spent) }) } else { Ok(()) }
    }

    /// Runs statements, one after the other, without their results.
    pub(super) async fn run(&mut self, query: &'static str, text: &str, deadline: Deadline) -> Result<(), Error> {
        self.check(query)?;
        self.is_busy = true;
        match deadline.keep(query, self.client.batch_execute(text)).await {
            Ok(outcome) => {
                self.is_busy = false;
                self.has_failed |= outcome.is_err();
                outcome.map_err(|error| Error::of_statement(query, error))
            }
            Err(silent) => {
                self.cancel();
                Err(silent)
            }
        }
    }
}

impl Drop for RawConnection {
    fn drop(&mut self) {
        // Nobody will read the answer of a statement that still runs.
        if self.is_busy && !self.is_spent {
            self.cancel();
        }
    }
}

/// A connection for as long as a statement or a transaction needs it.
pub(super) enum Held<'c> {
    /// Returns to the pool when it is dropped.
    Pool(Box<PooledConnection<'static, Manager>>),
    /// A dedicated connection.
    Own(&'c mut RawConnection),
    /// A connection whose owner drops it when a statement times out.
    Shared(&'c Client),
}

impl Held<'_> {
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Pool(connection) => connection.client(),
            Self::Own(connection) => connection.client(),
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
    pub(super) fn lend(&mut self) -> Held<'_> {
        match self {
            Self::Pool(connection) => Held::Own(connection),
            Self::Own(connection) => Held::Own(connection),
            Self::Shared(client) => Held::Shared(client),
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

/// A dedicated connection beside the pool, for statements that must not queue behind others. It is set up like the pool's
/// connections, and closed when a statement times out ([`Connection::is_closed`]).
pub struct Connection {
    raw: RawConnection,
    /// The deadline of a statement.
    within: Duration,
}

impl Connection {
    pub(super) fn new(raw: RawConnection, within: Duration) -> Self {
        Self { raw, within }
    }

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
        Rows::ask(Held::Own(&mut self.raw), Deadline::of_rows(self.within), query, text.into(), params).await
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
        Transaction::begin(Held::Own(&mut self.raw), name, limit).await
    }
}
