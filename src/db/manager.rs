//! How connections are made, those of the pool and those beside it.

use std::time::Duration;

use bb8::ManageConnection;
use bb8_postgres::PostgresConnectionManager;
use futures::future::BoxFuture;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};

use super::Error;
use super::session::{Messages, Session};
use super::tls::Tls;
use super::url::{DatabaseUrl, TlsMode};

/// Makes connections by the first way that works: `allow` and `prefer` have two.
#[derive(Clone)]
pub(super) struct Manager {
    ways: Vec<Way>,
    /// From the first packet to an accepted account. The driver bounds only the first step of it, and whoever accepts
    /// connections and then says nothing would take the pool's places one after the other, for good.
    limit: Duration,
}

/// One way to connect.
#[derive(Clone)]
struct Way {
    pooled: PostgresConnectionManager<Tls>,
    config: Config,
    tls: Tls,
}

impl Manager {
    /// Reads the certificates that the URL names.
    pub(super) fn of(url: &DatabaseUrl) -> Result<Self, Error> {
        let tls = Tls::of(url)?;
        let way = |mode| {
            let mut config = url.config.clone();
            config.ssl_mode(mode);
            let pooled = PostgresConnectionManager::new(config.clone(), tls.clone());
            Way { pooled, config, tls: tls.clone() }
        };
        let modes: &[SslMode] = match url.tls {
            TlsMode::Disable => &[SslMode::Disable],
            TlsMode::Allow => &[SslMode::Disable, SslMode::Require],
            TlsMode::Prefer => &[SslMode::Prefer, SslMode::Disable],
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => &[SslMode::Require],
        };
        Ok(Self { ways: modes.iter().map(|mode| way(*mode)).collect(), limit: url.longest_connecting() })
    }

    /// A connection outside of the pool.
    pub(super) async fn open(&self, purpose: &str) -> Result<(Session, Messages), Error> {
        self.by_first_way(|way| {
            let mut config = way.config.clone();
            let name = format!("{} {purpose}", config.get_application_name().unwrap_or_default());
            config.application_name(name);
            let tls = way.tls.clone();
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                Ok((Session::new(client), Messages::new(connection)))
            })
        })
        .await
    }

    async fn by_first_way<C>(
        &self,
        connect: impl Fn(&Way) -> BoxFuture<'_, Result<C, tokio_postgres::Error>> + Sync,
    ) -> Result<C, Error> {
        let mut last = Error::Connect { reason: "there is no way to connect".to_owned() };
        for way in &self.ways {
            match tokio::time::timeout(self.limit, connect(way)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => {
                    let other_way_may_do = is_about_transport(&error);
                    last = Error::of_connecting(&error);
                    if !other_way_may_do {
                        break;
                    }
                }
                Err(_) => {
                    let limit = humantime::format_duration(self.limit);
                    return Err(Error::Connect { reason: format!("no answer within {limit}") });
                }
            }
        }
        Err(last)
    }
}

impl ManageConnection for Manager {
    type Connection = Client;
    type Error = Error;

    async fn connect(&self) -> Result<Client, Error> {
        self.by_first_way(|way| Box::pin(way.pooled.connect())).await
    }

    async fn is_valid(&self, connection: &mut Client) -> Result<(), Error> {
        connection.check_connection().await.map_err(|error| Error::of_statement("check", &error))
    }

    fn has_broken(&self, connection: &mut Client) -> bool {
        connection.is_closed()
    }
}

/// Whether TLS or its absence may be what the server or the handshake objects to. The server's word for "not this way"
/// is `invalid_authorization_specification`; other words, such as for a wrong password, stand whatever the way.
fn is_about_transport(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(refused) => *refused.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => true,
    }
}
