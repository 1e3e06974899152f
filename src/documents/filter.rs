//! Which documents a list or a watch shows.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::kind::Kind;
use super::problem::{Problem, ProblemKind};
use crate::config::setting::Setting;
use crate::config::{LabelSelector, Test};

/// Longest text of a label selector, in bytes.
const MAX_SELECTOR_BYTES: usize = 4096;
/// Most requirements of a label selector.
const MAX_TERMS: usize = 32;
/// Most values in all requirements of a label selector together.
const MAX_VALUES: usize = 256;

/// The documents of a kind that a list or a watch shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    kind: Kind,
    namespace: Option<String>,
    name: Option<String>,
    selector: LabelSelector,
}

/// How much of a document is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fields {
    #[default]
    All,
    /// Neither own fields nor status.
    Metadata,
}

impl Filter {
    pub fn of(kind: Kind) -> Self {
        Self { kind, namespace: None, name: None, selector: LabelSelector::default() }
    }

    /// Restricts the filter to one namespace.
    pub fn in_namespace(self, namespace: &str) -> Result<Self, Problem> {
        Ok(Self { namespace: Some(value("namespace", namespace)?), ..self })
    }

    /// Restricts the filter to one name.
    pub fn named(self, name: &str) -> Result<Self, Problem> {
        Ok(Self { name: Some(value("name", name)?), ..self })
    }

    /// Restricts the filter to documents whose labels a selector matches.
    pub fn selected_by(self, selector: &str) -> Result<Self, Problem> {
        Ok(Self { selector: parse(selector).map_err(|reason| wrong("labelSelector", &reason))?, ..self })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The namespace; `None` for all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name; `None` for all.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub fn selector(&self) -> &LabelSelector {
        &self.selector
    }

    /// Whether kind, namespace and name, which a document keeps, are as required.
    pub fn covers(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.kind == kind
            && self.namespace.as_deref().is_none_or(|required| required == namespace)
            && self.name.as_deref().is_none_or(|required| required == name)
    }

    /// Whether the labels, which may change, are as required.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.matches(labels)
    }

    /// A hash of the whole filter: a continue token is only good for the filter that it was made for.
    pub(super) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [Some(self.kind.plural()), self.namespace(), self.name(), Some(self.selector.as_str())] {
            // The length separates the parts; one that is absent differs from an empty one.
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        let hash = hash.finalize();
        URL_SAFE_NO_PAD.encode(hash.get(..16).unwrap_or_default())
    }
}

/// A parameter with a wrong value.
pub(super) fn wrong(parameter: &str, reason: &str) -> Problem {
    Problem::new(ProblemKind::Parameter, format!("parameter {parameter} is not valid: {reason}"))
}

/// PostgreSQL has no text with U+0000.
fn value(parameter: &str, text: &str) -> Result<String, Problem> {
    if text.contains('\0') { Err(wrong(parameter, "it has a character U+0000")) } else { Ok(text.to_owned()) }
}

fn parse(text: &str) -> Result<LabelSelector, String> {
    if text.len() > MAX_SELECTOR_BYTES {
        return Err(format!("it is longer than {MAX_SELECTOR_BYTES} bytes"));
    }
    let unfit = |unfit: crate::config::setting::Unfit| {
        unfit.reason.unwrap_or_else(|| format!("it must be {}", LabelSelector::ALLOWED))
    };
    let selector = LabelSelector::from_text(text).map_err(unfit)?;
    let values = |test: &Test| match test {
        Test::Exists | Test::Missing => 0,
        Test::In(values) | Test::NotIn(values) => values.len(),
        Test::Above(_) | Test::Below(_) => 1,
    };
    let terms = selector.requirements();
    if terms.len() > MAX_TERMS {
        return Err(format!("it has {} terms, and may have {MAX_TERMS}", terms.len()));
    }
    match terms.iter().map(|term| values(&term.test)).sum::<usize>() {
        count if count > MAX_VALUES => Err(format!("it has {count} values, and may have {MAX_VALUES}")),
        _ => Ok(selector),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected_by(text: &str) -> Result<Filter, String> {
        Filter::of(Kind::Cluster).selected_by(text).map_err(|problem| {
            assert_eq!(problem.kind, ProblemKind::Parameter);
            problem.title
        })
    }

    #[test]
    fn each_part_of_a_filter_changes_its_digest() {
        let all = || Filter::of(Kind::Cluster);
        let filters = [
            all(),
            Filter::of(Kind::Secret),
            all().in_namespace("foo").expect("a namespace"),
            all().in_namespace("").expect("a namespace"),
            all().named("foo").expect("a name"),
            all().selected_by("foo").expect("a selector"),
            all().selected_by("!foo").expect("a selector"),
        ];
        for (index, filter) in filters.iter().enumerate() {
            assert_eq!(filter.digest(), filter.clone().digest());
            for other in &filters[index + 1..] {
                assert_ne!(filter.digest(), other.digest(), "{filter:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_filter_covers_its_kind_namespace_and_name_alone() {
        let filter = Filter::of(Kind::Cluster).in_namespace("foo").and_then(|filter| filter.named("c1"));
        let filter = filter.expect("a filter");
        assert!(filter.covers(Kind::Cluster, "foo", "c1"));
        assert!(!filter.covers(Kind::Secret, "foo", "c1"));
        assert!(!filter.covers(Kind::Cluster, "bar", "c1"));
        assert!(!filter.covers(Kind::Cluster, "foo", "c2"));
        assert!(Filter::of(Kind::Cluster).covers(Kind::Cluster, "bar", "c2"));
    }

    #[test]
    fn a_selector_beyond_the_limits_is_refused() {
        let many = |count: usize, term: &dyn Fn(usize) -> String| (0..count).map(term).collect::<Vec<_>>().join(",");
        assert!(selected_by(&many(32, &|n| format!("k{n}"))).is_ok());
        let refused = selected_by(&many(33, &|n| format!("k{n}"))).expect_err("33 terms");
        assert!(refused.ends_with("it has 33 terms, and may have 32"), "{refused}");
        assert!(selected_by(&format!("k in ({}),l>1", many(255, &|n| n.to_string()))).is_ok());
        let refused = selected_by(&format!("k notin ({}),l=1", many(256, &|n| n.to_string()))).expect_err("257 values");
        assert!(refused.ends_with("it has 257 values, and may have 256"), "{refused}");
        let refused = selected_by(&format!("k{}", " ".repeat(4096))).expect_err("4,097 bytes");
        assert!(refused.ends_with("it is longer than 4096 bytes"), "{refused}");
        let refused = selected_by("tier=a b").expect_err("a space");
        assert_eq!(refused, "parameter labelSelector is not valid: `a b` is no label value");
    }

    #[test]
    fn a_value_that_the_database_cannot_hold_is_refused() {
        let problem = Filter::of(Kind::Cluster).in_namespace("a\0b").expect_err("U+0000");
        assert_eq!(problem.kind, ProblemKind::Parameter);
        assert!(Filter::of(Kind::Cluster).named("\0").is_err());
    }
}
