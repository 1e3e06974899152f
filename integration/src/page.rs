//! The answers with which `tests/page` plays a daemon and a hub: what these really say has every key of them.

use serde_json::Value;

/// By request, and for each of these in several states: one answer never has all that there can be. `*` stands for any name.
const ANSWERS: &str = include_str!("../../tests/page/answers.json");

/// Checks that a real answer has what the played one has in this state. An error says what the page would look for in vain.
pub fn agrees(request: &str, state: &str, answer: &Value) -> Result<(), String> {
    let answers: Value = serde_json::from_str(ANSWERS).map_err(|error| error.to_string())?;
    let played = answers.get(request).and_then(|states| states.get(state));
    let played = played.ok_or_else(|| format!("tests/page plays no {request:?} {state:?}"))?;
    let mut missing = Vec::new();
    look_for(played, &[answer], "", &mut missing);
    if missing.is_empty() { Ok(()) } else { Err(format!("{request} has no {missing:?}: {answer}")) }
}

/// Looks for the keys of a value in some that can be in its place.
fn look_for(played: &Value, real: &[&Value], path: &str, missing: &mut Vec<String>) {
    match played {
        Value::Object(fields) => {
            for (key, inner) in fields {
                let objects = real.iter().filter_map(|value| value.as_object());
                let found: Vec<&Value> = if key == "*" {
                    objects.flat_map(|object| object.values()).collect()
                } else {
                    objects.filter_map(|object| object.get(key)).collect()
                };
                let path = format!("{path}/{key}");
                if found.is_empty() {
                    missing.push(path);
                } else {
                    look_for(inner, &found, &path, missing);
                }
            }
        }
        Value::Array(items) => {
            let found: Vec<&Value> = real.iter().filter_map(|value| value.as_array()).flatten().collect();
            for item in items {
                look_for(item, &found, path, missing);
            }
        }
        _ => {}
    }
}
