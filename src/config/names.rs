//! Names of clusters and sections, and what Kubernetes accepts as a name.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

/// Longest DNS label, and so the longest namespace (RFC 1123), and the longest value of a label and kind.
pub const LONGEST_LABEL: usize = 63;
/// The name of the section `[status_sync]`, of its Lease and of its state. No other section may have it.
pub const STATUS_SYNC: &str = "status-sync";
/// Longest DNS subdomain, and so the longest object name of most kinds.
pub const LONGEST_SUBDOMAIN: usize = 253;

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
    fn keys_of_labels_have_at_most_one_domain() {
        for right in ["app", "app.kubernetes.io/name", "A_b.c"] {
            assert!(is_label_key(right), "{right}");
        }
        for wrong in ["", "/a", "a/", "a/b/c", "A.b/c", "-a"] {
            assert!(!is_label_key(wrong), "{wrong}");
        }
    }
}
