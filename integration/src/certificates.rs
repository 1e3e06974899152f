//! The certificates of one control plane: an authority of its own, so that what a client verifies is really verified.

use std::path::PathBuf;

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
    /// Key pair by which the API server signs service account tokens.
    pub(crate) account_key: PathBuf,
    pub(crate) account_public_key: PathBuf,
}

impl Certificates {
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
            server_certificate: room.write("tls.crt", &server_pem)?,
            server_key: room.write("tls.key", &server_key.serialize_pem())?,
            account_key: room.write("service-account.key", &account_key.serialize_pem())?,
            account_public_key: room.write("service-account.pub", &account_key.public_key_pem())?,
            authority_pem,
        })
    }
}
