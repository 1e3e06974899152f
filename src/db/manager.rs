//! Makes connections, for the pool and beside it.

use std::sync::Arc;
use std::time::Duration;

use bb8_postgres::PostgresConnectionManager;
use bb8_postgres::bb8::ManageConnection;
use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;
use super::connection::{Messages, RawConnection};
use super::error::ConnectError;
use super::source::Current;
use super::tls;
use super::url::{DatabaseUrl, TlsMode};

/// Connects with the current URL, and marks connections made with an earlier URL as broken.
#[derive(Clone)]
pub(super) struct Manager {
    current: Current,
    /// Allows one read at a time: a read that hangs can't be cancelled.
    reading: Arc<Mutex<()>>,
    /// Statements that every new connection runs first.
    set_up: Option<Arc<str>>,
}

/// How long reading the URL and certificates may take.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// How to connect: with the first way that works. The modes `allow` and `prefer` have two ways.
struct Access {
    ways: Vec<Way>,
    /// Deadline from the first packet to a successful login. The driver bounds only the TCP connect; a server that accepts
    /// connections and never answers would otherwise occupy all connections of the pool.
    limit: Duration,
    /// How many times the URL has changed.
    changes: u64,
}

/// One way to connect.
#[derive(Clone)]
struct Way {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Access {
    /// Reads the certificates that the URL names.
    fn new(url: &DatabaseUrl, changes: u64) -> Result<Self, Error> {
        let tls = tls::connector(url)?;
        let way = |mode| {
            let mut config = url.config.clone();
            config.ssl_mode(mode);
            Way { config, tls: tls.clone() }
        };
        let modes: &[SslMode] = match url.tls {
            TlsMode::Disable => &[SslMode::Disable],
            TlsMode::Allow => &[SslMode::Disable, SslMode::Require],
            TlsMode::Prefer => &[SslMode::Prefer, SslMode::Disable],
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => &[SslMode::Require],
        };
        Ok(Self { ways: modes.iter().map(|mode| way(*mode)).collect(), limit: url.longest_connecting(), changes })
    }

    /// Connects with the first way that works. `purpose` is appended to the application name.
    async fn by_first_way<C>(
        &self,
        purpose: Option<&str>,
        connect: impl Fn(Way) -> BoxFuture<'static, Result<C, tokio_postgres::Error>>,
    ) -> Result<C, Error> {
        let mut last = Error::unconnected(ConnectError::NoWay);
        for way in &self.ways {
            let mut way = way.clone();
            if let Some(purpose) = purpose {
                let name = format!("{} {purpose}", way.config.get_application_name().unwrap_or_default());
                way.config.application_name(name);
            }
            match tokio::time::timeout(self.limit, connect(way)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => {
                    let other_way_may_do = is_about_transport(&error);
                    last = Error::of_connecting(error);
                    if !other_way_may_do {
                        break;
                    }
                }
                Err(_) => return Err(Error::unconnected(ConnectError::Silent(self.limit))),
            }
        }
        Err(last)
    }
}

impl Manager {
    pub(super) fn new(current: Current, set_up: Option<Arc<str>>) -> Self {
        Self { current, reading: Arc::default(), set_up }
    }

    /// Reads the URL and the certificates that it names: they may have been rotated. The deadline is for a disk that hangs.
    async fn access(&self) -> Result<Access, Error> {
        let not_in_time = |_| Error::unconnected(ConnectError::NotRead);
        let reading = Arc::clone(&self.reading).lock_owned();
        let reading = tokio::time::timeout(READ_WITHIN, reading).await.map_err(not_in_time)?;
        let current = self.current.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            let (changes, url) = current.read().map_err(Error::unconnected)?;
            Access::new(&url, changes)
        });
        let read = tokio::time::timeout(READ_WITHIN, read).await.map_err(not_in_time)?;
        read.map_err(Error::unconnected)?
    }

    /// Whether a connection has ended, or was made with an earlier URL.
    pub(super) fn is_past(&self, connection: &RawConnection) -> bool {
        connection.client.is_closed() || connection.changes != self.current.changes()
    }

    /// Opens a connection that is driven by a task of its own.
    pub(super) async fn connect_as(&self, purpose: Option<&str>) -> Result<RawConnection, Error> {
        let access = self.access().await?;
        let connect = |Way { config, tls }| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let client = PostgresConnectionManager::new(config, tls.clone()).connect().await?;
                Ok((client, tls))
            })
        };
        let (client, tls) = access.by_first_way(purpose, connect).await?;
        let mut raw = RawConnection::new(client, tls, access.changes);
        if let Some(text) = &self.set_up {
            // An error or a dropped future cancels it and closes the connection.
            raw.is_busy = true;
            set_up(&raw.client, text, access.limit).await?;
            raw.is_busy = false;
        }
        Ok(raw)
    }

    /// Opens a connection that its owner drives.
    pub(super) async fn open(&self, purpose: &str) -> Result<(Client, Messages), Error> {
        let access = self.access().await?;
        let connect =
            |Way { config, tls }| -> BoxFuture<'static, _> { Box::pin(async move { config.connect(tls).await }) };
        let (client, connection) = access.by_first_way(Some(purpose), connect).await?;
        let mut messages = Messages::new(connection);
        if let Some(text) = &self.set_up {
            tokio::select! {
                done = set_up(&client, text, access.limit) => done?,
                lost = messages.until_lost() => return Err(lost),
            }
        }
        Ok((client, messages))
    }
}

/// Runs the statements that every new connection runs first.
async fn set_up(client: &Client, text: &str, limit: Duration) -> Result<(), Error> {
    match tokio::time::timeout(limit, client.batch_execute(text)).await {
        Ok(outcome) => outcome.map_err(Error::of_set_up),
        Err(_) => Err(Error::unconnected(ConnectError::Silent(limit))),
    }
}

impl ManageConnection for Manager {
    type Connection = RawConnection;
    type Error = Error;

    async fn connect(&self) -> Result<RawConnection, Error> {
        self.connect_as(None).await
    }

    async fn is_valid(&self, connection: &mut RawConnection) -> Result<(), Error> {
        connection.client.check_connection().await.map_err(|error| Error::of_statement("check", error))
    }

    fn has_broken(&self, connection: &mut RawConnection) -> bool {
        // The next statement would wait for the rest of an unread answer.
        connection.is_spent || connection.is_busy || self.is_past(connection)
    }
}

/// Whether the failure may be due to TLS or its absence, so that the other way may work. The server then answers
/// `invalid_authorization_specification`; other codes, such as for a wrong password, would be the same with the other way.
fn is_about_transport(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(refused) => *refused.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => true,
    }
}
