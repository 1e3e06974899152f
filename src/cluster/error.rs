//! What can go wrong with a request, sorted once.

use std::time::Duration;

use kube::client::AuthError;
use kube::config::KubeconfigError;
use kube::core::Status;

use super::Verb;
use super::fence::Expired;
use crate::config::ClusterName;

/// Why a request to a cluster failed. Every variant tells how to go on ([`Error::retry`]) and of which kind it is for
/// metrics ([`Error::kind`]).
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The cluster has no usable credentials, or did not answer the last probe: no request was sent.
    #[error("cluster {cluster} is not available: {reason}")]
    Unavailable {
        /// Which cluster.
        cluster: ClusterName,
        /// What the probe or the credentials' loader said.
        reason: String,
    },
    /// No connection could be made: the request was not carried out.
    #[error("failed to connect to cluster {cluster}: {reason}")]
    Connect {
        /// Which cluster.
        cluster: ClusterName,
        /// The connector's error.
        reason: String,
    },
    /// No complete answer within the deadline, or the connection broke: the outcome is unknown.
    #[error("no answer from cluster {cluster}: {reason}")]
    NoAnswer {
        /// Which cluster.
        cluster: ClusterName,
        /// What broke, or the deadline.
        reason: String,
    },
    /// The object changed since it was read (409), or one of that name exists already.
    #[error("conflict: {message}")]
    Conflict {
        /// The server's message.
        message: String,
        /// Whether the reason is `AlreadyExists`.
        exists: bool,
    },
    /// The API server says that this object does not exist.
    #[error("not found: {message}")]
    NotFound {
        /// The server's message.
        message: String,
    },
    /// 404 for something else than this object: the kind is not served, or this is not an API server.
    #[error("not served: {message}")]
    NotServed {
        /// The server's message.
        message: String,
    },
    /// 429, or a server error with `Retry-After`.
    #[error("throttled: {message}")]
    Throttled {
        /// HTTP status.
        code: u16,
        /// The server's message.
        message: String,
        /// How long it asked to wait.
        retry_after: Option<Duration>,
    },
    /// 401: the credentials are not (or no longer) known.
    #[error("cluster {cluster} does not accept the credentials: {message}")]
    Unauthorized {
        /// Which cluster.
        cluster: ClusterName,
        /// The server's message.
        message: String,
    },
    /// 403 for lack of permission.
    #[error("not allowed to {verb} {resource} in cluster {cluster}: {message}")]
    Forbidden {
        /// Which cluster.
        cluster: ClusterName,
        /// The verb that was asked for.
        verb: Verb,
        /// `plural.group`, with `/subresource`.
        resource: String,
        /// The server's message.
        message: String,
    },
    /// 403 because the namespace is being deleted.
    #[error("the namespace is being deleted: {message}")]
    NamespaceTerminating {
        /// The server's message.
        message: String,
    },
    /// The server refused the content (400, 413, 422 and the like): the same request will fail again.
    #[error("rejected ({code} {reason}): {message}")]
    Rejected {
        /// HTTP status.
        code: u16,
        /// Kubernetes' reason.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// A server error (5xx): may pass.
    #[error("server error ({code}): {message}")]
    Server {
        /// HTTP status.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// The section's claim has ended: nothing was sent, or what was sent may have been carried out. Nothing is wrong
    /// with the cluster.
    #[error(transparent)]
    LeaseExpired(#[from] Expired),
    /// The answer could not be read.
    #[error("failed to decode the answer: {reason}")]
    Decode {
        /// The decoder's error.
        reason: String,
    },
}

/// How to go on after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// With exponential back-off.
    Backoff,
    /// At once, after reading the object again (the cache catches up).
    Reread,
    /// After this time, which the server named.
    After(Duration),
    /// When the cluster is there again.
    WhenAvailable,
    /// When the permission is given.
    WhenAllowed,
    /// Not in this term: the next replica that acquires the section's lease starts over.
    WhenElected,
}

impl Error {
    /// How to go on.
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
            | Self::Server { .. }
            | Self::Decode { .. } => Retry::Backoff,
        }
    }

    /// The kind of error, for metrics and reports: a closed set.
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
            Self::Server { .. } => "server",
            Self::LeaseExpired(_) => "unclaimed",
            Self::Decode { .. } => "decode",
        }
    }

    /// Whether a write that failed like this may have been carried out nevertheless.
    pub fn outcome_is_unknown(&self) -> bool {
        // A 5xx may come from a proxy in front, or from the server after etcd had the write.
        matches!(
            self,
            Self::NoAnswer { .. }
                | Self::Server { .. }
                | Self::Decode { .. }
                | Self::LeaseExpired(_)
                | Self::Throttled { code: 500.., .. }
        )
    }

    /// Whether it says that the cluster itself does not answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Connect { .. } | Self::NoAnswer { .. })
    }
}

/// What was asked, for the errors that name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// The verb.
    pub verb: Verb,
    /// `plural.group`, with `/subresource`.
    pub resource: &'a str,
    /// The object's name, where one was named.
    pub name: Option<&'a str>,
}

impl Asked<'_> {
    /// Sorts an error of the HTTP stack.
    pub(super) fn failed(&self, error: &kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => self.refused(status, asked_delay(status)),
            kube::Error::SerdeError(source) => Error::Decode { reason: source.to_string() },
            kube::Error::FromUtf8(source) => Error::Decode { reason: source.to_string() },
            other => {
                if let Some(expired) = cause::<Expired>(other) {
                    return Error::LeaseExpired(expired.clone());
                }
                let reason = plain_reason(other).map_or_else(|| full_text(other), str::to_owned);
                let cluster = self.cluster.clone();
                if is_connect(other) { Error::Connect { cluster, reason } } else { Error::NoAnswer { cluster, reason } }
            }
        }
    }

    /// Sorts an answer that is not a success.
    pub(super) fn refused(&self, status: &Status, retry_after: Option<Duration>) -> Error {
        let message = told(status);
        let cause = |reason: &str| {
            status.details.as_ref().is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
        };
        match status.code {
            401 => Error::Unauthorized { cluster: self.cluster.clone(), message },
            403 if cause("NamespaceTerminating") => Error::NamespaceTerminating { message },
            403 => Error::Forbidden {
                cluster: self.cluster.clone(),
                verb: self.verb,
                resource: self.resource.to_owned(),
                message,
            },
            404 => {
                // Only a Status that names this very object is about the object.
                let names_it = status.reason == "NotFound"
                    && status
                        .details
                        .as_ref()
                        .is_some_and(|details| !details.name.is_empty() && Some(details.name.as_str()) == self.name);
                if names_it { Error::NotFound { message } } else { Error::NotServed { message } }
            }
            409 => Error::Conflict { message, exists: status.reason == "AlreadyExists" },
            code @ 429 => Error::Throttled { code, message, retry_after },
            code @ 500..=599 if retry_after.is_some() => Error::Throttled { code, message, retry_after },
            code @ 500..=599 => Error::Server { code, message },
            code => Error::Rejected { code, reason: status.reason.clone(), message },
        }
    }
}

/// In the place of a message where the answer was no `Status`.
pub(super) const NO_STATUS: &str = "the answer has no Status of Kubernetes";
/// Characters of a server's message that are repeated. A refused object's faults are listed in it, one after the other.
const LONGEST_MESSAGE: usize = 2048;
/// By this reason kube says that it has put the whole body into the message.
const KUBE_DECODED_NOTHING: &str = "Failed to parse error data";

/// What is repeated of a refusal: the beginning of the server's own message, and nothing of any other body.
fn told(status: &Status) -> String {
    if status.reason == KUBE_DECODED_NOTHING {
        return NO_STATUS.to_owned();
    }
    match status.message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", status.message.get(..end).unwrap_or_default()),
        None => status.message.clone(),
    }
}

/// The delay that a status names, where the header is not at hand.
fn asked_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds).min(60)))
}

/// An error with its sources, joined by `: `, without repeating what a source already said. Where a source quotes
/// credentials, only what is safe to tell of it: the errors around it repeat its text.
pub fn full_text(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(text) = without_credentials(error) {
        return text;
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let part = inner.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = inner.source();
    }
    text
}

/// What may be told of an error that quotes credentials: a parser quotes the text around the fault, and a command that
/// makes credentials has printed them. The command's own text has its environment in it.
fn without_credentials(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(inner) = next {
        if let Some(KubeconfigError::Parse(source)) = inner.downcast_ref() {
            return Some(match source.location() {
                Some(at) => format!("not a kubeconfig (line {}, column {})", at.line(), at.column()),
                None => "not a kubeconfig".into(),
            });
        }
        match inner.downcast_ref() {
            Some(AuthError::AuthExecRun { out, .. }) => {
                return Some(format!("the kubeconfig's command for credentials failed ({})", out.status));
            }
            Some(AuthError::AuthExecParse(source)) => {
                let at = source.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
                let at = at.unwrap_or_default();
                return Some(format!("the kubeconfig's command for credentials printed something else{at}"));
            }
            _ => {}
        }
        next = inner.source();
    }
    None
}

/// What broke, in words that anybody knows, where the operating system has said it.
fn plain_reason(error: &kube::Error) -> Option<&'static str> {
    use std::io::ErrorKind;
    Some(match cause::<std::io::Error>(error)?.kind() {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset => "connection reset",
        ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => "connection broken",
        ErrorKind::TimedOut => "connection timed out",
        ErrorKind::HostUnreachable => "host unreachable",
        ErrorKind::NetworkUnreachable => "network unreachable",
        _ => return None,
    })
}

/// The first error of a type among an error and its sources.
fn cause<E: std::error::Error + 'static>(error: &kube::Error) -> Option<&E> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref::<E>() {
            return Some(found);
        }
        source = inner.source();
    }
    None
}

fn is_connect(error: &kube::Error) -> bool {
    cause::<hyper_util::client::legacy::Error>(error).is_some_and(hyper_util::client::legacy::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str, name: &str, cause: &str) -> Error {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked {
            cluster: &cluster,
            verb: Verb::Create,
            resource: "databases.demo.towline.dev",
            name: Some("orders"),
        };
        let status: Status = serde_json::from_value(serde_json::json!({
            "code": code, "reason": reason, "message": "said",
            "details": {"name": name, "causes": [{"reason": cause}]},
        }))
        .unwrap();
        asked.refused(&status, None)
    }

    #[test]
    fn only_a_not_found_that_names_the_object_is_about_the_object() {
        assert!(matches!(refused(404, "NotFound", "orders", ""), Error::NotFound { .. }));
        assert!(matches!(refused(404, "NotFound", "other", ""), Error::NotServed { .. }));
        assert!(matches!(refused(404, "NotFound", "", ""), Error::NotServed { .. }));
        assert!(matches!(refused(404, "", "orders", ""), Error::NotServed { .. }));
    }

    #[test]
    fn only_the_beginning_of_a_servers_message_is_repeated_and_nothing_of_another_body() {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked { cluster: &cluster, verb: Verb::List, resource: "databases.demo.towline.dev", name: None };
        let long = Status { code: 422, message: "ä".repeat(5000), ..Status::default() };
        let Error::Rejected { message, .. } = asked.refused(&long, None) else { panic!("not rejected") };
        assert_eq!(message.chars().count(), LONGEST_MESSAGE + 1);
        let page = Status::failure("canary", KUBE_DECODED_NOTHING).with_code(502).boxed();
        let text = asked.failed(&kube::Error::Api(page)).to_string();
        assert_eq!(text, format!("server error (502): {NO_STATUS}"));
    }

    #[test]
    fn a_terminating_namespace_is_not_a_missing_permission() {
        assert!(matches!(
            refused(403, "Forbidden", "orders", "NamespaceTerminating"),
            Error::NamespaceTerminating { .. }
        ));
        let forbidden = refused(403, "Forbidden", "orders", "");
        assert_eq!(forbidden.retry(), Retry::WhenAllowed);
        assert_eq!(forbidden.to_string(), "not allowed to create databases.demo.towline.dev in cluster edge: said");
    }

    #[test]
    fn what_broke_a_connection_is_told_in_plain_words() {
        let broken = |kind| kube::Error::Service(Box::new(std::io::Error::from(kind)));
        for (kind, told) in [
            (std::io::ErrorKind::ConnectionRefused, Some("connection refused")),
            (std::io::ErrorKind::TimedOut, Some("connection timed out")),
            (std::io::ErrorKind::Other, None),
        ] {
            assert_eq!(plain_reason(&broken(kind)), told, "{kind:?}");
        }
    }

    #[test]
    fn what_a_command_for_credentials_printed_is_not_told() {
        let printed = "canary";
        let out =
            std::process::Command::new("sh").args(["-c", "echo canary; echo canary >&2; exit 3"]).output().unwrap();
        assert!(
            String::from_utf8_lossy(&out.stdout).contains(printed)
                && String::from_utf8_lossy(&out.stderr).contains(printed)
        );
        let failed = AuthError::AuthExecRun { cmd: "TOKEN=canary sh".into(), out: Box::new(out) };
        let wrong = serde_saphyr::from_str::<u64>(printed).unwrap_err();
        for error in [failed, AuthError::AuthExecParse(Box::new(wrong))] {
            assert!(error.to_string().contains(printed), "{error}");
            let asked_for = kube::Error::Auth(error);
            let text = full_text(&asked_for);
            assert!(text.contains("command for credentials") && !text.contains(printed), "{text}");
            let on_the_way = kube::Error::Service(Box::new(asked_for));
            let text = full_text(&on_the_way);
            assert!(text.contains("command for credentials") && !text.contains(printed), "{text}");
        }
    }

    #[test]
    fn conflicts_are_read_again_and_servers_errors_leave_the_outcome_open() {
        assert_eq!(refused(409, "Conflict", "orders", "").retry(), Retry::Reread);
        assert!(matches!(refused(409, "AlreadyExists", "orders", ""), Error::Conflict { exists: true, .. }));
        assert!(refused(500, "InternalError", "", "").outcome_is_unknown());
        assert!(!refused(422, "Invalid", "", "").outcome_is_unknown());
    }
}
