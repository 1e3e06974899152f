//! Builds a connection from loaded credentials, and tries whether it works.
//!
//! Files are read and certificates parsed on blocking threads, one at a time for each cluster, so that a file system that
//! hangs while they are read blocks one thread and nothing else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;

use super::plugin::{Issued, PluginError};
use super::{LoadError, Loaded, Source, load};
use crate::cluster::bearer::Bearer;
use crate::cluster::certificate::Validity;
use crate::cluster::connection::Connection;
use crate::cluster::error::{Error, full_text};
use crate::config::{ClusterConfig, ClusterName};
use crate::http::{BearerToken, NotAToken};

/// An API server that does not answer `GET /version` within this time counts as unreachable.
pub(in crate::cluster) const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Why there are no new credentials.
#[derive(Debug, thiserror::Error)]
pub(in crate::cluster) enum Refused {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("failed to read the token file {path}: {source}")]
    TokenFile { path: String, source: std::io::Error },
    #[error("{0}")]
    Token(#[from] NotAToken),
    #[error("{0}")]
    Unusable(String),
    #[error("failed to read the credentials: the file system does not answer")]
    TooLong,
    #[error("failed to read the credentials: {0}")]
    Panicked(tokio::task::JoinError),
    #[error("there is neither a token nor a client certificate in them")]
    Nobody,
    #[error(transparent)]
    Server(Error),
}

/// Credentials that may replace those in use.
pub(super) struct Candidate {
    pub(super) connection: Connection,
    pub(super) loaded: Arc<Loaded>,
    /// Their token, if they have one.
    pub(super) bearer: Option<Bearer>,
    /// The validity of their client certificate.
    pub(super) certificate: Option<Validity>,
    pub(super) expires: Option<SystemTime>,
    /// Whether the API server has accepted them.
    pub(super) proven: bool,
}

/// A new token for the connection in use.
pub(super) struct NewToken {
    pub(super) token: BearerToken,
    pub(super) expires: Option<SystemTime>,
    /// Whether the API server has accepted it.
    pub(super) proven: bool,
}

/// The result of loading new credentials.
pub(super) enum Found {
    Candidate(Box<Candidate>),
    Token(NewToken),
}

/// What building credentials needs.
#[derive(Clone)]
pub(super) struct Workshop {
    pub(super) name: ClusterName,
    pub(super) config: ClusterConfig,
    /// One blocking operation at a time: those that never end must not accumulate.
    pub(super) thread: Arc<Semaphore>,
}

impl Workshop {
    /// Loads everything again. With `prove`, only credentials that the API server accepts count.
    pub(super) async fn load(self, prove: bool) -> Result<Found, Refused> {
        let config = self.config.clone();
        let loaded = self.blocking(move || load(&config)).await??;
        let issued = self.issue(&loaded.source).await?;
        self.connect(Arc::new(loaded), issued, prove).await
    }

    /// Reads or runs the source of the credentials in use again.
    pub(super) async fn renew(self, used: Used, prove: bool) -> Result<Found, Refused> {
        let issued = self.issue(&used.loaded.source).await?;
        let (Some(_), Some(token), None) = (&used.bearer, &issued.token, &issued.certificate) else {
            return self.connect(used.loaded, issued, prove).await;
        };
        let token = BearerToken::new(token)?;
        if prove {
            check(used.connection.probe_as(Some(&token), PROBE_DEADLINE).await)?;
        }
        Ok(Found::Token(NewToken { token, expires: issued.expires, proven: prove }))
    }

    async fn issue(&self, source: &Source) -> Result<Issued, Refused> {
        let of_token = |token| Issued { token: Some(token), certificate: None, expires: None };
        match source {
            Source::Fixed => Ok(Issued { token: None, certificate: None, expires: None }),
            Source::Token(token) => Ok(of_token(token.clone())),
            Source::TokenFile(path) => {
                let file = path.clone();
                let text = self.blocking(move || std::fs::read_to_string(file)).await?;
                let failed = |source| Refused::TokenFile { path: path.display().to_string(), source };
                Ok(of_token(SecretString::from(text.map_err(failed)?)))
            }
            Source::Plugin(plugin) => Ok(plugin.issue(self.config.request_timeout).await?),
        }
    }

    async fn connect(&self, loaded: Arc<Loaded>, issued: Issued, prove: bool) -> Result<Found, Refused> {
        let bearer = issued.token.as_ref().map(BearerToken::new).transpose()?.map(Bearer::new);
        let mut config = loaded.config.clone();
        if let Some((certificate, key)) = issued.certificate {
            config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
            config.auth_info.client_key_data = Some(STANDARD.encode(key.expose_secret()).into());
        }
        // Such requests are anonymous for an API server, and anonymous users may read its version: that proves nothing. A
        // proxy without TLS may add credentials.
        let user = &config.auth_info;
        let is_somebody = bearer.is_some()
            || user.password.is_some()
            || user.auth_provider.is_some()
            || user.client_certificate_data.is_some();
        if prove && !is_somebody && config.cluster_url.scheme_str() == Some("https") {
            return Err(Refused::Nobody);
        }
        let (name, within, carried) = (self.name.clone(), self.config.request_timeout, bearer.clone());
        let made = self.blocking(move || {
            let certificate = Validity::of(&config.auth_info);
            Connection::bearing(name, config, within, carried).map(|connection| (connection, certificate))
        });
        let (connection, certificate) = made.await?.map_err(|error| Refused::Unusable(full_text(&error)))?;
        if prove {
            check(connection.probe_as(None, PROBE_DEADLINE).await)?;
        }
        let expires = issued.expires;
        Ok(Found::Candidate(Box::new(Candidate { connection, loaded, bearer, certificate, expires, proven: prove })))
    }

    /// Runs this on a blocking thread, within a request's deadline.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refused> {
        let thread = Arc::clone(&self.thread);
        let done = async move {
            // Never closed.
            let place = thread.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let _place = place;
                work()
            })
            .await
        };
        let done = tokio::time::timeout(self.config.request_timeout, done).await.map_err(|_| Refused::TooLong)?;
        done.map_err(Refused::Panicked)
    }
}

/// What a renewal needs to know about the credentials in use.
#[derive(Clone)]
pub(super) struct Used {
    pub(super) loaded: Arc<Loaded>,
    pub(super) connection: Connection,
    pub(super) bearer: Option<Bearer>,
}

/// Whether an API server accepts credentials, by the result of requesting its version.
pub(in crate::cluster) fn accepted(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        // It answers and knows the user; only `/version` is not granted.
        Err(Error::Forbidden { .. } | Error::NotServed { .. } | Error::NotFound { .. } | Error::Throttled { .. }) => {
            Ok(())
        }
        answer => answer,
    }
}

fn check(answer: Result<(), Error>) -> Result<(), Refused> {
    accepted(answer).map_err(Refused::Server)
}
