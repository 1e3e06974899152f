//! Whether a status differs from the stored one by enough to be written.

use serde_json::{Map, Value};

use super::condition::DUPLICATE;

/// Fields that cause no write alone: who worked on the cluster, and when.
const IGNORED: [&str; 2] = ["controlledBy", "lastTransitionTime"];
/// What a cluster answered, or how it failed to.
const FAILURE: &str = "failureMessage";
const MESSAGE: &str = "message";

/// Whether a status says something else than another one. The order of lists, other digits or hexadecimal numbers in what clusters answered,
/// and who worked on the cluster do not count: such numbers are times, ports or addresses of memory as often as not. In messages of ours they
/// are parts of names.
pub fn differs(new: &Map<String, Value>, old: &Map<String, Value>) -> bool {
    comparable_fields(new) != comparable_fields(old)
}

fn comparable_fields(fields: &Map<String, Value>) -> Value {
    let kept = fields.iter().filter(|(field, _)| !IGNORED.contains(&field.as_str()));
    let has = |field: &str, text: &str| fields.get(field).is_some_and(|value| value == text);
    let is_answer = has("type", "Unreachable") && !has("reason", DUPLICATE);
    let has_numbers = |field: &str| field == FAILURE || (is_answer && field == MESSAGE);
    let of_field = |field: &str, value: &Value| match value {
        Value::String(text) if has_numbers(field) => Value::String(without_numbers(text)),
        value => comparable(value),
    };
    Value::Object(kept.map(|(field, value)| (field.clone(), of_field(field, value))).collect())
}

fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => comparable_fields(fields),
        Value::Array(elements) => {
            let mut elements: Vec<Value> = elements.iter().map(comparable).collect();
            elements.sort_by_cached_key(Value::to_string);
            Value::Array(elements)
        }
        other => other.clone(),
    }
}

/// The text with `#` for each run of hexadecimal digits that has a decimal one in it.
fn without_numbers(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_digit = first.is_ascii_hexdigit();
        let end = rest.find(|letter: char| letter.is_ascii_hexdigit() != is_digit).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        let is_number = is_digit && run.contains(|letter: char| letter.is_ascii_digit());
        shown.push_str(if is_number { "#" } else { run });
        rest = after;
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn status(message: &str, since: &str, names: &[&str], controlled_by: &str) -> Map<String, Value> {
        let entries: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "observedGeneration": 4, "failureMessage": message, "lastTransitionTime": since}))
            .collect();
        let Value::Object(status) = json!({"controlledBy": controlled_by, "syncSets": entries}) else { unreachable!() };
        status
    }

    #[test]
    fn numbers_in_messages_are_ignored_and_words_are_not() {
        for (one, other, differ) in [
            ("dial tcp 10.0.0.1:443: timeout", "dial tcp 10.0.0.27:8443: timeout", false),
            ("panic at 0xc0004f2a", "panic at 0xc000aa12", false),
            ("request 5f2ea01c failed", "request 77 failed", false),
            ("failed to apply resource 0: bad", "failed to apply resource 0: dad", true),
            ("Forbidden", "Forbidden 1", true),
            ("", "1", true),
        ] {
            let of = |message| status(message, "t", &["a"], "x");
            assert_eq!(differs(&of(one), &of(other)), differ, "{one} / {other}");
        }
    }

    #[test]
    fn numbers_count_in_conditions_whose_messages_are_ours() {
        let of = |kind: &str, reason: &str, message: &str| {
            let status =
                json!({"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]});
            let Value::Object(status) = status else { unreachable!() };
            status
        };
        for (kind, reason, differ) in [
            ("Unreachable", "Unauthorized", false),
            ("Unreachable", "Duplicate", true),
            ("Held", "MassDeletion", true),
            ("Paused", "Paused", true),
        ] {
            let (one, other) = (of(kind, reason, "of west-1"), of(kind, reason, "of west-2"));
            assert_eq!(differs(&one, &other), differ, "{kind} {reason}");
        }
    }

    #[test]
    fn who_worked_on_it_when_and_the_order_are_ignored() {
        let stored = status("m", "2026", &["a", "b"], "towline-1");
        assert!(!differs(&status("m", "2027", &["b", "a"], "towline-2"), &stored));
        assert!(differs(&status("m", "2026", &["a"], "towline-1"), &stored));
        let other_generation = stored.iter().map(|(field, value)| {
            let text = value.to_string().replace("\"observedGeneration\":4", "\"observedGeneration\":5");
            (field.clone(), serde_json::from_str(&text).expect("JSON"))
        });
        assert!(differs(&other_generation.collect(), &stored), "a number outside of messages counts");
    }

    proptest! {
        #[test]
        fn a_status_never_differs_from_itself(message in "\\PC{0,40}", names in prop::collection::vec("[a-z0-9]{1,5}", 0..4)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let status = status(&message, "t", &names, "x");
            prop_assert!(!differs(&status, &status.clone()));
        }

        #[test]
        fn a_message_without_digits_is_compared_as_it_is(one in "[a-zA-Z .:]{0,20}", other in "[a-zA-Z .:]{0,20}") {
            prop_assert_eq!(differs(&status(&one, "t", &["a"], "x"), &status(&other, "t", &["a"], "x")), one != other);
        }
    }
}
