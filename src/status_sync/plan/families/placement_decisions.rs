//! Decisions of placements → `PlacementDecision`s of at most 100 each.

use serde_json::{Map, Value};

use super::json::{cluster_name, list, parse, text};
use super::{Fields, RollUp, StatusRow};

/// The kind's own limit of `status.decisions`.
const MOST_DECISIONS: usize = 100;

/// All decisions in order, in as many objects as they need. Rows without decisions make one object without decisions.
#[derive(Default)]
pub struct PlacementDecisions {
    decisions: Vec<Value>,
}

fn read(row: &StatusRow<'_>) -> Result<Vec<Value>, String> {
    let decisions = list(parse(row.value)?, "status.decisions")?;
    decisions
        .iter()
        .map(|reported| {
            let mut decision = Map::new();
            decision.insert("clusterName".to_owned(), cluster_name(reported)?.into());
            decision.insert("reason".to_owned(), text(reported, "reason")?.into());
            match reported.get("score") {
                None | Some(Value::Null) => {}
                Some(score) if score.as_i64().is_some_and(|score| i32::try_from(score).is_ok()) => {
                    decision.insert("score".to_owned(), score.clone());
                }
                Some(_) => return Err("score is not a whole number of 32 bits".to_owned()),
            }
            Ok(Value::Object(decision))
        })
        .collect()
}

impl RollUp for PlacementDecisions {
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>) {
        match read(row) {
            Ok(decisions) => self.decisions.extend(decisions),
            Err(fault) => faults.push(fault),
        }
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        let object = |decisions: &[Value]| Fields::from([("decisions", Value::Array(decisions.to_vec()))]);
        if self.decisions.is_empty() {
            return vec![object(&[])];
        }
        self.decisions.chunks(MOST_DECISIONS).map(object).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sizes(number: usize) -> Vec<usize> {
        let mut decisions = Box::<PlacementDecisions>::default();
        let reported: Vec<Value> = (0..number).map(|index| json!({"clusterName": format!("c{index}")})).collect();
        let value = Value::Array(reported).to_string();
        decisions.take(&StatusRow { leaf_hub: "l", name: "n", value: Some(&value) }, &mut Vec::new());
        decisions.finish().iter().map(|fields| fields["decisions"].as_array().unwrap().len()).collect()
    }

    #[test]
    fn decisions_are_spread_over_objects_of_a_hundred() {
        assert_eq!(sizes(0), [0], "a list, never null");
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(100), [100]);
        assert_eq!(sizes(101), [100, 1]);
        assert_eq!(sizes(250), [100, 100, 50]);
    }

    #[test]
    fn a_decision_has_a_reason_and_a_score_where_one_is_given() {
        let mut decisions = Box::<PlacementDecisions>::default();
        let mut faults = Vec::new();
        for value in [
            r#"[{"clusterName":"a","reason":"r","score":-7,"extra":1},{"clusterName":"b","score":null}]"#,
            r#"[{"clusterName":"c","score":"high"}]"#,
            r#"[{"reason":"nobody"}]"#,
        ] {
            decisions.take(&StatusRow { leaf_hub: "l", name: "n", value: Some(value) }, &mut faults);
        }
        assert_eq!(
            decisions.finish()[0]["decisions"],
            json!([{"clusterName": "a", "reason": "r", "score": -7}, {"clusterName": "b", "reason": ""}])
        );
        assert_eq!(faults, ["score is not a whole number of 32 bits", "a decision without clusterName"]);
    }
}
