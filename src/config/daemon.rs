//! `[daemon]`: the process itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::fields::Fields;
use super::names::NamespaceName;
use super::setting::{PositiveDuration, Setting, Unfit, one_of};

/// Settings of the process: `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Address of the admin HTTP server. `127.0.0.1:8384` by default: what listens beyond loopback shows `/status` and
    /// `/metrics` to whoever reaches it. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// How long a shutdown waits for work that has begun; `30s` by default. Too short leaves writes whose outcome is
    /// unknown, which cost a read at the next start; longer than the platform's own grace period is never reached.
    pub shutdown_grace: Duration,
    /// What is logged, and how.
    pub log: LogConfig,
    /// File with the token that takes changes (`approve`, `detach`) from other hosts. None by default: then only
    /// loopback may make them. It is read at each use, so that a rotated token counts at once.
    pub admin_token_file: Option<PathBuf>,
    /// Namespace of the objects in which sections keep what has to outlive the process, in each section's local cluster, for
    /// status sync on its hub; it has to be there. None by default: then the namespace of the pod, else that of the kubeconfig's context. Beside
    /// `[election]`, whose namespace it is, this key counts for nothing: all replicas look at one place.
    pub state_namespace: Option<String>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8384)),
            shutdown_grace: Duration::from_secs(30),
            log: LogConfig::default(),
            admin_token_file: None,
            state_namespace: None,
        }
    }
}

impl DaemonConfig {
    /// Faults of single keys leave their default in place.
    pub fn read(mut fields: Fields<'_>) -> Self {
        let mut daemon = Self::default();
        fields.set("listen", &mut daemon.listen);
        fields.set_as::<PositiveDuration, _>("shutdown_grace", &mut daemon.shutdown_grace);
        if let Some(log) = fields.nested("log") {
            daemon.log = LogConfig::read(log);
        }
        daemon.admin_token_file = fields.optional("admin_token_file");
        daemon.state_namespace = fields.optional::<NamespaceName>("state_namespace").map(String::from);
        fields.finish();
        daemon
    }
}

/// What is logged, and how: `daemon.log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of a line; text by default.
    pub format: LogFormat,
    /// Directives of `tracing`: a level, or levels by module (`info,towline::resource_sync=debug`). `info` by
    /// default; `debug` writes lines per object.
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

/// Form of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
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
    const ALLOWED: &'static str = "directives such as \"info\" or \"warn,towline::resource_sync=debug\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let filter = String::from_text(text)?;
        match EnvFilter::try_new(&filter) {
            Ok(_) => Ok(Self(filter)),
            Err(error) => Err(Unfit::because(error.to_string())),
        }
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.0
    }
}
