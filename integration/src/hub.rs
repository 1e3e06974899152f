//! Replicas of the hub on a database, and clients of its REST API.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use integration::hub::{Replica, Request};
//! # use integration::postgres::{Postgres, Transport};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Postgres::start("hub", Transport::Plain).await?;
//! let database = server.hub_database("one").await?; // belongs to the account of the replicas
//! let replica = Replica::start(&database, &[]).await?; // `towline hub`, with `POSTGRES_PARAMS` alone
//! replica.wait_ready(Duration::from_secs(60)).await?;
//! let mut client = replica.client(); // one connection, kept between requests
//! let cluster = serde_json::json!({"namespace": "foo", "name": "cluster1", "kubeconfig": "foobar"});
//! let version = client.send(&Request::post("/v1/clusters", &cluster)).await?.success()?.version()?;
//! let mut watch = client.watch(&format!("/v1/clusters?watch=true&resourceVersion={version}")).await?;
//! let event = watch.next().await?;
//! # drop(event);
//! # Ok(())
//! # }
//! ```

mod client;
mod watch;

pub use client::{Client, Reply, Request};
pub use watch::{Event, Watch};

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::port::Port;
use crate::postgres::{self, Database};
use crate::{Error, Towline};

/// Goes over the address of the REST API.
const LISTEN: &str = "TOWLINE__HUB__LISTEN";
/// The database, as a URL or in libpq's words.
const DATABASE: &str = "POSTGRES_PARAMS";

/// A process of `towline hub`: the daemon, and the address of its REST API, which it keeps over restarts.
#[derive(Debug)]
pub struct Replica {
    towline: Towline,
    api: SocketAddr,
    /// Held, not read: the address stays ours while this value lives.
    _port: Option<Port>,
}

impl Replica {
    /// Starts a replica on this database, with this environment over `POSTGRES_PARAMS` and the address of the API. Returns at
    /// once: [`Replica::wait_ready`] waits.
    pub async fn start(database: &Database, env: &[(&str, &str)]) -> Result<Self, Error> {
        let port = Port::take()?;
        Self::start_with(database, port.address(), Some(port), env).await
    }

    /// The same at this address of the API; a free port takes its place if somebody else has it.
    pub async fn start_at(database: &Database, api: SocketAddr, env: &[(&str, &str)]) -> Result<Self, Error> {
        if TcpListener::bind(api).is_err() {
            return Self::start(database, env).await;
        }
        Self::start_with(database, api, None, env).await
    }

    async fn start_with(
        database: &Database,
        api: SocketAddr,
        port: Option<Port>,
        env: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let (address, url) = (api.to_string(), database.url(postgres::HUB));
        let mut all = vec![(LISTEN, address.as_str()), (DATABASE, url.as_str())];
        all.extend_from_slice(env);
        Ok(Self { towline: Towline::start_hub(&all).await?, api, _port: port })
    }

    /// Starts a replica as part of the daemon: `towline run` with `[hub]` on this database and these further sections, and this
    /// environment over them. Returns at once.
    pub async fn run(database: &Database, sections: &str, env: &[(&str, &str)]) -> Result<Self, Error> {
        let port = Port::take()?;
        let address = port.address().to_string();
        let config = format!("[hub]\ndatabase_url = {:?}\n{sections}", database.url(postgres::HUB));
        let all = [&[(LISTEN, address.as_str())], env].concat();
        Ok(Self { towline: Towline::start(&config, &all).await?, api: port.address(), _port: Some(port) })
    }

    /// Waits until the admin server's `/readyz` says yes.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        self.towline.wait_ready(limit).await
    }

    /// The process: its admin server, its log, its end by a signal, and what it has used.
    pub fn towline(&self) -> &Towline {
        &self.towline
    }

    /// Kills the process, where it runs, and starts another one with the same environment and addresses.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        self.towline.start_again().await
    }

    /// Where the REST API is.
    pub fn api(&self) -> SocketAddr {
        self.api
    }

    /// A client with a connection of its own, which it opens with its first request.
    pub fn client(&self) -> Client {
        Client::to(self.api())
    }
}
