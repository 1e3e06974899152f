//! TLS to a database, with the verification modes of `sslmode`.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;
use super::url::{DatabaseUrl, Roots, TlsMode};
use crate::http::{TrustError, authorities_in, showing, system_authorities};

/// Reads the certificates that the URL names, and returns what makes TLS connections with them.
pub(super) fn connector(url: &DatabaseUrl) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::unconnected(TrustError::SetUp(source)))?;
    let lax = |issuers| Arc::new(AnyName { issuers, provider: Arc::clone(&provider) });
    let verifier: Arc<dyn ServerCertVerifier> = match url.tls {
        TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer | TlsMode::Require => lax(None),
        TlsMode::VerifyCa => lax(Some(web_pki(url, &provider)?)),
        TlsMode::VerifyFull => web_pki(url, &provider)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &url.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => showing(builder, certificate, key).map_err(Error::unconnected)?,
    };
    // A server refuses `sslnegotiation=direct` without this, and ignores it otherwise.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

fn web_pki(url: &DatabaseUrl, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let roots = match &url.roots {
        Roots::File(path) => authorities_in(path),
        Roots::System => system_authorities(None),
    };
    let roots = Arc::new(roots.map_err(Error::unconnected)?);
    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build().map_err(Error::unconnected)
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
