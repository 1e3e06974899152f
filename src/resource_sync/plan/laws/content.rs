//! The desired local object, by `metadata`, `metadata_exclude` and `local_fields`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{LOCAL_GENERATION, LOCAL_NAME, REMOTE_UID, Scene};
use crate::resource_sync::plan::patch::LocalChange;
use crate::resource_sync::plan::step::{Next, Rest};

fn content(change: &LocalChange) -> Value {
    change.content.as_ref().expect("a change of the content").value()
}

fn keys(changes: &BTreeMap<std::sync::Arc<str>, Option<std::sync::Arc<str>>>) -> Vec<(&str, Option<&str>)> {
    changes.iter().map(|(key, value)| (&**key, value.as_deref())).collect()
}

#[test]
fn the_local_spec_is_the_remotes_nulls_and_empty_lists_included() {
    for (remote, local) in [
        (json!({"size": 3}), json!({"size": 2})),
        (json!({"size": 2, "mode": null}), json!({"size": 2})),
        (json!({"size": 2}), json!({"size": 2, "mode": null})),
        (json!({"size": 2, "hosts": []}), json!({"size": 2})),
        (json!({"size": 2}), json!({"size": 2, "hosts": []})),
        (json!({}), json!({"size": 2})),
        (json!({"size": 2}), json!({"size": 2, "added": "locally"})),
        (json!({"size": 9_007_199_254_740_993_u64}), json!({"size": 9_007_199_254_740_992_u64})),
        (json!({"hosts": ["a", "b"]}), json!({"hosts": ["b", "a"]})),
    ] {
        let mut scene = Scene::in_step("");
        scene.remote["spec"] = remote.clone();
        scene.local["spec"] = local;
        assert_eq!(content(&scene.change()), json!({"spec": remote}));
    }
}

#[test]
fn the_order_of_fields_is_no_difference() {
    let mut scene = Scene::in_step("");
    scene.remote["spec"] = serde_json::from_str(r#"{"b":1,"a":{"d":2,"c":3}}"#).expect("JSON");
    scene.local["spec"] = serde_json::from_str(r#"{"a":{"c":3,"d":2},"b":1}"#).expect("JSON");
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn a_kind_without_a_spec_has_every_other_field_as_content() {
    let mut scene = Scene::in_step("");
    for side in [&mut scene.remote, &mut scene.local] {
        side.as_object_mut().expect("a map").remove("spec");
        side["data"] = json!({"key": "old"});
    }
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
    scene.remote["data"] = json!({"key": "new"});
    scene.remote["immutable"] = json!(true);
    scene.local["binaryData"] = json!({});
    let change = scene.change();
    assert_eq!(content(&change), json!({"data": {"key": "new"}, "immutable": true}));
    assert!(change.guarded, "fields that are not written must be as they were read");
}

#[test]
fn a_spec_alone_is_replaced_whatever_else_changed() {
    let mut scene = Scene::in_step("");
    scene.remote["spec"]["size"] = json!(9);
    assert!(!scene.change().guarded, "a status that changes all the time must not keep the spec from coming down");
}

#[test]
fn merge_asserts_what_the_remote_has() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["labels"]["tier"] = json!("gold");
    scene.local["metadata"]["labels"]["app"] = json!("changed");
    scene.remote["metadata"]["annotations"]["note"] = json!("bye");
    let change = scene.change();
    assert_eq!(keys(&change.labels), [("app", Some("shop")), ("tier", Some("gold"))]);
    assert_eq!(keys(&change.annotations), [("note", Some("bye"))]);
    assert!(change.content.is_none());
}

#[test]
fn with_merge_what_the_remote_drops_goes_and_what_others_put_there_stays() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["labels"] = json!({});
    scene.remote["metadata"]["annotations"].as_object_mut().expect("a map").remove("note");
    scene.local["metadata"]["labels"]["theirs"] = json!("1");
    scene.local["metadata"]["annotations"]["theirs"] = json!("2");
    let change = scene.change();
    assert_eq!(keys(&change.labels), [("app", None)]);
    assert_eq!(keys(&change.annotations), [("note", None)]);
    assert!(change.guarded, "a removal needs the key to be there");
}

#[test]
fn in_doubt_whose_a_key_is_it_stays() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["labels"] = json!({});
    scene.local["metadata"]["managedFields"] = json!([{"manager": "ancient-changes"}]);
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn excluded_keys_are_not_taken_down() {
    let tracked = [
        "kubectl.kubernetes.io/last-applied-configuration",
        "argocd.argoproj.io/tracking-id",
        "argocd.argoproj.io/sync-wave",
    ];
    let mut scene = Scene::in_step("");
    for key in tracked {
        scene.remote["metadata"]["annotations"][key] = json!("x");
        scene.remote["metadata"]["labels"][key] = json!("x");
    }
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
    let mut scene = Scene { policy: super::policy("metadata_exclude = [\"app\"]"), ..scene };
    scene.remote["metadata"]["labels"] = json!({"app": "not taken"});
    let change = scene.change();
    assert_eq!(keys(&change.labels), [("app", None)], "a key of ours that is excluded now is the remote's no more");
    assert_eq!(
        keys(&change.annotations),
        [
            ("argocd.argoproj.io/sync-wave", Some("x")),
            ("argocd.argoproj.io/tracking-id", Some("x")),
            ("kubectl.kubernetes.io/last-applied-configuration", Some("x")),
        ]
    );
}

#[test]
fn marks_are_never_taken_down() {
    let marks =
        ["sync-owner", "sync-owner-resource", "sync-owner-section", "sync-remote-uid", "last-uploaded-hash", "paused"];
    let mut scene = Scene::in_step("");
    for mark in marks {
        scene.remote["metadata"]["annotations"][format!("cloud.teleport.dev/{mark}")] = json!("false");
    }
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn the_mark_names_the_remote_object_of_today() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["uid"] = json!("second-life");
    assert_eq!(keys(&scene.change().annotations), [(REMOTE_UID, Some("second-life"))]);
    let adopted = Scene::in_step("").foreign_local();
    assert_eq!(
        keys(&adopted.change().annotations),
        [(LOCAL_NAME, Some("team/orders")), (REMOTE_UID, Some("remote-uid")), ("note", Some("hello"))]
    );
}

#[test]
fn with_mirror_the_maps_are_equal_but_for_the_two_generations() {
    let mut scene = Scene::mirrored("");
    scene.remote["metadata"]["labels"] = json!({"tier": "gold"});
    scene.remote["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("{}");
    scene.local["metadata"]["labels"]["theirs"] = json!("1");
    scene.local["metadata"]["annotations"]["theirs"] = json!("2");
    scene.local["metadata"]["annotations"][LOCAL_GENERATION] = json!("3");
    let change = scene.change();
    assert_eq!(keys(&change.labels), [("app", None), ("theirs", None), ("tier", Some("gold"))]);
    assert_eq!(
        keys(&change.annotations),
        [("kubectl.kubernetes.io/last-applied-configuration", Some("{}")), ("theirs", None)],
        "generations are noted there by another section, to which it is the remote object"
    );
    let merged_before = Scene { policy: super::policy("metadata = \"mirror\""), ..Scene::in_step("") };
    assert_eq!(
        keys(&merged_before.change().annotations),
        [(LOCAL_NAME, None), (REMOTE_UID, None)],
        "there is no room for a mark"
    );
}

#[test]
fn another_domains_marks_are_annotations_like_any_other() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"]["example.org/paused"] = json!("true");
    assert_eq!(keys(&scene.change().annotations), [("example.org/paused", Some("true"))]);
}

/// The spec that is written with these local fields; `None` if nothing is written.
fn merged(pointers: &str, remote: &Value, local: &Value) -> Option<Value> {
    let mut scene = Scene::in_step(&format!("local_fields = {pointers}"));
    scene.remote["spec"] = remote.clone();
    scene.local["spec"] = local.clone();
    if scene.next() == Next::Rest(Rest::InStep) {
        return None;
    }
    let change = scene.change();
    assert!(change.guarded, "local values are not written back over newer ones");
    Some(content(&change)["spec"].clone())
}

#[test]
fn local_fields_are_left_alone() {
    let replicas = r#"["/spec/replicas"]"#;
    assert_eq!(merged(replicas, &json!({"replicas": 1}), &json!({"replicas": 7})), None);
    assert_eq!(merged(replicas, &json!({}), &json!({"replicas": 7})), None);
    assert_eq!(merged(replicas, &json!({"replicas": 1}), &json!({})), None, "also where the local side has none");
    assert_eq!(merged(replicas, &json!({"replicas": 1}), &json!({"replicas": null})), None);
    assert_eq!(
        merged(replicas, &json!({"replicas": 1, "size": 3}), &json!({"replicas": 7, "size": 2})),
        Some(json!({"replicas": 7, "size": 3}))
    );
}

#[test]
fn local_fields_can_be_deep_and_their_parents_missing() {
    let deep = r#"["/spec/a/b/c"]"#;
    assert_eq!(merged(deep, &json!({}), &json!({"a": {"b": {"c": 1}}})), None);
    assert_eq!(
        merged(deep, &json!({"a": {"x": 1}}), &json!({"a": {"b": {"c": 1, "d": 2}}})),
        Some(json!({"a": {"x": 1, "b": {"c": 1}}}))
    );
    assert_eq!(merged(deep, &json!({"a": {"b": {"c": 5}}}), &json!({})), Some(json!({"a": {"b": {}}})));
    assert_eq!(
        merged(deep, &json!({"a": 5}), &json!({"a": {"b": {"c": 1}}})),
        Some(json!({"a": 5})),
        "where the remote has no structure there is no place for the field"
    );
}

#[test]
fn local_fields_reach_into_arrays() {
    let image = r#"["/spec/containers/1/image"]"#;
    let containers = |first: &str, second: &str| json!({"containers": [{"image": first}, {"image": second}]});
    assert_eq!(merged(image, &containers("a", "b"), &containers("a", "local")), None);
    assert_eq!(merged(image, &containers("new", "b"), &containers("a", "local")), Some(containers("new", "local")));
    let shorter = json!({"containers": [{"image": "a"}]});
    assert_eq!(merged(image, &shorter, &containers("a", "local")), Some(shorter), "the remote dropped the element");
}

#[test]
fn local_fields_may_have_any_name() {
    let odd = r#"["/spec/a~1b/c~0d"]"#;
    assert_eq!(merged(odd, &json!({"a/b": {"c~d": 1}}), &json!({"a/b": {"c~d": 2}})), None);
}

#[test]
fn local_fields_are_set_when_the_object_is_made() {
    let mut scene = Scene::in_step(r#"local_fields = ["/spec/size"]"#);
    scene.local = Value::Null;
    let step = crate::resource_sync::plan::step::Step::CreateLocal;
    assert_eq!(scene.next(), Next::Do(step.clone()));
    let after = scene.observed().after(&step, &crate::cluster::Written::default(), &scene.policy);
    assert_eq!(after.local.expect("the local object").content.value(), json!({"spec": {"size": 2}}));
}

#[test]
fn an_object_that_holds_more_than_a_spec_is_changed_as_it_was_read() {
    // Only the fields that differ are written. Another field that a client changes meanwhile would look like a default of the
    // server.
    let mut scene = Scene::in_step("");
    for side in [&mut scene.remote, &mut scene.local] {
        side["extra"] = json!(1);
    }
    scene.remote["spec"]["size"] = json!(9);
    assert!(scene.change().guarded);
}
