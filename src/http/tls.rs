//! TLS of a server: a certificate and its key from PEM files, which are read again when they change ([`Reloaded`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::reloaded::Reloaded;

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

/// The certificate for new connections.
#[derive(Debug)]
struct Current(watch::Receiver<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.borrow()))
    }
}

/// TLS 1.2 and 1.3 with a certificate that the owning [`Server`](super::Server) keeps up to date.
pub struct ServerTls {
    acceptor: TlsAcceptor,
    certificate: Reloaded<CertifiedKey, CertificateError>,
}

impl ServerTls {
    /// Reads the files, and may block on the disk. An error if they can't be used now.
    pub fn load(files: CertificateFiles) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS12, &TLS13])
            .map_err(CertificateError::SetUp)?;
        let paths = vec![files.certificate.clone(), files.key.clone()];
        let certificate = Reloaded::load(paths, move || files.read(&provider))?;
        let current = Current(certificate.content());
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(current));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    pub(super) fn certificate(&self) -> &Reloaded<CertifiedKey, CertificateError> {
        &self.certificate
    }
}

impl CertificateFiles {
    fn read(&self, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
        let pem = read(&self.certificate)?;
        let decode = |error| CertificateError::decode(&self.certificate, &error, "no certificate in PEM");
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(decode)?;
        if chain.is_empty() {
            return Err(decode(pem::Error::NoItemsFound));
        }
        let pem = read(&self.key)?;
        let decode = |error| CertificateError::decode(&self.key, &error, "no private key in PEM");
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(decode)?;
        CertifiedKey::from_der(chain, key, provider).map_err(|source| CertificateError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
