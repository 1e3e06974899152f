//! What a pass takes from an object's metadata.

use sha2::{Digest as _, Sha256};

use super::takeover::{is_of_hive, takeover};
use crate::cluster::{Deletion, ManagedFields, Metadata, shown_manager};
use crate::syncset::plan::name::Digest;
use crate::syncset::plan::pass::{Ending, Manager, Marks, Seen, Takeover};

/// Most bytes of a manager's name; API servers accept no longer ones.
const LONGEST_MANAGER: usize = 128;

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
pub(super) fn ending(deletion: &Deletion) -> Ending {
    let Deletion { at, finalizers, remaining } = deletion;
    Ending { since: at.parse().ok(), finalizers: finalizers.clone(), remaining: remaining.clone() }
}

/// The same with what it takes to apply an object that was written in other ways.
pub(super) fn looked_at(metadata: &Metadata) -> Seen {
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
    let is_shown = |name: &str| name.len() <= LONGEST_MANAGER && !name.chars().any(char::is_control);
    metadata.managers.iter().filter(move |entry| {
        entry.subresource != "status" && !is_ours(entry) && is_shown(&entry.manager) && is_shown(&entry.subresource)
    })
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
}
