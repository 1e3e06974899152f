//! Taking over fields: what an object got without server-side apply becomes what we have applied.
//!
//! Server-side apply removes a field that is no longer given only if no other manager owns it. Hive applies as `kubectl apply` does
//! without the help of a server, by patches, which are `Update`s, and so do we with the behaviors `CreateOrUpdate` and `CreateOnly`:
//! fields of these entries in `managedFields` would stay for ever. A server keeps one of two entries of a manager and an operation and
//! forgets the fields of the other, so all of them become one entry.

use serde_json::{Map, Value, json};

use crate::cluster::tool_marks::LAST_APPLIED;
use crate::cluster::{ManagedFields, Metadata};
use crate::syncset::plan::object::SYNCSET_ID;
use crate::syncset::plan::ownership::merge;
use crate::syncset::plan::pass::{Manager, Takeover};

/// How the managers of Hive are called: `hive6-clustersync`.
const HIVE: &str = "hive";

/// The JSON patches by which fields become those of our manager of applies. The server refuses them if the object has changed meanwhile.
pub(super) fn takeover(metadata: &Metadata) -> Takeover {
    let hive = metadata.managers.iter().find(|entry| applies_as_hive(entry, metadata));
    Takeover {
        ours: patch(metadata, None).map(Box::new),
        with_hive: hive.and_then(|hive| patch(metadata, Some(&hive.manager))).map(Box::new),
    }
}

/// The managers whose fields become those of our manager of applies before an object is applied: what we have updated, and what Hive has
/// applied if the object is ours.
pub fn taken_over(metadata: &Metadata, is_ours: bool) -> Vec<&str> {
    let hive = metadata.managers.iter().find(|entry| applies_as_hive(entry, metadata)).filter(|_| is_ours);
    std::iter::once(Manager::Update.as_str()).chain(hive.map(|entry| entry.manager.as_str())).collect()
}

/// Whether Hive has written the object itself. That is all that proves it: others may bear its label.
pub(super) fn is_of_hive(metadata: &Metadata) -> bool {
    metadata.managers.iter().any(|entry| entry.manager.starts_with(HIVE) && entry.subresource.is_empty())
}

/// The patch that takes over what we have updated, and what this manager has.
fn patch(metadata: &Metadata, hive: Option<&str>) -> Option<Value> {
    // Patches of a syncset and those of Hive have entries of other managers: their fields are not ours.
    let is_taken = |entry: &&ManagedFields| {
        let is_theirs = entry.manager == Manager::Update.as_str() || hive == Some(entry.manager.as_str());
        is_theirs && entry.operation == "Update" && entry.subresource.is_empty()
    };
    let is_ours = |entry: &&ManagedFields| {
        entry.manager == Manager::Apply.as_str() && entry.operation == "Apply" && entry.subresource.is_empty()
    };
    let newest = metadata.managers.iter().filter(is_taken).max_by_key(|entry| entry.time.as_deref())?;
    let is_merged = |entry: &&ManagedFields| is_ours(entry) || is_taken(entry);
    let mut fields = Value::Object(Map::new());
    for entry in metadata.managers.iter().filter(is_merged) {
        merge(&mut fields, entry.fields_value());
    }
    let api_version = metadata.managers.iter().find(is_ours).unwrap_or(newest).api_version.as_str();
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

/// Whether it is the entry of a client that applies like Hive: it owns the annotation in which that keeps what it has applied last. On
/// an object that we have sent before, others may apply like that, too.
fn applies_as_hive(entry: &ManagedFields, metadata: &Metadata) -> bool {
    let is_own = [Manager::Apply, Manager::Update, Manager::Patch].iter().any(|own| own.as_str() == entry.manager);
    let may_be_another = metadata.annotations.contains_key(SYNCSET_ID) && !entry.manager.starts_with(HIVE);
    let is_update = entry.operation == "Update" && entry.subresource.is_empty();
    if is_own || may_be_another || !is_update || !entry.fields.contains(LAST_APPLIED) {
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

    fn with_hive(metadata: &Metadata) -> Option<Value> {
        takeover(metadata).with_hive.map(|patch| *patch)
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
        let patch = with_hive(&metadata(&managers)).expect("Hive has applied it");
        let mut fields = last_applied();
        fields["f:data"] = json!({".": {}, "f:old": {}, "f:a": {}});
        let mut merged = of("towline", "Apply", &fields);
        (merged["time"], merged["apiVersion"]) = (json!("2026-11-19T08:00:03Z"), json!("v2"));
        let expected = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": [merged, patches, status, foreign]},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        ]);
        assert_eq!(patch, expected);
        assert_eq!(takeover(&metadata(&managers)).ours, None, "we have updated nothing");
        let (Value::Array(managers), Value::Array(patch)) = (managers, patch) else { panic!("they are lists") };
        assert!(
            managers.len() == 6 && takeover(&metadata(&patch[0]["value"])) == Takeover::default(),
            "it is done once"
        );
    }

    #[test]
    fn our_updates_become_an_apply_with_the_fields_of_hive_or_without_them() {
        let mut update = of("towline-update", "Update", &json!({"f:data": {"f:a": {}, "f:dropped": {}}}));
        (update["time"], update["apiVersion"]) = (json!("2026-11-19T08:00:02Z"), json!("v2"));
        let mut status = of("towline-update", "Update", &json!({"f:status": {}}));
        status["subresource"] = json!("status");
        let patches = of("towline-patch", "Update", &json!({"f:data": {"f:patched": {}}}));
        let mut hive = of("hive6-clustersync", "Update", &last_applied());
        hive["time"] = json!("2026-11-19T08:00:01Z");
        let found = takeover(&metadata(&json!([hive, patches, update, status])));
        let merged = |fields: &Value| {
            let mut merged = of("towline", "Apply", fields);
            (merged["time"], merged["apiVersion"]) = (json!("2026-11-19T08:00:02Z"), json!("v2"));
            merged
        };
        let entries = |patch: Option<Box<Value>>| patch.expect("a patch")[0]["value"].clone();
        let fields = json!({"f:data": {"f:a": {}, "f:dropped": {}}});
        assert_eq!(entries(found.ours), json!([merged(&fields), hive, patches, status]));
        let mut both = last_applied();
        both["f:data"] = fields["f:data"].clone();
        assert_eq!(entries(found.with_hive), json!([merged(&both), patches, status]));
    }

    #[test]
    fn only_an_update_that_owns_the_last_applied_annotation_is_of_hive() {
        let is_of_hive = |entry: Value| with_hive(&metadata(&json!([entry]))).is_some();
        assert!(is_of_hive(of("hive6-clustersync", "Update", &last_applied())));
        assert!(is_of_hive(of("kubectl", "Update", &last_applied())));
        assert!(!is_of_hive(of("hive6-clustersync", "Apply", &last_applied())));
        assert!(!is_of_hive(of("towline-update", "Update", &last_applied())));
        assert!(!is_of_hive(of("hive7-clustersync", "Update", &json!({"f:data": {}}))));
        let elsewhere = json!({"f:data": {"f:kubectl.kubernetes.io/last-applied-configuration": {}}});
        assert!(!is_of_hive(of("hive6-clustersync", "Update", &elsewhere)));
        let mut status = of("hive6-clustersync", "Update", &last_applied());
        status["subresource"] = json!("status");
        assert!(!is_of_hive(status));
    }

    #[test]
    fn what_others_have_applied_on_an_object_that_we_have_sent_stays_theirs() {
        let is_of_hive = |manager: &str| {
            let mut sent = metadata(&json!([of(manager, "Update", &last_applied())]));
            sent.annotations.insert(SYNCSET_ID.to_owned(), "00000000-0000-0000-0000-000000000001".to_owned());
            with_hive(&sent).is_some()
        };
        assert!(is_of_hive("hive6-clustersync") && !is_of_hive("kubectl-client-side-apply"));
    }
}
