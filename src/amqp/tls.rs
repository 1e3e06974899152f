//! TLS to a broker: the system's authorities and those of the URL, and the certificate that the client shows.

use std::sync::Arc;

use rustls::ClientConfig;

use super::error::Error;
use super::url::AmqpUrl;
use crate::http::{TrustError, client_config_as};

/// The configuration for a connection to this URL; none without TLS. The files are read for each connection, so that they may change.
pub(super) async fn config(url: &AmqpUrl) -> Result<Option<Arc<ClientConfig>>, Error> {
    if !url.is_tls {
        return Ok(None);
    }
    let files = url.files.clone();
    let read = move || {
        let identity = files.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        client_config_as(files.authorities.as_deref(), identity)
    };
    let read: Result<ClientConfig, TrustError> = match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        // The runtime is ending.
        Err(_) => std::future::pending().await,
    };
    read.map(|config| Some(Arc::new(config))).map_err(Error::Tls)
}
