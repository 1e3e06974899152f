//! Decisions of placement rules → `PlacementRule`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::json::{cluster_name, list, parse, text};
use super::{Fields, RollUp, StatusRow};

/// `status.decisions[]`: the decisions of all rows in order, without duplicates.
#[derive(Default)]
pub struct PlacementRules {
    decisions: Vec<Value>,
    seen: BTreeSet<(String, String)>,
}

fn read(row: &StatusRow<'_>) -> Result<Vec<(String, String)>, String> {
    let decisions = list(parse(row.value)?, "status.decisions")?;
    decisions
        .iter()
        .map(|decision| Ok((cluster_name(decision)?.to_owned(), text(decision, "clusterNamespace")?.to_owned())))
        .collect()
}

impl RollUp for PlacementRules {
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>) {
        match read(row) {
            Ok(decisions) => {
                for (name, namespace) in decisions {
                    if self.seen.insert((name.clone(), namespace.clone())) {
                        self.decisions.push(json!({"clusterName": name, "clusterNamespace": namespace}));
                    }
                }
            }
            Err(fault) => faults.push(fault),
        }
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        vec![Fields::from([("decisions", Value::Array(self.decisions))])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_keep_the_order_of_their_rows_and_doubles_are_dropped() {
        let mut rules = Box::<PlacementRules>::default();
        let mut faults = Vec::new();
        for value in [
            r#"[{"clusterName":"b","clusterNamespace":"nb"},{"clusterName":"a","clusterNamespace":"na"}]"#,
            r#"[{"clusterName":"a","clusterNamespace":"na"},{"clusterName":"a","clusterNamespace":"other"}]"#,
            r#"{"clusterName":"c"}"#,
            r#"[{"clusterName":"d"},{"clusterName":7}]"#,
        ] {
            rules.take(&StatusRow { leaf_hub: "l", name: "n", value: Some(value) }, &mut faults);
        }
        rules.take(&StatusRow { leaf_hub: "l", name: "n", value: None }, &mut faults);
        assert_eq!(
            serde_json::to_value(rules.finish()).unwrap(),
            json!([{"decisions": [
                {"clusterName": "b", "clusterNamespace": "nb"},
                {"clusterName": "a", "clusterNamespace": "na"},
                {"clusterName": "a", "clusterNamespace": "other"},
            ]}])
        );
        assert_eq!(faults, ["status.decisions is not a list", "clusterName is not a string"]);
    }
}
