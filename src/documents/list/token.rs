//! The token that continues a list.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::documents::filter::{Filter, wrong};
use crate::documents::problem::Problem;

const MAX_LENGTH: usize = 1024;

/// The place behind a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The version whose state the list shows.
    pub(super) version: i64,
    /// Namespace of the page's last item.
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// The version.
    r: i64,
    /// The last key.
    k: (String, String),
    /// The filter's digest.
    h: String,
}

impl Continue {
    /// The token for clients. It is only good for the same kind and filters.
    pub fn encode(&self, filter: &Filter) -> String {
        let content = Content { r: self.version, k: (self.namespace.clone(), self.name.clone()), h: filter.digest() };
        // A number and texts always become JSON.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&content).unwrap_or_default())
    }

    pub fn decode(token: &str, filter: &Filter) -> Result<Self, Problem> {
        let wrong = |reason: &str| wrong("continue", reason);
        if token.len() > MAX_LENGTH {
            return Err(wrong(&format!("it is longer than {MAX_LENGTH} characters")));
        }
        let decoded = URL_SAFE_NO_PAD.decode(token).ok();
        let content = decoded.and_then(|decoded| serde_json::from_slice::<Content>(&decoded).ok());
        let Some(Content { r: version, k: (namespace, name), h: digest }) = content else {
            return Err(wrong("it does not come from a list"));
        };
        if digest != filter.digest() {
            return Err(wrong("it comes from a list of another kind or with other filters"));
        }
        // The database can't subtract the lowest numbers, and has no text with U+0000.
        if version < 0 || namespace.contains('\0') || name.contains('\0') {
            return Err(wrong("it does not come from a list"));
        }
        Ok(Self { version, namespace, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::{Kind, ProblemKind};

    fn filter() -> Filter {
        Filter::of(Kind::Cluster).selected_by("env=prod").expect("a selector")
    }

    fn refused(token: &str) -> String {
        let problem = Continue::decode(token, &filter()).expect_err(token);
        assert_eq!(problem.kind, ProblemKind::Parameter);
        problem.title
    }

    #[test]
    fn a_token_of_the_longest_key_is_read_back_and_short_enough() {
        let place = Continue { version: i64::MAX, namespace: "n".repeat(63), name: "m".repeat(253) };
        let token = place.encode(&filter());
        assert!(token.len() <= MAX_LENGTH && token.starts_with("eyJy"), "{token}");
        assert_eq!(Continue::decode(&token, &filter()), Ok(place));
    }

    #[test]
    fn a_token_of_another_list_is_refused() {
        let place = Continue { version: 41, namespace: "foo".to_owned(), name: "c1".to_owned() };
        for other in [Filter::of(Kind::Cluster), Filter::of(Kind::Secret).selected_by("env=prod").expect("a selector")]
        {
            let reason = refused(&place.encode(&other));
            assert!(reason.ends_with("it comes from a list of another kind or with other filters"), "{reason}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        assert!(refused(&"e".repeat(MAX_LENGTH + 1)).ends_with("it is longer than 1024 characters"));
        let of_json = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let digest = filter().digest();
        for token in [
            String::new(),
            "?".to_owned(),
            of_json("{}"),
            of_json(&format!(r#"{{"r":1.5,"k":["a","b"],"h":"{digest}"}}"#)),
            of_json(&format!(r#"{{"r":1,"k":["a","b"],"h":"{digest}","x":1}}"#)),
            of_json(&format!(r#"{{"r":1,"k":["a","\u0000"],"h":"{digest}"}}"#)),
            of_json(&format!(r#"{{"r":-1,"k":["a","b"],"h":"{digest}"}}"#)),
        ] {
            assert!(refused(&token).ends_with("it does not come from a list"), "{token}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_place_is_read_back(version in 0..=i64::MAX, namespace in "[a-z0-9-]{0,63}", name in "[a-z0-9.-]{0,253}") {
            let place = Continue { version, namespace, name };
            proptest::prop_assert_eq!(Continue::decode(&place.encode(&filter()), &filter()), Ok(place));
        }

        #[test]
        fn no_text_is_more_than_refused(token in "\\PC*") {
            proptest::prop_assert!(Continue::decode(&token, &filter()).is_err());
        }
    }
}
