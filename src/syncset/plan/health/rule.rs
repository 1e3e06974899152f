//! A syncset's own rules for kinds, written as CEL expressions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::judge::{Judged, Verdict};
use crate::expression::{Expression, Facts};

/// As the document has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub group: String,
    pub kind: String,
    /// When an object of the kind is current.
    pub current: String,
    /// When it has failed.
    pub failed: Option<String>,
}

/// A rule whose expressions were parsed, which a reading does once.
#[derive(Debug)]
pub struct Parsed {
    current: Result<Expression, String>,
    failed: Option<Result<Expression, String>>,
}

/// The rules of a syncset, by group and kind.
#[derive(Debug, Default)]
pub struct Rules(BTreeMap<(String, String), Parsed>);

impl Rules {
    pub fn parse(rules: &[Rule]) -> Self {
        Self(rules.iter().map(|rule| ((rule.group.clone(), rule.kind.clone()), rule.parse())).collect())
    }

    pub fn of(&self, group: &str, kind: &str) -> Option<&Parsed> {
        self.0.get(&(group.to_owned(), kind.to_owned()))
    }
}

impl Rule {
    fn parse(&self) -> Parsed {
        Parsed { current: Expression::parse(&self.current), failed: self.failed.as_deref().map(Expression::parse) }
    }
}

impl Parsed {
    /// No value of the object is in the message: of a custom resource it may be secret.
    pub(super) fn judge(&self, object: &Value) -> Judged {
        let Ok(facts) = Facts::of(object) else {
            let message = "it has more than 64 KiB or a list of more than 1,000 elements, so its rule is not asked";
            return Judged::of(Verdict::Unknown, "TooLarge", message);
        };
        let holds = |name: &str, expression: &Result<Expression, String>| {
            let expression = expression.as_ref().map_err(Clone::clone);
            expression.and_then(|expression| facts.hold(expression)).map_err(|error| {
                Judged::of(Verdict::Unknown, "RuleError", &format!("its rule for {name} can't be evaluated: {error}"))
            })
        };
        match self.failed.as_ref().map_or(Ok(false), |failed| holds("failed", failed)) {
            Err(judged) => return judged,
            Ok(true) => return Judged::of(Verdict::Failed, "FailedByRule", "its rule for failed is true"),
            Ok(false) => {}
        }
        match holds("current", &self.current) {
            Err(judged) => judged,
            Ok(true) => Judged::current(),
            Ok(false) => Judged::of(Verdict::Progressing, "NotCurrent", "its rule for current is not true"),
        }
    }
}
