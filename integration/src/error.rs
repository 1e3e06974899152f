//! What can go wrong with a fixture. None of it is about Towline: a test that gets one of these has not begun.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a fixture is not what the test needs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that the fixtures need is not installed, or may not be used by this user.
    #[error("{program} is missing or can't be used ({needed_for}): {remedy}")]
    Missing { program: &'static str, needed_for: &'static str, remedy: String },
    /// A build that a fixture rests on has failed; its output is on stderr.
    #[error("failed to build {what}: {detail}")]
    Build { what: &'static str, detail: String },
    /// A file or directory of a fixture.
    #[error("failed to {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// A process did not start, or could not be controlled.
    #[error("failed to {action} {process}")]
    Process { action: &'static str, process: String, source: io::Error },
    /// A process has ended though nobody told it to.
    #[error("{process} has ended by itself ({status}); its last lines:\n{log}")]
    Exited {
        process: String,
        status: String,
        /// The end of what it wrote.
        log: String,
    },
    /// A process is asked for something while it does not run.
    #[error("{process} does not run")]
    NotRunning { process: String },
    /// What was waited for did not come.
    #[error("waited {} s for {what}; last seen: {last}", limit.as_secs_f32())]
    TimedOut {
        what: String,
        limit: Duration,
        /// What was seen instead.
        last: String,
    },
    /// No loopback port is free, or a socket of the fixture failed.
    #[error("failed to {action}")]
    Network { action: &'static str, source: io::Error },
    /// A certificate could not be made.
    #[error("failed to make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The fixture's own access to an API server failed.
    #[error("failed to {action}")]
    Kubernetes {
        action: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The fixture's own access to a database failed.
    #[error("failed to {action}")]
    Database { action: &'static str, source: tokio_postgres::Error },
    /// A kubeconfig that the fixture has written is not one.
    #[error("failed to read the kubeconfig of a fixture")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// An HTTP request to etcd or to the daemon's admin server failed.
    #[error("failed to request {url}: {detail}")]
    Http {
        url: String,
        /// Why it failed, or the status and body of a refusal.
        detail: String,
    },
    /// A manifest can't be read, or is not what the fixture takes.
    #[error("failed to use the manifest {what}: {detail}")]
    Manifest { what: String, detail: String },
    /// A user that the control plane does not know.
    #[error("there is no user {0}; control_plane::USERS has those that exist")]
    UnknownUser(String),
    /// The control plane was started without an audit log.
    #[error("the control plane {0} was started without an audit log")]
    NoAudit(String),
    /// A reply or a log line that is not of the expected form.
    #[error("failed to read {what}: {detail}")]
    Unreadable { what: String, detail: String },
}

impl Error {
    /// For `map_err` on access to an API server.
    pub fn kubernetes(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Kubernetes { action, source: Box::new(source) }
    }

    /// For `map_err` on access to a database.
    pub fn database(action: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| Self::Database { action, source }
    }

    /// For `map_err` on files.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// The error with all its sources, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        text
    }
}
