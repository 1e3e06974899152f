//! Answers that a client need not have again.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use hyper::body::Bytes;
use sha2::{Digest, Sha256};

/// A body with its digest as `ETag`; 304 without the body if the client says that it has it.
pub fn tagged(asked: &HeaderMap, media: &'static str, body: impl Into<Bytes>) -> Response {
    let body = body.into();
    let tag = format!("\"{:x}\"", Sha256::digest(&body));
    let headers = [(ETAG, tag.clone()), (CACHE_CONTROL, "no-cache".to_owned())];
    let known = asked.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag);
    if is_known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, [(CONTENT_TYPE, media)], body).into_response()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_a_client_has_is_not_sent_again() {
        let first = tagged(&HeaderMap::new(), "text/plain", "one");
        let tag = first.headers()[ETAG].clone();
        let asked = |known: HeaderValue| HeaderMap::from_iter([(IF_NONE_MATCH, known)]);
        let weak = HeaderValue::from_str(&format!("\"other\", W/{}", tag.to_str().expect("text"))).expect("a header");
        for known in [tag.clone(), weak] {
            assert_eq!(tagged(&asked(known), "text/plain", "one").status(), StatusCode::NOT_MODIFIED);
        }
        let changed = tagged(&asked(tag.clone()), "text/plain", "two");
        assert_eq!((changed.status(), changed.headers()[ETAG] == tag), (StatusCode::OK, false));
    }
}
