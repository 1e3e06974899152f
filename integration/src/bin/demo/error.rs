//! Why the demo ends early.

use std::path::PathBuf;

/// Whatever keeps the story from going on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A fixture, which says itself what it is.
    #[error(transparent)]
    Fixture(#[from] integration::Error),
    /// A request of somebody in the story.
    #[error("failed to {action}")]
    Kubernetes { action: String, source: Box<kube::Error> },
    #[error("failed to {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    /// `config/demo.toml` or a kubeconfig is not what it should be.
    #[error("failed to read {}: {detail}", path.display())]
    Unreadable { path: PathBuf, detail: String },
    /// Somebody else's demo has the files.
    #[error("another demo runs in this checkout: end it with Ctrl-C in its terminal first")]
    Busy,
    #[error("{what}: {found}")]
    Wrong { what: String, found: String },
    /// A command line that is not understood.
    #[error("unknown argument {0}; there is only --once")]
    Usage(String),
    /// Where in the story it happened.
    #[error("step {number} ({title}) failed")]
    Step { number: usize, title: &'static str, source: Box<Error> },
}

impl Error {
    /// For `map_err` on requests.
    pub(crate) fn kubernetes(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Kubernetes { action, source: Box::new(source) }
    }

    /// For `map_err` on files.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// Something is not as the story says.
    pub(crate) fn wrong(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Wrong { what: what.into(), found: found.into() }
    }

    /// The error with all its sources, one a line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text = format!("{text}\n  because: {source}");
            next = source.source();
        }
        text
    }
}
