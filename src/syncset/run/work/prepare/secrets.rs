//! Opening what is sealed: kubeconfigs, and the data of mapped secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretSlice, SecretString};
use uuid::Uuid;

use super::PrepareError;
use crate::cluster::kubeconfig::{self, Allowed, Fault};
use crate::cluster::{Credentials, Fingerprint};
use crate::documents::{Key, Keyring, Kind, OpenError};
use crate::syncset::plan::object::SecretContent;
use crate::syncset::plan::render::UnreadableSecret;
use crate::syncset::plan::spec::SecretSource;
use crate::syncset::run::store::{SealedSecret, SecretFacts, StoredCluster};
use crate::syncset::run::work::plan::source;

/// Why nothing leads to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredentials {
    /// The kubeconfig is refused, until it is another one.
    #[error("failed to read the kubeconfig")]
    Invalid(#[source] Fault),
    /// This replica does not have its key, now. Another replica may have it.
    #[error("failed to open the kubeconfig")]
    Sealed(#[source] OpenError),
    #[error("the cluster has no kubeconfig")]
    Missing,
}

/// A mapped secret by namespace and name, or why it can't be read.
pub(super) type Contents = BTreeMap<(String, String), Result<SecretContent, UnreadableSecret>>;

/// A kubeconfig that was opened and not read.
pub struct OpenedKubeconfig {
    text: SecretSlice<u8>,
    fingerprint: Fingerprint,
}

pub(super) fn kubeconfig(cluster: &StoredCluster, keyring: &Keyring) -> Result<OpenedKubeconfig, NoCredentials> {
    let sealed = cluster.sealed.as_deref().ok_or(NoCredentials::Missing)?;
    let text = keyring.open(&cluster.document.key(), cluster.document.id, sealed).map_err(NoCredentials::Sealed)?;
    let fingerprint = kubeconfig::fingerprint(text.expose_secret());
    Ok(OpenedKubeconfig { text, fingerprint })
}

impl OpenedKubeconfig {
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Parses it, which may take long.
    pub fn read(&self, allowed: Allowed) -> Result<Credentials, NoCredentials> {
        kubeconfig::of_user(self.text.expose_secret(), allowed).map_err(NoCredentials::Invalid)
    }
}

/// Shows nothing of it.
impl fmt::Debug for OpenedKubeconfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OpenedKubeconfig").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// The data of a secret. A document without any, which no release writes, is not an empty secret.
fn content(source: SecretSource, sealed: Option<&[u8]>, keyring: &Keyring) -> Result<SecretContent, UnreadableSecret> {
    let sealed = sealed.ok_or(UnreadableSecret::Sealed)?;
    let document = Key::new(Kind::Secret, source.namespace.as_str(), source.name.as_str());
    let opened = keyring.open(&document, source.id, sealed).map_err(|error| match error {
        OpenError::Unsealed => UnreadableSecret::Unsealed,
        OpenError::Mismatch { .. } => UnreadableSecret::Mismatch,
        OpenError::UnknownKey { .. } | OpenError::Unread | OpenError::Unknown => UnreadableSecret::Sealed,
    })?;
    let data: BTreeMap<String, String> =
        serde_json::from_slice(opened.expose_secret()).map_err(|_| UnreadableSecret::Sealed)?;
    let data = data.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect();
    Ok(SecretContent { source, data })
}

/// Opens secrets. One that has changed since the snapshot would be sent under what is known of the one before.
pub(super) fn opened(
    facts: &BTreeMap<Uuid, SecretFacts>,
    read: Vec<Arc<SealedSecret>>,
    keyring: &Keyring,
) -> Result<Contents, PrepareError> {
    let read: BTreeMap<Uuid, Arc<SealedSecret>> = read.into_iter().map(|secret| (secret.id, secret)).collect();
    let mut contents = Contents::new();
    for (id, facts) in facts {
        let sealed = read.get(id).filter(|secret| secret.version == facts.version).ok_or(PrepareError::Outdated)?;
        let content = content(source(facts), sealed.sealed.as_deref(), keyring);
        contents.insert((facts.namespace.clone(), facts.name.clone()), content);
    }
    Ok(contents)
}
