//! A syncset's own rules for kinds, written as CEL expressions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::assessment::{Assessment, ObjectStatus};
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

/// Most steps of the rules about one object: less than 50 ms of a processor.
const MOST_STEPS: usize = 400_000;
/// Most steps of all rules of a cluster in one reading: about a second.
const MOST_OF_ALL: usize = 8_000_000;

/// A rule whose expressions were parsed, which a reading does once.
#[derive(Debug)]
pub struct Parsed {
    current: Result<Expression, String>,
    failed: Option<Result<Expression, String>>,
    /// How many objects of the cluster have a rule. Each has its share of the steps, so that none waits for others.
    objects: usize,
}

/// The rules of a syncset, by group and kind.
#[derive(Debug, Default)]
pub struct Rules(BTreeMap<(String, String), Parsed>);

impl Rules {
    /// For a reading in which so many objects of the cluster have a rule, of this syncset or another one.
    pub fn parse(rules: &[Rule], objects: usize) -> Self {
        Self(rules.iter().map(|rule| ((rule.group.clone(), rule.kind.clone()), rule.parse(objects))).collect())
    }

    pub fn of(&self, group: &str, kind: &str) -> Option<&Parsed> {
        self.0.get(&(group.to_owned(), kind.to_owned()))
    }
}

impl Rule {
    fn parse(&self, objects: usize) -> Parsed {
        let (current, failed) = (Expression::parse(&self.current), self.failed.as_deref().map(Expression::parse));
        Parsed { current, failed, objects }
    }
}

impl Parsed {
    /// No value of the object is in the message: of a custom resource it may be secret.
    pub(super) fn assess(&self, object: &Value) -> Assessment {
        let Ok(facts) = Facts::of(object) else {
            let message = "it has more than 64 KiB or a list of more than 1,000 elements, so its rule is not asked";
            return Assessment::of(ObjectStatus::Unknown, "TooLarge", message);
        };
        let expressions = [Some(&self.current), self.failed.as_ref()].into_iter().flatten().flatten();
        let (steps, share) = (
            expressions.map(|part| facts.steps(part)).sum::<usize>(),
            MOST_STEPS.min(MOST_OF_ALL / self.objects.max(1)),
        );
        if steps > share {
            let message = format!(
                "its rule may take {steps} steps, and each of the {} objects on its cluster with a rule {share}: shorten the rule, or its lists",
                self.objects
            );
            return Assessment::of(ObjectStatus::Unknown, "TooLarge", &message);
        }
        let holds = |name: &str, expression: &Result<Expression, String>| {
            let expression = expression.as_ref().map_err(Clone::clone);
            expression.and_then(|expression| facts.hold(expression)).map_err(|error| {
                Assessment::of(
                    ObjectStatus::Unknown,
                    "RuleError",
                    &format!("its rule for {name} can't be evaluated: {error}"),
                )
            })
        };
        match self.failed.as_ref().map_or(Ok(false), |failed| holds("failed", failed)) {
            Err(assessed) => return assessed,
            Ok(true) => return Assessment::of(ObjectStatus::Failed, "FailedByRule", "its rule for failed is true"),
            Ok(false) => {}
        }
        match holds("current", &self.current) {
            Err(assessed) => assessed,
            Ok(true) => Assessment::current(),
            Ok(false) => Assessment::of(ObjectStatus::Progressing, "NotCurrent", "its rule for current is not true"),
        }
    }
}
