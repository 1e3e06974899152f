//! The hub server: two replicas of `towline hub` on a database of their own, which apply syncsets to both edges.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use integration::hub::{Client, Replica};
use integration::postgres::Database;

use crate::cluster::LIMIT;
use crate::error::Error;

/// Where the API is by default, and commands look for it.
const DEFAULT_API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Any variable of syncsets makes them run. The edges are on loopback, which is denied by default.
const SYNCSETS: (&str, &str) = ("TOWLINE__SYNCSETS__ALLOW", "local-networks");

/// Both replicas. They know nothing of each other but what is in the database.
pub(crate) struct HubServer {
    first: Replica,
    second: Replica,
}

impl HubServer {
    /// Starts both, and waits until they serve.
    pub(crate) async fn start(database: &Database) -> Result<Self, Error> {
        let (first, second) = tokio::try_join!(
            Replica::start_at(database, DEFAULT_API, &[SYNCSETS]),
            Replica::start(database, &[SYNCSETS])
        )?;
        tokio::try_join!(first.wait_ready(LIMIT), second.wait_ready(LIMIT))?;
        Ok(Self { first, second })
    }

    pub(crate) fn first(&self) -> Client {
        self.first.client()
    }

    pub(crate) fn second(&self) -> Client {
        self.second.client()
    }

    /// Where the REST API is, at the first replica.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.first.api())
    }

    /// What commands need behind them, if the address is not the one by default.
    pub(crate) fn option(&self) -> String {
        if self.first.api() == DEFAULT_API { String::new() } else { format!(" --hub {}", self.url()) }
    }

    /// The admin server of the first replica.
    pub(crate) fn admin_url(&self) -> String {
        self.first.towline().admin_url()
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
