//! TLS of a server: a certificate and its key from PEM files, which are read again when they change.
//!
//! What can't be used (half of a pair that is being replaced, a file that is gone) takes the place of nothing: connections go
//! on to get the certificate that was read last, the log says so once, and the files are read at every look until they can be used.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

use super::files::Files;

/// How often the files are looked at, which is two `stat` calls.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where a server's certificate is.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// PEM: the server's certificate, then those of the authorities between it and one that clients trust.
    pub certificate: PathBuf,
    /// PEM: the certificate's key.
    pub key: PathBuf,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not PEM of a certificate or of a key, whichever it is to be.
    #[error("failed to decode {}: {reason}", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong. The decoder's own error may repeat a line of the file, which may be the key.
        reason: &'static str,
    },
    /// The key is of an unknown kind, or that of another certificate.
    #[error("failed to use the key {} with the certificate {}", key.display(), certificate.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls said.
        source: rustls::Error,
    },
    /// TLS itself could not be set up.
    #[error("failed to set up TLS")]
    SetUp(#[source] rustls::Error),
}

impl CertificateError {
    fn decode(path: &Path, error: &pem::Error) -> Self {
        let reason = match error {
            pem::Error::MissingSectionEnd { .. } => "a PEM section has no end",
            pem::Error::IllegalSectionStart { .. } => "a PEM section has no proper beginning",
            pem::Error::Base64Decode(_) => "a PEM section is not base64",
            pem::Error::NoItemsFound => "no PEM section of the kind that is needed",
            _ => "not PEM",
        };
        Self::Decode { path: path.to_owned(), reason }
    }
}

/// The certificate that connections get, which is replaced while the server runs.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// TLS 1.2 and 1.3 with a certificate that is kept up to date by the [`Server`](super::Server) that has it.
pub struct ServerTls {
    acceptor: TlsAcceptor,
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    current: Arc<Current>,
    /// How the files looked before they were read.
    seen: Files,
    fault: watch::Sender<Option<Arc<CertificateError>>>,
}

impl ServerTls {
    /// Reads the files, which have to be usable now.
    pub async fn load(files: CertificateFiles) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let seen = files.as_seen();
        let current = Arc::new(Current(RwLock::new(Arc::new(files.read(&provider).await?))));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS12, &TLS13])
            .map_err(CertificateError::SetUp)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, files, provider, current, seen, fault: watch::Sender::new(None) })
    }

    /// Why the files, as they are now, can't be used; none while the certificate in use is theirs.
    pub fn fault(&self) -> watch::Receiver<Option<Arc<CertificateError>>> {
        self.fault.subscribe()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Takes up what changes in the files. Never ends.
    pub(super) async fn keep_up_to_date(&mut self) -> Infallible {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let was_fault = self.fault.borrow().is_some();
        if !was_fault && !self.seen.changed() {
            return;
        }
        self.seen = self.files.as_seen();
        let certificate = self.files.certificate.display();
        match self.files.read(&self.provider).await {
            Ok(pair) => {
                *self.current.0.write() = Arc::new(pair);
                self.fault.send_replace(None);
                tracing::info!(%certificate, "certificate reloaded");
            }
            Err(fault) => {
                if !was_fault {
                    let source = std::error::Error::source(&fault);
                    tracing::warn!(%certificate, error = %fault, source, "certificate unusable, the last one stays in use");
                }
                self.fault.send_replace(Some(Arc::new(fault)));
            }
        }
    }
}

impl CertificateFiles {
    fn as_seen(&self) -> Files {
        Files::of(vec![self.certificate.clone(), self.key.clone()])
    }

    async fn read(&self, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
        let pem = read(&self.certificate).await?;
        let decode = |error| CertificateError::decode(&self.certificate, &error);
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(decode)?;
        if chain.is_empty() {
            return Err(decode(pem::Error::NoItemsFound));
        }
        let pem = read(&self.key).await?;
        let decode = |error| CertificateError::decode(&self.key, &error);
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(decode)?;
        CertifiedKey::from_der(chain, key, provider).map_err(|source| CertificateError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    tokio::fs::read(path).await.map_err(|source| CertificateError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
