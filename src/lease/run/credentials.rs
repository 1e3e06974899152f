//! Turns a Secret's data into a client's configuration, without writing to disk and without repeating a value in an
//! error.
//!
//! The keys of the Secret act as files beside the kubeconfig: a relative path in the kubeconfig refers to a key. Absolute paths, paths
//! that leave the directory, and everything that would run a command are refused.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use k8s_openapi::ByteString;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cluster::kubeconfig::{self, Fault, FieldProblem, Policy};
use crate::cluster::{Credentials, DynamicCluster, DynamicClusters, Fingerprint};
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
    #[error(transparent)]
    Kubeconfig(#[from] Fault),
    /// No client can be built from the keys and certificates.
    #[error("the certificates and keys of `{KUBECONFIG}` make no client")]
    Unusable,
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
    of_data(&content.data.unwrap_or_default())
}

/// The hub with these credentials. Equal credentials share it in `hubs`.
#[expect(clippy::expect_used, reason = "a constant DNS label")]
pub fn connect(credentials: Credentials, hubs: &DynamicClusters) -> Result<Arc<DynamicCluster>, Error> {
    let name: ClusterName = "hub".parse().expect("a DNS label");
    hubs.cluster("", &name, credentials).map_err(|_| Error::Unusable)
}

fn of_data(data: &Data) -> Result<Credentials, Error> {
    let mut hash = Sha256::new();
    // A key's value, which becomes part of the fingerprint.
    let mut take = |key: &str| {
        let ByteString(bytes) = data.get(key)?;
        for part in [key.as_bytes(), bytes] {
            // The length comes first, so that no two different lists of parts have the same hash.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Some(bytes)
    };
    let kubeconfig = kubeconfig::parse(take(KUBECONFIG).ok_or(Error::NoKubeconfig)?)?;
    let mut referred = |path: &str| {
        let key = key_of(path).ok_or(FieldProblem::Outside)?;
        take(&key).cloned().ok_or(FieldProblem::NoKey(key))
    };
    let config = kubeconfig::configured(kubeconfig, None, &mut Policy::Secret(&mut referred))?;
    Ok(Credentials { config, fingerprint: Fingerprint(hash.finalize().into()) })
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

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::scripted::Pair;

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

    fn refused(user: &Value) -> String {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), user);
        of_data(&data(&[("kubeconfig", &text), ("tls.key", "hunter2")])).expect_err("refused").to_string()
    }

    #[test]
    fn a_token_file_takes_precedence_over_a_token() {
        let user = json!({"token": "old", "tokenFile": "token"});
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &user);
        let credentials = of_data(&data(&[("kubeconfig", &text), ("token", "rotated")])).expect("credentials");
        let token = credentials.config.auth_info.token.expect("a token");
        assert_eq!(token.expose_secret(), "rotated");
    }

    #[test]
    fn references_of_the_kubeconfig_are_replaced_by_the_keys_they_name() {
        let user = json!({"client-certificate": "tls.crt", "client-key": "./tls.key", "tokenFile": "x/../token"});
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &user);
        let Pair { certificate, key } = Pair::named("hub.test");
        let keys = [
            ("kubeconfig", text.as_str()),
            ("tls.crt", &certificate),
            ("tls.key", &key),
            ("token", " t\n"),
            ("else", "e"),
        ];
        let credentials = of_data(&data(&keys)).expect("credentials");
        let user = &credentials.config.auth_info;
        assert_eq!(user.client_certificate_data, Some(STANDARD.encode(&certificate)));
        let found = user.client_key_data.as_ref().map(|key| key.expose_secret().to_owned());
        assert_eq!(found, Some(STANDARD.encode(&key)));
        assert_eq!(user.token.as_ref().map(ExposeSecret::expose_secret), Some("t"));
        assert!(user.client_certificate.is_none() && user.client_key.is_none() && user.token_file.is_none());
        assert_eq!(credentials.config.cluster_url.to_string(), "https://hub:6443/");
    }

    #[test]
    fn a_secret_as_the_api_server_gives_it_is_read() {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"token": "t"}));
        let content = json!({"data": {"kubeconfig": STANDARD.encode(&text)}, "type": "Opaque"}).to_string();
        assert!(read(&content).is_ok());
        assert_eq!(read("{\"type\":\"Opaque\"}").expect_err("no data"), Error::NoKubeconfig);
        assert_eq!(read("{\"data\":{\"kubeconfig\":3}}").expect_err("a number"), Error::Unreadable);
    }

    #[test]
    fn the_fingerprint_depends_on_the_keys_that_are_used_and_on_no_others() {
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"tokenFile": "token"}));
        let print = |token: &str, other: &str| {
            let keys = data(&[("kubeconfig", &text), ("token", token), ("cluster-name", other)]);
            of_data(&keys).expect("credentials").fingerprint
        };
        assert_eq!(print("a", "x"), print("a", "y"));
        assert_ne!(print("a", "x"), print("b", "x"));
    }

    #[test]
    fn a_path_that_leaves_the_secret_and_a_command_are_refused_and_named() {
        for (path, field) in
            [("/etc/shadow", "tokenFile"), ("../tls.key", "client-key"), ("a/../../tls.key", "client-certificate")]
        {
            let expected = format!("`users[0].user.{field}` is refused: it refers to a file outside of the secret");
            assert_eq!(refused(&json!({field: path})), expected);
        }
        let run =
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["hunter2"]}});
        assert_eq!(refused(&run), "`users[0].user.exec` is refused: it runs a command or a plug-in");
        let plug_in = json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/hunter2"}}});
        assert_eq!(refused(&plug_in), "`users[0].user.auth-provider` is refused: it runs a command or a plug-in");
        let missing = refused(&json!({"client-key": "sub/tls.key"}));
        assert_eq!(
            missing,
            "`users[0].user.client-key` refers to the key `sub/tls.key`, which the secret does not have"
        );
    }

    #[test]
    fn an_authority_outside_is_refused_too() {
        let cluster = json!({"server": "https://hub:6443", "certificate-authority": "/etc/ca.crt"});
        let text = kubeconfig(&cluster, &json!({}));
        let error = of_data(&data(&[("kubeconfig", &text)])).expect_err("refused").to_string();
        assert!(error.starts_with("`clusters[0].cluster.certificate-authority` is refused"), "{error}");
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
            let error = of_data(&data(&[("kubeconfig", &text)])).expect_err("refused");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let text = kubeconfig(&json!({"server": "https://hub:6443"}), &json!({"token": "hunter2"}));
        let credentials = of_data(&data(&[("kubeconfig", &text)])).expect("credentials");
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
