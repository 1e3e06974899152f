//! Kinds of objects, as the configuration writes them.

use std::fmt;
use std::str::FromStr;

use super::names::{is_label, is_subdomain};
use super::setting::{Setting, Unfit};

/// A kind by plural, version and group: `databases.v1.demo.towline.dev`, and `configmaps.v1` of the core group.
///
/// Only the form is checked here; discovery finds out whether a cluster serves the kind and whether it is namespaced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId {
    /// Plural name, as in URLs.
    pub plural: String,
    /// Version, such as `v1` or `v1beta1`.
    pub version: String,
    /// API group; empty for the core group.
    pub group: String,
}

impl ResourceId {
    /// `plural.group`, which is the same for all versions of a kind.
    pub fn plural_and_group(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether both refer to the same objects: an API server serves each object in every version of its kind.
    pub fn same_objects(&self, other: &Self) -> bool {
        self.plural == other.plural && self.group == other.group
    }

    /// A placeholder for a kind with a fault, so that reading can continue.
    pub fn stand_in() -> Self {
        Self { plural: "unnamed".to_owned(), version: "v1".to_owned(), group: String::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form plural.version.group, or plural.version for the core group")]
pub struct InvalidResource;

impl FromStr for ResourceId {
    type Err = InvalidResource;

    fn from_str(text: &str) -> Result<Self, InvalidResource> {
        let mut parts = text.splitn(3, '.');
        let (Some(plural), Some(version)) = (parts.next(), parts.next()) else {
            return Err(InvalidResource);
        };
        let group = parts.next();
        if is_label(plural) && is_version(version) && group.is_none_or(is_subdomain) {
            let group = group.unwrap_or_default().to_owned();
            Ok(Self { plural: plural.to_owned(), version: version.to_owned(), group })
        } else {
            Err(InvalidResource)
        }
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.plural, self.version)?;
        if self.group.is_empty() { Ok(()) } else { write!(formatter, ".{}", self.group) }
    }
}

impl Setting for ResourceId {
    const ALLOWED: &'static str =
        "plural.version.group such as \"databases.v1.demo.towline.dev\", or plural.version for the core group";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|InvalidResource| {
            let second = text.split('.').nth(1);
            match second {
                Some(second) if !is_version(second) => Unfit::because(format!("`{second}` is not a version")),
                Some(_) => Unfit::default(),
                None => Unfit::because("the version is missing"),
            }
        })
    }
}

/// Begins with `v` and a digit. Kubernetes allows other versions, but none exists in practice, and forgetting the version (so
/// that the group's first part is taken for it) would otherwise only show as a kind that is not served.
fn is_version(text: &str) -> bool {
    is_label(text)
        && text.strip_prefix('v').is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_written_as_kubectl_writes_it() {
        let database: ResourceId = "databases.v1beta2.demo.towline.dev".parse().expect("a kind");
        assert_eq!(
            (database.plural.as_str(), database.version.as_str(), database.group.as_str()),
            ("databases", "v1beta2", "demo.towline.dev")
        );
        assert_eq!(database.plural_and_group(), "databases.demo.towline.dev");
        assert_eq!(database.to_string(), "databases.v1beta2.demo.towline.dev");
    }

    #[test]
    fn the_core_group_is_left_out() {
        let config_map: ResourceId = "configmaps.v1".parse().expect("a kind");
        assert_eq!(config_map.group, "");
        assert_eq!(config_map.plural_and_group(), "configmaps");
        assert_eq!(config_map.to_string(), "configmaps.v1");
    }

    #[test]
    fn versions_of_a_kind_are_the_same_objects() {
        let [one, two, other] =
            ["a.v1.g.io", "a.v2.g.io", "a.v1.h.io"].map(|text| text.parse::<ResourceId>().expect("a kind"));
        assert!(one.same_objects(&two));
        assert!(!one.same_objects(&other));
    }

    #[test]
    fn a_missing_version_is_told() {
        let reason = |text: &str| ResourceId::from_text(text).expect_err("no kind").reason;
        assert_eq!(reason("databases").as_deref(), Some("the version is missing"));
        assert_eq!(reason("databases.demo.towline.dev").as_deref(), Some("`demo` is not a version"));
        for wrong in ["", ".v1", "a.v1.", "A.v1", "a.v1.G", "a.v"] {
            assert!(wrong.parse::<ResourceId>().is_err(), "{wrong}");
        }
    }
}
