//! The ids under which a cluster and its releases are known to the API.

use serde_json::Value;

/// The beginning of the id of a cluster.
const CLUSTER: &str = "K-";
/// The beginning of the id of a release.
const APP: &str = "A-";
/// The most characters behind that.
const LONGEST: usize = 64;

/// What the Secret `uuid` of a namespace says of the releases there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) enum GivenId {
    /// There is no such Secret.
    #[default]
    None,
    /// The id of all releases in the namespace.
    Given(String),
    /// The Secret has no usable value, so the releases wait.
    Unusable,
}

impl GivenId {
    /// By the value of the key `uuid`, or its absence from the Secret.
    pub(in crate::inventory) fn of(value: Option<&str>) -> Self {
        match value.filter(|value| is_id(value)) {
            Some(value) => Self::Given(format!("{APP}{value}")),
            None => Self::Unusable,
        }
    }

    /// As a cache holds it in place of the Secret's data: the id, which is sent anyway, or null.
    pub(in crate::inventory) fn to_content(&self) -> Value {
        match self {
            Self::Given(id) => Value::String(id.clone()),
            Self::None | Self::Unusable => Value::Null,
        }
    }

    /// Reads what [`Self::to_content`] has written.
    pub(in crate::inventory) fn of_content(content: &Value) -> Self {
        content.as_str().map_or(Self::Unusable, |id| Self::Given(id.to_owned()))
    }
}

/// Letters, digits and dashes: the value is part of a URL or of a key.
fn is_id(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(in crate::inventory) fn is_cluster_id(text: &str) -> bool {
    text.strip_prefix(CLUSTER).is_some_and(is_id)
}

/// Whether a text is the id of a release.
pub(in crate::inventory) fn is_app_id(text: &str) -> bool {
    text.strip_prefix(APP).is_some_and(is_id)
}

/// The id of a cluster that has none, by a new UUID.
pub(in crate::inventory) fn new_cluster_id(uuid: &str) -> String {
    format!("{CLUSTER}{uuid}")
}

/// The id of a release that has none, by a new UUID.
pub(in crate::inventory) fn new_app_id(uuid: &str) -> String {
    format!("{APP}{uuid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_1_to_64_letters_digits_and_dashes() {
        let longest = "a".repeat(LONGEST);
        for id in ["3f0e4c1a-7c0f-4d57-9a52-6f2f0d1b8a11", "A", longest.as_str()] {
            assert_eq!(GivenId::of(Some(id)), GivenId::Given(format!("A-{id}")));
            assert!(is_cluster_id(&new_cluster_id(id)) && is_app_id(&new_app_id(id)));
        }
        let too_long = "a".repeat(LONGEST + 1);
        for wrong in ["", "a b", "a/../b", "a\n", "é", "a_b", too_long.as_str()] {
            assert_eq!(GivenId::of(Some(wrong)), GivenId::Unusable, "{wrong:?}");
            assert!(!is_cluster_id(&new_cluster_id(wrong)) && !is_app_id(&new_app_id(wrong)), "{wrong:?}");
        }
        assert_eq!(GivenId::of(None), GivenId::Unusable);
        assert!(!is_cluster_id("A-1") && !is_app_id("K-1") && !is_app_id("1"));
    }

    #[test]
    fn a_cache_holds_the_id_and_nothing_of_what_is_none() {
        for value in [Some("1-a"), Some("not an id"), None] {
            let given = GivenId::of(value);
            assert!(!given.to_content().to_string().contains("not an id"));
            assert_eq!(GivenId::of_content(&given.to_content()), given);
        }
    }
}
