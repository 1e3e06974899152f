//! A connection beside the pool that its owner drives, so that it receives messages which the server sends unasked: for
//! LISTEN.
//!
//! Its halves are a [`Session`], which sends statements, and [`Messages`](super::Messages), which must be polled for answers to arrive.

use std::time::Duration;

use futures::StreamExt;
use tokio_postgres::{Client, Row};

use super::Error;
use super::rows::{Lent, Rows};
use super::statement::{Deadline, Param, Text, send};

/// The half that sends statements.
pub struct Session {
    client: Client,
    /// The deadline of a statement.
    within: Duration,
}

/// Extra time for the answer of a server that cancels the statement at its own timeout.
const GRACE: Duration = Duration::from_secs(5);

impl Session {
    /// `within`: the deadline of a statement; [`Session::run_limited`] sets it on the server, too.
    pub(super) fn new(client: Client, within: Duration) -> Self {
        Self { client, within }
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
        Rows::ask(Lent::Shared(&self.client), deadline, query, Text::Once(text), params).await
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
