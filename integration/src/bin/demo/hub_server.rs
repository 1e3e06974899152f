//! The hub server: two replicas of `towline hub` on a database of their own.

use std::net::SocketAddr;
use std::time::Duration;

use integration::hub::{Client, Replica};
use integration::postgres::Database;

use crate::cluster::LIMIT;
use crate::error::Error;

/// Both replicas. They know nothing of each other but what is in the database.
pub(crate) struct HubServer {
    first: Replica,
    second: Replica,
}

impl HubServer {
    /// Starts both, and waits until they serve.
    pub(crate) async fn start(database: &Database) -> Result<Self, Error> {
        let (first, second) = tokio::try_join!(Replica::start(database, &[]), Replica::start(database, &[]))?;
        tokio::try_join!(first.wait_ready(LIMIT), second.wait_ready(LIMIT))?;
        Ok(Self { first, second })
    }

    /// A client of the first replica.
    pub(crate) fn first(&self) -> Client {
        self.first.client()
    }

    /// A client of the second replica.
    pub(crate) fn second(&self) -> Client {
        self.second.client()
    }

    /// Where the REST API is, at the first replica.
    pub(crate) fn api(&self) -> SocketAddr {
        self.first.api()
    }

    /// Stops both as an operator would.
    pub(crate) async fn stop(self, limit: Duration) -> Result<(), Error> {
        for replica in [self.first, self.second] {
            let ended = replica.towline().terminate(limit).await?;
            if !ended.success() {
                return Err(Error::wrong("the end of towline hub", ended.to_string()));
            }
        }
        Ok(())
    }
}
