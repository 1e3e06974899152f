//! `[daemon]`: the process itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use super::fields::Fields;
use super::names::is_subdomain;
use super::setting::{NamespaceName, PositiveDuration, Setting, Unfit, one_of};

/// Settings of the process: `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Address of the admin HTTP server; `127.0.0.1:8384` by default. On other addresses than loopback, `/status` and
    /// `/metrics` are readable by every client that can connect. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// How long a shutdown waits for work that has begun; `30s` by default. If it is too short, writes end with an unknown
    /// outcome, which costs a read at the next start. It should be shorter than the platform's own grace period.
    pub shutdown_grace: Duration,
    /// Names by which clients reach the admin server besides addresses, `localhost`, names without a dot and Services; in lower case. A
    /// request with another `Host` is refused.
    pub hosts: Vec<String>,
    /// Whether there is a page at `/ui/`, for which the last hour is kept in memory; `true` by default.
    pub ui: bool,
    /// What is logged, and in which format.
    pub log: LogConfig,
    /// File with the token that authorizes changes (`approve`, `detach`, `attach`, `resync`), from this host, too. None by default: then
    /// changes are only accepted from programs of this host. The file is read at each use, so that a rotated token counts at once.
    pub admin_token_file: Option<PathBuf>,
    /// Namespace of the `ConfigMap`s with the sections' state, in each section's local cluster, for status sync on its hub. It
    /// must exist. None by default: then the namespace of the pod, else that of the kubeconfig's context. With `[election]`
    /// this key has no effect: the election's namespace is used, so that all replicas share the state.
    pub state_namespace: Option<String>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8384)),
            shutdown_grace: Duration::from_secs(30),
            hosts: Vec::new(),
            ui: true,
            log: LogConfig::default(),
            admin_token_file: None,
            state_namespace: None,
        }
    }
}

impl DaemonConfig {
    /// Keys with faults keep their defaults.
    pub fn read(mut fields: Fields<'_>) -> Self {
        let mut daemon = Self::default();
        fields.set("listen", &mut daemon.listen);
        fields.set_as::<PositiveDuration, _>("shutdown_grace", &mut daemon.shutdown_grace);
        let hosts = fields.optional::<Vec<HostName>>("hosts").unwrap_or_default();
        daemon.hosts = hosts.into_iter().map(|HostName(name)| name).collect();
        fields.set("ui", &mut daemon.ui);
        if let Some(log) = fields.nested("log") {
            daemon.log = LogConfig::read(log);
        }
        daemon.admin_token_file = fields.optional("admin_token_file");
        daemon.state_namespace = fields.optional::<NamespaceName>("state_namespace").map(String::from);
        fields.finish();
        daemon
    }
}

#[derive(PartialEq, Eq)]
struct HostName(String);

impl Setting for HostName {
    const ALLOWED: &'static str = "a DNS name such as \"edge-1.example.com\", without a port";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let tamed = text.to_lowercase();
        let tamed = tamed.split_once("://").map_or(tamed.as_str(), |(_, rest)| rest);
        let tamed = tamed.split(['/', ':']).next().unwrap_or_default().trim_end_matches('.').to_owned();
        if tamed == text && is_subdomain(text) {
            return Ok(Self(tamed));
        }
        Err(Unfit { reason: None, suggestion: is_subdomain(&tamed).then_some(tamed) })
    }
}

/// What is logged, and in which format: `daemon.log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Format of a line; text by default.
    pub format: LogFormat,
    /// Directives of `tracing`: a level, or levels by module (`info,towline::resource_sync=debug`). `info` by default;
    /// `debug` writes several lines per object.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

impl LogConfig {
    fn read(mut fields: Fields<'_>) -> Self {
        let mut log = Self::default();
        fields.set("format", &mut log.format);
        fields.set_as::<Filter, _>("filter", &mut log.filter);
        fields.finish();
        log
    }
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Setting for LogFormat {
    const ALLOWED: &'static str = "text or json";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("text", Self::Text), ("json", Self::Json)])
    }
}

struct Filter(String);

impl Setting for Filter {
    const ALLOWED: &'static str = "a level (off, error, warn, info, debug or trace), or several directives such as \
         \"warn,towline::resource_sync=debug\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let filter = String::from_text(text)?;
        if let Err(error) = EnvFilter::try_new(&filter) {
            return Err(Unfit::because(error.to_string()));
        }
        if filter.split(',').all(|directive| directive.trim().is_empty()) {
            return Err(Unfit::default());
        }
        match filter.split(',').find(|directive| is_mistaken_level(directive)) {
            Some(word) => Err(Unfit::because(format!("`{word}` is not a level (a target is written `TARGET=LEVEL`)"))),
            None => Ok(Self(filter)),
        }
    }
}

/// `EnvFilter` takes any word that is not a level for a target: `verbose` alone would silence the log. So a target needs its
/// level, unless it is a module of ours.
fn is_mistaken_level(directive: &str) -> bool {
    let is_bare = !directive.is_empty() && !directive.contains(['=', '[']);
    let is_ours = directive == "towline" || directive.starts_with("towline::");
    is_bare && !is_ours && directive.parse::<LevelFilter>().is_err()
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_without_a_port() {
        assert!(HostName::from_text("edge-1.example.com").is_ok());
        for wrong in
            ["Edge-1.example.com", "edge-1.example.com:8384", "http://edge-1.example.com/status", "edge-1.example.com."]
        {
            let suggestion = HostName::from_text(wrong).err().and_then(|unfit| unfit.suggestion);
            assert_eq!(suggestion.as_deref(), Some("edge-1.example.com"), "{wrong}");
        }
        for wrong in ["", "*.example.com", "a b"] {
            assert!(HostName::from_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_does_not_silence_the_log() {
        for right in
            ["off", "INFO", "3", "info,", "towline=debug", "warn,towline::http", "kube_client=trace", "off,[sync]"]
        {
            assert!(Filter::from_text(right).is_ok(), "{right}");
        }
        assert!(Filter::from_text(",").is_err(), "it lets nothing through");
        for (wrong, word) in [("verbose", "verbose"), ("info, debug", " debug"), ("warn,hyper", "hyper"), ("6", "6")] {
            let reason = Filter::from_text(wrong).err().and_then(|unfit| unfit.reason);
            let expected = format!("`{word}` is not a level (a target is written `TARGET=LEVEL`)");
            assert_eq!(reason, Some(expected), "{wrong}");
        }
        for wrong in ["", "towline=verbose", "[sync"] {
            assert!(Filter::from_text(wrong).is_err(), "{wrong}");
        }
    }
}
