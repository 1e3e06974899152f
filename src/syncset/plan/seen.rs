//! What a pass takes from an object's metadata: its marks, which of its fields we own, and who else writes to it.
//!
//! And what it takes to apply an object whose fields we or Hive have written in other ways. Server-side apply removes a field that is no longer
//! given only if no other manager owns it. Hive applies as `kubectl apply` does without the help of a server, by patches, which are
//! `Update`s, and so do we with the behaviors `CreateOrUpdate` and `CreateOnly`: fields of these entries in `managedFields` would stay for ever. A
//! server keeps one of two entries of a manager and an operation and forgets the fields of the other, so all of them become one entry.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::name::Digest;
use super::object::SYNCSET_ID;
use super::ownership::merge;
use super::pass::{Ending, Manager, Marks, Seen, Takeover};
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::cluster::{Deletion, ManagedFields, Metadata, shown_manager};

/// Most bytes of a manager's name; API servers accept no longer ones.
const LONGEST_MANAGER: usize = 128;
/// How the managers of Hive are called: `hive6-clustersync`.
const HIVE: &str = "hive";

/// How an object is, as a pass sees it.
pub fn seen(metadata: &Metadata) -> Seen {
    Seen {
        uid: metadata.uid.to_string(),
        version: metadata.resource_version.to_string(),
        marks: Marks::of(&metadata.labels, &metadata.annotations),
        of_this_hub: false,
        of_hive: is_of_hive(metadata),
        ending: metadata.deletion.as_ref().map(ending),
        owned_by_apply: owned(metadata, Manager::Apply, "Apply"),
        owned_by_update: owned(metadata, Manager::Update, "Update"),
        last_other: last_other(metadata),
        scaled: scaled(metadata),
        takeover: Takeover::default(),
    }
}

/// That an object is being deleted.
pub fn ending(deletion: &Deletion) -> Ending {
    let Deletion { at, finalizers, remaining } = deletion;
    Ending { since: at.parse().ok(), finalizers: finalizers.clone(), remaining: remaining.clone() }
}

/// The same with what it takes to apply an object that was written in other ways.
pub fn looked_at(metadata: &Metadata) -> Seen {
    Seen { takeover: takeover(metadata), ..seen(metadata) }
}

/// The manager that has written last to the object, but to its status, besides ours. Its name is shown to operators.
fn last_other(metadata: &Metadata) -> Option<String> {
    // All times are written alike, so they are in the order of their texts.
    let last = others(metadata).max_by_key(|entry| entry.time.as_deref());
    last.map(|entry| shown_manager(&entry.manager, &entry.subresource))
}

/// Who owns a field through a subresource but the status, and the pointer of the field, unless we own it, too: then it was sent since.
fn scaled(metadata: &Metadata) -> Vec<(String, String)> {
    let is_ours = |pointer: &str| {
        let pointer = pointer.replace('/', "/f:");
        let mut ours = metadata.managers.iter().filter(|entry| is_ours(entry));
        ours.any(|entry| entry.fields_value().pointer(&pointer).is_some())
    };
    let by_subresource = others(metadata).filter(|entry| !entry.subresource.is_empty());
    let fields = by_subresource.filter_map(|entry| {
        let (mut pointer, mut fields) = (String::new(), &entry.fields_value());
        while let Some((name, inner)) = fields.as_object().and_then(|fields| fields.iter().next()) {
            pointer = format!("{pointer}/{}", name.strip_prefix("f:")?);
            fields = inner;
        }
        (!is_ours(&pointer)).then(|| (shown_manager(&entry.manager, &entry.subresource), pointer))
    });
    fields.collect()
}

fn is_ours(entry: &ManagedFields) -> bool {
    [Manager::Apply, Manager::Update, Manager::Patch].iter().any(|manager| manager.as_str() == entry.manager)
}

/// The entries of other managers, but those of the status.
fn others(metadata: &Metadata) -> impl Iterator<Item = &ManagedFields> {
    metadata.managers.iter().filter(|entry| entry.subresource != "status" && !is_ours(entry) && is_shown(entry))
}

/// Whether operators may be shown the manager: an API server takes no other names.
pub fn is_shown(entry: &ManagedFields) -> bool {
    let is_usual = |name: &str| name.len() <= LONGEST_MANAGER && !name.chars().any(char::is_control);
    is_usual(&entry.manager) && is_usual(&entry.subresource)
}

/// Of the entry of a manager: which fields it owns, and since when.
fn owned(metadata: &Metadata, manager: Manager, operation: &str) -> Option<Digest> {
    let is_ours = |entry: &&ManagedFields| {
        entry.manager == manager.as_str() && entry.operation == operation && entry.subresource.is_empty()
    };
    let entry = metadata.managers.iter().find(is_ours)?;
    let mut hash = Sha256::new();
    hash.update(entry.time.as_deref().unwrap_or_default());
    hash.update([0]);
    hash.update(entry.fields.as_bytes());
    Some(manager.tag(Digest(hash.finalize().into())))
}

/// The JSON patches by which fields become those of our manager of applies. The server refuses them if the object has changed meanwhile.
fn takeover(metadata: &Metadata) -> Takeover {
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
fn is_of_hive(metadata: &Metadata) -> bool {
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

    fn metadata(managers: &serde_json::Value) -> Metadata {
        let object = json!({"metadata": {"name": "site", "namespace": "team", "uid": "u", "resourceVersion": "7",
            "labels": {"hive.openshift.io/managed": "true"}, "managedFields": managers}});
        serde_json::from_value(object).expect("metadata")
    }

    fn entry(manager: &str, operation: &str, subresource: &str, time: &str) -> serde_json::Value {
        json!({"manager": manager, "operation": operation, "subresource": subresource, "apiVersion": "v1", "time": time,
            "fieldsV1": {"f:data": {"f:a": {}}}})
    }

    #[test]
    fn what_we_own_changes_with_fields_and_time_and_not_with_other_managers() {
        let of = |managers| seen(&metadata(&managers)).owned_by_apply;
        let ours = of(json!([entry("towline", "Apply", "", "t1")])).expect("our entry");
        assert_eq!(of(json!([entry("kubectl", "Update", "", "t2"), entry("towline", "Apply", "", "t1")])), Some(ours));
        assert_ne!(of(json!([entry("towline", "Apply", "", "t2")])), Some(ours));
        assert_eq!(of(json!([entry("towline", "Update", "", "t1"), entry("towline", "Apply", "status", "t1")])), None);
        assert_eq!(of(json!(null)), None);
        let both = seen(&metadata(&json!([entry("towline-update", "Update", "", "t1")])));
        assert!(both.owned_by_update.is_some() && both.owned_by_apply.is_none() && both.marks.managed);
    }

    #[test]
    fn the_last_other_manager_is_the_newest_that_is_not_ours_and_wrote_more_than_the_status() {
        let of = |managers| seen(&metadata(&managers)).last_other;
        let ours = ["towline", "towline-update", "towline-patch"].map(|manager| entry(manager, "Update", "", "t9"));
        assert_eq!(of(json!(ours)), None);
        let others = [
            entry("older", "Update", "", "t1"),
            entry("newest", "Apply", "", "t3"),
            entry("newer", "Update", "", "t2"),
            entry("kubelet", "Update", "status", "t4"),
            entry("a\nb", "Update", "", "t5"),
            entry(&"l".repeat(LONGEST_MANAGER + 1), "Update", "", "t6"),
        ];
        assert_eq!(of(json!([&others[..], &ours[..]].concat())).as_deref(), Some("newest"));
        let scaled = [&others[..], &[entry("hpa", "Update", "scale", "t7")]].concat();
        assert_eq!(of(json!(scaled)).as_deref(), Some("hpa by /scale"));
        let replicas = |manager: &str, subresource: &str| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource, "apiVersion": "apps/v1",
                "fieldsV1": {"f:spec": {"f:replicas": {}}}})
        };
        let resized = json!({"manager": "vpa", "operation": "Update", "subresource": "resize", "apiVersion": "v1",
            "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:resources": {}}}}}});
        let scaled = [&others[..], &[resized, replicas("hpa", "scale")]].concat();
        let found = seen(&metadata(&json!(scaled)));
        assert_eq!(found.last_other.as_deref(), Some("newest"), "it has no time");
        assert_eq!(found.scaled, [("hpa by /scale".to_owned(), "/spec/replicas".to_owned())]);
        let shared = [&scaled[..], &[replicas("towline", "")]].concat();
        assert_eq!(seen(&metadata(&json!(shared))).scaled, [], "sent since");
        assert_eq!(seen(&metadata(&json!(others))).scaled, []);
        let timeless = json!({"manager": "timeless", "operation": "Update", "apiVersion": "v1"});
        assert_eq!(of(json!([timeless])).as_deref(), Some("timeless"));
    }

    fn unlabelled(managers: &Value) -> Metadata {
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
        let patch = with_hive(&unlabelled(&managers)).expect("Hive has applied it");
        let mut fields = last_applied();
        fields["f:data"] = json!({".": {}, "f:old": {}, "f:a": {}});
        let mut merged = of("towline", "Apply", &fields);
        (merged["time"], merged["apiVersion"]) = (json!("2026-11-19T08:00:03Z"), json!("v2"));
        let expected = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": [merged, patches, status, foreign]},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        ]);
        assert_eq!(patch, expected);
        assert_eq!(takeover(&unlabelled(&managers)).ours, None, "we have updated nothing");
        let (Value::Array(managers), Value::Array(patch)) = (managers, patch) else { panic!("they are lists") };
        assert!(
            managers.len() == 6 && takeover(&unlabelled(&patch[0]["value"])) == Takeover::default(),
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
        let found = takeover(&unlabelled(&json!([hive, patches, update, status])));
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
        let is_of_hive = |entry: Value| with_hive(&unlabelled(&json!([entry]))).is_some();
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
            let mut sent = unlabelled(&json!([of(manager, "Update", &last_applied())]));
            sent.annotations.insert(SYNCSET_ID.to_owned(), "00000000-0000-0000-0000-000000000001".to_owned());
            with_hive(&sent).is_some()
        };
        assert!(is_of_hive("hive6-clustersync") && !is_of_hive("kubectl-client-side-apply"));
    }
}
