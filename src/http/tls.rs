//! TLS of a server: a certificate and its key from PEM files, which are read again when they change.
//!
//! If the new files can't be used (only one of the pair has been replaced, a file is missing), connections keep getting the
//! last usable certificate. That is logged once, and the files are read every few seconds until they can be used.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::files::{FileWatch, Files, file_looks};

/// The files of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the server's certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// PEM: the certificate's key.
    pub key: PathBuf,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not PEM, or does not contain a certificate or key.
    #[error("failed to decode {}: {reason}", path.display())]
    Decode {
        path: PathBuf,
        /// What is wrong. The decoder's own error is not kept, since it may quote a line of the key.
        reason: &'static str,
    },
    /// The key is of an unsupported kind, or belongs to another certificate.
    #[error("failed to use the key {} with the certificate {}", key.display(), certificate.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    /// TLS itself could not be set up.
    #[error("failed to set up TLS")]
    SetUp(#[source] rustls::Error),
}

impl CertificateError {
    /// `missing`: what to say if there is nothing of the kind that is looked for.
    fn decode(path: &Path, error: &pem::Error, missing: &'static str) -> Self {
        let reason = match error {
            pem::Error::MissingSectionEnd { .. } => "a PEM section has no end",
            pem::Error::IllegalSectionStart { .. } => "a PEM section has an invalid beginning",
            pem::Error::Base64Decode(_) => "a PEM section is not base64",
            pem::Error::NoItemsFound => missing,
            _ => "not PEM",
        };
        Self::Decode { path: path.to_owned(), reason }
    }
}

/// The certificate for new connections. A lock, since rustls asks for it synchronously in each handshake.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// TLS 1.2 and 1.3 with a certificate that the owning [`Server`](super::Server) keeps up to date.
pub struct ServerTls {
    acceptor: TlsAcceptor,
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    current: Arc<Current>,
    /// From before the files were read.
    watch: FileWatch,
    fault: watch::Sender<Option<Arc<CertificateError>>>,
}

impl ServerTls {
    /// Reads the files. An error if they can't be used now.
    pub async fn load(files: CertificateFiles) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let watch = FileWatch::new(files.as_seen());
        let current = Arc::new(Current(RwLock::new(Arc::new(files.read(&provider).await?))));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS12, &TLS13])
            .map_err(CertificateError::SetUp)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, files, provider, current, watch, fault: watch::Sender::new(None) })
    }

    /// Why the current files can't be used; none while their certificate is in use.
    #[cfg(test)]
    pub fn fault(&self) -> watch::Receiver<Option<Arc<CertificateError>>> {
        self.fault.subscribe()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Loads changed files. Never ends.
    pub(super) async fn keep_up_to_date(&mut self) -> Infallible {
        let mut again = file_looks();
        loop {
            let is_fault = self.fault.borrow().is_some();
            tokio::select! {
                () = self.watch.changed() => {}
                _ = again.tick(), if is_fault => {}
            }
            self.read_again().await;
        }
    }

    async fn read_again(&mut self) {
        let was_fault = self.fault.borrow().is_some();
        self.watch.see();
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
                    tracing::warn!(%certificate, error = %fault, source, "failed to reload the certificate, keeping the last one");
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
        let decode = |error| CertificateError::decode(&self.certificate, &error, "no certificate in PEM");
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(decode)?;
        if chain.is_empty() {
            return Err(decode(pem::Error::NoItemsFound));
        }
        let pem = read(&self.key).await?;
        let decode = |error| CertificateError::decode(&self.key, &error, "no private key in PEM");
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
