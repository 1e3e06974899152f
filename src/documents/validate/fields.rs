//! Reading the fields of an object, with a fault for each that is missing or of another type.

use serde_json::{Map, Value};

use super::faults::Faults;
use crate::config::fault::nearest;
use crate::config::text::{described, kind_of};
use crate::documents::body::Path;
use crate::documents::problem::Fault;

/// An object at a place.
pub(super) fn object<'v>(value: &'v Value, path: &Path<'_>, faults: &mut Faults) -> Option<&'v Map<String, Value>> {
    if let Value::Object(fields) = value {
        return Some(fields);
    }
    faults.add(path, kind_of(value), "an object");
    None
}

/// A list field with at most so many elements; empty if it is absent.
pub(super) fn list<'v>(
    fields: &'v Map<String, Value>,
    name: &str,
    most: usize,
    parent: &Path<'_>,
    faults: &mut Faults,
) -> &'v [Value] {
    let path = parent.field(name);
    match fields.get(name) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(elements)) if elements.len() > most => {
            faults.add(&path, format!("a list of {} elements", elements.len()), format!("at most {most} elements"));
            &[]
        }
        Some(Value::Array(elements)) => elements,
        Some(other) => {
            faults.add(&path, kind_of(other), "a list");
            &[]
        }
    }
}

/// A text field; `None` if it is absent, or after a fault.
pub(super) fn text<'v>(
    fields: &'v Map<String, Value>,
    name: &str,
    parent: &Path<'_>,
    faults: &mut Faults,
) -> Option<&'v str> {
    match fields.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(other) => {
            faults.add(&parent.field(name), described(other), "a string");
            None
        }
    }
}

/// A text field that has to be there and not empty.
pub(super) fn required<'v>(
    fields: &'v Map<String, Value>,
    name: &str,
    parent: &Path<'_>,
    faults: &mut Faults,
) -> Option<&'v str> {
    match fields.get(name) {
        None | Some(Value::Null) => {
            faults.add(&parent.field(name), "missing", "a string that is not empty");
            None
        }
        Some(Value::String(text)) if text.is_empty() => {
            faults.add(&parent.field(name), "\"\"", "a string that is not empty");
            None
        }
        _ => text(fields, name, parent, faults),
    }
}

/// A boolean field; false if it is absent.
pub(super) fn boolean(fields: &Map<String, Value>, name: &str, parent: &Path<'_>, faults: &mut Faults) -> bool {
    match fields.get(name) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(value)) => *value,
        Some(other) => {
            faults.add(&parent.field(name), described(other), "true or false");
            false
        }
    }
}

/// A field with one of these words: the first of them if it is absent or empty, and `None` after a fault.
pub(super) fn word<'w>(
    fields: &Map<String, Value>,
    name: &str,
    words: &[&'w str],
    parent: &Path<'_>,
    faults: &mut Faults,
) -> Option<&'w str> {
    let value = match fields.get(name) {
        None | Some(Value::Null) => return words.first().copied(),
        // As Go writes a field that is not set.
        Some(Value::String(text)) if text.is_empty() => return words.first().copied(),
        Some(value) => value,
    };
    let known = words.iter().find(|word| value == **word).copied();
    if known.is_none() {
        let suggestion = value.as_str().and_then(|text| nearest(text, words.iter().copied()));
        let fault = Fault::new(parent.field(name).to_string(), described(value)).allowed(alternatives(words));
        faults.push(fault.suggestion(suggestion));
    }
    known
}

/// `a, b or c`.
fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
