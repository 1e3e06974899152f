//! Statuses of subscriptions → `SubscriptionStatus`.

use serde_json::{Map, Value};

use super::json::{list, object, parse};
use super::{Fields, RollUp, StatusRow};

/// `statuses.packages` of all rows in order, and `statuses.subscription` of one row.
#[derive(Default)]
pub struct SubscriptionStatuses {
    packages: Vec<Value>,
    subscription: Option<Map<String, Value>>,
}

type Statuses = (Vec<Value>, Option<Map<String, Value>>);

fn read(row: &StatusRow<'_>) -> Result<Statuses, String> {
    let Some(mut statuses) = object(parse(row.value)?, "statuses")? else { return Ok(Statuses::default()) };
    let packages = list(statuses.remove("packages"), "statuses.packages")?;
    Ok((packages, object(statuses.remove("subscription"), "statuses.subscription")?))
}

/// Whether the phase is `Failed` or `PropagationFailed`.
fn has_failed(subscription: &Map<String, Value>) -> bool {
    let phase = subscription.get("phase").and_then(Value::as_str).unwrap_or_default();
    phase.to_ascii_lowercase().ends_with("failed")
}

impl RollUp for SubscriptionStatuses {
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>) {
        match read(row) {
            Ok((packages, subscription)) => {
                self.packages.extend(packages);
                if let Some(found) = subscription
                    && self.subscription.as_ref().is_none_or(|held| !has_failed(held) && has_failed(&found))
                {
                    self.subscription = Some(found);
                }
            }
            Err(fault) => faults.push(fault),
        }
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        let mut statuses = Map::new();
        if !self.packages.is_empty() {
            statuses.insert("packages".to_owned(), Value::Array(self.packages));
        }
        if let Some(subscription) = self.subscription {
            statuses.insert("subscription".to_owned(), Value::Object(subscription));
        }
        vec![Fields::from([("statuses", Value::Object(statuses))])]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn roll_up(values: &[&str]) -> (Value, Vec<String>) {
        let mut statuses = Box::<SubscriptionStatuses>::default();
        let mut faults = Vec::new();
        for value in values {
            statuses.take(&StatusRow { leaf_hub: "l", name: "n", value: Some(value) }, &mut faults);
        }
        (statuses.finish()[0]["statuses"].clone(), faults)
    }

    #[test]
    fn packages_stand_one_after_the_other() {
        let (statuses, faults) = roll_up(&[r#"{"packages":[{"name":"b"}]}"#, "null", r#"{"packages":[{"name":"a"}]}"#]);
        assert_eq!((statuses, faults.len()), (json!({"packages": [{"name": "b"}, {"name": "a"}]}), 0));
    }

    #[test]
    fn the_first_subscription_is_taken_and_a_failed_one_before_it() {
        let with =
            |phase: &str, message: &str| json!({"subscription": {"phase": phase, "message": message}}).to_string();
        let rows = [with("Deployed", "1"), with("Deployed", "2"), with("Failed", "3"), with("PropagationFailed", "4")];
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        assert_eq!(roll_up(&rows[..2]).0["subscription"]["message"], "1");
        assert_eq!(roll_up(&rows).0["subscription"]["message"], "3");
    }

    #[test]
    fn a_row_of_another_shape_counts_for_nothing_as_a_whole() {
        let (statuses, faults) = roll_up(&[r#"{"packages":[{"name":"a"}],"subscription":7}"#, r#""text""#]);
        assert_eq!(statuses, json!({}));
        assert_eq!(faults, ["statuses.subscription is not an object", "statuses is not an object"]);
    }
}
