//! Decodes what leaf hubs reported, which may be any JSON.

use serde_json::{Map, Value};

/// Parses a part. `null` counts as absent.
pub(super) fn parse(value: Option<&str>) -> Result<Option<Value>, String> {
    match value.map(serde_json::from_str::<Value>) {
        None | Some(Ok(Value::Null)) => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(error)) => Err(format!("failed to decode: {error}")),
    }
}

/// A list, which is empty if it is absent.
pub(super) fn list(value: Option<Value>, what: &str) -> Result<Vec<Value>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(format!("{what} is not a list")),
    }
}

/// An object, unless it is absent.
pub(super) fn object(value: Option<Value>, what: &str) -> Result<Option<Map<String, Value>>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(format!("{what} is not an object")),
    }
}

/// A string in an object, which is empty if it is absent.
pub(super) fn text<'v>(item: &'v Value, key: &str) -> Result<&'v str, String> {
    match item.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("{key} is not a string")),
    }
}

/// The name of a decision's cluster, which is required.
pub(super) fn cluster_name(item: &Value) -> Result<&str, String> {
    match text(item, "clusterName")? {
        "" => Err("a decision without clusterName".to_owned()),
        name => Ok(name),
    }
}
