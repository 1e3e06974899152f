//! Compliance of clusters → `Policy`.

use serde_json::{Value, json};

use super::{Fields, RollUp, StatusRow};

/// `status.status[]` with one entry for each cluster, and `status.compliant` for all of them.
#[derive(Default)]
pub struct Policies {
    entries: Vec<Value>,
    any_non_compliant: bool,
    any_pending: bool,
    any_unknown: bool,
}

impl RollUp for Policies {
    fn take(&mut self, row: &StatusRow<'_>, _faults: &mut Vec<String>) {
        let mut entry = json!({"clustername": row.name, "clusternamespace": row.name});
        let word = match row.value {
            Some("compliant") => Some("Compliant"),
            Some("non_compliant") => {
                self.any_non_compliant = true;
                Some("NonCompliant")
            }
            Some("pending") => {
                self.any_pending = true;
                Some("Pending")
            }
            // Unknown values count as `unknown`. The entry has no value then, since an empty one would break the kind's
            // enum.
            _ => {
                self.any_unknown = true;
                None
            }
        };
        if let (Some(word), Some(entry)) = (word, entry.as_object_mut()) {
            entry.insert("compliant".to_owned(), word.into());
        }
        self.entries.push(entry);
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        let overall = if self.any_non_compliant {
            Some("NonCompliant")
        } else if self.any_pending {
            Some("Pending")
        } else if self.any_unknown {
            None
        } else {
            Some("Compliant")
        };
        let mut fields = Fields::from([("status", Value::Array(self.entries))]);
        if let Some(overall) = overall {
            fields.insert("compliant", overall.into());
        }
        vec![fields]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll_up(words: &[&str]) -> Value {
        let mut policies = Box::<Policies>::default();
        for (index, word) in words.iter().enumerate() {
            let name = format!("c{index}");
            policies.take(&StatusRow { leaf_hub: "l", name: &name, value: Some(word) }, &mut Vec::new());
        }
        serde_json::to_value(policies.finish()).unwrap()[0].clone()
    }

    #[test]
    fn each_row_is_an_entry_whose_namespace_is_the_cluster() {
        assert_eq!(
            roll_up(&["compliant", "non_compliant", "pending", "unknown", "novel"])["status"],
            json!([
                {"compliant": "Compliant", "clustername": "c0", "clusternamespace": "c0"},
                {"compliant": "NonCompliant", "clustername": "c1", "clusternamespace": "c1"},
                {"compliant": "Pending", "clustername": "c2", "clusternamespace": "c2"},
                {"clustername": "c3", "clusternamespace": "c3"},
                {"clustername": "c4", "clusternamespace": "c4"},
            ])
        );
    }

    #[test]
    fn the_worst_row_decides_and_unknown_rows_leave_it_open() {
        for (words, overall) in [
            (&["compliant", "compliant"][..], json!("Compliant")),
            (&["compliant", "unknown"], Value::Null),
            (&["unknown"], Value::Null),
            (&["novel", "compliant"], Value::Null),
            (&["unknown", "pending", "compliant"], json!("Pending")),
            (&["pending", "non_compliant", "unknown"], json!("NonCompliant")),
        ] {
            assert_eq!(roll_up(words)["compliant"], overall, "{words:?}");
        }
    }
}
