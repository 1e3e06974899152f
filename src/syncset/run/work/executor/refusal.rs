//! What an error of a request is to a pass: a refusal of one request, or the end of the pass.

use std::time::Duration;

use crate::cluster::{Error, KindError};
use crate::syncset::plan::pass::{self, Page, Refusal, Refused};
use crate::syncset::plan::status::Unreachable;

/// The shortest and the longest wait after a 429, and the wait if the server names none.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
const UNTOLD_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The cluster does not answer, or does not accept the credentials.
    Silent {
        reason: Unreachable,
        /// What the cluster's document says.
        shown: String,
        /// What the log says. It may say more of the network that the cluster is in.
        logged: String,
    },
    /// The API server asks to send nothing.
    Throttled {
        /// For so long: from a second to a minute.
        told: Duration,
        message: String,
        /// What lists have brought that were read at once, with [`Refusal::Rejected`] for those that were answered so; empty for any other
        /// request.
        lists: Vec<Result<Page, Refused>>,
    },
    /// The claim on the cluster has ended: somebody else may work on it.
    Lost,
}

/// Why a request has no answer.
pub type Failed = pass::Failed<Stop>;

/// What a 404 means that is not about the object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The namespace of an object that is written, if the answer names that.
    Place,
    /// Nothing to rely on: what answered may be no API server.
    Unclear,
}

impl Failed {
    /// By the error of a request.
    pub(super) fn of(error: &Error, missing: Missing) -> Self {
        let refusal = match error {
            Error::Unavailable { .. } | Error::Connect { .. } | Error::NoAnswer { .. } => {
                return Self::silent(Unreachable::ErrorConnectingToCluster, error);
            }
            Error::Unauthorized { .. } => return Self::silent(Unreachable::Unauthorized, error),
            // A 5xx with `Retry-After` may be about one object, and would keep all others from being sent.
            Error::Throttled { code: 429, retry_after, .. } => {
                let told = retry_after.unwrap_or(UNTOLD_WAIT);
                let told = told.clamp(SHORTEST_WAIT, LONGEST_WAIT);
                return Self::Stopped(Stop::Throttled { told, message: error.message(), lists: Vec::new() });
            }
            Error::LeaseExpired(_) => return Self::Stopped(Stop::Lost),
            Error::Conflict { exists: true, .. } => Refusal::Exists,
            Error::Conflict { exists: false, .. } => Refusal::Conflict,
            Error::NotFound { .. } => Refusal::NotFound,
            Error::NotServed { of_namespace: true, .. } if missing == Missing::Place => Refusal::NotFound,
            Error::NamespaceTerminating { .. } => Refusal::NamespaceTerminating,
            Error::Forbidden { .. } => Refusal::Forbidden,
            Error::Rejected { code: 422, .. } => Refusal::Invalid,
            Error::Rejected { code: 415, .. } => Refusal::UnsupportedMediaType,
            Error::NotServed { .. } => Refusal::NotServed,
            Error::Rejected { .. } => Refusal::Rejected,
            Error::SchemaMismatch { .. } => Refusal::SchemaMismatch,
            Error::Throttled { .. } | Error::Server { .. } | Error::Decode { .. } => Refusal::Server,
        };
        Self::refused(refusal, error.message())
    }

    /// By the error of a look-up of a kind.
    pub(super) fn of_kind(error: &KindError) -> Self {
        match error {
            KindError::Unread(error) => Self::of(error, Missing::Unclear),
            unserved => Self::refused(Refusal::NotServed, unserved.to_string()),
        }
    }

    /// By the error of a probe; none if the cluster answers. A refusal is an answer, while an error of the server is none that a
    /// pass could do anything with.
    pub(super) fn of_probe(error: &Error) -> Option<Stop> {
        match Self::of(error, Missing::Unclear) {
            Self::Stopped(stop) => Some(stop),
            Self::Refused(Refused { refusal: Refusal::Server, message }) => {
                Some(Stop::silent(Unreachable::ErrorConnectingToCluster, message))
            }
            Self::Refused(_) => None,
        }
    }

    pub(super) fn refused(refusal: Refusal, message: String) -> Self {
        Self::Refused(Refused { refusal, message })
    }

    fn silent(reason: Unreachable, error: &Error) -> Self {
        Self::Stopped(Stop::Silent { reason, shown: error.public_message(), logged: error.message() })
    }
}

impl Stop {
    /// Of which the document shows as much as the log.
    pub(in crate::syncset::run::work) fn silent(reason: Unreachable, message: String) -> Self {
        Self::Silent { reason, shown: message.clone(), logged: message }
    }
}

impl From<Stop> for Failed {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}
