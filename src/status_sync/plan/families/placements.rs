//! Numbers of selected clusters → `Placement`.

use serde_json::Value;

use super::json::parse;
use super::{Fields, RollUp, StatusRow};

/// `status.numberOfSelectedClusters`: the sum, limited to the range of the field.
#[derive(Default)]
pub struct Placements {
    sum: i32,
}

impl RollUp for Placements {
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>) {
        match parse(row.value) {
            Ok(None) => {}
            Ok(Some(value)) => match value.as_u64() {
                Some(number) => self.sum = self.sum.saturating_add(i32::try_from(number).unwrap_or(i32::MAX)),
                None => faults.push("status.numberOfSelectedClusters is not a whole number".to_owned()),
            },
            Err(fault) => faults.push(fault),
        }
    }

    fn finish(self: Box<Self>) -> Vec<Fields> {
        vec![Fields::from([("numberOfSelectedClusters", Value::from(self.sum))])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[Option<&str>]) -> (Value, usize) {
        let mut placements = Box::<Placements>::default();
        let mut faults = Vec::new();
        for value in values {
            placements.take(&StatusRow { leaf_hub: "l", name: "n", value: *value }, &mut faults);
        }
        (placements.finish()[0]["numberOfSelectedClusters"].clone(), faults.len())
    }

    #[test]
    fn selected_clusters_are_summed_up_to_what_the_field_holds() {
        assert_eq!(sum(&[Some("3"), None, Some("4")]), (7.into(), 0));
        assert_eq!(sum(&[Some("2147483647"), Some("1")]), (i32::MAX.into(), 0));
        assert_eq!(sum(&[Some("9999999999"), Some("1")]), (i32::MAX.into(), 0));
    }

    #[test]
    fn a_value_that_is_no_number_of_clusters_counts_as_zero_and_is_reported() {
        assert_eq!(sum(&[Some("-1"), Some("\"2\""), Some("1.5"), Some("5")]), (5.into(), 3));
    }
}
