//! The certificates of one control plane: an authority of its own, so that what a client verifies is really verified.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::Error;
use crate::room::Room;

/// Paths of the files that an API server is started with.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// The authority, in PEM, as a kubeconfig takes it.
    pub(crate) authority_pem: String,
    pub(crate) server_certificate: PathBuf,
    pub(crate) server_key: PathBuf,
    /// The authority, as an API server takes it to know clients by.
    pub(crate) authority: PathBuf,
    /// Boxed, since it is large and starts of control planes are futures that hold it.
    issuer: Box<Signer>,
    /// Key pair by which the API server signs service account tokens.
    pub(crate) account_key: PathBuf,
    pub(crate) account_public_key: PathBuf,
}

/// Shown without its key.
struct Signer(Issuer<'static, KeyPair>);

impl std::fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Signer")
    }
}

/// What a client shows instead of a token.
#[derive(Clone)]
pub struct ClientCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl Certificates {
    /// A certificate by which an API server knows a user, until then.
    pub(crate) fn client(&self, user: &str, good_for: Duration) -> Result<ClientCertificate, Error> {
        let key = KeyPair::generate()?;
        let mut client = CertificateParams::new(Vec::new())?;
        client.distinguished_name.push(DnType::CommonName, user);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        client.not_after = (SystemTime::now() + good_for).into();
        let certificate_pem = client.signed_by(&key, &self.issuer.0)?.pem();
        Ok(ClientCertificate { certificate_pem, key_pem: key.serialize_pem() })
    }

    pub(crate) fn make(room: &Room) -> Result<Self, Error> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        authority.distinguished_name.push(DnType::CommonName, "fixture authority");
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);

        let server_key = KeyPair::generate()?;
        let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_pem = server.signed_by(&server_key, &issuer)?.pem();

        let account_key = KeyPair::generate()?;
        Ok(Self {
            authority: room.write("ca.crt", &authority_pem)?,
            issuer: Box::new(Signer(issuer)),
            server_certificate: room.write("tls.crt", &server_pem)?,
            server_key: room.write("tls.key", &server_key.serialize_pem())?,
            account_key: room.write("service-account.key", &account_key.serialize_pem())?,
            account_public_key: room.write("service-account.pub", &account_key.public_key_pem())?,
            authority_pem,
        })
    }
}
