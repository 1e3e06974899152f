//! Label selectors in the syntax of the Kubernetes API, equality based and set based.

use std::collections::BTreeMap;
use std::fmt;

use super::names::{is_label_key, is_qualified_name};
use super::setting::{Setting, Unfit};

/// A label selector. The empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    text: String,
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// The selector as it was written, which is how the API takes it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its requirements, all of which must hold.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these labels is selected, by the rules of the API server.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Setting for LabelSelector {
    const ALLOWED: &'static str =
        "a label selector such as \"tier=gold,stage in (test, live),!legacy\", or empty for everything";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let requirements = requirements(text).iter().map(|part| Requirement::parse(part)).collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), requirements })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    pub key: String,
    pub test: Test,
}

/// What a requirement asks of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// `key`.
    Exists,
    /// `!key`.
    Missing,
    /// `key=value` and `key in (…)`.
    In(Vec<String>),
    /// `key!=value` and `key notin (…)`. Holds for objects without the label too.
    NotIn(Vec<String>),
    /// `key>number`.
    Above(i64),
    /// `key<number`.
    Below(i64),
}

impl Requirement {
    /// How many values are compared.
    pub fn weight(&self) -> usize {
        match &self.test {
            Test::In(values) | Test::NotIn(values) => values.len(),
            _ => 1,
        }
    }

    /// Whether labels are as required, by the rules of the API server.
    pub fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Above(limit) => number().is_some_and(|number| number > *limit),
            Test::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }

    fn parse(part: &str) -> Result<Self, Unfit> {
        let part = part.trim();
        if let Some(name) = part.strip_prefix('!') {
            return Ok(Self { key: key(name)?, test: Test::Missing });
        }
        let Some(key_end) = part.find(|character: char| character.is_whitespace() || "=!<>(".contains(character))
        else {
            return Ok(Self { key: key(part)?, test: Test::Exists });
        };
        let (name, rest) = part.split_at(key_end);
        let key = key(name)?;
        let rest = rest.trim();
        let test = if let Some(listed) = operator(rest, "notin") {
            Test::NotIn(values(listed)?)
        } else if let Some(listed) = operator(rest, "in") {
            Test::In(values(listed)?)
        } else if let Some(single) = rest.strip_prefix("!=") {
            Test::NotIn(vec![value(single)?])
        } else if let Some(single) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
            Test::In(vec![value(single)?])
        } else if let Some(limit) = rest.strip_prefix('>') {
            Test::Above(number(limit)?)
        } else if let Some(limit) = rest.strip_prefix('<') {
            Test::Below(number(limit)?)
        } else {
            return Err(Unfit::because(format!("`{rest}` after `{name}` is no operator")));
        };
        Ok(Self { key, test })
    }
}

/// Splits at the commas outside of parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
    .collect()
}

/// The rest of the text after the operator `word`, which ends at a space or a parenthesis.
fn operator<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let rest = text.strip_prefix(word)?;
    rest.starts_with(|next: char| next.is_whitespace() || next == '(').then(|| rest.trim_start())
}

fn key(text: &str) -> Result<String, Unfit> {
    let text = text.trim();
    if is_label_key(text) { Ok(text.to_owned()) } else { Err(Unfit::because(format!("`{text}` is no label key"))) }
}

fn value(text: &str) -> Result<String, Unfit> {
    let text = text.trim();
    if text.is_empty() || is_qualified_name(text) {
        Ok(text.to_owned())
    } else {
        Err(Unfit::because(format!("`{text}` is no label value")))
    }
}

fn number(text: &str) -> Result<i64, Unfit> {
    let text = text.trim();
    text.parse().map_err(|_| Unfit::because(format!("`{text}` is no whole number")))
}

fn values(text: &str) -> Result<Vec<String>, Unfit> {
    let listed = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    match listed {
        Some(listed) => listed.split(',').map(value).collect(),
        None => Err(Unfit::because(format!("`{text}` is no list in parentheses"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        LabelSelector::from_text(selector).unwrap_or_else(|unfit| panic!("{selector}: {unfit:?}")).matches(&labels)
    }

    #[test]
    fn the_empty_selector_selects_everything() {
        assert!(selects("", &[]));
        assert!(selects("  ", &[("a", "b")]));
        assert!(LabelSelector::from_text("").is_ok_and(|selector| selector.is_empty()));
    }

    #[test]
    fn each_operator_selects_as_the_api_server_does() {
        let labels = [("tier", "gold"), ("weight", "7"), ("app.kubernetes.io/name", "db"), ("empty", "")];
        for right in [
            "tier",
            "!legacy",
            "tier=gold",
            "tier == gold",
            "tier!=silver",
            "legacy != x",
            "tier in (silver, gold)",
            "tier in(gold)",
            "tier notin (silver)",
            "legacy notin (a,b)",
            "weight>6",
            "weight < 8",
            "app.kubernetes.io/name=db",
            "empty=",
            "empty in (,x)",
            "tier in (gold,silver), weight > 6 ,!legacy",
        ] {
            assert!(selects(right, &labels), "{right}");
        }
        for wrong in [
            "legacy",
            "!tier",
            "tier=silver",
            "tier in (a,b)",
            "tier notin (gold)",
            "weight>7",
            "tier<9",
            "tier,legacy",
        ] {
            assert!(!selects(wrong, &labels), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_the_part_that_is_wrong() {
        for (wrong, part) in [
            ("tier=gold,", "`` is no label key"),
            ("tier in gold", "`gold` is no list in parentheses"),
            ("tier in (gold", "`(gold` is no list in parentheses"),
            ("tier is gold", "`is gold` after `tier` is no operator"),
            ("a/b/c=d", "`a/b/c` is no label key"),
            ("tier=a b", "`a b` is no label value"),
            ("weight>x", "`x` is no whole number"),
            ("tier=(gold)", "`(gold)` is no label value"),
        ] {
            let unfit = LabelSelector::from_text(wrong).expect_err(wrong);
            assert_eq!(unfit.reason.as_deref(), Some(part), "{wrong}");
        }
    }
}
