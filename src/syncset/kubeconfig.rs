//! A cluster's kubeconfig, which a user of the hub's API has written, and so is hostile: turns its text into a client's
//! configuration, or says which field is refused.
//!
//! Only what is understood here is taken over: nothing is read from a file, nothing is run, and neither the environment's proxy
//! nor a service account is added. A fault names the field and never a value, so it may be shown to whoever can read the cluster's
//! status.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use kube::Config;
use kube::config::AuthInfo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::SecretString;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::cluster::Fingerprint;
use crate::http::{BearerToken, Proxy};
use crate::yaml;

/// The largest kubeconfig. One with three certificates has 10 KiB.
const LARGEST: usize = 256 << 10;
/// Longest URL of a server: the paths of requests come behind it.
const LONGEST_URL: usize = 2048;
/// Most groups, and most values of extra fields, of which each is a header of every request.
const MOST_IMPERSONATED: usize = 100;
/// The most bytes that are built of one, aliases expanded, about: each of a thousand contexts has a few values.
const MOST_BUILT: usize = 2 << 20;

/// The features that kubeconfigs may use although they are refused by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each permission is independent of the others")]
pub struct Allowed {
    /// `insecure-tls`: a server that does not prove who it is.
    pub insecure_tls: bool,
    /// `proxy-url`: a proxy of the user's choice, which resolves the names of servers.
    pub proxy_url: bool,
    /// `plain-http`: a server without TLS.
    pub plain_http: bool,
    /// `duplicates`: a cluster to which another document of the namespace leads already.
    pub duplicates: bool,
}

/// Credentials, from which a client can be built.
#[derive(Clone)]
pub struct Credentials {
    /// The complete configuration. It refers to no file.
    pub config: Config,
    pub fingerprint: Fingerprint,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Why a kubeconfig is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the kubeconfig has more than {} KiB", LARGEST >> 10)]
    TooLarge,
    #[error("not a kubeconfig{}", .0.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default())]
    Malformed(
        /// Line and column.
        Option<(u64, u64)>,
    ),
    #[error("`{field}` {reason}")]
    Field {
        /// Its path: `users[0].user.exec`.
        field: String,
        reason: Reason,
    },
}

/// Why a field of a kubeconfig is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It runs a command or a plug-in.
    Runs,
    /// It refers to a file.
    File,
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

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => formatter.write_str("is refused: it runs a command or a plug-in"),
            Self::File => formatter.write_str("is refused: it refers to a file; write the content into the kubeconfig"),
            Self::Missing => formatter.write_str("is missing, or names something that is missing"),
            Self::Ambiguous => formatter.write_str("names something that is there more than once"),
            Self::Not(what) => write!(formatter, "is not {what}"),
            Self::NotAllowed(what) => write!(formatter, "is refused: `syncsets.allow` does not have \"{what}\""),
            Self::Without(other) => write!(formatter, "is of no use without `{other}`"),
        }
    }
}

fn fault(field: impl Into<String>, reason: Reason) -> Fault {
    Fault::Field { field: field.into(), reason }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    proxy_url: Option<String>,
    tls_server_name: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    #[serde(rename = "as")]
    impersonated: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    auth_provider: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
    namespace: Option<String>,
}

/// Reads a kubeconfig in YAML or JSON.
pub fn read(text: &str, allowed: Allowed) -> Result<Credentials, Fault> {
    if text.len() > LARGEST {
        return Err(Fault::TooLarge);
    }
    let kubeconfig = parse(text)?;
    refuse_references(&kubeconfig)?;
    let config = current(kubeconfig, allowed)?;
    Ok(Credentials { config, fingerprint: fingerprint(text.as_bytes()) })
}

/// The fingerprint of a kubeconfig, which need not be one.
pub fn fingerprint(text: &[u8]) -> Fingerprint {
    Fingerprint(Sha256::digest(text).into())
}

fn parse(text: &str) -> Result<Kubeconfig, Fault> {
    yaml::one(text, MOST_BUILT).map_err(|error| match error {
        yaml::Error::Text { line, column, .. } => Fault::Malformed(Some((line, column))),
        // `.` is the whole document, which has no field to name.
        yaml::Error::Type { field } if field != "." => {
            fault(field, Reason::Not("of the type that it has in kubeconfigs"))
        }
        yaml::Error::Type { .. } | yaml::Error::Documents(_) | yaml::Error::TooLarge => Fault::Malformed(None),
    })
}

fn is_set(value: Option<&String>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

/// Commands and files are refused also in what the current context does not use: whoever writes them has a wrong idea of who
/// reads them.
fn refuse_references(kubeconfig: &Kubeconfig) -> Result<(), Fault> {
    for (index, user) in kubeconfig.users.iter().flatten().enumerate() {
        let Some(user) = &user.user else { continue };
        for (field, is_there, reason) in [
            ("exec", user.exec.is_some(), Reason::Runs),
            ("auth-provider", user.auth_provider.is_some(), Reason::Runs),
            ("tokenFile", is_set(user.token_file.as_ref()), Reason::File),
            ("client-certificate", is_set(user.client_certificate.as_ref()), Reason::File),
            ("client-key", is_set(user.client_key.as_ref()), Reason::File),
        ] {
            if is_there {
                return Err(fault(format!("users[{index}].user.{field}"), reason));
            }
        }
    }
    for (index, cluster) in kubeconfig.clusters.iter().flatten().enumerate() {
        if cluster.cluster.as_ref().is_some_and(|cluster| is_set(cluster.certificate_authority.as_ref())) {
            return Err(fault(format!("clusters[{index}].cluster.certificate-authority"), Reason::File));
        }
    }
    Ok(())
}

/// The one entry with a name, and its place.
fn named<T>(entries: Option<Vec<T>>, field: &str, has_name: impl Fn(&T) -> bool) -> Result<(usize, T), Fault> {
    let mut found = entries.into_iter().flatten().enumerate().filter(|(_, entry)| has_name(entry));
    let entry = found.next().ok_or_else(|| fault(field, Reason::Missing))?;
    if found.next().is_some() {
        return Err(fault(field, Reason::Ambiguous));
    }
    Ok(entry)
}

/// The configuration of the current context.
fn current(kubeconfig: Kubeconfig, allowed: Allowed) -> Result<Config, Fault> {
    let Kubeconfig { clusters, users, contexts, current_context } = kubeconfig;
    let current_context = current_context.unwrap_or_default();
    let (index, context) = named(contexts, "current-context", |context| context.name == current_context)?;
    let at = |field: &str| format!("contexts[{index}].context.{field}");
    let context = context.context.ok_or_else(|| fault(format!("contexts[{index}].context"), Reason::Missing))?;
    let cluster_name = context.cluster.unwrap_or_default();
    let (place, cluster) = named(clusters, &at("cluster"), |cluster| cluster.name == cluster_name)?;
    let mut config = of_cluster(place, cluster.cluster, allowed)?;
    // Without a user the server decides what an anonymous one may do.
    if let Some(name) = context.user.filter(|name| !name.is_empty()) {
        let (place, user) = named(users, &at("user"), |user| user.name == name)?;
        config.auth_info = of_user(place, user.user.unwrap_or_default())?;
    }
    if let Some(namespace) = context.namespace {
        config.default_namespace = namespace;
    }
    Ok(config)
}

fn of_cluster(index: usize, cluster: Option<Cluster>, allowed: Allowed) -> Result<Config, Fault> {
    let at = |field: &str| format!("clusters[{index}].cluster.{field}");
    let cluster = cluster.ok_or_else(|| fault(format!("clusters[{index}].cluster"), Reason::Missing))?;
    let server = cluster.server.filter(|server| !server.is_empty());
    let server = server.ok_or_else(|| fault(at("server"), Reason::Missing))?;
    let url = server_url(&server).ok_or_else(|| {
        fault(at("server"), Reason::Not("an https:// URL without user, password, query and fragment"))
    })?;
    if url.scheme_str() == Some("http") && !allowed.plain_http {
        return Err(fault(at("server"), Reason::NotAllowed("plain-http")));
    }
    let mut config = Config::new(url);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify == Some(true);
    if config.accept_invalid_certs && !allowed.insecure_tls {
        return Err(fault(at("insecure-skip-tls-verify"), Reason::NotAllowed("insecure-tls")));
    }
    if let Some(data) = cluster.certificate_authority_data.filter(|data| !data.is_empty()) {
        let certificates = certificates(&data);
        let no_certificates = || fault(at("certificate-authority-data"), Reason::Not("base64 of certificates in PEM"));
        config.root_cert = Some(certificates.ok_or_else(no_certificates)?);
    }
    if let Some(name) = cluster.tls_server_name.filter(|name| !name.is_empty()) {
        if ServerName::try_from(name.as_str()).is_err() {
            return Err(fault(at("tls-server-name"), Reason::Not("the name of a server")));
        }
        config.tls_server_name = Some(name);
    }
    if let Some(proxy) = cluster.proxy_url.filter(|proxy| !proxy.is_empty()) {
        if !allowed.proxy_url {
            return Err(fault(at("proxy-url"), Reason::NotAllowed("proxy-url")));
        }
        let url: Option<Uri> = proxy.parse().ok().filter(|url| has_valid_port(url) && Proxy::of_url(url).is_some());
        let no_proxy = || fault(at("proxy-url"), Reason::Not("an http://, https:// or socks5:// URL"));
        config.proxy_url = Some(url.ok_or_else(no_proxy)?);
    }
    Ok(config)
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

/// Base64, broken into lines or not.
fn decoded(base64: &str) -> Option<Vec<u8>> {
    let kept: String = base64.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
    STANDARD.decode(kept).ok()
}

fn certificates(base64: &str) -> Option<Vec<Vec<u8>>> {
    let pem = decoded(base64)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found: Vec<Vec<u8>> = found.ok()?.into_iter().map(|certificate| certificate.to_vec()).collect();
    (!found.is_empty()).then_some(found)
}

fn of_user(index: usize, user: User) -> Result<AuthInfo, Fault> {
    let at = |field: &str| format!("users[{index}].user.{field}");
    let mut info = AuthInfo::default();
    if let Some(token) = user.token.filter(|token| !token.is_empty()) {
        let token = SecretString::from(token.trim());
        // kube panics at a token that is no header.
        if BearerToken::new(&token).is_err() {
            return Err(fault(at("token"), Reason::Not("a token")));
        }
        info.token = Some(token);
    }
    info.username = user.username.filter(|name| !name.is_empty());
    info.password = user.password.map(SecretString::from);
    let certificate = user.client_certificate_data.filter(|data| !data.is_empty());
    let key = user.client_key_data.filter(|data| !data.is_empty());
    match (certificate, key) {
        (None, None) => {}
        (Some(_), None) => return Err(fault(at("client-certificate-data"), Reason::Without("client-key-data"))),
        (None, Some(_)) => return Err(fault(at("client-key-data"), Reason::Without("client-certificate-data"))),
        (Some(certificate), Some(key)) => {
            let pem = certificates(&certificate).and(decoded(&certificate));
            let not_pem = || fault(at("client-certificate-data"), Reason::Not("base64 of certificates in PEM"));
            info.client_certificate_data = Some(STANDARD.encode(pem.ok_or_else(not_pem)?));
            let pem = decoded(&key).filter(|pem| PrivateKeyDer::from_pem_slice(pem).is_ok());
            let not_pem = || fault(at("client-key-data"), Reason::Not("base64 of a private key in PEM"));
            info.client_key_data = Some(SecretString::from(STANDARD.encode(pem.ok_or_else(not_pem)?)));
        }
    }
    impersonate(&mut info, user.impersonated, user.as_uid, user.as_groups, user.as_user_extra)
        .map_err(|(field, reason)| fault(at(field), reason))?;
    Ok(info)
}

/// kube sends these as headers with every request.
fn impersonate(
    info: &mut AuthInfo,
    name: Option<String>,
    uid: Option<String>,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Vec<String>>>,
) -> Result<(), (&'static str, Reason)> {
    let is_header = |text: &String| HeaderValue::from_str(text).is_ok();
    let not = |field| Err((field, Reason::Not("the value of a header")));
    let (groups, extra) = (groups.unwrap_or_default(), extra.unwrap_or_default());
    if groups.len() > MOST_IMPERSONATED {
        return Err(("as-groups", Reason::Not("a list of at most 100")));
    }
    if extra.len() > MOST_IMPERSONATED || extra.values().map(Vec::len).sum::<usize>() > MOST_IMPERSONATED {
        return Err(("as-user-extra", Reason::Not("at most 100 names and values")));
    }
    info.impersonate = name.filter(|name| !name.is_empty());
    info.impersonate_uid = uid.filter(|uid| !uid.is_empty());
    if !info.impersonate.iter().all(is_header) {
        return not("as");
    }
    if !info.impersonate_uid.iter().all(is_header) {
        return not("as-uid");
    }
    if !groups.iter().all(is_header) {
        return not("as-groups");
    }
    if !extra.values().flatten().all(is_header) {
        return not("as-user-extra");
    }
    // Servers answer such requests with an error of their own.
    for (field, is_there) in [
        ("as-uid", info.impersonate_uid.is_some()),
        ("as-groups", !groups.is_empty()),
        ("as-user-extra", !extra.is_empty()),
    ] {
        if is_there && info.impersonate.is_none() {
            return Err((field, Reason::Without("as")));
        }
    }
    info.impersonate_groups = Some(groups).filter(|groups| !groups.is_empty());
    info.impersonate_user_extra = (!extra.is_empty()).then(|| extra.into_iter().collect());
    Ok(())
}

#[cfg(test)]
mod tests;
