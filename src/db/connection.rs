//! Connections as the driver makes them: [`RawConnection`], which a task of its own drives, and [`Messages`] of one that its owner drives.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tokio::time::Instant;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Notification, RowStream, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;
use super::error::ConnectError;
use super::statement::{Deadline, Param};

/// How long the server is asked to cancel a statement.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// A connection. A task of its own reads and writes it, and closes it once it is dropped and the server has answered.
pub(super) struct RawConnection {
    pub(super) client: Client,
    tls: MakeRustlsConnect,
    /// The connection must not be used any more.
    pub(super) is_spent: bool,
    /// A statement has been sent whose answer was not read to its end.
    pub(super) is_busy: bool,
    /// A statement has failed since the transaction began.
    pub(super) has_failed: bool,
    /// How often the connection string had changed when the connection was made.
    pub(super) changes: u64,
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

    /// Sends a statement that is prepared if it was not before, or long ago.
    pub(super) async fn send_prepared(
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
    pub(super) fn check(&self, query: &'static str) -> Result<(), Error> {
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

/// The half of a connection that its owner drives which receives answers and notifications.
pub struct Messages {
    stream: Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>,
}

impl Messages {
    pub(super) fn new<T>(mut connection: tokio_postgres::Connection<Socket, T>) -> Self
    where
        T: TlsStream + Unpin + Send + 'static,
    {
        Self { stream: Box::pin(stream::poll_fn(move |context| connection.poll_message(context))) }
    }

    /// Passes answers on until a notification arrives. An error if the connection has ended.
    pub async fn notification(&mut self) -> Result<Notification, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(AsyncMessage::Notification(notification))) => return Ok(notification),
                Some(Ok(AsyncMessage::Notice(notice))) => tracing::debug!(%notice, "notice from the database"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::of_statement("listen", error)),
                None => return Err(Error::Lost { query: "listen", source: Arc::new(ConnectError::Closed) }),
            }
        }
    }

    /// Passes answers on until the connection ends, and returns why it ended. Notifications are ignored.
    pub async fn until_lost(&mut self) -> Error {
        loop {
            if let Err(error) = self.notification().await {
                return error;
            }
        }
    }
}
