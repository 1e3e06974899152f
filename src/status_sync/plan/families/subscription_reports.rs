//! Reports of subscriptions → `SubscriptionReport`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::json::{list, object, parse};
use super::{Fields, RollUp, StatusRow};

/// The fields of a summary, each a decimal number in a string.
const SUMMED: [&str; 5] = ["clusters", "deployed", "failed", "inProgress", "propagationFailed"];

/// The sums of the summaries, all results in order, and the type and resources of the first row.
#[derive(Default)]
pub struct SubscriptionReports {
    first: Option<(Option<Value>, Option<Value>)>,
    sums: BTreeMap<&'static str, i128>,
    results: Vec<Value>,
}

struct Report {
    kind: Option<Value>,
    resources: Option<Value>,
    summary: Map<String, Value>,
    results: Vec<Value>,
}

fn read(row: &StatusRow<'_>) -> Result<Report, String> {
    let mut report = object(parse(row.value)?, "the report")?.unwrap_or_default();
    let mut present = |key: &str| report.remove(key).filter(|value| !value.is_null());
    let (kind, resources) = (present("reportType"), present("resources"));
    if kind.as_ref().is_some_and(|value| !value.is_string()) {
        return Err("reportType is not a string".to_owned());
    }
    if resources.as_ref().is_some_and(|value| !value.is_array()) {
        return Err("resources is not a list".to_owned());
    }
    Ok(Report {
        kind,
        resources,
        summary: object(present("summary"), "summary")?.unwrap_or_default(),
        results: list(present("results"), "results")?,
    })
}

/// The number in a field of a summary. An empty field counts as zero, and is not reported.
fn number(value: &Value) -> Option<i128> {
    match value {
        Value::Null => Some(0),
        Value::String(text) if text.is_empty() => Some(0),
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_i64().map(i128::from),
        _ => None,
    }
}

impl RollUp for SubscriptionReports {
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>) {
        let report = match read(row) {
            Ok(report) => report,
            Err(fault) => return faults.push(fault),
        };
        self.first.get_or_insert((report.kind, report.resources));
        for field in SUMMED {
            let Some(value) = report.summary.get(field) else { continue };
            let number = number(value).unwrap_or_else(|| {
                faults.push(format!("summary.{field} is no number"));
                0
            });
            let sum = self.sums.entry(field).or_default();
            *sum = sum.saturating_add(number);
        }
        self.results.extend(report.results);
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        let mut fields = Fields::new();
        let (report_type, resources) = self.first.unwrap_or_default();
        for (field, value) in [("reportType", report_type), ("resources", resources)] {
            if let Some(value) = value {
                fields.insert(field, value);
            }
        }
        if !self.sums.is_empty() {
            let summary: Map<String, Value> =
                self.sums.into_iter().map(|(field, sum)| (field.to_owned(), sum.to_string().into())).collect();
            fields.insert("summary", Value::Object(summary));
        }
        if !self.results.is_empty() {
            fields.insert("results", Value::Array(self.results));
        }
        vec![fields]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn roll_up(values: &[Value]) -> (Value, Vec<String>) {
        let mut reports = Box::<SubscriptionReports>::default();
        let mut faults = Vec::new();
        for value in values {
            let text = value.to_string();
            reports.take(&StatusRow { leaf_hub: "l", name: "n", value: Some(&text) }, &mut faults);
        }
        (serde_json::to_value(reports.finish()).unwrap()[0].clone(), faults)
    }

    #[test]
    fn summaries_are_summed_as_decimal_texts() {
        let deployed = |text: &str| json!({"summary": {"deployed": text}});
        for (rows, sum, told) in [
            (&["1", "2"][..], "3", 0),
            (&["", "4"], "4", 0),
            (&["x", "5"], "5", 1),
            (&["7"], "7", 0),
            (&["x"], "0", 1),
            (&["9223372036854775807", "1"], "9223372036854775808", 0),
        ] {
            let rows: Vec<Value> = rows.iter().map(|text| deployed(text)).collect();
            let (fields, faults) = roll_up(&rows);
            assert_eq!(fields, json!({"summary": {"deployed": sum}}), "{rows:?}");
            assert_eq!(faults.len(), told, "{rows:?}");
        }
    }

    #[test]
    fn the_first_row_tells_type_and_resources_and_results_stand_one_after_the_other() {
        let (fields, faults) = roll_up(&[
            json!({"reportType": 7, "results": [{"source": "bad"}]}),
            json!({"reportType": "Application", "results": [{"source": "b"}], "summary": {"failed": "1", "clusters": "2"}}),
            json!({"reportType": "Cluster", "resources": [{"name": "r"}], "results": [{"source": "a"}], "summary": {"inProgress": "3"}}),
        ]);
        assert_eq!(
            fields,
            json!({
                "reportType": "Application",
                "results": [{"source": "b"}, {"source": "a"}],
                "summary": {"failed": "1", "clusters": "2", "inProgress": "3"},
            })
        );
        assert_eq!(faults, ["reportType is not a string"]);
    }
}
