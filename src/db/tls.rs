//! TLS to a database, with the verification modes of `sslmode`.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;
use super::error::ConnectError;
use super::url::{DatabaseUrl, Roots, TlsMode};
use crate::http::certificates;

/// Reads the certificates that the URL names, and returns what makes TLS connections with them.
pub(super) fn connector(url: &DatabaseUrl) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let lax = |issuers| Arc::new(AnyName { issuers, provider: Arc::clone(&provider) });
    let verifier: Arc<dyn ServerCertVerifier> = match url.tls {
        TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer | TlsMode::Require => lax(None),
        TlsMode::VerifyCa => lax(Some(web_pki(url, &provider)?)),
        TlsMode::VerifyFull => web_pki(url, &provider)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &url.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate).map_err(|error| unreadable(certificate, error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(failed)?
        }
    };
    // A server refuses `sslnegotiation=direct` without this, and ignores it otherwise.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

fn web_pki(url: &DatabaseUrl, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    match &url.roots {
        Roots::File(path) => {
            for certificate in certificates(path).map_err(|error| unreadable(path, error))? {
                roots.add(certificate).map_err(failed)?;
            }
        }
        Roots::System => {
            // Unreadable certificates are skipped; if none is left, the verifier reports that.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build().map_err(failed)
}

fn unreadable(path: &Path, source: pem::Error) -> Error {
    Error::unconnected(ConnectError::Certificate { path: path.to_owned(), source })
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unconnected(ConnectError::Tls { source: Box::new(error) })
}

/// Verifies that the server holds the certificate's key, but not that the certificate names the host.
#[derive(Debug)]
struct AnyName {
    /// Who must have signed the certificate; `None` if anybody may.
    issuers: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(issuers) = &self.issuers else { return Ok(ServerCertVerified::assertion()) };
        // The name is verified last, so an error of the name means that everything else is valid.
        match issuers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
