//! A connection beside the pool that its owner reads and writes, so that it sees what the server tells unasked: for LISTEN.
//!
//! Its two halves are a [`Session`], which is asked, and [`Messages`], which must be read for anything to be answered.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Connection, Notification, Row, Socket};

use super::connection::Held;
use super::error::ConnectError;
use super::statement::{Deadline, Param, Rows, send};
use super::{ANSWER_WITHIN, Error};

/// The half that is asked.
pub struct Session {
    client: Client,
    /// The deadline of a statement.
    within: Duration,
}

/// The half that carries answers, and notifications as they come.
pub struct Messages {
    stream: Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>,
}

/// A server that ends a statement in time has this much longer to say so.
const GRACE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn new(client: Client) -> Self {
        Self { client, within: ANSWER_WITHIN }
    }

    /// The same with a deadline for each statement, which the server is asked to keep by [`Session::limit`].
    pub(super) fn answering_within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Asks the server to cancel statements that take longer than the deadline.
    pub async fn limit(&self) -> Result<(), Error> {
        // Zero would be no limit.
        self.run("limit", &format!("SET statement_timeout = {}", self.within.as_millis().max(1))).await
    }

    /// Runs statements, one after the other, without their results. `query` names them in errors.
    pub async fn run(&self, query: &'static str, text: &str) -> Result<(), Error> {
        let answer = async { self.client.batch_execute(text).await.map_err(|error| Error::of_statement(query, error)) };
        self.in_time(query, answer).await
    }

    /// All rows of a statement, which must have come before the deadline. `query` names it in errors.
    pub async fn rows(&self, query: &'static str, text: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let answer = async {
            let mut rows = Box::pin(send(&self.client, query, text, params).await?);
            let mut all = Vec::new();
            while let Some(row) = rows.next().await {
                all.push(row.map_err(|error| Error::of_statement(query, error))?);
            }
            Ok(all)
        };
        self.in_time(query, answer).await
    }

    /// Sends a statement and gives its rows as they come, each before the deadline. `query` names it in metrics and errors.
    pub async fn stream(&self, query: &'static str, text: &str, params: &[Param<'_>]) -> Result<Rows<'_>, Error> {
        let deadline = Deadline::of_rows(self.within + GRACE);
        Rows::ask(Held::Shared(&self.client), deadline, query, text, params).await
    }

    /// An answer that does not come though the server should have ended the statement: the session is of no use any more.
    async fn in_time<T>(
        &self,
        query: &'static str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        Deadline::of_rows(self.within + GRACE).keep(query, answer).await?
    }
}

impl Messages {
    pub(super) fn new<T>(mut connection: Connection<Socket, T>) -> Self
    where
        T: TlsStream + Unpin + Send + 'static,
    {
        Self { stream: Box::pin(stream::poll_fn(move |context| connection.poll_message(context))) }
    }

    /// Carries answers until a notification comes. An error when the connection has ended.
    pub async fn notification(&mut self) -> Result<Notification, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(AsyncMessage::Notification(notification))) => return Ok(notification),
                Some(Ok(AsyncMessage::Notice(notice))) => tracing::debug!(%notice, "notice of the database"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::of_statement("listen", error)),
                None => return Err(Error::Lost { query: "listen", source: Arc::new(ConnectError::Closed) }),
            }
        }
    }
    /// Carries answers until the connection has ended, and says how. Notifications are passed over.
    pub async fn until_lost(&mut self) -> Error {
        loop {
            if let Err(error) = self.notification().await {
                return error;
            }
        }
    }
}
