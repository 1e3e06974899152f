//! Names of clusters and sections, and the parts of Kubernetes names.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use super::setting::{Setting, Unfit};

/// Longest DNS label, and so the longest namespace (RFC 1123).
pub const LONGEST_LABEL: usize = 63;
/// The name of the section `[status_sync]`, of its Lease and of its state. No other section may have it.
pub const STATUS_SYNC: &str = "status-sync";
/// Longest DNS subdomain, and so the longest object name of most kinds.
const LONGEST_SUBDOMAIN: usize = 253;

/// An invalid name: DNS labels have 1 to 63 of `a-z`, `0-9` and `-`, and begin and end with a letter or digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a DNS label (1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit)")]
pub struct InvalidName;

macro_rules! label_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// A placeholder for a name with a fault, so that reading can continue.
            pub fn stand_in() -> Self {
                Self("unnamed".to_owned())
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                if is_label(text) { Ok(Self(text.to_owned())) } else { Err(InvalidName) }
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        impl Setting for $name {
            const ALLOWED: &'static str =
                "a name of 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit";

            fn from_text(text: &str) -> Result<Self, Unfit> {
                text.parse().map_err(|InvalidName| {
                    let tamed = text.to_lowercase().replace(['_', '.', ' '], "-");
                    Unfit { reason: None, suggestion: is_label(&tamed).then_some(tamed) }
                })
            }
        }
    };
}

label_name! {
    /// Name of a cluster: `hub` for `[clusters.hub]`. A DNS label.
    ClusterName
}

label_name! {
    /// Name of a section, unique over all jobs of a configuration. A DNS label.
    SectionName
}

/// The cluster of sections that name none: `[clusters.default]`; if that is not configured, the pod's service account or
/// kubectl's configuration ([`ClusterAccess::Inferred`](super::ClusterAccess::Inferred)).
impl Default for ClusterName {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl SectionName {
    /// The name of a table's only section. `name` must be a DNS label.
    pub fn of_table(name: &'static str) -> Self {
        Self(name.to_owned())
    }
}

/// A DNS label of RFC 1123.
pub fn is_label(text: &str) -> bool {
    text.len() <= LONGEST_LABEL
        && text.chars().all(|character| is_label_end(character) || character == '-')
        && text.starts_with(is_label_end)
        && text.ends_with(is_label_end)
}

/// A DNS subdomain of RFC 1123: labels separated by dots. As in Kubernetes, only the whole length is limited.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= LONGEST_SUBDOMAIN
        && text.split('.').all(|label| {
            label.starts_with(is_label_end)
                && label.ends_with(is_label_end)
                && label.chars().all(|character| is_label_end(character) || character == '-')
        })
}

/// The name part of a label, annotation or finalizer, and a non-empty label value.
pub fn is_qualified_name(text: &str) -> bool {
    text.len() <= LONGEST_LABEL
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character))
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

/// A label's or annotation's key: a name part, after an optional domain and slash.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_qualified_name(name),
        None => is_qualified_name(text),
    }
}

fn is_label_end(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit()
}

macro_rules! text_setting {
    ($(#[$doc:meta])* $name:ident, $allowed:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Debug, PartialEq)]
        pub struct $name(String);

        impl Setting for $name {
            const ALLOWED: &'static str = $allowed;

            fn from_text(text: &str) -> Result<Self, Unfit> {
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(text) { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
            }
        }

        impl From<$name> for String {
            fn from(setting: $name) -> Self {
                setting.0
            }
        }
    };
}

text_setting! {
    SecretName, "the name of a Secret: a DNS subdomain", is_subdomain
}

text_setting! {
    LeaseName, "the name of a Lease: a DNS subdomain", is_subdomain
}

text_setting! {
    PodName, "the name of a Pod: a DNS subdomain", is_subdomain
}

text_setting! {
    NamespaceName, "the name of a namespace: a DNS label", is_label
}

text_setting! {
    /// The domain of annotations and a finalizer.
    Domain, "a DNS subdomain such as \"cloud.teleport.dev\"", is_subdomain
}

text_setting! {
    /// The name part of a finalizer.
    FinalizerName, "1 to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit", is_qualified_name
}

text_setting! {
    /// A prefix of namespaces; may be empty.
    NamespacePrefix, "empty, or at most 62 of a-z, 0-9 and -, beginning with a letter or digit", |text| {
        // A prefix as long as a namespace would leave no character for the rest of the name.
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("{text}0"))
    }
}

text_setting! {
    /// A suffix of local namespaces; may be empty.
    NamespaceSuffix, "empty, or at most 62 of a-z, 0-9 and -, ending with a letter or digit", |text| {
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("0{text}"))
    }
}

text_setting! {
    /// A suffix of remote objects' names; may be empty.
    ResourceSuffix, "empty, or at most 252 of a-z, 0-9, - and ., ending with a letter or digit", |text| {
        text.is_empty() || text.len() < LONGEST_SUBDOMAIN && is_subdomain(&format!("0{text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for right in ["a", "0", "hub", "eu-west-1", &"a".repeat(63)] {
            assert_eq!(right.parse::<SectionName>().map(|name| name.to_string()), Ok(right.to_owned()));
        }
        for wrong in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert_eq!(wrong.parse::<ClusterName>(), Err(InvalidName), "{wrong}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_a_label_is_suggested_as_one() {
        let unfit = ClusterName::from_text("EU_West").expect_err("not a label");
        assert_eq!(unfit.suggestion.as_deref(), Some("eu-west"));
        assert_eq!(ClusterName::from_text("_").expect_err("not a label").suggestion, None);
    }

    #[test]
    fn prefixes_and_suffixes_can_be_part_of_a_name() {
        for right in ["", "team-", "a", "-"] {
            assert_eq!(NamespacePrefix::from_text(right).is_ok(), right != "-", "prefix {right}");
        }
        for right in ["", "-local", "-a"] {
            assert!(NamespaceSuffix::from_text(right).is_ok(), "suffix {right}");
        }
        for wrong in ["-", "Local", ".a", &"a".repeat(63)] {
            assert!(NamespaceSuffix::from_text(wrong).is_err(), "suffix {wrong}");
        }
        assert!(ResourceSuffix::from_text(".edge-1").is_ok());
        assert!(ResourceSuffix::from_text("..a").is_err());
        assert!(ResourceSuffix::from_text(&"a".repeat(253)).is_err());
    }

    #[test]
    fn keys_of_labels_have_at_most_one_domain() {
        for right in ["app", "app.kubernetes.io/name", "A_b.c"] {
            assert!(is_label_key(right), "{right}");
        }
        for wrong in ["", "/a", "a/", "a/b/c", "A.b/c", "-a"] {
            assert!(!is_label_key(wrong), "{wrong}");
        }
    }
}
