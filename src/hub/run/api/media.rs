//! The media types of bodies and answers.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};

use super::routes::Action;
use crate::documents::{Problem, ProblemKind};

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum Media {
    /// A document, or several, as JSON.
    Json,
    /// Several documents as YAML.
    Yaml,
    /// RFC 7396.
    MergePatch,
    /// RFC 6902.
    JsonPatch,
}

/// How a watch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// A JSON document a line.
    Lines,
    /// Server-sent events.
    Events,
}

/// The default media type of `curl -d`. A page in a browser can send it to any server without asking before.
const FORM: &str = "application/x-www-form-urlencoded";

/// How the body of a request is written. `is_local`: without tokens pages are refused by other headers, so that a body with the
/// default type of `curl -d` counts as JSON.
pub(super) fn of_body(action: Action, headers: &HeaderMap, is_local: bool) -> Result<Media, Problem> {
    let has_default = is_local && !matches!(action, Action::Patch | Action::PatchStatus);
    of_one_of(action.bodies(), headers, has_default)
}

/// How a body of one of these types is written. `has_default`: one with the default type of `curl -d` counts as JSON.
pub(super) fn of_one_of(
    allowed: &[(&'static str, Media)],
    headers: &HeaderMap,
    has_default: bool,
) -> Result<Media, Problem> {
    if headers.contains_key(CONTENT_ENCODING) {
        return Err(Problem::new(ProblemKind::MediaType, "bodies with a Content-Encoding are not accepted"));
    }
    let given = essence(headers);
    let found = given.as_deref().and_then(|given| allowed.iter().find(|(name, _)| *name == given));
    if let Some((_, media)) = found {
        return Ok(*media);
    }
    let is_default = given.as_deref().is_none_or(|given| given == FORM);
    if has_default && is_default {
        return Ok(Media::Json);
    }
    let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
    Err(Problem::new(ProblemKind::MediaType, format!("the Content-Type of the body must be {}", names.join(" or "))))
}

pub(super) fn of_watch(headers: &HeaderMap) -> Stream {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let mut types =
        accepts.flat_map(|accept| accept.split(',')).map(|one| one.split(';').next().unwrap_or_default().trim());
    if types.any(|one| one.eq_ignore_ascii_case("text/event-stream")) { Stream::Events } else { Stream::Lines }
}

/// The one media type of a request, without its parameters. A charset other than UTF-8 is no known type.
fn essence(headers: &HeaderMap) -> Option<String> {
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    let (first, second) = (given.next()?, given.next());
    let Some(text) = first.to_str().ok().filter(|_| second.is_none()) else { return Some(String::new()) };
    let text = text.to_ascii_lowercase();
    let (essence, parameters) = text.split_once(';').unwrap_or((&text, ""));
    let charset = parameters.split(';').find_map(|one| one.trim().strip_prefix("charset="));
    let is_utf8 = charset.is_none_or(|charset| charset.trim_matches('"') == "utf-8");
    Some(if is_utf8 { essence.trim().to_owned() } else { text.clone() })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HeaderName;

    use super::*;

    fn headers(given: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn of(action: Action, given: &'static str) -> Option<Media> {
        of_body(action, &headers(&[(CONTENT_TYPE, given)]), false).ok()
    }

    #[test]
    fn a_body_has_one_of_the_types_of_its_request() {
        for json in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""] {
            assert_eq!(of(Action::Create, json), Some(Media::Json), "{json}");
        }
        for other in
            ["text/plain", FORM, "application/json; charset=latin1", "application/yaml", "", "multipart/form-data"]
        {
            assert_eq!(of(Action::Replace, other), None, "{other}");
        }
        assert_eq!(of(Action::Apply, "application/yaml"), Some(Media::Yaml));
        assert_eq!(of(Action::Patch, "application/merge-patch+json"), Some(Media::MergePatch));
        assert_eq!(of(Action::PatchStatus, "application/json-patch+json"), Some(Media::JsonPatch));
        assert_eq!(of(Action::Patch, "application/json"), None);
        let twice = headers(&[(CONTENT_TYPE, "application/json"), (CONTENT_TYPE, "application/json")]);
        assert!(of_body(Action::Create, &twice, true).is_err());
    }

    #[test]
    fn encoded_bodies_are_refused() {
        for encoding in ["gzip", "identity"] {
            let given = headers(&[(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, encoding)]);
            let problem = of_body(Action::Create, &given, true).expect_err("a problem");
            assert_eq!(problem.kind, ProblemKind::MediaType, "{encoding}");
        }
    }

    #[test]
    fn without_tokens_what_curl_sends_by_default_is_json() {
        let form = headers(&[(CONTENT_TYPE, FORM)]);
        assert_eq!(of_body(Action::Create, &form, true).ok(), Some(Media::Json));
        assert_eq!(of_body(Action::Create, &HeaderMap::new(), true).ok(), Some(Media::Json));
        assert!(of_body(Action::Create, &form, false).is_err() && of_body(Action::Patch, &form, true).is_err());
        assert!(of_body(Action::Create, &headers(&[(CONTENT_TYPE, "text/plain")]), true).is_err());
    }

    #[test]
    fn a_browser_gets_server_sent_events() {
        assert_eq!(of_watch(&headers(&[(ACCEPT, "text/event-stream")])), Stream::Events);
        assert_eq!(of_watch(&headers(&[(ACCEPT, "text/html, Text/Event-Stream;q=0.5")])), Stream::Events);
        assert_eq!(of_watch(&headers(&[(ACCEPT, "*/*")])), Stream::Lines);
        assert_eq!(of_watch(&HeaderMap::new()), Stream::Lines);
    }
}
