//! Every rule of which objects are written, created, deleted and left alone.

use serde_json::{Value, json};

use super::super::{family_spec, projection};
use super::*;
use crate::cluster::object::Decoded;
use crate::status_sync::config::StatusFamily;

const NO_SERVER_RESULT: &dyn Fn(&ObjectKey, Digest) -> Option<Digest> = &|_, _| None;
const NOTHING_OUTDATED: &dyn Fn(&ObjectKey, Digest) -> bool = &|_, _| false;

fn held(family: StatusFamily, name: &str, metadata: &Value, content: &Value) -> Arc<Object> {
    let mut object =
        json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "7"}});
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    for (key, value) in content.as_object().unwrap() {
        object[key] = value.clone();
    }
    let mut object = serde_json::from_value::<Decoded>(object).unwrap().into_object();
    projection(family_spec(family))(&mut object);
    Arc::new(object)
}

fn ours(label: &str, value: &str, uid: &str) -> Value {
    json!({"labels": {label: value}, "ownerReferences": [
        {"apiVersion": "x/v1", "kind": "Owner", "name": "foo", "uid": uid, "controller": true}]})
}

fn decisions(names: &[&str]) -> Fields {
    let list: Vec<Value> = names.iter().map(|name| json!({"clusterName": name, "reason": ""})).collect();
    Fields::from([("decisions", Value::Array(list))])
}

fn plan(
    family: StatusFamily,
    desired: Vec<Fields>,
    hub_object: Option<Arc<Object>>,
    owned: Vec<Arc<Object>>,
) -> Planned {
    let owned = owned.into_iter().map(|object| (object.key.clone(), object)).collect();
    let observed = Observed { hub_object, owned, server_result: NO_SERVER_RESULT, outdated: NOTHING_OUTDATED };
    next(&family_spec(family), &ObjectKey::new("n", "foo"), desired, &observed)
}

fn changes_of(planned: &Planned) -> Vec<String> {
    let word = |change: &Change| match change {
        Change::Patch { key, .. } => format!("patch {key}"),
        Change::Create { key, .. } => format!("create {key}"),
        Change::Delete { object } => format!("delete {}", object.key),
    };
    planned.changes.iter().map(word).collect()
}

#[test]
fn a_hub_object_is_patched_where_its_fields_differ_and_else_left_alone() {
    let family = StatusFamily::PlacementRules;
    let same = held(family, "foo", &json!({}), &json!({"status": decisions(&["a"])}));
    assert!(plan(family, vec![decisions(&["a"])], Some(Arc::clone(&same)), vec![]).changes.is_empty());
    assert_eq!(changes_of(&plan(family, vec![decisions(&["b"])], Some(same), vec![])), ["patch n/foo"]);
    let absent = plan(family, vec![decisions(&["b"])], None, vec![]);
    assert_eq!((changes_of(&absent).len(), absent.waiting), (0, Some(Waiting::Absent)));
}

#[test]
fn without_rows_the_fields_go_and_a_number_becomes_zero() {
    let policy = held(StatusFamily::Policies, "foo", &json!({}), &json!({"status": {"compliant": "Compliant"}}));
    let planned = plan(StatusFamily::Policies, vec![], Some(policy), vec![]);
    let Some(Change::Patch { fields, .. }) = planned.changes.first() else { panic!("{planned:?}") };
    assert_eq!(
        patch(&family_spec(StatusFamily::Policies), fields.clone(), None),
        Payload::merge_patch(&json!({"status": {"compliant": null, "status": null}}))
    );
    let placement = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
    let planned = plan(StatusFamily::Placements, vec![], Some(placement), vec![]);
    let Some(Change::Patch { fields, .. }) = planned.changes.first() else { panic!("{planned:?}") };
    assert_eq!(
        patch(&family_spec(StatusFamily::Placements), fields.clone(), None),
        Payload::merge_patch(&json!({"status": {"numberOfSelectedClusters": 0}}))
    );
}

#[test]
fn the_api_servers_result_of_our_write_counts_as_desired() {
    let family = StatusFamily::PlacementRules;
    let kept = held(family, "foo", &json!({}), &json!({"status": {"decisions": [{"clusterName": "a", "default": 1}]}}));
    let found = Digest::held(&kept);
    let server_result =
        move |_: &ObjectKey, desired| (desired == Digest::of(&decisions(&["a"]))).then_some(found).flatten();
    let observed = Observed {
        hub_object: Some(kept),
        owned: BTreeMap::new(),
        server_result: &server_result,
        outdated: NOTHING_OUTDATED,
    };
    let key = ObjectKey::new("n", "foo");
    assert!(next(&family_spec(family), &key, vec![decisions(&["a"])], &observed).changes.is_empty());
    assert_eq!(next(&family_spec(family), &key, vec![decisions(&["b"])], &observed).changes.len(), 1);
}

#[test]
fn a_cache_that_has_yet_to_show_another_write_of_ours_is_not_believed() {
    let family = StatusFamily::PlacementRules;
    let before = held(family, "foo", &json!({}), &json!({}));
    let written = Digest::of(&decisions(&["a"]));
    let outdated = move |_: &ObjectKey, desired| desired != written;
    let observed = Observed {
        hub_object: Some(before),
        owned: BTreeMap::new(),
        server_result: NO_SERVER_RESULT,
        outdated: &outdated,
    };
    let planned = next(&family_spec(family), &ObjectKey::new("n", "foo"), vec![], &observed);
    assert_eq!(changes_of(&planned), ["patch n/foo"], "it looks cleared, and is not");
}

#[test]
fn decisions_are_made_changed_and_deleted_by_label_and_live_owner() {
    let family = StatusFamily::PlacementDecisions;
    let hub_object = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
    let mine = |name: &str, content: &Fields| {
        held(family, name, &ours(PLACEMENT_LABEL, "foo", "uid-foo"), &json!({"status": content}))
    };
    let desired = || vec![decisions(&["a"]), decisions(&["b"])];
    assert_eq!(
        changes_of(&plan(family, desired(), Some(Arc::clone(&hub_object)), vec![])),
        ["create n/foo-decision-1", "create n/foo-decision-2"]
    );
    let owned = vec![
        mine("foo-decision-1", &decisions(&["a"])),
        mine("foo-decision-2", &decisions(&["x"])),
        mine("foo-decision-3", &decisions(&["c"])),
        // One of a placement whose name has the same prefix, and one that only looks like ours.
        held(family, "foo-bar-decision-1", &ours(PLACEMENT_LABEL, "foo-bar", "uid-foo-bar"), &json!({})),
        held(family, "foo-decision-9", &json!({"labels": {PLACEMENT_LABEL: "foo"}}), &json!({})),
    ];
    assert_eq!(
        changes_of(&plan(family, desired(), Some(Arc::clone(&hub_object)), owned.clone())),
        ["patch n/foo-decision-2", "delete n/foo-decision-3"]
    );
    assert_eq!(
        changes_of(&plan(family, vec![], Some(hub_object), owned)),
        ["delete n/foo-decision-1", "delete n/foo-decision-2", "delete n/foo-decision-3"]
    );
}

#[test]
fn foreign_objects_and_those_of_a_dead_owner_are_never_touched() {
    let family = StatusFamily::PlacementDecisions;
    let hub_object = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
    for (metadata, waiting) in [
        (json!({}), Waiting::Foreign),
        (json!({"labels": {PLACEMENT_LABEL: "foo"}}), Waiting::Foreign),
        (ours(PLACEMENT_LABEL, "bar", "uid-foo"), Waiting::Foreign),
        (ours(PLACEMENT_LABEL, "foo", "uid-of-before"), Waiting::Leaving),
    ] {
        let owned = vec![held(family, "foo-decision-1", &metadata, &json!({}))];
        for desired in [vec![], vec![decisions(&["a"])]] {
            let wanted = !desired.is_empty();
            let planned = plan(family, desired, Some(Arc::clone(&hub_object)), owned.clone());
            assert!(planned.changes.is_empty(), "{planned:?}");
            assert_eq!(planned.waiting, wanted.then_some(waiting));
            assert_eq!(planned.foreign.len(), usize::from(wanted && waiting == Waiting::Foreign));
        }
    }
}

#[test]
fn a_copy_in_another_namespace_is_not_ours() {
    for (family, name, label, value) in [
        (StatusFamily::PlacementDecisions, "foo-decision-1", PLACEMENT_LABEL, "foo"),
        (StatusFamily::SubscriptionStatuses, "foo", HOSTING_LABEL, "n.foo"),
        (StatusFamily::SubscriptionReports, "foo", HOSTING_LABEL, "n.foo"),
    ] {
        let hub_object = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
        let original = ours(label, value, "uid-foo");
        let mut copy = original.clone();
        copy["namespace"] = json!("copies");
        let both = [original, copy].map(|metadata| held(family, name, &metadata, &json!({})));
        assert_eq!(changes_of(&plan(family, vec![], Some(hub_object), both.to_vec())), [format!("delete n/{name}")]);
    }
}

#[test]
fn nothing_is_made_for_an_owner_that_is_gone_or_going() {
    let family = StatusFamily::SubscriptionStatuses;
    let desired = || vec![Fields::from([("statuses", json!({}))])];
    assert_eq!(plan(family, desired(), None, vec![]).waiting, Some(Waiting::Absent));
    let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let going = held(StatusFamily::Placements, "foo", &going, &json!({}));
    let planned = plan(family, desired(), Some(going), vec![]);
    assert_eq!((planned.changes.len(), planned.waiting), (0, Some(Waiting::Leaving)));
}

#[test]
fn a_new_object_has_one_label_and_the_live_owner() {
    let family = StatusFamily::SubscriptionReports;
    let hub_object = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
    let desired = Fields::from([("reportType", json!("Application"))]);
    let planned = plan(family, vec![desired], Some(hub_object), vec![]);
    let body = body_of_new(
        &family_spec(family),
        &planned.changes[0],
        "apps.open-cluster-management.io/v1alpha1",
        "SubscriptionReport",
    );
    assert_eq!(
        body.unwrap(),
        json!({
            "apiVersion": "apps.open-cluster-management.io/v1alpha1", "kind": "SubscriptionReport",
            "metadata": {"name": "foo", "namespace": "n", "labels": {HOSTING_LABEL: "n.foo"}, "ownerReferences": [{
                "apiVersion": "apps.open-cluster-management.io/v1", "kind": "Subscription", "name": "foo",
                "uid": "uid-foo", "controller": true, "blockOwnerDeletion": true,
            }]},
            "reportType": "Application",
        })
    );
}

#[test]
fn a_long_hosting_label_is_cut_and_told_apart_by_its_hash() {
    let at_the_limit = mark(Shape::Named, &ObjectKey::new("n", "a".repeat(61))).unwrap();
    assert_eq!((at_the_limit.value.len(), at_the_limit.annotation), (63, None));
    let long = ObjectKey::new("namespace", "a".repeat(60));
    let cut = mark(Shape::Named, &long).unwrap();
    assert_eq!(cut.value.len(), 63);
    assert_eq!(cut.value[..55], format!("namespace.{}-", "a".repeat(44)));
    assert!(cut.value[55..].chars().all(|digit| digit.is_ascii_hexdigit()));
    assert_eq!(cut.annotation, Some(format!("namespace.{}", "a".repeat(60))));
    let other = mark(Shape::Named, &ObjectKey::new("namespace", format!("{}b", "a".repeat(60)))).unwrap();
    assert_ne!(cut.value, other.value);
}

#[test]
fn of_several_rows_of_a_name_the_one_with_the_live_uid_counts() {
    assert_eq!(matching_row(&[1], Some(9)), Some(1), "a single row needs no proof");
    assert_eq!(matching_row(&[1, 9], Some(9)), Some(9));
    assert_eq!(matching_row(&[1, 2], Some(9)), None);
    assert_eq!(matching_row(&[], Some(9)), None);
}

#[test]
fn a_patch_of_the_root_replaces_and_removes_whatever_is_there() {
    let spec = family_spec(StatusFamily::SubscriptionReports);
    let fields = Fields::from([("summary", json!({"deployed": "1"}))]);
    let operations: json_patch::Patch = serde_json::from_str(patch(&spec, fields, None).parts().1).unwrap();
    for before in [json!({"metadata": {}}), json!({"metadata": {}, "results": [1], "summary": {"failed": "2"}})] {
        let mut object = before;
        json_patch::patch(&mut object, &operations).unwrap();
        assert_eq!(object, json!({"metadata": {}, "summary": {"deployed": "1"}}));
    }
}

#[test]
fn what_is_made_is_patched_only_while_it_is_the_object_that_was_seen() {
    let hub_object = held(StatusFamily::Placements, "foo", &json!({}), &json!({}));
    let statuses = Fields::from([("statuses", json!({"packages": []}))]);
    for (family, name, label, value, fields) in [
        (StatusFamily::PlacementDecisions, "foo-decision-1", PLACEMENT_LABEL, "foo", decisions(&["a"])),
        (StatusFamily::SubscriptionStatuses, "foo", HOSTING_LABEL, "n.foo", statuses),
    ] {
        let mine = held(family, name, &ours(label, value, "uid-foo"), &json!({}));
        let planned = plan(family, vec![fields.clone()], Some(Arc::clone(&hub_object)), vec![mine]);
        let Some(Change::Patch { fields: set, only, .. }) = planned.changes.first() else { panic!("{planned:?}") };
        assert_eq!(only.as_deref(), Some(format!("uid-{name}").as_str()));
        let patch = patch(&family_spec(family), set.clone(), only.as_deref());
        let (media_type, operations) = patch.parts();
        assert_eq!(media_type, "application/json-patch+json");
        let operations: json_patch::Patch = serde_json::from_str(operations).unwrap();
        let mut object = json!({"metadata": {"uid": format!("uid-{name}")}});
        json_patch::patch(&mut object, &operations).unwrap();
        let home = if family == StatusFamily::PlacementDecisions { &object["status"] } else { &object };
        for (field, value) in &fields {
            assert_eq!(home[*field], *value);
        }
        let mut others = json!({"metadata": {"uid": "of-another"}});
        assert!(json_patch::patch(&mut others, &operations).is_err());
    }
    // A hub object is identified by its name, as its row is.
    let rule = held(StatusFamily::PlacementRules, "foo", &json!({}), &json!({}));
    let planned = plan(StatusFamily::PlacementRules, vec![decisions(&["a"])], Some(rule), vec![]);
    assert!(matches!(planned.changes.first(), Some(Change::Patch { only: None, .. })));
}
