//! Own fields of secrets.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::faults::Faults;
use crate::config::names::LONGEST_SUBDOMAIN;
use crate::config::text::{described, kind_of, quoted};
use crate::documents::body::Path;

/// The fields that are not sealed.
pub(super) fn fields(fields: &Map<String, Value>, faults: &mut Faults) -> Map<String, Value> {
    let path = Path::Root.field("type");
    let kind = match fields.get("type") {
        None => "Opaque",
        Some(Value::String(kind)) if !kind.is_empty() => kind,
        Some(other) => {
            faults.add(&path, described(other), "a string that is not empty");
            "Opaque"
        }
    };
    let mut own = Map::from_iter([("type".to_owned(), json!(kind))]);
    match fields.get("immutable") {
        None | Some(Value::Bool(false)) => {}
        // Only what differs from the default is stored: documents from before there was the field are the same as those without it.
        Some(Value::Bool(true)) => drop(own.insert("immutable".to_owned(), json!(true))),
        Some(other) => faults.add(&Path::Root.field("immutable"), described(other), "true or false"),
    }
    own
}

/// The sealed values: base64 by name. Faults show names alone.
pub(in crate::documents) fn data(value: &Value, faults: &mut Faults) -> BTreeMap<String, SecretString> {
    let path = Path::Root.field("data");
    let mut data = BTreeMap::new();
    let Value::Object(fields) = value else {
        faults.add(&path, kind_of(value), "an object with values in base64");
        return data;
    };
    for (name, value) in fields {
        if let Some(value) = entry(name, value, &path, faults) {
            data.insert(name.clone(), value);
        }
    }
    data
}

/// One of the sealed values.
pub(in crate::documents) fn entry(
    name: &str,
    value: &Value,
    data: &Path<'_>,
    faults: &mut Faults,
) -> Option<SecretString> {
    let is_name_character = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if name.is_empty() || name.len() > LONGEST_SUBDOMAIN || !name.chars().all(is_name_character) {
        faults.add(data, format!("the key {}", quoted(name)), "at most 253 letters, digits, -, _ and .");
        return None;
    }
    match value {
        Value::String(text) if STANDARD.decode(text).is_ok() => Some(text.as_str().into()),
        Value::String(_) => {
            faults.add(&data.field(name), "a string that is not base64", "base64");
            None
        }
        other => {
            faults.add(&data.field(name), kind_of(other), "a string in base64");
            None
        }
    }
}
