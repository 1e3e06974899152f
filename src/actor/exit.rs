//! Why an actor ended. A closed set, so that code which restarts, reports or counts exits handles all of them.

use std::any::Any;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Name;

/// The error of a body. Its text goes into [`ExitReason::Failed`], with those of its sources.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why an actor ended, and which part caused it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
    /// The supervisor, by aborting a body that held a [`WorkGuard`](super::WorkGuard) without a sign of progress.
    /// Restarted, unless its supervisor is draining.
    Stalled {
        /// How long there had been no sign of progress.
        #[serde(with = "humantime_serde")]
        after: Duration,
    },
    /// A supervisor, by giving up: one of its children failed more often than its policy allows. Its own supervisor
    /// restarts the whole subtree; at the root the process ends.
    Escalated {
        /// The child whose budget was spent.
        child: Name,
    },
}

impl ExitReason {
    /// Whether nothing was lost: the actor returned by itself, or when it was asked to drain.
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::Finished | Self::Drained)
    }

    /// The variant's name, for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Drained => "drained",
            Self::DrainTimedOut => "drain_timed_out",
            Self::Failed { .. } => "failed",
            Self::Panicked { .. } => "panicked",
            Self::Stalled { .. } => "stalled",
            Self::Escalated { .. } => "escalated",
        }
    }

    pub(super) fn failed(error: &BoxError) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::Failed { error: text }
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

/// The exit code of a process whose root supervisor ended for this reason: 0 if nothing was lost, otherwise 1.
impl From<&ExitReason> for ExitCode {
    fn from(reason: &ExitReason) -> Self {
        if reason.is_clean() { Self::SUCCESS } else { Self::FAILURE }
    }
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
    fn only_exits_that_lose_nothing_are_clean() {
        let child = Name::root("towline").child("sync");
        let lossy = [
            ExitReason::DrainTimedOut,
            ExitReason::Failed { error: "e".to_owned() },
            ExitReason::Panicked { message: "m".to_owned() },
            ExitReason::Stalled { after: Duration::from_secs(7) },
            ExitReason::Escalated { child },
        ];
        assert!(ExitReason::Finished.is_clean() && ExitReason::Drained.is_clean());
        assert!(lossy.iter().all(|reason| !reason.is_clean()), "one of {lossy:?} counts as clean");
    }

    #[test]
    fn a_reason_survives_json() {
        let reason = ExitReason::Stalled { after: Duration::from_millis(1_500) };
        let text = serde_json::to_string(&reason).unwrap();
        assert_eq!(text, r#"{"stalled":{"after":"1s 500ms"}}"#);
        assert_eq!(serde_json::from_str::<ExitReason>(&text).unwrap(), reason);
    }
}
