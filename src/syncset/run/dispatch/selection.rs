//! Which clusters a `SelectorSyncSet` selects, as a condition of a statement. All values are parameters.

use serde_json::{Value, json};

use crate::db::{Json, Param, Type};

/// A selector with the namespaces to which it is limited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::syncset) struct Selection {
    needs: Vec<Need>,
    namespaces: Namespaces,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Namespaces {
    All,
    /// By name, and by the beginnings of their names.
    Listed {
        names: Vec<String>,
        prefixes: Vec<String>,
    },
}

/// A requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

/// Parameters of a statement, collected while its text is built.
#[derive(Debug, Default)]
pub(in crate::syncset) struct Parameters(Vec<Parameter>);

#[derive(Debug)]
pub(in crate::syncset) enum Parameter {
    Text(String),
    Texts(Vec<String>),
    Labels(Vec<Json<Value>>),
}

impl Parameters {
    /// Adds one, and returns what stands for it in the statement.
    pub(in crate::syncset) fn add(&mut self, parameter: Parameter) -> String {
        self.0.push(parameter);
        format!("${}", self.0.len())
    }

    pub(in crate::syncset) fn as_params(&self) -> Vec<Param<'_>> {
        fn param(parameter: &Parameter) -> Param<'_> {
            match parameter {
                Parameter::Text(text) => (text, Type::TEXT),
                Parameter::Texts(texts) => (texts, Type::TEXT_ARRAY),
                Parameter::Labels(labels) => (labels, Type::JSONB_ARRAY),
            }
        }
        self.0.iter().map(param).collect()
    }
}

impl Selection {
    /// What a document says. `None` if that can't be read, as it may be after a newer release has run.
    pub(in crate::syncset) fn parse(selector: Option<&Value>, namespaces: Option<&Value>) -> Option<Self> {
        let mut needs = Vec::new();
        match given(selector) {
            None => {}
            Some(Value::Object(selector)) => {
                if let Some(labels) = given(selector.get("matchLabels")) {
                    for (key, value) in labels.as_object()? {
                        needs.push(Need::In(key.clone(), vec![value.as_str()?.to_owned()]));
                    }
                }
                if let Some(expressions) = given(selector.get("matchExpressions")) {
                    let expressions = expressions.as_array()?.iter().map(Need::parse);
                    needs.extend(expressions.collect::<Option<Vec<_>>>()?);
                }
            }
            Some(_) => return None,
        }
        // Selectors that differ in their order are one.
        needs.sort();
        needs.dedup();
        Some(Self { needs, namespaces: Namespaces::parse(namespaces)? })
    }

    /// How much work its condition is for each cluster: the values that are compared. It has no more parameters than that.
    pub(in crate::syncset) fn weight(&self) -> usize {
        let of = |need: &Need| match need {
            Need::In(_, values) | Need::NotIn(_, values) => values.len().max(1),
            _ => 1,
        };
        self.needs.iter().map(of).sum::<usize>() + 2
    }

    /// The condition on `c`, a row of the clusters.
    pub(in crate::syncset) fn condition(&self, parameters: &mut Parameters) -> String {
        let mut text = "c.kind = 'clusters'".to_owned();
        for need in &self.needs {
            text.push_str(" and ");
            text.push_str(&need.condition(parameters));
        }
        if let Namespaces::Listed { names, prefixes } = &self.namespaces {
            let names = parameters.add(Parameter::Texts(names.clone()));
            let prefixes = parameters.add(Parameter::Texts(prefixes.clone()));
            let of_namespace = format!(
                " and (c.namespace = any({names}) or exists ( \
                   select from unnest({prefixes}::text[]) p where starts_with(c.namespace, p)))"
            );
            text.push_str(&of_namespace);
        }
        text
    }
}

/// `null` means absent.
fn given(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

impl Namespaces {
    /// `None` if they can't be read.
    fn parse(patterns: Option<&Value>) -> Option<Self> {
        let Some(patterns) = given(patterns) else { return Some(Self::All) };
        let (mut names, mut prefixes) = (Vec::new(), Vec::new());
        for pattern in patterns.as_array()? {
            let pattern = pattern.as_str()?;
            match pattern.strip_suffix('*') {
                Some("") => return Some(Self::All),
                Some(prefix) => prefixes.push(prefix.to_owned()),
                None => names.push(pattern.to_owned()),
            }
        }
        names.sort();
        prefixes.sort();
        Some(Self::Listed { names, prefixes })
    }
}

impl Need {
    fn parse(expression: &Value) -> Option<Self> {
        let key = expression.get("key")?.as_str()?.to_owned();
        let values = || -> Option<Vec<String>> {
            let values = expression.get("values")?.as_array()?;
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        };
        Some(match expression.get("operator")?.as_str()? {
            "In" => Self::In(key, values()?),
            "NotIn" => Self::NotIn(key, values()?),
            "Exists" => Self::Exists(key),
            "DoesNotExist" => Self::Missing(key),
            _ => return None,
        })
    }

    fn condition(&self, parameters: &mut Parameters) -> String {
        let mut is_one_of = |key: &str, values: &[String]| {
            let labels = values.iter().map(|value| Json(json!({ key: value }))).collect();
            format!("c.labels @> any ({})", parameters.add(Parameter::Labels(labels)))
        };
        match self {
            Self::In(key, values) => is_one_of(key, values),
            Self::NotIn(key, values) => format!("not ({})", is_one_of(key, values)),
            Self::Exists(key) => format!("c.labels ? {}", parameters.add(Parameter::Text(key.clone()))),
            Self::Missing(key) => format!("not (c.labels ? {})", parameters.add(Parameter::Text(key.clone()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(selector: &Value, namespaces: &Value) -> (String, usize) {
        let mut parameters = Parameters::default();
        let text = Selection::parse(Some(selector), Some(namespaces)).expect("a selection").condition(&mut parameters);
        (text, parameters.as_params().len())
    }

    #[test]
    fn each_requirement_becomes_a_condition_whose_values_are_parameters() {
        let selector = json!({"matchLabels": {"zzk": "zzv"}, "matchExpressions": [
            {"key": "zza", "operator": "NotIn", "values": ["zzb"]}, {"key": "zzc", "operator": "Exists"},
            {"key": "zzd", "operator": "DoesNotExist"}, {"key": "zze", "operator": "In", "values": ["zzf", "zzg"]}]});
        let (text, parameters) = condition(&selector, &json!(["zzteam-*", "zzx"]));
        assert!(!text.contains("zz"), "{text}");
        assert_eq!((parameters, text.matches(" and ").count()), (7, 6));
    }

    #[test]
    fn the_empty_selector_and_all_namespaces_are_no_condition() {
        for (selector, namespaces) in [
            (json!({}), json!(["*"])),
            (json!(null), json!(null)),
            (json!({"matchLabels": null, "matchExpressions": []}), json!(["a", "*"])),
        ] {
            assert_eq!(condition(&selector, &namespaces), ("c.kind = 'clusters'".to_owned(), 0));
        }
    }

    #[test]
    fn the_order_of_requirements_makes_no_difference() {
        let one = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]});
        let other =
            json!({"matchExpressions": [{"key": "b", "operator": "Exists"}, {"key": "a", "operator": "Exists"}]});
        assert_eq!(Selection::parse(Some(&one), None), Selection::parse(Some(&other), None));
    }

    #[test]
    fn what_a_newer_release_may_have_written_is_not_read_as_something_else() {
        for selector in [
            json!([]),
            json!({"matchLabels": {"a": 1}}),
            json!({"matchExpressions": [{"key": "a", "operator": "Above", "values": ["1"]}]}),
            json!({"matchExpressions": [{"operator": "Exists"}]}),
        ] {
            assert_eq!(Selection::parse(Some(&selector), None), None, "{selector}");
        }
        assert_eq!(Selection::parse(None, Some(&json!("a"))), None);
        assert_eq!(Selection::parse(None, Some(&json!([1]))), None);
    }
}
