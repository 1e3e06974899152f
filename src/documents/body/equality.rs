//! Equality by value: what PostgreSQL stores and prints differently is equal.

use serde_json::{Map, Number, Value};

/// Whether two values are equal: objects without order, and numbers by value, so `1e16`, `1e16` read back as
/// `10000000000000000`, and `1.0` and `1` are equal.
pub(in crate::documents) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => same_number(left, right),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => same_map(left, right),
        _ => left == right,
    }
}

/// Whether two objects are equal by value.
pub(in crate::documents) fn same_map(left: &Map<String, Value>, right: &Map<String, Value>) -> bool {
    left.len() == right.len() && left.iter().all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
}

fn same_number(left: &Number, right: &Number) -> bool {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => left == right,
        (None, None) => left.as_f64() == right.as_f64(),
        (Some(integer), None) => right.as_f64().is_some_and(|double| is_integer(double, integer)),
        (None, Some(integer)) => left.as_f64().is_some_and(|double| is_integer(double, integer)),
    }
}

/// Whether a double is exactly this integer. A double with a fraction is cut and then differs from itself.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "exactness is what is compared: the cast saturates, and the way back shows whether anything was lost"
)]
fn is_integer(double: f64, integer: i128) -> bool {
    double as i128 == integer && (double as i128) as f64 == double
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn numbers_are_equal_by_value() {
        for (left, right) in [
            ("1e16", "10000000000000000"),
            ("1.0", "1"),
            ("-0.0", "0"),
            ("18446744073709551615", "18446744073709551615"),
            ("1e300", "1.0e300"),
            ("[1.0, {\"a\": 2}]", "[1, {\"a\": 2.0}]"),
        ] {
            assert!(same(&read(left), &read(right)), "{left} {right}");
            assert!(same(&read(right), &read(left)), "{right} {left}");
        }
    }

    #[test]
    fn near_numbers_and_other_types_differ() {
        for (left, right) in [
            ("9007199254740993", "9007199254740992.0"),
            ("18446744073709551615", "18446744073709551616"),
            ("1.5", "1"),
            ("1", "\"1\""),
            ("null", "{}"),
            ("[1, 2]", "[2, 1]"),
            ("[1]", "[1, 1]"),
            ("{\"a\": null}", "{}"),
        ] {
            assert!(!same(&read(left), &read(right)), "{left} {right}");
            assert!(!same(&read(right), &read(left)), "{right} {left}");
        }
        assert!(same(&json!({"a": 1, "b": 2}), &json!({"b": 2, "a": 1})));
    }
}
