//! A connection beside the pool that its owner drives, so that it receives messages which the server sends unasked: for
//! LISTEN.
//!
//! Its halves are a [`Session`], which sends statements, and [`Messages`], which must be polled for answers to arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Connection, Notification, Row, Socket};

use super::connection::Held;
use super::error::ConnectError;
use super::statement::{Deadline, Param, Rows, Text, send};
use super::{ANSWER_WITHIN, Error};

/// The half that sends statements.
pub struct Session {
    client: Client,
    /// The deadline of a statement.
    within: Duration,
}

/// The half that receives answers and notifications.
pub struct Messages {
    stream: Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>,
}

/// Extra time for the answer of a server that cancels the statement at its own timeout.
const GRACE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn new(client: Client) -> Self {
        Self { client, within: ANSWER_WITHIN }
    }

    /// The same with a deadline for each statement; [`Session::run_limited`] sets it on the server, too.
    pub(super) fn answering_within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Runs statements, one after the other, without their results. `query` names them in errors.
    pub async fn run(&self, query: &'static str, text: &str) -> Result<(), Error> {
        let answer = async { self.client.batch_execute(text).await.map_err(|error| Error::of_statement(query, error)) };
        self.in_time(query, answer).await
    }

    /// The same, and from then on the server cancels statements of this session that take longer than the deadline: one round
    /// trip for both.
    pub async fn run_limited(&self, query: &'static str, text: &str) -> Result<(), Error> {
        // Zero would be no limit.
        let millis = self.within.as_millis().max(1);
        self.run(query, &format!("SET statement_timeout = {millis}; {text}")).await
    }

    /// All rows of a statement, which must arrive before the deadline. `query` names it in errors.
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

    /// Sends a statement and streams its rows, each before the deadline. `query` names it in metrics and errors.
    pub async fn stream(&self, query: &'static str, text: &str, params: &[Param<'_>]) -> Result<Rows<'_>, Error> {
        let deadline = Deadline::of_rows(self.within + GRACE);
        Rows::ask(Held::Shared(&self.client), deadline, query, Text::Once(text), params).await
    }

    /// Fails when no answer arrives although the server should have cancelled the statement: the session is unusable then.
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
