//! What is told of actors: why one ended, and the tree as `/status` shows it.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::mailbox::MailboxReading;

/// The error of a body. Its text goes into [`ExitReason::Failed`], with those of its sources.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why an actor ended, and which part caused it. A closed set, so that code which restarts or reports exits handles all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The body, by returning `Ok(())` without a request to drain: its work is done for good. Not restarted.
    Finished,
    /// The supervisor, by asking for a drain; the body returned `Ok(())` before the deadline. Not restarted.
    Drained,
    /// The supervisor, by aborting a body that was still working when the drain's deadline passed. Not restarted.
    DrainTimedOut,
    /// The body, by returning an error. Restarted, unless its supervisor is draining.
    Failed {
        /// The error and its sources, joined by `: `.
        error: String,
    },
    /// The body or a task it spawned, by panicking. Restarted, unless its supervisor is draining.
    Panicked { message: String },
    /// The supervisor, by aborting a body that held a [`WorkGuard`](super::instance::WorkGuard) without a sign of progress.
    /// Restarted, unless its supervisor is draining.
    Stalled {
        /// How long there had been no sign of progress.
        #[serde(with = "humantime_serde")]
        after: Duration,
    },
    /// A supervisor, by giving up: one of its children failed more often than its policy allows. Its own supervisor
    /// restarts the whole subtree; at the root the process ends.
    Escalated {
        /// The path of the child whose budget was spent.
        child: String,
    },
}

impl ExitReason {
    /// Whether nothing was lost: the actor returned by itself, or when it was asked to drain.
    pub(super) fn is_clean(&self) -> bool {
        matches!(self, Self::Finished | Self::Drained)
    }

    pub(super) fn failed(error: &BoxError) -> Self {
        Self::Failed { error: with_sources(&**error) }
    }

    pub(super) fn panicked(payload: &(dyn Any + Send)) -> Self {
        Self::Panicked { message: panic_message(payload) }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => formatter.write_str("finished"),
            Self::Drained => formatter.write_str("drained"),
            Self::DrainTimedOut => formatter.write_str("aborted: did not drain in time"),
            Self::Failed { error } => write!(formatter, "failed: {error}"),
            Self::Panicked { message } => write!(formatter, "panicked: {message}"),
            Self::Stalled { after } => {
                write!(formatter, "aborted: no progress for {}", humantime::format_duration(*after))
            }
            Self::Escalated { child } => write!(formatter, "gave up: {child} failed too often"),
        }
    }
}

/// An error with its sources, joined by `: `. It must not be one of a cluster: those may quote credentials, which `cluster::full_text`
/// leaves out.
pub fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The text of a panic: `panic!` has a `&str` or a `String`, `panic_any` any type.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// How an actor ended, and everything below it.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub(super) reason: ExitReason,
    /// The paths of the actors that lost work: they were aborted at a drain's deadline, failed or panicked.
    pub(super) unfinished: Vec<String>,
}

impl Exit {
    /// The end of the actor with this path, which has no children.
    pub(super) fn of(path: &str, reason: ExitReason) -> Self {
        let unfinished = if reason.is_clean() { Vec::new() } else { vec![path.to_owned()] };
        Self { reason, unfinished }
    }

    /// The end of an actor whose actix actor was dropped without a word, as it is when it panics.
    pub(super) fn broken(path: &str) -> Self {
        Self::of(path, ExitReason::Panicked { message: "its control lane broke".to_owned() })
    }
}

/// One actor and everything below it, as `/status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActorReport {
    /// Its name among its siblings; its parents in the report give the rest of the path.
    pub name: String,
    /// What it is doing: what the body set last (`running` if it set nothing), or `draining`, `backing off`, `waiting`, `ended`.
    pub state: String,
    pub restarts: u64,
    /// Why its last instance ended; `None` while the first one runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<ExitReason>,
    /// Its mailbox, if it has one to report on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mailbox: Option<MailboxReading>,
    /// Its children, in the order of their start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ActorReport>,
}

impl ActorReport {
    /// A report of which nothing but the state is known yet.
    pub(super) fn new(name: &str, state: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: state.to_owned(),
            restarts: 0,
            last_exit: None,
            mailbox: None,
            children: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to list objects")]
    struct List(#[source] std::io::Error);

    #[test]
    fn a_failure_names_its_sources() {
        let error: BoxError = Box::new(List(std::io::Error::other("connection refused")));
        let expected = "failed to list objects: connection refused".to_owned();
        assert_eq!(ExitReason::failed(&error), ExitReason::Failed { error: expected });
    }

    #[test]
    fn a_reason_is_shown_in_snake_case_with_its_details() {
        let reason = ExitReason::Stalled { after: Duration::from_millis(1_500) };
        assert_eq!(serde_json::to_string(&reason).unwrap(), r#"{"stalled":{"after":"1s 500ms"}}"#);
        assert_eq!(serde_json::to_string(&ExitReason::DrainTimedOut).unwrap(), r#""drain_timed_out""#);
    }
}
