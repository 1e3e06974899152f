//! Turns a Secret's data into a client's configuration, without writing to disk and without repeating a value in an
//! error.
//!
//! The keys of the Secret act as files beside the kubeconfig: a relative path in the kubeconfig refers to a key. The
//! value of the key replaces the reference. Absolute paths, paths that leave the directory, and everything that would
//! run a command are refused. Errors name keys and fields, never a value. They do not contain the parsers' errors,
//! which may quote the document.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::ByteString;
use kube::Config;
use kube::config::{KubeConfigOptions, KubeconfigError};
use secrecy::SecretString;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cluster::{DynamicCluster, DynamicClusters, Fingerprint, Unusable, configured, kubeconfig_of};
use crate::config::ClusterName;

/// The required key of the Secret.
const KUBECONFIG: &str = "kubeconfig";

/// Why a Secret's data cannot be used. This depends on the Secret alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data does not have the form of a Secret's data.
    #[error("the secret's data can't be read")]
    Unreadable,
    #[error("the secret has no key `{KUBECONFIG}`")]
    NoKubeconfig,
    /// The value of the key is not a kubeconfig.
    #[error("`{KUBECONFIG}` can't be parsed")]
    NotAKubeconfig,
    /// A field refers to a file that is not part of the Secret.
    #[error("`{KUBECONFIG}` refers to a file outside of the secret in `{field}`")]
    Outside { field: &'static str },
    /// A field refers to a key that the Secret does not have.
    #[error("`{KUBECONFIG}` refers to the key `{key}` in `{field}`, which the secret does not have")]
    NoKey { field: &'static str, key: String },
    /// The token file is not text.
    #[error("the key `{key}` is not text")]
    NotText { key: String },
    /// The credentials come from a command or a plug-in.
    #[error("`{KUBECONFIG}` has `{field}`, which is refused: it runs a command or a plug-in")]
    Runs { field: &'static str },
    /// The kubeconfig has no complete context with a cluster and its server.
    #[error("`{KUBECONFIG}` has no usable {what}")]
    Incomplete {
        /// What is missing or cannot be read.
        what: &'static str,
    },
    /// No client can be built from the keys and certificates.
    #[error("the certificates and keys of `{KUBECONFIG}` make no client")]
    Unusable,
}

/// Credentials, from which a client can be built.
#[derive(Clone)]
pub struct Credentials {
    /// The complete configuration. It refers to no file.
    pub config: Config,
    /// The fingerprint of everything in it.
    pub fingerprint: Fingerprint,
}

impl Credentials {
    /// The hub with these credentials. Equal credentials share it in `hubs`.
    #[expect(clippy::expect_used, reason = "a constant DNS label")]
    pub fn connect(self, hubs: &DynamicClusters) -> Result<Arc<DynamicCluster>, Error> {
        let name: ClusterName = "hub".parse().expect("a DNS label");
        hubs.cluster(&name, self.config, self.fingerprint).map_err(|_| Error::Unusable)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// A Secret's keys and their values.
type Data = BTreeMap<String, ByteString>;

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    data: Option<Data>,
}

/// Reads the credentials in a Secret. `content` is the Secret without its metadata, as JSON.
pub fn read(content: &str) -> Result<Credentials, Error> {
    let content: Content = serde_json::from_str(content).map_err(|_| Error::Unreadable)?;
    inline(&content.data.unwrap_or_default())
}

fn inline(data: &Data) -> Result<Credentials, Error> {
    let mut reader = Reader { data, hash: Sha256::new() };
    let text = reader.take(KUBECONFIG).ok_or(Error::NoKubeconfig)?;
    let text = std::str::from_utf8(text).map_err(|_| Error::NotAKubeconfig)?;
    let mut kubeconfig = kubeconfig_of(text).map_err(|_| Error::NotAKubeconfig)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let path = cluster.certificate_authority.take();
        if let Some(authority) = reader.follow("certificate-authority", path)? {
            cluster.certificate_authority_data.get_or_insert(base64(authority.bytes));
        }
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        if user.exec.is_some() {
            return Err(Error::Runs { field: "exec" });
        }
        if user.auth_provider.is_some() {
            return Err(Error::Runs { field: "auth-provider" });
        }
        if let Some(certificate) = reader.follow("client-certificate", user.client_certificate.take())? {
            user.client_certificate_data.get_or_insert(base64(certificate.bytes));
        }
        if let Some(key) = reader.follow("client-key", user.client_key.take())? {
            user.client_key_data.get_or_insert(SecretString::from(base64(key.bytes)));
        }
        if let Some(token) = reader.follow("tokenFile", user.token_file.take())? {
            let text = std::str::from_utf8(token.bytes).map_err(|_| Error::NotText { key: token.key })?;
            // The file takes precedence over the token: it is the one that is rotated, and kubectl does the same.
            user.token = Some(SecretString::from(text.trim().to_owned()));
        }
    }
    let fingerprint = Fingerprint(reader.hash.finalize().into());
    // The future never waits: the kubeconfig no longer refers to anything that has to be read.
    let config = configured(kubeconfig, &KubeConfigOptions::default())
        .now_or_never()
        .ok_or(Error::Unusable)?
        .map_err(|error| Error::Incomplete { what: missing(&error) })?;
    if config.cluster_url.authority().is_none() {
        return Err(Error::Incomplete { what: "server" });
    }
    Ok(Credentials { config, fingerprint })
}

/// What is missing, without the text of the error, which may quote the document.
fn missing(error: &Unusable) -> &'static str {
    let error = match error {
        Unusable::Kubeconfig(error) => error,
        Unusable::Password => return "server",
        Unusable::Proxy(setting) => return setting,
    };
    match error {
        KubeconfigError::CurrentContextNotSet => "current-context",
        KubeconfigError::LoadContext(_) => "context of the name in current-context",
        KubeconfigError::LoadClusterOfContext(_) => "cluster of the name in its context",
        KubeconfigError::MissingClusterUrl | KubeconfigError::ParseClusterUrl(_) => "server",
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => "certificate authority",
        _ => "current context",
    }
}

struct Reader<'d> {
    data: &'d Data,
    hash: Sha256,
}

/// A key that the kubeconfig refers to.
struct Referred<'d> {
    key: String,
    bytes: &'d [u8],
}

impl<'d> Reader<'d> {
    /// A key's value, which becomes part of the fingerprint.
    fn take(&mut self, key: &str) -> Option<&'d [u8]> {
        let ByteString(bytes) = self.data.get(key)?;
        for part in [key.as_bytes(), bytes] {
            // The length comes first, so that no two different lists of parts have the same hash.
            self.hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            self.hash.update(part);
        }
        Some(bytes)
    }

    fn follow(&mut self, field: &'static str, path: Option<String>) -> Result<Option<Referred<'d>>, Error> {
        let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
        let key = key_of(&path).ok_or(Error::Outside { field })?;
        match self.take(&key) {
            Some(bytes) => Ok(Some(Referred { key, bytes })),
            None => Err(Error::NoKey { field, key }),
        }
    }
}

/// The key that a relative path refers to; `None` if the path leaves the Secret's directory.
fn key_of(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_str()?),
            // A path that leaves the directory and comes back is refused too: the directory has no known name.
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    match parts.as_slice() {
        [] => None,
        parts => Some(parts.join("/")),
    }
}

/// Binary data as a kubeconfig contains it.
fn base64(bytes: &[u8]) -> String {
    let encoded = serde_json::to_value(ByteString(bytes.to_vec())).unwrap_or_default();
    encoded.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;

    fn kubeconfig(cluster: &Value, user: &Value) -> String {
        json!({
            "clusters": [{"name": "hub", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
            "current-context": "hub",
        })
        .to_string()
    }

    fn data(keys: &[(&str, &str)]) -> Data {
        keys.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect()
    }

    fn refused(user: &Value) -> Error {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), user);
        inline(&data(&[("kubeconfig", &text), ("tls.key", "hunter2")])).expect_err("refused")
    }

    #[test]
    fn a_token_file_takes_precedence_over_a_token() {
        let user = json!({"token": "old", "tokenFile": "token"});
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &user);
        let credentials = inline(&data(&[("kubeconfig", &text), ("token", "rotated")])).expect("credentials");
        let token = credentials.config.auth_info.token.expect("a token");
        assert_eq!(token.expose_secret(), "rotated");
    }

    #[test]
    fn references_of_the_kubeconfig_are_replaced_by_the_keys_they_name() {
        let user = json!({"client-certificate": "tls.crt", "client-key": "./tls.key", "tokenFile": "x/../token"});
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &user);
        let keys =
            [("kubeconfig", text.as_str()), ("tls.crt", "c"), ("tls.key", "k"), ("token", " t\n"), ("else", "e")];
        let credentials = inline(&data(&keys)).expect("credentials");
        let user = &credentials.config.auth_info;
        assert_eq!(user.client_certificate_data.as_deref(), Some(base64(b"c").as_str()));
        assert_eq!(user.client_key_data.as_ref().map(|key| key.expose_secret().to_owned()), Some(base64(b"k")));
        assert_eq!(user.token.as_ref().map(ExposeSecret::expose_secret), Some("t"));
        assert!(user.client_certificate.is_none() && user.client_key.is_none() && user.token_file.is_none());
        assert_eq!(credentials.config.cluster_url.to_string(), "https://hub:6443/");
    }

    #[test]
    fn a_secret_as_the_api_server_gives_it_is_read() {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"token": "t"}));
        let content = json!({"data": {"kubeconfig": base64(text.as_bytes())}, "type": "Opaque"}).to_string();
        assert!(read(&content).is_ok());
        assert_eq!(read("{\"type\":\"Opaque\"}").expect_err("no data"), Error::NoKubeconfig);
        assert_eq!(read("{\"data\":{\"kubeconfig\":3}}").expect_err("a number"), Error::Unreadable);
    }

    #[test]
    fn the_fingerprint_depends_on_the_keys_that_are_used_and_on_no_others() {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"tokenFile": "token"}));
        let print = |token: &str, other: &str| {
            let keys = data(&[("kubeconfig", &text), ("token", token), ("cluster-name", other)]);
            inline(&keys).expect("credentials").fingerprint
        };
        assert_eq!(print("a", "x"), print("a", "y"));
        assert_ne!(print("a", "x"), print("b", "x"));
    }

    #[test]
    fn a_path_that_leaves_the_secret_and_a_command_are_refused_and_named() {
        for (path, field) in
            [("/etc/shadow", "tokenFile"), ("../tls.key", "client-key"), ("a/../../tls.key", "client-certificate")]
        {
            assert_eq!(refused(&json!({field: path})), Error::Outside { field });
        }
        let run =
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["hunter2"]}});
        assert_eq!(refused(&run), Error::Runs { field: "exec" });
        let plug_in = json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/hunter2"}}});
        assert_eq!(refused(&plug_in), Error::Runs { field: "auth-provider" });
        let missing = refused(&json!({"client-key": "sub/tls.key"}));
        assert_eq!(missing, Error::NoKey { field: "client-key", key: "sub/tls.key".into() });
    }

    #[test]
    fn an_authority_outside_is_refused_too() {
        let cluster = json!({"server": "https://hub:6443", "certificate-authority": "/etc/ca.crt"});
        let text = kubeconfig(&cluster, &json!({}));
        let error = inline(&data(&[("kubeconfig", &text)])).expect_err("refused");
        assert_eq!(error, Error::Outside { field: "certificate-authority" });
    }

    #[test]
    fn errors_and_debug_output_contain_no_value() {
        let broken = [
            "users: [{name: me, user: {token: hunter2".to_owned(),
            kubeconfig(&json!({"server": "https://me:hunter2@hub"}), &json!({"token": "hunter2"})),
            kubeconfig(&json!({"server": "https://hub", "proxy-url": "ftp://me:hunter2@proxy"}), &json!({})),
            kubeconfig(&json!({"server": "https://h", "certificate-authority-data": "hunter2"}), &json!({})),
        ];
        for text in broken {
            let error = inline(&data(&[("kubeconfig", &text)])).expect_err("refused");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"token": "hunter2"}));
        let credentials = inline(&data(&[("kubeconfig", &text)])).expect("credentials");
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
