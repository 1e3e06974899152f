//! What can go wrong with a request. Every error is classified once.

mod classify;

use std::time::Duration;

use super::Verb;
use super::fence::Expired;
use crate::config::ClusterName;
pub(super) use classify::{Asked, NO_STATUS, cautious_message};
pub use classify::{Cause, full_text, harmless};

/// Replaces the cause of a failed connection for those who may not see it.
const NO_API_SERVER: &str =
    "no API server answers at the kubeconfig's address; the hub's log says why, also after `towline resync`";

/// Why a request to a cluster failed. Every variant has a way to retry ([`Error::retry`]) and a label for metrics
/// ([`Error::kind`]).
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The cluster has no usable credentials, or did not answer the last probe: no request was sent.
    #[error("cluster {cluster} is not available: {reason}")]
    Unavailable {
        cluster: ClusterName,
        /// The error of the probe, or of loading the credentials.
        reason: String,
    },
    /// No connection could be opened: the request was not carried out.
    #[error("failed to connect to cluster {cluster}: {source}")]
    Connect { cluster: ClusterName, source: Cause },
    /// No complete answer within the deadline, or the connection broke: the outcome is unknown.
    #[error("no answer from cluster {cluster}: {source}")]
    NoAnswer {
        cluster: ClusterName,
        /// What failed, or the deadline.
        source: Cause,
    },
    /// The object has changed since it was read (409), or an object with that name exists already.
    #[error("conflict: {message}")]
    Conflict {
        message: String,
        /// Whether the reason is `AlreadyExists`.
        exists: bool,
    },
    /// The API server answers that this object does not exist.
    #[error("not found: {message}")]
    NotFound { message: String },
    /// 404 for anything but this object: the kind is not served, or this is not an API server.
    #[error("not served: {message}")]
    NotServed {
        message: String,
        /// Whether the answer names a namespace: the one of an object that was to be written.
        of_namespace: bool,
    },
    /// 429, or a server error with `Retry-After`.
    #[error("throttled: {message}")]
    Throttled {
        /// HTTP status.
        code: u16,
        message: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// 401: the server does not, or no longer, accept the credentials.
    #[error("cluster {cluster} does not accept the credentials: {message}")]
    Unauthorized { cluster: ClusterName, message: String },
    /// 403 because a permission is missing.
    #[error("not allowed to {verb} {resource} in cluster {cluster}: {message}")]
    Forbidden {
        cluster: ClusterName,
        verb: Verb,
        /// `plural.group`, with `/subresource`.
        resource: String,
        message: String,
    },
    /// 403 because the namespace is being deleted.
    #[error("the namespace is being deleted: {message}")]
    NamespaceTerminating { message: String },
    /// The server rejects the content (400, 413, 422 and the like): the same request will fail again.
    #[error("rejected ({code} {reason}): {message}")]
    Rejected {
        /// HTTP status.
        code: u16,
        /// Kubernetes' reason.
        reason: String,
        message: String,
    },
    /// 500 for a server-side apply with a field that the kind's schema does not have, a list with one key twice, or a value of
    /// another type: the same request will fail again.
    #[error("the object does not fit its schema: {message}")]
    SchemaMismatch { message: String },
    /// A server error (5xx), which may be temporary.
    #[error("server error ({code}): {message}")]
    Server {
        /// HTTP status.
        code: u16,
        message: String,
    },
    /// The section's lease has expired: nothing was sent, or the request that was sent may have been carried out. The
    /// cluster has no fault.
    #[error(transparent)]
    LeaseExpired(#[from] Expired),
    #[error("failed to decode the answer: {source}")]
    Decode { source: Cause },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Backoff,
    /// At once, after reading the object again: the cache catches up.
    Reread,
    /// After the time that the server asks for.
    After(Duration),
    WhenAvailable,
    WhenAllowed,
    /// Not in this term: the next replica that acquires the section's lease starts over.
    WhenElected,
}

impl Error {
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unavailable { .. } | Self::Connect { .. } | Self::NoAnswer { .. } | Self::Unauthorized { .. } => {
                Retry::WhenAvailable
            }
            Self::Conflict { .. } | Self::NotFound { .. } => Retry::Reread,
            Self::Throttled { retry_after: Some(delay), .. } => Retry::After(*delay),
            Self::Forbidden { .. } => Retry::WhenAllowed,
            Self::LeaseExpired(_) => Retry::WhenElected,
            Self::NotServed { .. }
            | Self::Throttled { .. }
            | Self::NamespaceTerminating { .. }
            | Self::Rejected { .. }
            | Self::SchemaMismatch { .. }
            | Self::Server { .. }
            | Self::Decode { .. } => Retry::Backoff,
        }
    }

    /// Whether the server has evaluated the request and refused it: the same request is refused again until somebody changes the
    /// object, the kind, an admission policy or a permission.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Rejected { .. } | Self::SchemaMismatch { .. } | Self::Forbidden { .. })
    }

    /// The label of the error in metrics and reports, of a closed set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Connect { .. } => "connect",
            Self::NoAnswer { .. } => "no_answer",
            Self::Conflict { .. } => "conflict",
            Self::NotFound { .. } => "not_found",
            Self::NotServed { .. } => "not_served",
            Self::Throttled { .. } => "throttled",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Forbidden { .. } => "forbidden",
            Self::NamespaceTerminating { .. } => "namespace_terminating",
            Self::Rejected { .. } => "rejected",
            Self::SchemaMismatch { .. } => "schema_mismatch",
            Self::Server { .. } => "server",
            Self::LeaseExpired(_) => "unclaimed",
            Self::Decode { .. } => "decode",
        }
    }

    /// The same error with another message of the server, if it has one.
    pub(super) fn saying(mut self, text: String) -> Self {
        match &mut self {
            Self::Conflict { message, .. }
            | Self::NotFound { message }
            | Self::NotServed { message, .. }
            | Self::Throttled { message, .. }
            | Self::Unauthorized { message, .. }
            | Self::Forbidden { message, .. }
            | Self::NamespaceTerminating { message }
            | Self::Rejected { message, .. }
            | Self::SchemaMismatch { message }
            | Self::Server { message, .. } => *message = text,
            Self::Unavailable { .. }
            | Self::Connect { .. }
            | Self::NoAnswer { .. }
            | Self::LeaseExpired(_)
            | Self::Decode { .. } => {}
        }
        self
    }

    /// What the server says, or else what went wrong, without the cluster's name, in at most 1,024 bytes without control characters:
    /// names in a server's certificate are as much of its choice as a message.
    pub fn message(&self) -> String {
        let text = match self {
            Self::Conflict { message, .. }
            | Self::NotFound { message }
            | Self::NotServed { message, .. }
            | Self::Throttled { message, .. }
            | Self::Unauthorized { message, .. }
            | Self::Forbidden { message, .. }
            | Self::NamespaceTerminating { message }
            | Self::Rejected { message, .. }
            | Self::SchemaMismatch { message }
            | Self::Server { message, .. } => message.clone(),
            Self::Connect { source, .. } => format!("failed to connect: {}", full_text(source)),
            Self::NoAnswer { source, .. } => match full_text(source) {
                text if text.starts_with("no answer") => text,
                text => format!("no answer: {text}"),
            },
            other => full_text(other),
        };
        classify::harmless(&text)
    }

    /// The same for somebody who may choose the server's address and may not look around in our network: whether the name is unknown, nobody
    /// listens, nobody answers, or something else than TLS is spoken there is one message. What the server's certificate lacks is shown,
    /// and our own rules.
    pub fn public_message(&self) -> String {
        match self {
            Self::Connect { source, .. } | Self::NoAnswer { source, .. } if !source.is_public() => {
                NO_API_SERVER.to_owned()
            }
            Self::Unavailable { .. } => NO_API_SERVER.to_owned(),
            _ => self.message(),
        }
    }

    /// Whether a write that failed with this error may have been carried out.
    pub fn outcome_is_unknown(&self) -> bool {
        // A 5xx may come from a proxy, or from the server after etcd stored the write.
        matches!(
            self,
            Self::NoAnswer { .. }
                | Self::Server { .. }
                | Self::Decode { .. }
                | Self::LeaseExpired(_)
                | Self::Throttled { code: 500.., .. }
        )
    }

    /// Whether the cluster itself does not answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Connect { .. } | Self::NoAnswer { .. })
    }

    /// Whether there was a connection, and it ended before the answer did.
    pub(super) fn is_broken_connection(&self) -> bool {
        // The deadline of a request has no source; that of its head has one, and is longer than any that asks this.
        matches!(self, Self::NoAnswer { source, .. } if std::error::Error::source(source).is_some())
    }
}
