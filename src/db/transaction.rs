//! Transactions.

use std::time::Duration;

use tokio_postgres::Row;

use super::Error;
use super::rows::{Lent, Rows};
use super::statement::{Deadline, Param, Text};

/// A transaction with the server's default isolation level. Dropping it before [`Transaction::commit`] rolls it back. Its
/// connection returns to the pool after it has ended, and is closed if that is not certain (a statement still runs or timed
/// out).
pub struct Transaction<'c> {
    /// None after the transaction has ended.
    lent: Option<Lent<'c>>,
    name: &'static str,
    deadline: Deadline,
}

impl<'c> Transaction<'c> {
    /// All statements, including the commit, must have ended within `limit`.
    pub(super) async fn begin(mut lent: Lent<'c>, name: &'static str, limit: Duration) -> Result<Self, Error> {
        if let Some(connection) = lent.raw() {
            connection.has_failed = false;
        }
        let mut transaction = Self { lent: Some(lent), name, deadline: Deadline::of_transaction(limit) };
        transaction.run("begin", "BEGIN").await?;
        Ok(transaction)
    }

    /// Sends a statement and streams its rows. `query` names it in metrics and errors.
    pub async fn rows(
        &mut self,
        query: &'static str,
        text: impl Into<Text<'_>>,
        params: &[Param<'_>],
    ) -> Result<Rows<'_>, Error> {
        let deadline = self.deadline;
        let Some(lent) = &mut self.lent else { return Err(Error::RolledBack { name: self.name }) };
        Rows::ask(lent.lend(), deadline, query, text.into(), params).await
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
        let deadline = self.deadline;
        match self.lent.as_mut().and_then(Lent::raw) {
            Some(connection) => connection.run(query, text, deadline).await,
            None => Err(Error::RolledBack { name: self.name }),
        }
    }

    /// Commits. If the answer is lost or late, the outcome is unknown. After a failed statement the transaction is rolled
    /// back instead, and `commit` returns an error.
    pub async fn commit(mut self) -> Result<(), Error> {
        let unread = self.lent.as_mut().and_then(Lent::raw).is_some_and(|connection| connection.is_busy);
        if unread {
            // The unread rest of the answer may be an error.
            let name = self.name;
            drop(self);
            return Err(Error::RolledBack { name });
        }
        // The server would answer COMMIT with a rollback, without an error.
        if self.lent.as_mut().and_then(Lent::raw).is_some_and(|connection| connection.has_failed) {
            let name = self.name;
            self.rollback().await?;
            return Err(Error::RolledBack { name });
        }
        self.run("commit", "COMMIT").await?;
        self.lent = None;
        Ok(())
    }

    /// Rolls back. The connection can be used again at once.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.run("rollback", "ROLLBACK").await?;
        self.lent = None;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.roll_back();
        }
    }
}
