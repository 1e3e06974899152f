//! What is wrong with a request, as its sender is told (RFC 9457 calls it a problem).

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

/// Why a request has not been carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{title}")]
pub struct Problem {
    pub kind: ProblemKind,
    /// What is wrong, in a sentence without a full stop. It never repeats a value that may be secret.
    pub title: String,
    /// Each single fault, where there are several.
    pub faults: Vec<Fault>,
    /// When another attempt may succeed.
    pub retry_after: Option<Duration>,
    /// Why the hub could not do what was asked, for the log alone; none if the request itself is the reason.
    #[source]
    pub cause: Option<Cause>,
}

impl From<crate::yaml::Error> for Problem {
    fn from(error: crate::yaml::Error) -> Self {
        Self::new(ProblemKind::Malformed, error.to_string())
    }
}

/// Why the hub could not do what was asked. Its sender never sees it: problems that differ in their causes alone are equal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{source}")]
pub struct Cause {
    source: Arc<dyn Error + Send + Sync>,
    is_outage: bool,
}

impl Cause {
    /// Whether other requests fail for the same reason: the database gives no answers, or no connections.
    pub fn is_outage(&self) -> bool {
        self.is_outage
    }
}

impl PartialEq for Cause {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Cause {}

/// A fault at one place of a document. It names a sealed field's path, and never its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The place: a JSON pointer.
    pub pointer: String,
    /// What is there, or "missing".
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// The kinds of problems: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    Malformed,
    /// A parameter is unknown, repeated or has a wrong value.
    Parameter,
    /// No token, or one that nobody knows.
    Unauthenticated,
    /// The token does not allow this.
    Forbidden,
    /// The namespace would have more documents or bytes than it may have.
    Quota,
    /// The namespace has changed too much for now.
    ChangeQuota,
    /// There is no such document or route.
    NotFound,
    /// The route does not have this method.
    Method,
    /// A document of this name exists.
    Exists,
    /// The document has another version than the one that the request was made from.
    Conflict,
    /// The document has another id.
    Identity,
    /// An operation `test` of a JSON patch failed.
    TestFailed,
    /// The version is no longer available, or not yet.
    Gone,
    /// The condition in `If-Match` does not hold.
    Precondition,
    /// The document or the request is too large.
    TooLarge,
    /// The body has a media type or an encoding that is not accepted.
    MediaType,
    Invalid,
    /// A request that replaces a document must say which version.
    PreconditionRequired,
    /// Too much is under way.
    Busy,
    /// The database does not answer. Nothing was written.
    Unavailable,
    /// The answer of the database was lost, and so is whether it has written.
    OutcomeUnknown,
}

impl Problem {
    pub fn new(kind: ProblemKind, title: impl Into<String>) -> Self {
        Self { kind, title: title.into(), faults: Vec::new(), retry_after: None, cause: None }
    }

    pub fn invalid(faults: Vec<Fault>) -> Self {
        Self { faults, ..Self::new(ProblemKind::Invalid, "the document is not valid") }
    }

    /// The same for which another attempt may succeed after this time.
    #[must_use]
    pub fn retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// The same with what has failed, and whether that is an outage.
    #[must_use]
    pub fn caused_by(self, error: impl Error + Send + Sync + 'static, is_outage: bool) -> Self {
        Self { cause: Some(Cause { source: Arc::new(error), is_outage }), ..self }
    }
}

impl Fault {
    pub fn new(pointer: impl Into<String>, found: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), found: found.into(), allowed: None, suggestion: None }
    }

    /// Adds what is allowed at this place.
    #[must_use]
    pub fn allowed(self, allowed: impl Into<String>) -> Self {
        Self { allowed: Some(allowed.into()), ..self }
    }

    /// Adds what was probably meant.
    #[must_use]
    pub fn suggestion(self, suggestion: Option<String>) -> Self {
        Self { suggestion, ..self }
    }
}

/// What the `type` of each problem begins with: `urn:towline:problem:gone`.
pub const PROBLEM_TYPES: &str = "urn:towline:problem:";

impl ProblemKind {
    /// Its name, the last part of its `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Parameter => "parameter",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Quota => "quota",
            Self::ChangeQuota => "change-quota",
            Self::NotFound => "not-found",
            Self::Method => "method",
            Self::Exists => "exists",
            Self::Conflict => "conflict",
            Self::Identity => "identity",
            Self::TestFailed => "test-failed",
            Self::Gone => "gone",
            Self::Precondition => "precondition",
            Self::TooLarge => "too-large",
            Self::MediaType => "media-type",
            Self::Invalid => "invalid",
            Self::PreconditionRequired => "precondition-required",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::OutcomeUnknown => "outcome-unknown",
        }
    }
}
