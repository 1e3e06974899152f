//! A connection of its own, beside the pool: for what lasts as long as a connection does, such as LISTEN.
//!
//! Its two halves are a [`Session`], which is asked, and [`Messages`], which must be read for anything to be answered.

use std::pin::Pin;

use futures::stream::{self, Stream, StreamExt};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::pool::typed;
use super::{Error, Param};

/// The half that is asked.
pub struct Session {
    client: Client,
}

/// The half that carries answers, and notifications as they come.
pub struct Messages {
    stream: Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>,
}

impl Session {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Runs statements, one after the other, without their results. `query` names them in errors.
    pub async fn run(&self, query: &'static str, text: &str) -> Result<(), Error> {
        self.client.batch_execute(text).await.map_err(|error| Error::of_statement(query, &error))
    }

    /// All rows of a statement. `query` names it in errors.
    pub async fn rows(&self, query: &'static str, text: &str, params: &[Param]) -> Result<Vec<Row>, Error> {
        let rows = self.client.query_typed_raw(text, typed(params)).await;
        let rows = rows.map_err(|error| Error::of_statement(query, &error))?;
        let mut rows = Box::pin(rows);
        let mut all = Vec::new();
        while let Some(row) = rows.next().await {
            all.push(row.map_err(|error| Error::of_statement(query, &error))?);
        }
        Ok(all)
    }
}

impl Messages {
    pub(super) fn new<T>(mut connection: Connection<Socket, T>) -> Self
    where
        T: TlsStream + Unpin + Send + 'static,
    {
        Self { stream: Box::pin(stream::poll_fn(move |context| connection.poll_message(context))) }
    }

    /// Carries answers until a notification comes, and gives what it says. An error when the connection has ended.
    pub async fn notification(&mut self) -> Result<String, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(AsyncMessage::Notification(notification))) => return Ok(notification.payload().to_owned()),
                Some(Ok(AsyncMessage::Notice(notice))) => tracing::debug!(%notice, "notice of the database"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::of_statement("listen", &error)),
                None => {
                    let reason = "the server has closed it".to_owned();
                    return Err(Error::Lost { query: "listen", reason });
                }
            }
        }
    }
}
