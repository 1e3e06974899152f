//! A filter as conditions of a statement. Every value is a parameter; the text depends only on which tests there are.

use std::collections::BTreeMap;

use super::filter::Filter;
use crate::config::{Requirement, Test};
use crate::db::{Json, Param, Type};

/// The parameters of a statement, collected while its text is built.
#[derive(Debug, Default)]
pub struct Parameters(Vec<Parameter>);

#[derive(Debug)]
enum Parameter {
    Text(String),
    Texts(Option<Vec<String>>),
    Number(i64),
    /// Sets of labels, each with one.
    Labels(Vec<Json<BTreeMap<String, String>>>),
}

impl Parameters {
    /// Adds a text, and returns what stands for it in the statement: `$1`.
    pub fn text(&mut self, text: impl Into<String>) -> String {
        self.add(Parameter::Text(text.into()))
    }

    /// Adds an array of texts, or null.
    pub fn texts(&mut self, texts: Option<Vec<String>>) -> String {
        self.add(Parameter::Texts(texts))
    }

    pub fn number(&mut self, number: i64) -> String {
        self.add(Parameter::Number(number))
    }

    fn add(&mut self, parameter: Parameter) -> String {
        self.0.push(parameter);
        format!("${}", self.0.len())
    }

    pub fn as_params(&self) -> Vec<Param<'_>> {
        fn param(parameter: &Parameter) -> Param<'_> {
            match parameter {
                Parameter::Text(text) => (text, Type::TEXT),
                Parameter::Texts(texts) => (texts, Type::TEXT_ARRAY),
                Parameter::Number(number) => (number, Type::INT8),
                Parameter::Labels(labels) => (labels, Type::JSONB_ARRAY),
            }
        }
        self.0.iter().map(param).collect()
    }
}

/// The conditions on kind, namespace and name of the rows of `table`, each followed by `and`.
pub(super) fn place_conditions(filter: &Filter, table: &str, parameters: &mut Parameters) -> String {
    let columns = [("kind", Some(filter.kind().plural())), ("namespace", filter.namespace()), ("name", filter.name())];
    let given = columns.into_iter().filter_map(|(column, value)| Some((column, value?)));
    let condition = |(column, value)| format!("{table}.{column} = {} and ", parameters.text(value));
    given.map(condition).collect::<Vec<_>>().concat()
}

/// The conditions on the labels of the rows of `table`, each preceded by `and`.
pub fn label_conditions(filter: &Filter, table: &str, parameters: &mut Parameters) -> String {
    let requirements = filter.selector().requirements().iter();
    let condition = |requirement| format!(" and {}", label_condition(requirement, table, parameters));
    requirements.map(condition).collect::<Vec<_>>().concat()
}

/// The condition on the labels of the rows of `table`.
pub fn label_condition(Requirement { key, test }: &Requirement, table: &str, parameters: &mut Parameters) -> String {
    let mut is_one_of = |values: &[String]| {
        let one = |value: &String| Json(BTreeMap::from([(key.clone(), value.clone())]));
        let any = parameters.add(Parameter::Labels(values.iter().map(one).collect()));
        format!("{table}.labels @> any ({any})")
    };
    match test {
        Test::In(values) => is_one_of(values),
        Test::NotIn(values) => format!("not ({})", is_one_of(values)),
        Test::Exists => format!("{table}.labels ? {}", parameters.text(key)),
        Test::Missing => format!("not ({table}.labels ? {})", parameters.text(key)),
        Test::Above(limit) => number(key, ">", *limit, table, parameters),
        Test::Below(limit) => number(key, "<", *limit, table, parameters),
    }
}

/// A comparison with a number. Only `case` keeps the server from casting a value that is none. Longer numbers than those of 18
/// digits may be out of the range of `bigint`; like those of the Kubernetes API, they match nothing then.
fn number(key: &str, operator: &str, limit: i64, table: &str, parameters: &mut Parameters) -> String {
    let (value, limit) = (format!("({table}.labels ->> {})", parameters.text(key)), parameters.number(limit));
    format!(
        "case when {value} ~ '^-?[0-9]{{1,18}}$' then {value}::bigint {operator} {limit} \
         when {value} ~ '^[-+]?[0-9]+$' then {value}::numeric {operator} {limit} \
         and {value}::numeric between {} and {} else false end",
        i64::MIN,
        i64::MAX
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::Kind;

    fn conditions(filter: &Filter) -> (String, usize) {
        let mut parameters = Parameters::default();
        let text = label_conditions(filter, "d", &mut parameters);
        (text, parameters.as_params().len())
    }

    fn selected_by(selector: &str) -> Filter {
        Filter::of(Kind::Cluster).selected_by(selector).unwrap_or_else(|problem| panic!("{selector}: {problem}"))
    }

    #[test]
    fn each_test_becomes_a_condition_whose_values_are_parameters() {
        let (text, parameters) = conditions(&selected_by("a=b,c in (d,e),f,!g,h!=i"));
        let expected = " and d.labels @> any ($1) and d.labels @> any ($2) and d.labels ? $3 and not (d.labels ? $4) \
                        and not (d.labels @> any ($5))";
        assert_eq!((text.as_str(), parameters), (expected, 5));
        let (text, parameters) = conditions(&selected_by("weight>7"));
        let guarded = " and case when (d.labels ->> $1) ~ '^-?[0-9]{1,18}$' then (d.labels ->> $1)::bigint > $2 when ";
        assert!(text.starts_with(guarded) && text.ends_with(" else false end"), "{text}");
        assert_eq!(parameters, 2);
        assert_eq!(conditions(&Filter::of(Kind::Cluster)), (String::new(), 0));
    }

    #[test]
    fn a_place_becomes_conditions_in_the_order_of_the_index() {
        let filter = Filter::of(Kind::Cluster).in_namespace("foo").and_then(|filter| filter.named("c1"));
        let mut parameters = Parameters::default();
        let text = place_conditions(&filter.expect("a filter"), "n", &mut parameters);
        assert_eq!(text, "n.kind = $1 and n.namespace = $2 and n.name = $3 and ");
        assert_eq!(place_conditions(&Filter::of(Kind::Secret), "d", &mut parameters), "d.kind = $4 and ");
    }

    proptest::proptest! {
        /// The text has only letters of its own: no value of a selector can change the statement.
        #[test]
        fn no_value_of_a_selector_appears_in_the_text(key in "[a-z]{1,5}/zz[a-z]{0,5}", value in "zz[a-z]{0,9}") {
            for selector in [format!("{key}={value}"), format!("{key} notin ({value},x{value})"), format!("!{key}")] {
                let (text, _) = conditions(&selected_by(&selector));
                proptest::prop_assert!(!text.contains("zz"), "{}", text);
            }
        }
    }
}
