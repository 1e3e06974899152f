//! Label selectors in the form of Kubernetes objects, and their terms.

use serde_json::{Map, Value};

use super::faults::Faults;
use super::fields::{list, object, required, word};
use super::metadata::{LABEL_VALUE, is_label_value};
use crate::config::names::is_label_key;
use crate::config::text::{described, quoted};
use crate::config::{Requirement, Test};
use crate::documents::body::Path;
use crate::documents::problem::Problem;

/// Most requirements of a selector, and most values of one.
const MOST: usize = 256;

/// The terms by which an index finds a selector for the labels of a cluster: the first of these that it has.
/// One value that a label must have, or several; a key that has to exist; and the empty term, which is a candidate for every cluster.
/// `matchLabels` come first among the requirements.
pub(super) fn terms(requirements: &[Requirement]) -> Vec<(String, String)> {
    let term = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let one_of = requirements.iter().find_map(|requirement| match &requirement.test {
        Test::In(values) => Some(values.iter().map(|value| term(&requirement.key, value)).collect()),
        _ => None,
    });
    let exists = || requirements.iter().find(|requirement| requirement.test == Test::Exists);
    one_of.unwrap_or_else(|| vec![exists().map_or_else(|| term("", ""), |requirement| term(&requirement.key, "*"))])
}

/// Checks a selector, and returns what it requires of labels: first `matchLabels`, then `matchExpressions`.
pub(super) fn requirements(selector: &Map<String, Value>, path: &Path<'_>, faults: &mut Faults) -> Vec<Requirement> {
    faults.unknown_fields(selector, path, &["matchLabels", "matchExpressions"]);
    let mut requirements = Vec::new();
    let mut require = |key: &str, test| requirements.push(Requirement { key: key.to_owned(), test });
    let labels_path = path.field("matchLabels");
    let labels = selector.get("matchLabels").filter(|value| !value.is_null());
    for (key, value) in labels.and_then(|labels| object(labels, &labels_path, faults)).into_iter().flatten() {
        check_key(key, &labels_path, faults);
        match value.as_str().filter(|value| is_label_value(value)) {
            Some(value) => require(key, Test::In(vec![value.to_owned()])),
            None => faults.add(&labels_path.field(key), described(value), LABEL_VALUE),
        }
    }
    let expressions_path = path.field("matchExpressions");
    for (index, expression) in list(selector, "matchExpressions", MOST, path, faults).iter().enumerate() {
        let path = expressions_path.element(index);
        let Some(expression) = object(expression, &path, faults) else {
            continue;
        };
        faults.unknown_fields(expression, &path, &["key", "operator", "values"]);
        let Some(key) = required(expression, "key", &path, faults) else {
            continue;
        };
        check_key(key, &path.field("key"), faults);
        let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
        let operator = required(expression, "operator", &path, faults)
            .and_then(|_| word(expression, "operator", &operators, &path, faults));
        let Some(operator) = operator else {
            continue;
        };
        let given = list(expression, "values", MOST, &path, faults);
        let values = values(given, &path.field("values"), faults);
        let takes_values = matches!(operator, "In" | "NotIn");
        if takes_values == given.is_empty() {
            let allowed = if takes_values { "at least one value" } else { "no values" };
            faults.add(&path.field("values"), format!("{} values", given.len()), format!("{allowed} with {operator}"));
        }
        require(
            key,
            match operator {
                "In" => Test::In(values),
                "NotIn" => Test::NotIn(values),
                "Exists" => Test::Exists,
                _ => Test::Missing,
            },
        );
    }
    requirements
}

/// What a stored selector requires of labels.
pub fn requirements_of(selector: &Value) -> Result<Vec<Requirement>, Problem> {
    let mut faults = Faults::default();
    let selector = object(selector, &Path::Root, &mut faults);
    let requirements = selector.map(|selector| requirements(selector, &Path::Root, &mut faults));
    faults.into_result().map(|()| requirements.unwrap_or_default())
}

fn values(given: &[Value], path: &Path<'_>, faults: &mut Faults) -> Vec<String> {
    let mut values = Vec::new();
    for (index, value) in given.iter().enumerate() {
        match value.as_str() {
            Some(text) if is_label_value(text) => values.push(text.to_owned()),
            _ => faults.add(&path.element(index), described(value), LABEL_VALUE),
        }
    }
    values
}

fn check_key(key: &str, path: &Path<'_>, faults: &mut Faults) {
    if !is_label_key(key) {
        faults.add(path, format!("the key {}", quoted(key)), "the key of a label");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn terms_of(selector: &Value) -> Result<Vec<(String, String)>, Faults> {
        let mut faults = Faults::default();
        let requirements = requirements(selector.as_object().expect("an object"), &Path::Root, &mut faults);
        if faults.is_empty() { Ok(terms(&requirements)) } else { Err(faults) }
    }

    #[test]
    fn the_first_kind_of_requirement_gives_the_terms() {
        let not_in = json!({"key": "a", "operator": "NotIn", "values": ["x"]});
        let exists = json!({"key": "b", "operator": "Exists"});
        let one_of = json!({"key": "c", "operator": "In", "values": ["y", "z"]});
        for (selector, expected) in [
            (json!({}), vec![("", "")]),
            (json!({"matchLabels": null, "matchExpressions": [not_in]}), vec![("", "")]),
            (json!({"matchExpressions": [not_in, exists]}), vec![("b", "*")]),
            (json!({"matchExpressions": [not_in, exists, one_of]}), vec![("c", "y"), ("c", "z")]),
            (json!({"matchLabels": {"e": "f", "d": ""}, "matchExpressions": [one_of]}), vec![("d", "")]),
        ] {
            let terms = terms_of(&selector).expect("a selector");
            let terms: Vec<_> = terms.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(terms, expected, "{selector}");
        }
    }

    #[test]
    fn every_fault_of_a_selector_is_found() {
        let selector = json!({"matchLabels": {"a b": "c", "d": 1}, "matchExpresions": [], "matchExpressions": [
            {"key": "a", "operator": "In"}, {"key": "a", "operator": "exists"}, {"operator": "Exists", "key": "a", "values": ["b"]},
            {"key": "a", "operator": "In", "values": ["b c"], "value": 1}, {"key": "a"}, 7]});
        let faults = terms_of(&selector).expect_err("faults").into_result().expect_err("faults").faults;
        let found: Vec<_> = faults.iter().map(|fault| (fault.pointer.as_str(), fault.found.as_str())).collect();
        assert_eq!(
            found,
            [
                ("/matchExpresions", "an unknown field"),
                ("/matchLabels", "the key \"a b\""),
                ("/matchLabels/d", "1"),
                ("/matchExpressions/0/values", "0 values"),
                ("/matchExpressions/1/operator", "\"exists\""),
                ("/matchExpressions/2/values", "1 values"),
                ("/matchExpressions/3/value", "an unknown field"),
                ("/matchExpressions/3/values/0", "\"b c\""),
                ("/matchExpressions/4/operator", "missing"),
                ("/matchExpressions/5", "a number"),
            ]
        );
        assert_eq!(faults[0].suggestion.as_deref(), Some("matchExpressions"));
        assert_eq!(faults[4].suggestion.as_deref(), Some("Exists"));
    }
}
