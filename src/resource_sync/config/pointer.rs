//! Parts of an object that a section treats specially: fields by JSON pointer, labels and annotations by key pattern.

use std::fmt;

use crate::cluster::tool_marks::{KEY_PATTERN, is_key_pattern, is_match};
use crate::config::setting::{Setting, Unfit};
use crate::yaml::unescape;

/// A JSON pointer (RFC 6901) to a field within `/spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecPointer {
    text: String,
    segments: Vec<String>,
}

impl SpecPointer {
    /// The pointer as it was written: `/spec/replicas`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its segments, unescaped, the first of which is `spec`; at least two.
    pub fn segments(&self) -> &[String] {
        &self.segments
    }
}

impl fmt::Display for SpecPointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Setting for SpecPointer {
    const ALLOWED: &'static str = "a JSON pointer under /spec such as \"/spec/replicas\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let Some(path) = text.strip_prefix('/') else {
            let suggestion = text.starts_with("spec").then(|| format!("/{}", text.replace('.', "/")));
            return Err(Unfit { reason: None, suggestion });
        };
        let segments: Vec<String> = path
            .split('/')
            .map(unescape)
            .collect::<Option<_>>()
            .ok_or_else(|| Unfit::because("a ~ is not followed by 0 or 1"))?;
        let under_spec = segments.first().is_some_and(|first| first == "spec") && segments.len() > 1;
        if under_spec && segments.iter().all(|segment| !segment.is_empty()) {
            Ok(Self { text: text.to_owned(), segments })
        } else {
            Err(Unfit::default())
        }
    }
}

/// The key of a label or annotation; with a `*` at its end, all keys with this prefix; with `=value`, only with this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern(String);

impl KeyPattern {
    /// Whether a label or annotation matches.
    pub fn matches(&self, key: &str, value: &str) -> bool {
        is_match(&self.0, key, value)
    }

    /// A pattern that is known to be well formed.
    pub fn known(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Setting for KeyPattern {
    const ALLOWED: &'static str = KEY_PATTERN;

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if is_key_pattern(text) { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_leads_into_the_spec() {
        let pointer = SpecPointer::from_text("/spec/a~1b/0/c~0d").expect("a pointer");
        assert_eq!(pointer.segments(), ["spec", "a/b", "0", "c~d"]);
        assert_eq!(pointer.as_str(), "/spec/a~1b/0/c~0d");
        for wrong in ["", "/", "/spec", "/spec/", "/spec//a", "/status/a", "/specs/a", "/spec/a~2", "/spec/a~"] {
            assert!(SpecPointer::from_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_dotted_path_is_suggested_as_a_pointer() {
        let unfit = SpecPointer::from_text("spec.replicas").expect_err("not a pointer");
        assert_eq!(unfit.suggestion.as_deref(), Some("/spec/replicas"));
    }

    #[test]
    fn a_star_at_the_end_means_all_keys_that_begin_so() {
        let prefix = KeyPattern::from_text("argocd.argoproj.io/*").expect("a pattern");
        assert!(prefix.matches("argocd.argoproj.io/sync-wave", "1"));
        assert!(!prefix.matches("argoproj.io/sync-wave", "1"));
        let exact = KeyPattern::from_text("app").expect("a pattern");
        assert!(exact.matches("app", "a") && !exact.matches("apps", "a"));
        assert!(KeyPattern::from_text("*").is_ok_and(|all| all.matches("anything", "")));
        let of_value = KeyPattern::from_text("app.kubernetes.io/managed-by=Helm").expect("a pattern");
        assert!(of_value.matches("app.kubernetes.io/managed-by", "Helm"));
        assert!(!of_value.matches("app.kubernetes.io/managed-by", "argo") && !of_value.matches("managed-by", "Helm"));
        for wrong in ["", "=a", "a=*", "a*b", "**", "a b", "a/b/c"] {
            assert!(KeyPattern::from_text(wrong).is_err(), "{wrong}");
        }
    }
}
