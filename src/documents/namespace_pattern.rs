//! Patterns of namespaces, by which a `SelectorSyncSet` limits its clusters.

use crate::config::names::is_label;

/// A namespace, or all that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespacePattern {
    pub(crate) text: String,
    /// Whether the text is only the beginning: it was written with `*` behind it.
    pub(crate) is_prefix: bool,
}

impl NamespacePattern {
    pub const ALLOWED: &str = "a namespace, a prefix such as \"team-*\", or \"*\"";

    pub fn parse(text: &str) -> Option<Self> {
        let (text, is_prefix) = text.strip_suffix('*').map_or((text, false), |prefix| (prefix, true));
        let is_valid = if is_prefix { text.is_empty() || is_label(&format!("{text}0")) } else { is_label(text) };
        is_valid.then(|| Self { text: text.to_owned(), is_prefix })
    }

    /// Whether a namespace is one of those.
    pub fn matches(&self, namespace: &str) -> bool {
        if self.is_prefix { namespace.starts_with(&self.text) } else { namespace == self.text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_namespace_or_a_prefix() {
        let matches =
            |pattern: &str, namespace: &str| NamespacePattern::parse(pattern).map(|pattern| pattern.matches(namespace));
        for (pattern, namespace, is_matched) in [
            ("*", "team-a", true),
            ("*", "", true),
            ("team-*", "team-a", true),
            ("team-*", "team-", true),
            ("team-*", "team", false),
            ("team*", "team", true),
            ("team-a", "team-a", true),
            ("team-a", "team-ab", false),
            ("team-a", "a", false),
        ] {
            assert_eq!(matches(pattern, namespace), Some(is_matched), "{pattern} {namespace}");
        }
        for wrong in ["", "Team", "te*am", "**", "*-a", "-*", "a/b"] {
            assert_eq!(NamespacePattern::parse(wrong), None, "{wrong}");
        }
    }
}
