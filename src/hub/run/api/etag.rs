//! Entity tags: the version of a document between quotes.

use http::header::{HeaderName, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue};

use crate::documents::{Problem, ProblemKind};

/// The entity tag of a version.
pub(super) fn of(version: i64) -> HeaderValue {
    // Digits between quotes are a header's value.
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

/// Whether `If-None-Match` has this version, so that the client has the document already.
pub(super) fn is_known(headers: &HeaderMap, present: i64) -> Result<bool, Problem> {
    // Weak comparison, as RFC 9110 demands for this header.
    let is_present = |tag: &String| tag == "*" || version(tag.strip_prefix("W/").unwrap_or(tag)) == Some(present);
    Ok(tags(headers, &IF_NONE_MATCH)?.iter().any(is_present))
}

fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<String>, Problem> {
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let malformed = |_| Problem::new(ProblemKind::Malformed, format!("the header {name} is not valid"));
        // Our tags have no commas in them.
        tags.extend(value.to_str().map_err(malformed)?.split(',').map(|tag| tag.trim().to_owned()));
    }
    tags.retain(|tag| !tag.is_empty());
    Ok(tags)
}

/// The version of a strong tag of ours.
fn version(tag: &str) -> Option<i64> {
    let digits = tag.strip_prefix('"')?.strip_suffix('"')?;
    digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &HeaderName, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_client_knows_a_document_by_any_of_its_tags() {
        for (values, expected) in
            [(&["\"41\""][..], true), (&["\"40\", W/\"41\""], true), (&["*"], true), (&["\"40\""], false), (&[], false)]
        {
            assert_eq!(is_known(&headers(&IF_NONE_MATCH, values), 41).ok(), Some(expected), "{values:?}");
        }
    }
}
