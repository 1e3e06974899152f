//! What a pass takes from an object's metadata.

use sha2::{Digest as _, Sha256};

use crate::cluster::{ManagedFields, Metadata};
use crate::syncset::rules::name::Digest;
use crate::syncset::rules::object::LAST_APPLIED;
use crate::syncset::rules::pass::{Manager, Marks, Seen};

/// How an object is, as a pass sees it.
pub fn seen(metadata: &Metadata) -> Seen {
    Seen {
        uid: metadata.uid.to_string(),
        version: metadata.resource_version.to_string(),
        marks: Marks::of(&metadata.labels, &metadata.annotations),
        terminating: metadata.is_terminating,
        owned_by_apply: owned(metadata, Manager::Apply, "Apply"),
        owned_by_update: owned(metadata, Manager::Update, "Update"),
        of_hive: metadata.managers.iter().any(owns_last_applied),
    }
}

/// Of the entry of a manager: which fields it owns, and since when (rule 22).
fn owned(metadata: &Metadata, manager: Manager, operation: &str) -> Option<Digest> {
    let is_ours = |entry: &&ManagedFields| {
        entry.manager == manager.as_str() && entry.operation == operation && entry.subresource.is_empty()
    };
    let entry = metadata.managers.iter().find(is_ours)?;
    let mut hash = Sha256::new();
    hash.update(entry.time.as_deref().unwrap_or_default());
    hash.update([0]);
    hash.update(entry.fields.as_bytes());
    Some(Digest(hash.finalize().into()))
}

/// Whether it is the entry of a client that applies as `kubectl apply` does without a server's help, such as Hive's (rule 21).
fn owns_last_applied(entry: &ManagedFields) -> bool {
    let fields = entry.fields_value();
    let annotation = format!("f:{LAST_APPLIED}");
    entry.operation == "Update" && !fields["f:metadata"]["f:annotations"][annotation.as_str()].is_null()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn an_object_of_hive_has_an_update_that_owns_the_last_applied_annotation() {
        let annotation = json!({"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}}});
        let of = |operation: &str| {
            let managers = json!([{"manager": "hive6-clustersync", "operation": operation, "apiVersion": "v1", "fieldsV1": annotation}]);
            seen(&metadata(&managers)).of_hive
        };
        assert!(of("Update") && !of("Apply"));
        assert!(!seen(&metadata(&json!([entry("hive7-clustersync", "Update", "", "t")]))).of_hive);
    }
}
