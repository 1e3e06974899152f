//! Names: of clusters and sections, and the pieces that Kubernetes names are put together from.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use super::setting::{Setting, Unfit};

/// Longest DNS label, and so the longest namespace (RFC 1123).
pub const LONGEST_LABEL: usize = 63;
/// The name of the section `[status_sync]`, and of its Lease and its state: no other section may have it.
pub const STATUS_SYNC: &str = "status-sync";
/// Longest DNS subdomain, and so the longest object name of most kinds.
const LONGEST_SUBDOMAIN: usize = 253;

/// A text that is no name: DNS labels have 1 to 63 of `a-z`, `0-9` and `-`, and begin and end with a letter or digit.
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
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// A name in the place of one whose fault is recorded, so that the walk can go on.
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
    /// Name of a section of whichever job, unique in a configuration. A DNS label.
    SectionName
}

/// The cluster of sections that name none: `[clusters.default]`, and where that is not configured what is found around
/// the process.
impl Default for ClusterName {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl SectionName {
    /// The name of the one section of a table, for a name that is known to be one.
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

/// A DNS subdomain of RFC 1123: labels separated by dots; Kubernetes lets a label of it be as long as the whole.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= LONGEST_SUBDOMAIN
        && text.split('.').all(|label| {
            label.starts_with(is_label_end)
                && label.ends_with(is_label_end)
                && label.chars().all(|character| is_label_end(character) || character == '-')
        })
}

/// The name part of a label, annotation or finalizer, and a label's value where it is not empty.
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
    /// The name of a Secret.
    SecretName, "a DNS subdomain, as secrets are named", is_subdomain
}

text_setting! {
    /// The name of an object of any kind.
    ObjectName, "the name of an object", |text| {
        !text.is_empty() && text.len() <= LONGEST_SUBDOMAIN && !text.contains(['/', '%'])
    }
}

text_setting! {
    /// The name of a Lease.
    LeaseName, "a DNS subdomain, as leases are named", is_subdomain
}

text_setting! {
    /// The name of a Pod.
    PodName, "a DNS subdomain, as pods are named", is_subdomain
}

text_setting! {
    /// The name of a namespace.
    NamespaceName, "a DNS label, as namespaces are named", is_label
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
    /// What namespaces begin with; may be empty.
    NamespacePrefix, "empty, or at most 62 of a-z, 0-9 and -, beginning with a letter or digit", |text| {
        // As long as a namespace would leave nothing to tell one namespace from another.
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("{text}0"))
    }
}

text_setting! {
    /// What local namespaces end with; may be empty.
    NamespaceSuffix, "empty, or at most 62 of a-z, 0-9 and -, ending with a letter or digit", |text| {
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("0{text}"))
    }
}

text_setting! {
    /// What remote objects' names end with; may be empty.
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
