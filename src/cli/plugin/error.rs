//! Why a release can't be asked. Apart from what asks it, since the errors of a daemon's client have these among them.

use super::pods::Release;
use super::replicas::NotRun;
use crate::job::command::Exit;

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
    #[error("lost the connection to {replica}, which may have carried out the order: {reason}")]
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
