//! A release in a cluster, and why it can't be asked. Below the client of a daemon, whose errors have these among them.

use std::fmt;

use crate::job::command::Exit;

/// A release, by what its pods say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub(super) namespace: String,
    /// Empty where pods have no such label.
    pub(super) name: String,
}

impl fmt::Display for Release {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "one without a name" } else { &self.name };
        write!(formatter, "{name} (namespace {})", self.namespace)
    }
}

/// Why no replica can be asked about a section.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRun {
    #[error("the release has no section {section}; it has {}", list(there))]
    NoSection { section: String, there: Vec<String> },
    /// Its holder is as the others say.
    #[error("section {section} runs in no replica that answers{}{}", held_by(holder.as_deref()), silence(silent))]
    Nowhere { section: String, holder: Option<String>, silent: Vec<String> },
    #[error("no replica answers{}", silence(silent))]
    Silent { silent: Vec<String> },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn held_by(holder: Option<&str>) -> String {
    holder.map(|holder| format!("; its Lease is held by {holder}")).unwrap_or_default()
}

fn silence(silent: &[String]) -> String {
    if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) }
}

/// Why a release can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to connect to the cluster: {0}")]
    Cluster(String),
    #[error("failed to list pods: {0}")]
    List(String),
    #[error(
        "there are several releases {place}; name one with --release NAME, and its namespace with -n NAMESPACE: {}",
        told(releases)
    )]
    SeveralReleases { place: String, releases: Vec<Release> },
    #[error("{}", nobody(place, release.as_deref(), there))]
    NoPods { place: String, release: Option<String>, there: Vec<Release> },
    /// Nothing has been sent to it.
    #[error("failed to reach {replica}: {reason}")]
    Unreached { replica: String, reason: String },
    /// A request was sent, or was about to be.
    #[error("lost the connection to {replica}: {reason}")]
    Interrupted { replica: String, reason: String },
    #[error(transparent)]
    NotRun(#[from] NotRun),
    /// Whoever may make pods in some namespace could receive it.
    #[error(
        "a token is only sent to pods of a namespace that is named: use -n NAMESPACE (not -A), or a context with a namespace"
    )]
    Token,
    #[error("failed to listen on this machine")]
    Listen(#[source] std::io::Error),
}

impl Error {
    pub fn exit(&self) -> Exit {
        match self {
            Self::SeveralReleases { .. } | Self::Token => Exit::Usage,
            _ => Exit::Failed,
        }
    }

    /// Whether another attempt may succeed.
    pub fn is_outage(&self) -> bool {
        !matches!(self, Self::SeveralReleases { .. } | Self::Token | Self::Listen(_))
    }
}

fn told(releases: &[Release]) -> String {
    releases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn nobody(place: &str, release: Option<&str>, there: &[Release]) -> String {
    match release {
        Some(release) => format!("there is no release {release} {place}, but {}", told(there)),
        None => format!("there are no pods with the label app.kubernetes.io/name=towline {place}"),
    }
}
