//! The certificate authorities that a client trusts, and the certificate that it shows.

use std::path::{Path, PathBuf};

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// Why the certificates of a client can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file could not be read, or contains no certificate.
    #[error("failed to read the certificates in {}", path.display())]
    Read { path: PathBuf, source: pem::Error },
    /// A certificate in the file can't be a trust anchor.
    #[error("failed to use the certificates in {}", path.display())]
    Use { path: PathBuf, source: rustls::Error },
    /// The key of a client's certificate could not be read.
    #[error("failed to read the key in {}", path.display())]
    Key { path: PathBuf },
    /// No file is given, and the system has no certificate authorities.
    #[error("the system has no certificate authorities")]
    Nobody,
    /// TLS itself could not be set up.
    #[error("failed to set up TLS")]
    SetUp(#[source] rustls::Error),
}

/// TLS 1.2 and 1.3, trusting the system's authorities and those in the file. Blocks: it reads files.
pub(super) fn client_config(authorities: Option<&Path>) -> Result<ClientConfig, TrustError> {
    client_config_as(authorities, None)
}

/// The same, showing the certificate of a PEM file, with the key of another. Blocks: it reads files.
pub fn client_config_as(
    authorities: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TrustError> {
    let roots = system_authorities(authorities)?;
    let provider = rustls::crypto::ring::default_provider().into();
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(TrustError::SetUp)?.with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    showing(builder, certificate, key)
}

/// The authorities of the system, and those in a file as well: at least one. Blocks.
pub fn system_authorities(and_in: Option<&Path>) -> Result<RootCertStore, TrustError> {
    let mut roots = and_in.map_or_else(|| Ok(RootCertStore::empty()), authorities_in)?;
    // Unreadable certificates are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TrustError::Nobody) } else { Ok(roots) }
}

/// The authorities in a file alone: at least one. Blocks.
pub fn authorities_in(path: &Path) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TrustError::Use { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

/// A client that shows the certificate of a PEM file, with the key of another. Blocks.
pub fn showing(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    certificate: &Path,
    key: &Path,
) -> Result<ClientConfig, TrustError> {
    // The decoder's error may quote a line of the key.
    let private = PrivateKeyDer::from_pem_file(key).map_err(|_| TrustError::Key { path: key.to_owned() })?;
    let shown = builder.with_client_auth_cert(certificates(certificate)?, private);
    shown.map_err(|source| TrustError::Use { path: certificate.to_owned(), source })
}

/// The certificates of a PEM file: at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let found = read().and_then(|found| if found.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(found) });
    found.map_err(|source| TrustError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.crt");
        for content in [None, Some(""), Some("-----BEGIN CERTIFICATE-----\nAAAA\n")] {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let error = client_config(Some(&path)).expect_err("refused");
            assert_eq!(error.to_string(), format!("failed to read the certificates in {}", path.display()));
        }
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, certificate).unwrap();
        let error = client_config(Some(&path)).expect_err("refused");
        assert_eq!(error.to_string(), format!("failed to use the certificates in {}", path.display()));
    }
}
