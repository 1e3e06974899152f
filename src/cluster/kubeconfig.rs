//! Reads kubeconfigs: ours, which may name files, commands and proxies, and those that users of the hub's API have written. Those may lead
//! anywhere and are hostile: nothing is read from a file for them, nothing is run, and what weakens a connection has to be allowed.
//!
//! kube's types say what a kubeconfig is, and [`crate::yaml`] reads it in its meaning to kubectl. kube's own loader is not used: it takes
//! any scalar for a string, reads files for everybody, takes the environment's proxy whatever `NO_PROXY` says, and its errors quote what
//! they are about. A [`Fault`] names a field and never a value, so whoever sees the state of a cluster or a lease may see it.
//!
//! The configuration that comes out refers to no file but a token file of ours, which is rotated by itself.

use std::collections::HashMap;
use std::fmt;
use std::path::{MAIN_SEPARATOR, Path};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use kube::Config;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::dynamic::{Credentials, Fingerprint};
use crate::http::{BearerToken, Proxy, of_environment};
use crate::yaml;

/// The most bytes that are built of one of ours, about.
const MOST_BUILT: usize = 64 << 20;
/// The largest kubeconfig of a user. One with three certificates has 10 KiB.
const LARGEST_OF_USER: usize = 256 << 10;
/// The most bytes that are built of it, aliases expanded, about: each of a thousand contexts has a few values.
const MOST_BUILT_OF_USER: usize = 2 << 20;
/// Longest URL of a server: the paths of requests come behind it.
const LONGEST_URL: usize = 2048;
/// Most groups, and most values of extra fields, of which each is a header of every request.
const MOST_IMPERSONATED: usize = 100;

/// What a kubeconfig may do.
pub enum Policy<'p> {
    /// Ours: it names files, which this reads, commands and proxies.
    Ours(ReadFile<'p>),
    /// Ours, in a Secret: its files are the other keys of the Secret, which this reads. Commands are refused.
    Secret(ReadFile<'p>),
    /// Of a user of the hub's API.
    User(Allowed),
}

/// Reads a file by its path.
pub type ReadFile<'p> = &'p mut dyn FnMut(&str) -> Result<Vec<u8>, FieldProblem>;

/// The features that kubeconfigs of users may use although they are refused by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// `insecure-tls`: a server that does not prove who it is.
    pub insecure_tls: bool,
    /// `proxy-url`: a proxy of the user's choice, which resolves the names of servers.
    pub proxy_url: bool,
    /// `plain-http`: a server without TLS.
    pub plain_http: bool,
}

/// Why a kubeconfig is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the kubeconfig has more than 256 KiB")]
    TooLarge,
    #[error("not a kubeconfig: it is not text")]
    NotText,
    #[error("not a kubeconfig: {}", malformed(_0))]
    Malformed(#[from] yaml::Error),
    #[error("the kubeconfigs are of different kinds or versions")]
    Unlike,
    /// The daemon's own configuration asks for this context.
    #[error("there is no context of the name {0}")]
    NoContext(String),
    #[error("`{field}` {reason}")]
    Field {
        /// Its path: `users[0].user.exec`.
        field: String,
        reason: FieldProblem,
    },
}

fn malformed(error: &yaml::Error) -> String {
    match error {
        yaml::Error::Type { field } if field == "." => {
            "it has no `clusters`, `users` and `contexts`; `kubectl config view --raw --minify` prints one".to_owned()
        }
        other => other.to_string(),
    }
}

/// Why a field of a kubeconfig is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// It runs a command or a plug-in.
    Runs,
    /// It refers to a file.
    File,
    /// It refers to a file that can't be read.
    Unread(String),
    /// It refers to a file that is no key of the Secret.
    Outside,
    /// It refers to a key that the Secret does not have.
    NoKey(String),
    /// It is missing, empty, or names something that is not there.
    Missing,
    /// It names something that is there twice.
    Ambiguous,
    /// It is not what this says.
    Not(&'static str),
    /// It is refused unless `syncsets.allow` has this.
    NotAllowed(&'static str),
    /// It is of no use without this other field.
    Without(&'static str),
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => formatter.write_str("is refused: it runs a command or a plug-in"),
            Self::File => formatter.write_str("is refused: it refers to a file; write the content into the kubeconfig"),
            Self::Unread(why) => write!(formatter, "refers to a file that can't be read: {why}"),
            Self::Outside => formatter.write_str("is refused: it refers to a file outside of the secret"),
            Self::NoKey(key) => write!(formatter, "refers to the key `{key}`, which the secret does not have"),
            Self::Missing => formatter.write_str("is missing, or names something that is missing"),
            Self::Ambiguous => formatter.write_str("names something that is there more than once"),
            Self::Not(what) => write!(formatter, "is not {what}"),
            Self::NotAllowed(what) => write!(formatter, "is refused: `syncsets.allow` does not have \"{what}\""),
            Self::Without(other) => write!(formatter, "is of no use without `{other}`"),
        }
    }
}

fn fault(field: impl Into<String>, reason: FieldProblem) -> Fault {
    Fault::Field { field: field.into(), reason }
}

/// A kubeconfig of a user of the hub's API, in YAML or JSON.
pub fn of_user(text: &[u8], allowed: Allowed) -> Result<Credentials, Fault> {
    if text.len() > LARGEST_OF_USER {
        return Err(Fault::TooLarge);
    }
    let kubeconfig = yaml::one(self::text(text)?, MOST_BUILT_OF_USER)?;
    let config = configured(kubeconfig, None, &mut Policy::User(allowed))?;
    Ok(Credentials { config, fingerprint: fingerprint(text) })
}

/// The fingerprint of a kubeconfig, which need not be one.
pub fn fingerprint(text: &[u8]) -> Fingerprint {
    Fingerprint(Sha256::digest(text).into())
}

/// One of our kubeconfigs. As in kubectl, an empty file is an empty kubeconfig, which others may complete.
pub fn parse(text: &[u8]) -> Result<Kubeconfig, Fault> {
    match yaml::one(self::text(text)?, MOST_BUILT) {
        Err(yaml::Error::Documents(0)) => Ok(Kubeconfig::default()),
        read => Ok(read?),
    }
}

fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::NotText)
}

/// Makes relative paths refer to files in a directory. A command without a separator is no path: it is looked for in `PATH`.
pub fn place_in(kubeconfig: &mut Kubeconfig, directory: &Path) {
    let clusters = kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut());
    let users = kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut());
    let of_users = users.flat_map(|user| {
        let command = user.exec.as_mut().and_then(|exec| exec.command.as_mut());
        let command = command.filter(|command| command.contains(MAIN_SEPARATOR));
        [user.client_certificate.as_mut(), user.client_key.as_mut(), user.token_file.as_mut(), command]
    });
    let files = clusters.map(|cluster| cluster.certificate_authority.as_mut()).chain(of_users).flatten();
    for file in files.filter(|file| !file.is_empty()) {
        // An absolute path replaces the directory.
        if let Some(joined) = directory.join(&*file).to_str() {
            joined.clone_into(file);
        }
    }
}

/// The configuration of a context, or else of the current one.
pub fn configured(kubeconfig: Kubeconfig, context: Option<&str>, policy: &mut Policy<'_>) -> Result<Config, Fault> {
    refuse_references(&kubeconfig, policy)?;
    let Kubeconfig { clusters, auth_infos, contexts, current_context, .. } = kubeconfig;
    let name = context.or(current_context.as_deref()).unwrap_or_default();
    let (index, chosen) = match named(contexts, "current-context", |entry| entry.name == name) {
        Err(Fault::Field { reason: FieldProblem::Missing, .. }) if context.is_some() => {
            return Err(Fault::NoContext(name.to_owned()));
        }
        found => found?,
    };
    let at = |field: &str| format!("contexts[{index}].context.{field}");
    let chosen = chosen.context.ok_or_else(|| fault(format!("contexts[{index}].context"), FieldProblem::Missing))?;
    let (place, cluster) = named(clusters, &at("cluster"), |entry| entry.name == chosen.cluster)?;
    let cluster = cluster.cluster.ok_or_else(|| fault(format!("clusters[{place}].cluster"), FieldProblem::Missing))?;
    let (mut config, cluster) = of_cluster(place, cluster, policy)?;
    // Without a user the server decides what an anonymous one may do.
    if let Some(name) = set(chosen.user) {
        let (place, user) = named(auth_infos, &at("user"), |entry| entry.name == name)?;
        config.auth_info = of_auth_info(place, user.auth_info.unwrap_or_default(), policy)?;
        if let Some(exec) = config.auth_info.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
            let unusable = |_| fault(at("cluster"), FieldProblem::Not("a cluster that can be told to a command"));
            exec.cluster = Some((&cluster).try_into().map_err(unusable)?);
        }
    }
    if let Some(namespace) = chosen.namespace {
        config.default_namespace = namespace;
    }
    Ok(config)
}

fn set(value: Option<String>) -> Option<String> {
    value.filter(|value| !value.is_empty())
}

fn is_set(value: Option<&String>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

/// Commands, and a user's files, are refused also in what the current context does not use: whoever writes them has a wrong idea of
/// who reads them.
fn refuse_references(kubeconfig: &Kubeconfig, policy: &Policy<'_>) -> Result<(), Fault> {
    let has_files = match policy {
        Policy::Ours(_) => return Ok(()),
        Policy::Secret(_) => true,
        Policy::User(_) => false,
    };
    for (index, user) in kubeconfig.auth_infos.iter().enumerate() {
        let Some(user) = &user.auth_info else { continue };
        for (field, is_refused, reason) in [
            ("exec", user.exec.is_some(), FieldProblem::Runs),
            ("auth-provider", user.auth_provider.is_some(), FieldProblem::Runs),
            ("tokenFile", !has_files && is_set(user.token_file.as_ref()), FieldProblem::File),
            ("client-certificate", !has_files && is_set(user.client_certificate.as_ref()), FieldProblem::File),
            ("client-key", !has_files && is_set(user.client_key.as_ref()), FieldProblem::File),
        ] {
            if is_refused {
                return Err(fault(format!("users[{index}].user.{field}"), reason));
            }
        }
    }
    for (index, cluster) in kubeconfig.clusters.iter().enumerate().filter(|_| !has_files) {
        if cluster.cluster.as_ref().is_some_and(|cluster| is_set(cluster.certificate_authority.as_ref())) {
            return Err(fault(format!("clusters[{index}].cluster.certificate-authority"), FieldProblem::File));
        }
    }
    Ok(())
}

/// The one entry with a name, and its place. kubectl refuses a name that is there twice, too.
fn named<T>(entries: Vec<T>, field: &str, has_name: impl Fn(&T) -> bool) -> Result<(usize, T), Fault> {
    let mut found = entries.into_iter().enumerate().filter(|(_, entry)| has_name(entry));
    let entry = found.next().ok_or_else(|| fault(field, FieldProblem::Missing))?;
    if found.next().is_some() {
        return Err(fault(field, FieldProblem::Ambiguous));
    }
    Ok(entry)
}

/// The configuration for a cluster, and the cluster as it is told to a command: without references.
fn of_cluster(index: usize, mut cluster: Cluster, policy: &mut Policy<'_>) -> Result<(Config, Cluster), Fault> {
    const SERVER: &str = "an https:// URL without user, password, query and fragment";
    let at = |field: &str| format!("clusters[{index}].cluster.{field}");
    let allowed = match policy {
        Policy::Ours(_) | Policy::Secret(_) => Allowed { insecure_tls: true, proxy_url: true, plain_http: true },
        Policy::User(allowed) => *allowed,
    };
    let refused = |field: &str, what| Err(fault(at(field), FieldProblem::NotAllowed(what)));
    let server = cluster.server.as_ref().filter(|server| !server.is_empty());
    let server = server.ok_or_else(|| fault(at("server"), FieldProblem::Missing))?;
    let url = server_url(server).ok_or_else(|| fault(at("server"), FieldProblem::Not(SERVER)))?;
    if url.scheme_str() == Some("http") && !allowed.plain_http {
        return refused("server", "plain-http");
    }
    let mut config = Config::new(url);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify == Some(true);
    if config.accept_invalid_certs && !allowed.insecure_tls {
        return refused("insecure-skip-tls-verify", "insecure-tls");
    }
    let (data, file) = (cluster.certificate_authority_data.take(), cluster.certificate_authority.take());
    if let Some(pem) = pem(&at, &AUTHORITY, data.as_deref(), file, policy)? {
        config.root_cert = certificates(&pem);
        cluster.certificate_authority_data = Some(STANDARD.encode(pem));
    }
    if let Some(name) = set(cluster.tls_server_name.clone()) {
        if ServerName::try_from(name.as_str()).is_err() {
            return Err(fault(at("tls-server-name"), FieldProblem::Not("the name of a server")));
        }
        config.tls_server_name = Some(name);
    }
    config.proxy_url = match set(cluster.proxy_url.clone()) {
        Some(_) if !allowed.proxy_url => return refused("proxy-url", "proxy-url"),
        Some(url) => {
            Some(url.parse().ok().filter(has_valid_port).filter(is_proxy).ok_or_else(|| no_proxy(at("proxy-url")))?)
        }
        None => environments_proxy(&config.cluster_url, policy)?,
    };
    Ok((config, cluster))
}

fn no_proxy(field: impl Into<String>) -> Fault {
    fault(field, FieldProblem::Not("an http://, https:// or socks5:// URL"))
}

fn is_proxy(url: &Uri) -> bool {
    Proxy::of_url(url).is_some()
}

/// The proxy that kubectl would use where the kubeconfig names none. What users write is not for our proxies.
fn environments_proxy(server: &Uri, policy: &Policy<'_>) -> Result<Option<Uri>, Fault> {
    if matches!(policy, Policy::User(_)) {
        return Ok(None);
    }
    let proxy = of_environment(server, |name| std::env::var(name).ok());
    if proxy.as_ref().is_none_or(is_proxy) { Ok(proxy) } else { Err(no_proxy("HTTPS_PROXY")) }
}

/// The URL of a server, if it is one and has nothing but scheme, host, port and path. The parser drops a fragment.
fn server_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let authority = url.authority()?;
    let is_plain = text.len() <= LONGEST_URL
        && !text.contains(['?', '#'])
        && !authority.as_str().contains('@')
        && !authority.host().is_empty();
    (is_plain && matches!(url.scheme_str(), Some("http" | "https")) && has_valid_port(&url)).then_some(url)
}

/// Whether what stands for a port is one: the parser keeps anything, and a connection would go to the scheme's own port.
fn has_valid_port(url: &Uri) -> bool {
    let Some(authority) = url.authority() else { return false };
    let behind_user = authority.as_str().rsplit('@').next().unwrap_or_default();
    behind_user.len() == authority.host().len() || authority.port_u16().is_some_and(|port| port > 0)
}

/// A field for a file with PEM, beside which a field for its content is.
struct PemField {
    file: &'static str,
    data: &'static str,
    is_valid: fn(&[u8]) -> bool,
    /// What the file is to be, and the data.
    is: [&'static str; 2],
}

const AUTHORITY: PemField = PemField {
    file: "certificate-authority",
    data: "certificate-authority-data",
    is_valid: |pem| certificates(pem).is_some(),
    is: ["a file of certificates in PEM", "base64 of certificates in PEM"],
};
const CERTIFICATE: PemField = PemField { file: "client-certificate", data: "client-certificate-data", ..AUTHORITY };
const KEY: PemField = PemField {
    file: "client-key",
    data: "client-key-data",
    is_valid: |pem| PrivateKeyDer::from_pem_slice(pem).is_ok(),
    is: ["a file of a private key in PEM", "base64 of a private key in PEM"],
};

/// What the data are, or else what is in the file.
fn pem(
    at: &dyn Fn(&str) -> String,
    field: &PemField,
    data: Option<&str>,
    file: Option<String>,
    policy: &mut Policy<'_>,
) -> Result<Option<Vec<u8>>, Fault> {
    let [is_file, is_data] = field.is;
    let (name, is, pem) = match (data.filter(|data| !data.is_empty()), set(file)) {
        (Some(data), _) => (field.data, is_data, decoded(data)),
        (None, Some(path)) => {
            (field.file, is_file, Some(at_path(&path, policy).map_err(|reason| fault(at(field.file), reason))?))
        }
        (None, None) => return Ok(None),
    };
    pem.filter(|pem| (field.is_valid)(pem)).map(Some).ok_or_else(|| fault(at(name), FieldProblem::Not(is)))
}

fn at_path(path: &str, policy: &mut Policy<'_>) -> Result<Vec<u8>, FieldProblem> {
    match policy {
        Policy::Ours(read) | Policy::Secret(read) => read(path),
        Policy::User(_) => Err(FieldProblem::File),
    }
}

/// Base64, broken into lines or not.
fn decoded(base64: &str) -> Option<Vec<u8>> {
    let kept: String = base64.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
    STANDARD.decode(kept).ok()
}

fn certificates(pem: &[u8]) -> Option<Vec<Vec<u8>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found: Vec<Vec<u8>> = found.ok()?.into_iter().map(|certificate| certificate.to_vec()).collect();
    (!found.is_empty()).then_some(found)
}

fn of_auth_info(index: usize, user: AuthInfo, policy: &mut Policy<'_>) -> Result<AuthInfo, Fault> {
    let at = |field: &str| format!("users[{index}].user.{field}");
    let mut info = AuthInfo {
        username: set(user.username),
        password: user.password,
        token_file: set(user.token_file),
        exec: user.exec,
        auth_provider: user.auth_provider,
        ..AuthInfo::default()
    };
    let mut token = user.token;
    if matches!(policy, Policy::Secret(_))
        && let Some(path) = info.token_file.take()
    {
        let bytes = at_path(&path, policy).map_err(|reason| fault(at("tokenFile"), reason))?;
        let text = String::from_utf8(bytes).map_err(|_| fault(at("tokenFile"), FieldProblem::Not("a file of text")))?;
        // The file takes precedence over the token: it is the one that is rotated, and kubectl does the same.
        token = Some(SecretString::from(text));
    }
    if let Some(token) = token.filter(|token| !token.expose_secret().is_empty()) {
        let token = SecretString::from(token.expose_secret().trim());
        // kube panics at a token that is no header.
        if BearerToken::new(&token).is_err() {
            return Err(fault(at("token"), FieldProblem::Not("a token")));
        }
        info.token = Some(token);
    }
    let certificate = pem(&at, &CERTIFICATE, user.client_certificate_data.as_deref(), user.client_certificate, policy)?;
    let key = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    match (certificate, pem(&at, &KEY, key, user.client_key, policy)?) {
        (None, None) => {}
        (Some(_), None) => return Err(fault(at(CERTIFICATE.data), FieldProblem::Without(KEY.data))),
        (None, Some(_)) => return Err(fault(at(KEY.data), FieldProblem::Without(CERTIFICATE.data))),
        (Some(certificate), Some(key)) => {
            info.client_certificate_data = Some(STANDARD.encode(certificate));
            info.client_key_data = Some(SecretString::from(STANDARD.encode(key)));
        }
    }
    info.impersonate = set(user.impersonate);
    info.impersonate_uid = set(user.impersonate_uid);
    info.impersonate_groups = user.impersonate_groups.filter(|groups| !groups.is_empty());
    info.impersonate_user_extra = user.impersonate_user_extra.filter(|extra| !extra.is_empty());
    check_impersonation(&info).map_err(|(field, reason)| fault(at(field), reason))?;
    Ok(info)
}

/// kube sends these as headers with every request.
fn check_impersonation(info: &AuthInfo) -> Result<(), (&'static str, FieldProblem)> {
    let is_header = |text: &String| HeaderValue::from_str(text).is_ok();
    let groups = info.impersonate_groups.as_deref().unwrap_or_default();
    let values = || info.impersonate_user_extra.iter().flat_map(HashMap::values).flatten();
    let names = info.impersonate_user_extra.as_ref().map_or(0, HashMap::len);
    if groups.len() > MOST_IMPERSONATED {
        return Err(("as-groups", FieldProblem::Not("a list of at most 100")));
    }
    if names > MOST_IMPERSONATED || values().count() > MOST_IMPERSONATED {
        return Err(("as-user-extra", FieldProblem::Not("at most 100 names and values")));
    }
    for (field, are_headers, is_there) in [
        ("as", info.impersonate.iter().all(is_header), false),
        ("as-uid", info.impersonate_uid.iter().all(is_header), info.impersonate_uid.is_some()),
        ("as-groups", groups.iter().all(is_header), !groups.is_empty()),
        ("as-user-extra", values().all(is_header), names > 0),
    ] {
        if !are_headers {
            return Err((field, FieldProblem::Not("the value of a header")));
        }
        // Servers answer such requests with an error of their own.
        if is_there && info.impersonate.is_none() {
            return Err((field, FieldProblem::Without("as")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
