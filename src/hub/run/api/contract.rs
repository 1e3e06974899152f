//! What operations read and answer: media types, headers, and statuses.
//!
//! The handlers and the OpenAPI document use this one table: `media` accepts these bodies, a debug build stops at an answer that
//! is not here, and `openapi` describes what is.

use http::StatusCode;

use super::media::Media;
use super::routes::Action;
use crate::documents::ProblemKind;
use crate::hub::run::problem;
use crate::job::routes::ApiRoute;

/// An answer to a request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) struct Success {
    pub(in crate::hub) status: StatusCode,
    /// The media types that it may have; none without a body.
    pub(in crate::hub) media: &'static [&'static str],
    /// The headers that clients use.
    pub(in crate::hub) headers: &'static [&'static str],
}

pub(in crate::hub) const JSON: &str = "application/json";
pub(in crate::hub) const LINES: &str = "application/x-ndjson";
pub(in crate::hub) const SERVER_SENT_EVENTS: &str = "text/event-stream";

const ETAG: &str = "ETag";
const LOCATION: &str = "Location";

const DOCUMENT: Success = Success { status: StatusCode::OK, media: &[JSON], headers: &[ETAG] };
const WITHOUT_VERSION: Success = Success { headers: &[], ..DOCUMENT };

/// Bodies that are a document.
pub(in crate::hub) const DOCUMENTS: &[(&str, Media)] = &[(JSON, Media::Json)];
/// Bodies that change parts of a document.
const PATCHES: &[(&str, Media)] =
    &[("application/merge-patch+json", Media::MergePatch), ("application/json-patch+json", Media::JsonPatch)];
/// Bodies that are many documents.
const MANIFESTS: &[(&str, Media)] = &[
    (JSON, Media::Json),
    ("application/yaml", Media::Yaml),
    ("application/x-yaml", Media::Yaml),
    ("text/yaml", Media::Yaml),
];

/// Problems of any request. The server refuses a body that is too large whether the operation reads it or not.
const OF_ALL: [ProblemKind; 7] = [
    ProblemKind::Malformed,
    ProblemKind::Parameter,
    ProblemKind::Unauthenticated,
    ProblemKind::Forbidden,
    ProblemKind::TooLarge,
    ProblemKind::Busy,
    ProblemKind::Unavailable,
];
/// Problems of any body.
const OF_BODIES: [ProblemKind; 2] = [ProblemKind::MediaType, ProblemKind::Invalid];
/// Problems of any change that is no deletion.
const OF_QUOTAS: [ProblemKind; 2] = [ProblemKind::Quota, ProblemKind::ChangeQuota];
/// Problems of any change of a document that exists.
const OF_CHANGES: [ProblemKind; 5] = [
    ProblemKind::NotFound,
    ProblemKind::Conflict,
    ProblemKind::Identity,
    ProblemKind::Precondition,
    ProblemKind::OutcomeUnknown,
];

/// Problems of an operation beside those of all, each once, ordered by status.
fn all_problems(own: &[&[ProblemKind]]) -> Vec<ProblemKind> {
    let mut problems: Vec<ProblemKind> = OF_ALL.into_iter().chain(own.concat()).collect();
    problems.sort_by_key(|kind| problem::status(*kind));
    problems
}

/// The problems of a route of another job, each once, ordered by status.
pub(in crate::hub) fn problems_of_mounted(route: &ApiRoute) -> Vec<ProblemKind> {
    let of_body: &[ProblemKind] = if route.body.is_some() { &OF_BODIES } else { &[] };
    all_problems(&[of_body, route.problems])
}

impl Action {
    /// The headers that it reads, beside those of all requests.
    pub(in crate::hub) fn headers(self) -> &'static [&'static str] {
        match self {
            Self::List => &["Last-Event-ID"],
            Self::Read => &["If-None-Match"],
            Self::Create | Self::Replace | Self::Patch | Self::Delete | Self::ReplaceStatus | Self::PatchStatus => {
                &["If-Match"]
            }
            Self::Apply => &[],
        }
    }

    /// The media types of its body, and how each is written.
    pub(in crate::hub) fn bodies(self) -> &'static [(&'static str, Media)] {
        match self {
            Self::List | Self::Read => &[],
            Self::Create | Self::Replace | Self::Delete | Self::ReplaceStatus => DOCUMENTS,
            Self::Patch | Self::PatchStatus => PATCHES,
            Self::Apply => MANIFESTS,
        }
    }

    /// Its answers if it is carried out.
    pub(in crate::hub) fn successes(self) -> &'static [Success] {
        match self {
            Self::List => {
                &[Success { status: StatusCode::OK, media: &[JSON, LINES, SERVER_SENT_EVENTS], headers: &[] }]
            }
            Self::Create => {
                // With `dryRun=true` there is no document that has a version or a place.
                &[Success { status: StatusCode::CREATED, media: &[JSON], headers: &[ETAG, LOCATION] }, WITHOUT_VERSION]
            }
            Self::Read => &[DOCUMENT, Success { status: StatusCode::NOT_MODIFIED, media: &[], headers: &[ETAG] }],
            Self::Replace | Self::Patch | Self::ReplaceStatus | Self::PatchStatus => &[DOCUMENT],
            Self::Delete => &[DOCUMENT, Success { status: StatusCode::ACCEPTED, ..DOCUMENT }],
            Self::Apply => &[WITHOUT_VERSION],
        }
    }

    /// Its problems, each once, ordered by status.
    pub(in crate::hub) fn problems(self) -> Vec<ProblemKind> {
        let own: &[&[ProblemKind]] = match self {
            Self::List => &[&[ProblemKind::Gone]],
            Self::Read => &[&[ProblemKind::NotFound]],
            Self::Create => &[
                &OF_BODIES,
                &OF_QUOTAS,
                &[ProblemKind::Exists, ProblemKind::Precondition, ProblemKind::OutcomeUnknown],
            ],
            Self::Replace | Self::ReplaceStatus => {
                &[&OF_BODIES, &OF_QUOTAS, &OF_CHANGES, &[ProblemKind::PreconditionRequired]]
            }
            Self::Patch | Self::PatchStatus => &[&OF_BODIES, &OF_QUOTAS, &OF_CHANGES, &[ProblemKind::TestFailed]],
            Self::Delete => &[&OF_BODIES, &OF_CHANGES],
            // The problems of single documents are parts of its answer.
            Self::Apply => &[&OF_BODIES],
        };
        all_problems(own)
    }

    /// Whether an answer to it may have this status.
    pub(in crate::hub) fn may_answer(self, status: StatusCode) -> bool {
        self.successes().iter().any(|success| success.status == status)
            || self.problems().into_iter().any(|kind| problem::status(kind) == status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::run::api::routes::operations;

    #[test]
    fn an_operation_has_each_status_of_success_and_each_problem_once() {
        for operation in operations() {
            let (successes, problems) = (operation.action.successes(), operation.action.problems());
            for (index, success) in successes.iter().enumerate() {
                assert!(!success.status.is_client_error() && !success.status.is_server_error(), "{operation:?}");
                assert!(successes.iter().skip(index + 1).all(|other| other.status != success.status), "{operation:?}");
            }
            for (index, kind) in problems.iter().enumerate() {
                assert!(!problems[index + 1..].contains(kind), "{operation:?}: {kind:?}");
            }
            assert!(problems.is_sorted_by_key(|kind| problem::status(*kind)), "{operation:?}: {problems:?}");
        }
    }

    #[test]
    fn an_answer_that_no_operation_of_its_kind_has_is_recognized() {
        assert!(Action::Create.may_answer(StatusCode::CREATED) && Action::Create.may_answer(StatusCode::CONFLICT));
        assert!(!Action::Replace.may_answer(StatusCode::CREATED) && !Action::Read.may_answer(StatusCode::CONFLICT));
        assert!(!Action::Create.may_answer(StatusCode::NOT_FOUND));
        assert!(!Action::Read.may_answer(StatusCode::INTERNAL_SERVER_ERROR));
    }
}
