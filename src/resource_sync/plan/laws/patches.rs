//! A JSON patch has the same effect on the object at the API server as the plan expects in its observation.

use proptest::collection::btree_map;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{REMOTE_UID, object, policy};
use crate::cluster::Object;
use crate::resource_sync::plan::elsewhere::Clusters;
use crate::resource_sync::plan::patch;
use crate::resource_sync::plan::patch::LocalChange;
use crate::resource_sync::plan::server_result::ServerResult;

/// Keys that collide often, and that JSON pointers have to escape.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("a/b"), Just("a~b"), Just("~1"), Just("~0/"), Just("")]
        .prop_map(String::from)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()).prop_map(Value::from),
        "[a/~\"\u{e9}]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map(key(), inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The top-level fields of an object.
fn content() -> impl Strategy<Value = Map<String, Value>> {
    let field = prop_oneof![3 => Just("spec".to_owned()), 1 => Just("data".to_owned()), 1 => key()];
    btree_map(field, json_value(), 0..3).prop_map(|map| map.into_iter().collect())
}

fn metadata_map() -> impl Strategy<Value = Value> {
    let map = btree_map(prop_oneof![key(), Just("argocd.argoproj.io/x".to_owned())], "[ab]?", 0..4);
    map.prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key, json!(value))).collect()))
}

/// An object at an API server, which omits empty maps.
fn stored() -> impl Strategy<Value = Value> {
    (content(), metadata_map(), metadata_map(), metadata_map(), proptest::option::of("[xy]")).prop_map(
        |(content, labels, annotations, owned, mark)| {
            let mut value = Value::Object(content);
            let mut metadata = json!({"name": "orders", "namespace": "team", "uid": "u", "resourceVersion": "7"});
            let mut annotations = annotations;
            if let Some(mark) = mark {
                annotations[REMOTE_UID] = json!(mark);
            }
            let owned: Map<String, Value> =
                owned.as_object().expect("a map").keys().map(|key| (format!("f:{key}"), json!({}))).collect();
            for (name, map) in [("labels", labels), ("annotations", annotations)] {
                if map.as_object().is_some_and(|map| !map.is_empty()) {
                    metadata[name] = map;
                }
            }
            metadata["managedFields"] = json!([{"manager": super::MANAGER, "fieldsV1": {"f:metadata": {
                "f:labels": owned, "f:annotations": owned,
            }}}]);
            value["metadata"] = metadata;
            value["status"] = json!({"ready": true});
            value
        },
    )
}

/// The object at the server after the change.
fn patched(change: &LocalChange, stored: &Value) -> Result<Object, TestCaseError> {
    let operations = change.json_patch(&object(stored));
    let patch: json_patch::Patch = serde_json::from_value(operations.clone()).expect("a JSON patch");
    let mut result = stored.clone();
    json_patch::patch(&mut result, &patch)
        .map_err(|error| TestCaseError::fail(format!("{operations} on {stored}: {error}")))?;
    Ok(object(&result))
}

fn same(at_server: &Object, in_plan: &Object) -> Result<(), TestCaseError> {
    prop_assert_eq!(&at_server.content, &in_plan.content);
    prop_assert_eq!(&at_server.labels, &in_plan.labels);
    prop_assert_eq!(&at_server.annotations, &in_plan.annotations);
    prop_assert_eq!(&at_server.status, &in_plan.status);
    Ok(())
}

/// Keys of a section, in all combinations that matter to the content.
fn section() -> impl Strategy<Value = String> {
    let metadata = prop_oneof![Just("merge"), Just("mirror")];
    let fields = prop_oneof![Just(r"[]"), Just(r#"["/spec/a"]"#), Just(r#"["/spec/a~1b/b", "/spec/a~0b"]"#)];
    (metadata, fields).prop_map(|(metadata, fields)| format!("metadata = \"{metadata}\"\nlocal_fields = {fields}"))
}

proptest! {
    #[test]
    fn a_patch_does_what_the_plan_says(remote in stored(), local in stored(), keys in section()) {
        let policy = policy(&keys);
        let (remote, before) = (object(&remote), object(&local));
        if let Some(change) = patch::local_change(&remote, &before, &policy, &Clusters::default(), &ServerResult::default()) {
            let mut planned = before.clone();
            change.apply_to(&mut planned, &policy);
            same(&patched(&change, &local)?, &planned)?;
            prop_assert_ne!(&planned, &before, "a change changes something");
        }
    }

    #[test]
    fn one_change_is_enough(remote in stored(), local in stored(), keys in section()) {
        let policy = policy(&keys);
        let (remote, mut local) = (object(&remote), object(&local));
        if let Some(change) = patch::local_change(&remote, &local, &policy, &Clusters::default(), &ServerResult::default()) {
            change.apply_to(&mut local, &policy);
        }
        prop_assert_eq!(patch::local_change(&remote, &local, &policy, &Clusters::default(), &ServerResult::default()), None);
    }

    #[test]
    fn without_local_fields_the_content_ends_as_the_remotes(remote in stored(), local in stored()) {
        let (remote, mut local) = (object(&remote), object(&local));
        if let Some(change) = patch::local_change(&remote, &local, &policy(""), &Clusters::default(), &ServerResult::default()) {
            change.apply_to(&mut local, &policy(""));
        }
        prop_assert_eq!(local.content, remote.content);
    }

    #[test]
    fn a_release_takes_off_the_mark_and_nothing_else(local in stored()) {
        let before = object(&local);
        let change = patch::release(&before, &policy(""));
        prop_assert_eq!(change.is_some(), before.annotation(REMOTE_UID).is_some());
        if let Some(change) = change {
            let mut planned = before.clone();
            change.apply_to(&mut planned, &policy(""));
            let at_server = patched(&change, &local)?;
            same(&at_server, &planned)?;
            prop_assert_eq!(at_server.annotations.len() + 1, before.annotations.len());
        }
    }
}
