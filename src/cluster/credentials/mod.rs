//! Credentials of a cluster: loaded from a kubeconfig or the pod's service account, reloaded when their files change, and
//! used when they work.
//!
//! This file loads them, by [`kubeconfig`]. [`plugin`] runs credential plugins, [`candidate`] builds a connection and tries it, and
//! [`cache`] decides when, and keeps working credentials in use until others work.

mod cache;
mod candidate;
mod plugin;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{AuthInfo, AuthProviderConfig, Kubeconfig};
use secrecy::SecretString;

use super::error::full_text;
use super::kubeconfig::{self, Fault, FieldProblem, Policy};
use crate::config::{ClusterAccess, ClusterConfig};
use crate::http::Files;
pub(super) use cache::{Change, CredentialCache};
pub(super) use candidate::{PROBE_DEADLINE, accepted};
use plugin::Plugin;

/// Where Kubernetes mounts a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("failed to read kubeconfig {path}: {reason}")]
    Kubeconfig { path: String, reason: String },
    #[error("failed to load the pod's service account: {reason}")]
    InCluster { reason: String },
    #[error(
        "failed to load the pod's service account: this process is not in a pod (KUBERNETES_SERVICE_HOST is not set); \
         outside of one, name a `kubeconfig` in the place of `in_cluster = true`"
    )]
    NotInCluster,
}

/// The loaded credentials, from which a cluster's client is built.
#[derive(Clone)]
pub(super) struct Loaded {
    /// Everything but what the source provides.
    config: Config,
    /// The source of the token or the certificate.
    source: Source,
    /// The files that were read, without a token file.
    files: Files,
    /// The token file, from before it was read.
    rotated: Files,
}

impl Loaded {
    fn new(mut config: Config, files: Files) -> Self {
        let source = Source::of(&mut config.auth_info);
        let rotated = source.files();
        Self { config, source, files, rotated }
    }
}

/// The part that may be replaced without the rest of the configuration.
#[derive(Clone)]
enum Source {
    /// Everything is in the configuration.
    Fixed,
    /// A token in the kubeconfig itself.
    Token(SecretString),
    /// A token in its own file, which is rotated.
    TokenFile(PathBuf),
    /// A credential plugin, which is run again when its credentials expire or are refused.
    Plugin(Plugin),
}

impl Source {
    /// Takes the source out of a user, so that kube reads and runs nothing. If there are several, kubectl's precedence applies: the file
    /// before the token, since it is the one that is rotated.
    fn of(user: &mut AuthInfo) -> Self {
        let (token, file, exec) = (user.token.take(), user.token_file.take(), user.exec.take());
        let runs = |provider: &mut AuthProviderConfig| {
            provider.config.contains_key("cmd-path") && !provider.config.contains_key("id-token")
        };
        if let Some(provider) = user.auth_provider.take_if(runs) {
            return Self::Plugin(Plugin::Provider(Box::new(provider)));
        }
        if user.auth_provider.is_some() || (user.username.is_some() && user.password.is_some()) {
            return Self::Fixed;
        }
        match (token, file, exec) {
            (_, Some(file), _) => Self::TokenFile(file.into()),
            (Some(token), None, _) => Self::Token(token),
            (None, None, Some(exec)) => Self::Plugin(Plugin::Exec(Box::new(exec))),
            (None, None, None) => Self::Fixed,
        }
    }

    /// Whether it may provide other credentials later.
    fn is_renewable(&self) -> bool {
        matches!(self, Self::TokenFile(_) | Self::Plugin(_))
    }

    /// The files that are rotated.
    fn files(&self) -> Files {
        match self {
            Self::TokenFile(path) => Files::of(vec![path.clone()]),
            _ => Files::of(Vec::new()),
        }
    }
}

/// The files that are checked for changes even if loading failed: a change may repair them.
pub(super) fn files_of(config: &ClusterConfig) -> Files {
    match &config.access {
        ClusterAccess::Kubeconfig { path, .. } => Files::of(vec![path.clone()]),
        ClusterAccess::InCluster => Files::of(vec![Path::new(SERVICE_ACCOUNT).join("ca.crt")]),
        ClusterAccess::Inferred => match around() {
            Around::Pod => Files::of(vec![Path::new(SERVICE_ACCOUNT).join("ca.crt")]),
            Around::Kubeconfig(paths) => Files::of(paths),
        },
        ClusterAccess::Kubectl { kubeconfig, .. } => Files::of(kubeconfigs(kubeconfig.as_ref())),
    }
}

/// The environment of the process.
enum Around {
    /// It runs in a pod with a service account.
    Pod,
    /// It does not: the kubeconfigs that kubectl would use, in its order.
    Kubeconfig(Vec<PathBuf>),
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn is_in_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some() && Path::new(SERVICE_ACCOUNT).join("token").exists()
}

fn around() -> Around {
    if is_in_pod() { Around::Pod } else { Around::Kubeconfig(kubeconfigs(None)) }
}

/// The kubeconfigs that kubectl uses, given the one of its option: it need not be there.
fn kubeconfigs(given: Option<&PathBuf>) -> Vec<PathBuf> {
    if let Some(path) = given {
        return vec![path.clone()];
    }
    let listed: Vec<PathBuf> = variable("KUBECONFIG")
        .map(|list| std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    if listed.is_empty() {
        variable("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect()
    } else {
        listed
    }
}

/// Reads one of our kubeconfigs.
fn read(path: &Path) -> Result<Kubeconfig, LoadError> {
    let failed = |reason: String| LoadError::Kubeconfig { path: path.display().to_string(), reason };
    let text = std::fs::read(path).map_err(|source| failed(source.to_string()))?;
    if text.trim_ascii().is_empty() {
        return Err(failed("the file is empty".into()));
    }
    let mut kubeconfig = kubeconfig::parse(&text).map_err(|fault| failed(fault.to_string()))?;
    kubeconfig::place_in(&mut kubeconfig, path.parent().unwrap_or(Path::new("")));
    Ok(kubeconfig)
}

/// Loads a context of a kubeconfig, or else the current one. `files` are those that were read before, from before they were.
fn load_context(kubeconfig: Kubeconfig, context: Option<&str>, mut files: Files) -> Result<Loaded, Fault> {
    let mut read = |path: &str| {
        let before = std::mem::replace(&mut files, Files::of(Vec::new()));
        files = before.and(vec![path.into()]);
        std::fs::read(path).map_err(|error| FieldProblem::Unread(error.to_string()))
    };
    let config = kubeconfig::configured(kubeconfig, context, &mut Policy::Ours(&mut read))?;
    Ok(Loaded::new(config, files))
}

fn failed_merge(paths: &[PathBuf], reason: impl Into<String>) -> LoadError {
    let path = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    LoadError::Kubeconfig { path, reason: reason.into() }
}

/// Merges a list of kubeconfigs. As in kubectl, missing files are skipped, and the first of several equal names counts.
fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, LoadError> {
    let mut merged: Option<Kubeconfig> = None;
    for path in paths.iter().filter(|path| path.exists()) {
        let next = read(path)?;
        merged = Some(match merged {
            None => next,
            Some(first) => first.merge(next).map_err(|_| failed_merge(paths, Fault::Unlike.to_string()))?,
        });
    }
    merged.ok_or_else(|| failed_merge(paths, "not in a pod, and no kubeconfig is there"))
}

fn load_merged(paths: &[PathBuf], context: Option<&str>) -> Result<Loaded, LoadError> {
    let before = Files::of(paths.to_vec());
    load_context(merged(paths)?, context, before).map_err(|fault| failed_merge(paths, fault.to_string()))
}

/// A context of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub name: String,
    /// The namespace that it names.
    pub namespace: Option<String>,
}

/// The context of this name, or else the current one. What is wrong with the kubeconfig is told by whoever connects. Blocks: it reads files.
pub fn context_of(kubeconfig: Option<&PathBuf>, name: Option<&str>) -> Option<Context> {
    let read = merged(&kubeconfigs(kubeconfig)).ok()?;
    let name = name.or(read.current_context.as_deref())?.to_owned();
    let named = read.contexts.iter().find(|entry| entry.name == name).and_then(|entry| entry.context.as_ref());
    let namespace = named.and_then(|context| context.namespace.clone()).filter(|namespace| !namespace.is_empty());
    Some(Context { name, namespace })
}

fn load_in_cluster(files: Files) -> Result<Loaded, LoadError> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        return Err(LoadError::NotInCluster);
    }
    let config = Config::incluster().map_err(|source| LoadError::InCluster { reason: full_text(&source) })?;
    Ok(Loaded::new(config, files))
}

/// Blocks: it reads files.
pub(super) fn load(config: &ClusterConfig) -> Result<Loaded, LoadError> {
    match &config.access {
        ClusterAccess::InCluster => load_in_cluster(files_of(config)),
        ClusterAccess::Inferred => match around() {
            Around::Pod => load_in_cluster(files_of(config)),
            Around::Kubeconfig(paths) => load_merged(&paths, None),
        },
        ClusterAccess::Kubectl { kubeconfig: None, context } => {
            let paths = kubeconfigs(None);
            let is_alone = context.is_none() && is_in_pod() && !paths.iter().any(|path| path.exists());
            if is_alone { load_in_cluster(files_of(config)) } else { load_merged(&paths, context.as_deref()) }
        }
        ClusterAccess::Kubeconfig { path, context } | ClusterAccess::Kubectl { kubeconfig: Some(path), context } => {
            // The stamp of the kubeconfig is from before it is read, so that a change in between is noticed.
            let before = Files::of(vec![path.clone()]);
            load_context(read(path)?, context.as_deref(), before)
                .map_err(|fault| LoadError::Kubeconfig { path: path.display().to_string(), reason: fault.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_kubeconfig_is_named_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let config =
            |path: &Path| ClusterConfig::new(ClusterAccess::Kubeconfig { path: path.to_owned(), context: None });
        let reason = |result: Result<Loaded, LoadError>| result.err().unwrap().to_string();
        assert!(reason(load(&config(&path))).contains("No such file"));
        std::fs::write(&path, "").unwrap();
        assert!(reason(load(&config(&path))).contains("the file is empty"));
        std::fs::write(&path, "clusters: [").unwrap();
        assert!(reason(load(&config(&path))).contains("kubeconfig"));
        std::fs::write(&path, "current-context: hub\n").unwrap();
        let context = Some("edge".to_owned());
        let other = ClusterConfig::new(ClusterAccess::Kubeconfig { path: path.clone(), context });
        assert!(reason(load(&other)).ends_with("there is no context of the name edge"));
    }

    #[test]
    fn a_namespace_is_named_by_a_context_that_has_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let text = "current-context: edge\ncontexts:\n- name: edge\n  context: {cluster: edge, namespace: default}\n\
                    - name: hub\n  context: {cluster: hub}\n- name: lab\n  context: {cluster: lab, namespace: ''}\n";
        std::fs::write(&path, text).unwrap();
        let named = |context: Option<&str>| context_of(Some(&path), context).expect("a context").namespace;
        assert_eq!(named(None).as_deref(), Some("default"));
        assert_eq!(context_of(Some(&path), None).expect("the current one").name, "edge");
        assert_eq!(named(Some("hub")), None);
        assert_eq!(named(Some("lab")), None);
        assert_eq!(named(Some("elsewhere")), None);
    }

    #[test]
    fn a_password_in_front_of_a_servers_host_and_a_proxy_of_another_kind_are_refused_and_not_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let config = ClusterConfig::new(ClusterAccess::Kubeconfig { path: path.clone(), context: None });
        for (cluster, told) in [
            (
                "server: https://me:canary@hub",
                Some("`clusters[0].cluster.server` is not an https:// URL without user, password"),
            ),
            (
                "server: https://hub\n    proxy-url: ftp://me:canary@proxy",
                Some("`clusters[0].cluster.proxy-url` is not an http://, https:// or socks5:// URL"),
            ),
            ("server: https://hub\n    proxy-url: http://me:canary@proxy", None),
        ] {
            let text = format!(
                "clusters:\n- name: hub\n  cluster:\n    {cluster}\ncontexts:\n- name: hub\n  context: {{cluster: hub}}\n\
                 current-context: hub\n"
            );
            std::fs::write(&path, text).unwrap();
            match (load(&config), told) {
                (Ok(loaded), None) => assert_eq!(loaded.config.proxy_url.unwrap().host(), Some("proxy")),
                (Err(error), Some(told)) => {
                    let reason = error.to_string();
                    assert!(reason.contains(told) && !reason.contains("canary"), "{reason}");
                }
                (loaded, _) => panic!("{cluster}: {:?}", loaded.err()),
            }
        }
    }

    #[test]
    fn a_broken_kubeconfig_keeps_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let config = ClusterConfig::new(ClusterAccess::Kubeconfig { path: path.clone(), context: None });
        let user = |user: &str| format!("apiVersion: v1\nkind: Config\nusers:\n- name: towline\n  user:\n{user}\n");
        for (user, at) in [
            (user("    token: \"canary"), "line"),
            (user("    token: canary\n   password: canary"), "line"),
            (user("    token: canary\n    exec: canary"), "`users[0].user.exec`"),
            (user("    token: 0400"), "`users[0].user.token`"),
            (user("    canary"), "`users[0].user`"),
            (user("    exec: {command: sh, env: canary}"), "`users[0].user.exec.env`"),
            ("canary".to_owned(), "it has no `clusters`, `users` and `contexts`; `kubectl"),
            ("- canary".to_owned(), "it has no `clusters`"),
        ] {
            std::fs::write(&path, &user).unwrap();
            let reason = load(&config).err().unwrap().to_string();
            assert!(reason.contains("not a kubeconfig") && reason.contains(at), "{reason}, of {user}");
            assert!(!reason.contains("canary"), "{reason}");
        }
    }
}
