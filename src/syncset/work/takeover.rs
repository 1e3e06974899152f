//! Taking over from Hive (rule 21): Hive's entry in `managedFields` becomes ours.
//!
//! Hive applies as `kubectl apply` does without the help of a server: by patches, which are `Update`s. Server-side apply removes a
//! field that is no longer given only if no other manager owns it, so fields of Hive's would stay for ever. A server keeps one
//! of two entries of a manager and an operation and forgets the fields of the other, so both become one entry.

use serde_json::{Map, Value, json};

use crate::cluster::{ManagedFields, Metadata};
use crate::syncset::rules::object::LAST_APPLIED;
use crate::syncset::rules::pass::Manager;

/// The JSON patch by which the fields of whoever has applied an object like Hive become those of our manager; none if nobody has. The
/// server refuses it if the object has changed meanwhile.
pub(super) fn takeover(metadata: &Metadata) -> Option<Value> {
    let hive = metadata.managers.iter().find(|entry| is_of_hive(entry))?;
    // Hive's patches have an entry of another manager: their fields are not ours.
    let is_hives = |entry: &ManagedFields| {
        entry.manager == hive.manager && entry.operation == "Update" && entry.subresource.is_empty()
    };
    let is_ours = |entry: &ManagedFields| {
        entry.manager == Manager::Apply.as_str() && entry.operation == "Apply" && entry.subresource.is_empty()
    };
    let is_merged = |entry: &&ManagedFields| is_ours(entry) || is_hives(entry);
    let mut fields = Value::Object(Map::new());
    for entry in metadata.managers.iter().filter(is_merged) {
        merge(&mut fields, entry.fields_value());
    }
    let api_version = metadata.managers.iter().find(|entry| is_ours(entry)).unwrap_or(hive).api_version.as_str();
    let time = metadata.managers.iter().filter(is_merged).filter_map(|entry| entry.time.as_deref()).max();
    let merged = entry((Manager::Apply.as_str(), "Apply", api_version, ""), time, &fields);
    let others = metadata.managers.iter().filter(|entry| !is_merged(entry)).map(|other| {
        let names =
            (other.manager.as_str(), other.operation.as_str(), other.api_version.as_str(), other.subresource.as_str());
        entry(names, other.time.as_deref(), &other.fields_value())
    });
    let entries: Vec<Value> = std::iter::once(merged).chain(others).collect();
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": &*metadata.resource_version},
    ]))
}

/// Whether it is the entry of a client that applies like Hive: it owns the annotation in which that keeps what it has applied last.
fn is_of_hive(entry: &ManagedFields) -> bool {
    let is_own = [Manager::Apply, Manager::Update, Manager::Patch].iter().any(|own| own.as_str() == entry.manager);
    if is_own || entry.operation != "Update" || !entry.subresource.is_empty() || !entry.fields.contains(LAST_APPLIED) {
        return false;
    }
    let fields = entry.fields_value();
    let annotations = fields.get("f:metadata").and_then(|metadata| metadata.get("f:annotations"));
    annotations.and_then(|annotations| annotations.get(format!("f:{LAST_APPLIED}"))).is_some()
}

/// An entry as servers write it, of manager, operation, version and subresource.
fn entry(names: (&str, &str, &str, &str), time: Option<&str>, fields: &Value) -> Value {
    let (manager, operation, api_version, subresource) = names;
    let mut entry = Map::new();
    for (name, value) in [("manager", manager), ("operation", operation), ("apiVersion", api_version)] {
        entry.insert(name.to_owned(), json!(value));
    }
    if let Some(time) = time {
        entry.insert("time".to_owned(), json!(time));
    }
    entry.insert("fieldsType".to_owned(), json!("FieldsV1"));
    entry.insert("fieldsV1".to_owned(), fields.clone());
    if !subresource.is_empty() {
        entry.insert("subresource".to_owned(), json!(subresource));
    }
    Value::Object(entry)
}

/// The union of two sets of fields.
fn merge(fields: &mut Value, more: Value) {
    let (Value::Object(fields), Value::Object(more)) = (fields, more) else { return };
    for (name, below) in more {
        merge(fields.entry(name).or_insert_with(|| Value::Object(Map::new())), below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(managers: &Value) -> Metadata {
        let object = json!({"metadata": {"name": "site", "namespace": "team", "uid": "u", "resourceVersion": "7",
            "managedFields": managers}});
        serde_json::from_value(object).expect("metadata")
    }

    fn of(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn last_applied() -> Value {
        json!({"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}}})
    }

    #[test]
    fn the_updates_of_hive_and_our_apply_become_one_apply_and_all_else_stays() {
        let mut first = of("hive6-clustersync", "Update", &last_applied());
        first["time"] = json!("2026-11-19T08:00:03Z");
        let mut older = of("hive6-clustersync", "Update", &json!({"f:data": {".": {}, "f:old": {}}}));
        (older["time"], older["apiVersion"]) = (json!("2026-11-19T08:00:01Z"), json!("v1beta1"));
        let mut status = of("hive6-clustersync", "Update", &json!({"f:status": {}}));
        status["subresource"] = json!("status");
        let mut ours = of("towline", "Apply", &json!({"f:data": {"f:a": {}}}));
        ours["apiVersion"] = json!("v2");
        let patches = of("hive7-clustersync", "Update", &json!({"f:data": {"f:patched": {}}}));
        let foreign = of("hive6-clustersync", "Apply", &json!({"f:data": {"f:b": {}}}));
        let managers = json!([ours, first, patches, older, status, foreign]);
        let patch = takeover(&metadata(&managers)).expect("Hive has applied it");
        let mut fields = last_applied();
        fields["f:data"] = json!({".": {}, "f:old": {}, "f:a": {}});
        let mut merged = of("towline", "Apply", &fields);
        (merged["time"], merged["apiVersion"]) = (json!("2026-11-19T08:00:03Z"), json!("v2"));
        let expected = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": [merged, patches, status, foreign]},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        ]);
        assert_eq!(patch, expected);
        let (Value::Array(managers), Value::Array(patch)) = (managers, patch) else { panic!("they are lists") };
        assert!(managers.len() == 6 && takeover(&metadata(&patch[0]["value"])).is_none(), "it is done once");
    }

    #[test]
    fn only_an_update_that_owns_the_last_applied_annotation_is_of_hive() {
        let is_of_hive = |entry: Value| takeover(&metadata(&json!([entry]))).is_some();
        assert!(is_of_hive(of("hive6-clustersync", "Update", &last_applied())));
        assert!(!is_of_hive(of("hive6-clustersync", "Apply", &last_applied())));
        assert!(!is_of_hive(of("towline-update", "Update", &last_applied())));
        assert!(!is_of_hive(of("hive7-clustersync", "Update", &json!({"f:data": {}}))));
        let elsewhere = json!({"f:data": {"f:kubectl.kubernetes.io/last-applied-configuration": {}}});
        assert!(!is_of_hive(of("hive6-clustersync", "Update", &elsewhere)));
        let mut status = of("hive6-clustersync", "Update", &last_applied());
        status["subresource"] = json!("status");
        assert!(!is_of_hive(status));
    }
}
