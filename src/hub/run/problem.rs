//! Problems as answers: `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use crate::documents::{Fault, PROBLEM_TYPES, Problem, ProblemKind};

pub const PROBLEM_JSON: &str = "application/problem+json";
/// `Retry-After` where a problem names no time: an overload or a failover of the database lasts that long or longer.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

#[derive(Serialize)]
pub struct ProblemBody<'p> {
    #[serde(rename = "type")]
    kind: String,
    title: &'p str,
    status: u16,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'p [Fault],
}

/// A problem as the result of a handler.
#[derive(Debug)]
pub struct Refused(pub Problem);

impl<P: Into<Problem>> From<P> for Refused {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        answer(&self.0)
    }
}

pub fn status(kind: ProblemKind) -> StatusCode {
    match kind {
        ProblemKind::Malformed | ProblemKind::Parameter => StatusCode::BAD_REQUEST,
        ProblemKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ProblemKind::Forbidden | ProblemKind::Quota => StatusCode::FORBIDDEN,
        ProblemKind::NotFound => StatusCode::NOT_FOUND,
        ProblemKind::Method => StatusCode::METHOD_NOT_ALLOWED,
        ProblemKind::Exists | ProblemKind::Conflict | ProblemKind::Identity | ProblemKind::TestFailed => {
            StatusCode::CONFLICT
        }
        ProblemKind::Gone => StatusCode::GONE,
        ProblemKind::Precondition => StatusCode::PRECONDITION_FAILED,
        ProblemKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ProblemKind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ProblemKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        ProblemKind::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
        ProblemKind::Busy | ProblemKind::ChangeQuota => StatusCode::TOO_MANY_REQUESTS,
        ProblemKind::Unavailable | ProblemKind::OutcomeUnknown => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The headers of answers with this status, beside those of all answers.
pub fn headers(status: StatusCode) -> &'static [&'static str] {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => &["Retry-After"],
        StatusCode::UNAUTHORIZED => &["WWW-Authenticate"],
        _ => &[],
    }
}

/// The body of a problem, also for the lines of a watch and the results of an apply.
pub fn body(problem: &Problem) -> ProblemBody<'_> {
    ProblemBody {
        kind: format!("{PROBLEM_TYPES}{}", problem.kind.as_str()),
        title: &problem.title,
        status: status(problem.kind).as_u16(),
        errors: &problem.faults,
    }
}

/// The answer to a request that has not been carried out.
pub fn answer(problem: &Problem) -> Response {
    let status = status(problem.kind);
    // Plain data always serializes.
    let json = serde_json::to_vec(&body(problem)).unwrap_or_default();
    let mut answer = (status, [(CONTENT_TYPE, PROBLEM_JSON)], json).into_response();
    // For the record of who was refused why.
    answer.extensions_mut().insert(problem.kind);
    let headers = answer.headers_mut();
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        // In whole seconds, and never earlier than told.
        let after = problem.retry_after.unwrap_or(RETRY_AFTER_DEFAULT).as_millis().div_ceil(1000).max(1);
        headers.insert(RETRY_AFTER, HeaderValue::from(u64::try_from(after).unwrap_or(u64::MAX)));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    async fn read(answer: Response) -> Value {
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }

    #[tokio::test]
    async fn a_problem_shows_its_type_status_and_every_fault() {
        let fault = Fault::new("/spec/patchs", "an unknown field").suggestion(Some("patches".to_owned()));
        let mode = Fault::new("/spec/resourceApplyMode", "\"Synk\"").allowed("Upsert or Sync");
        let answer = answer(&Problem::invalid(vec![mode, fault]));
        assert_eq!(answer.status(), 422);
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        let expected = json!({
            "type": "urn:towline:problem:invalid", "title": "the document is not valid", "status": 422, "errors": [
                {"pointer": "/spec/resourceApplyMode", "found": "\"Synk\"", "allowed": "Upsert or Sync"},
                {"pointer": "/spec/patchs", "found": "an unknown field", "suggestion": "patches"}]
        });
        assert_eq!(read(answer).await, expected);
    }

    #[tokio::test]
    async fn an_overload_and_an_outage_say_when_to_try_again() {
        for (kind, after, expected) in [
            (ProblemKind::Busy, None, "1"),
            (ProblemKind::Unavailable, Some(Duration::from_millis(2001)), "3"),
            (ProblemKind::OutcomeUnknown, Some(Duration::ZERO), "1"),
        ] {
            let problem = Problem { retry_after: after, ..Problem::new(kind, "later") };
            assert_eq!(answer(&problem).headers()[RETRY_AFTER], expected, "{kind:?}");
        }
        let denied = answer(&Problem::new(ProblemKind::Unauthenticated, "no token"));
        assert_eq!(
            (denied.status().as_u16(), &denied.headers()[WWW_AUTHENTICATE]),
            (401, &"Bearer".parse().expect("a value"))
        );
        assert!(denied.headers().get(RETRY_AFTER).is_none());
    }
}
