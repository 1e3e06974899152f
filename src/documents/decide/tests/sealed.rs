//! Sealed fields: how requests change them, and that nothing reveals them.

use super::*;

#[test]
fn merge_patches_replace_a_kubeconfig_and_merge_data_by_key() {
    let mut place = Place::with(Kind::Secret, secret());
    assert_eq!(place.document().data["keys"], json!(["a", "b"]));
    let answer = place.merge(json!({"data": {"a": null, "c": "Yw=="}})).expect("changed");
    assert_eq!(place.opened(), r#"{"b":"Yg==","c":"Yw=="}"#);
    assert_eq!(Value::Object(answer.document.data), json!({"type": "t", "dataGeneration": 2, "keys": ["b", "c"]}));
    assert_eq!(place.merge(json!({"data": {}})).expect("the same").effect, Effect::Unchanged);
    assert_eq!(place.merge(json!({"data": {"x": null, "b": "Yg=="}})).expect("the same").effect, Effect::Unchanged);
    place.merge(json!({"data": null})).expect("changed");
    assert_eq!((place.opened().as_str(), &place.document().data["keys"]), ("{}", &json!([])));
    place.replace(secret()).expect("changed");
    place.replace(json!({"type": "t", "data": {"c": "Yw=="}})).expect("changed");
    assert_eq!(place.opened(), r#"{"c":"Yw=="}"#, "PUT replaces all of data");

    let mut place = Place::with(Kind::Cluster, cluster());
    place.merge(json!({"kubeconfig": "other"})).expect("changed");
    assert_eq!(place.opened(), "other");
    place.merge(json!({"kubeconfig": null})).expect("changed");
    assert_eq!(place.opened(), "");
    assert_eq!(refused(place.merge(json!({"kubeconfig": {}}))), (ProblemKind::Invalid, vec!["/kubeconfig".to_owned()]));
}

#[test]
fn json_patches_write_sealed_fields_and_never_read_them() {
    let mut place = Place::with(Kind::Secret, secret());
    place
        .patch(&json!([{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/c", "value": "Yw=="},
            {"op": "replace", "path": "/data/b", "value": "eA=="}, {"op": "replace", "path": "/type", "value": "u"}]))
        .expect("changed");
    assert_eq!(place.opened(), r#"{"b":"eA==","c":"Yw=="}"#);
    place
        .patch(
            &json!([{"op": "add", "path": "/data", "value": {"z": ""}}, {"op": "add", "path": "/data/y", "value": ""}]),
        )
        .expect("changed");
    assert_eq!(place.opened(), r#"{"y":"","z":""}"#);
    place.patch(&json!([{"op": "remove", "path": "/data"}])).expect("changed");
    assert_eq!(place.opened(), "{}");
    for operation in [
        json!({"op": "test", "path": "/data", "value": {}}),
        json!({"op": "test", "path": "/data/z", "value": ""}),
        json!({"op": "copy", "from": "/data/z", "path": "/status/z"}),
        json!({"op": "copy", "from": "/type", "path": "/data/z"}),
        json!({"op": "move", "from": "/data", "path": "/labels"}),
        json!({"op": "remove", "path": "/data/z"}),
        json!({"op": "replace", "path": "/data/z", "value": ""}),
        json!({"op": "add", "path": "/data/z/y", "value": ""}),
        json!({"op": "add", "path": "/data/z", "value": "!"}),
        json!({"op": "add", "path": "/data", "value": "canary"}),
    ] {
        assert_eq!(refused(place.patch(&json!([operation]))).0, ProblemKind::Invalid, "{operation}");
        let status = Action::Patch(Part::Status, Operations::of(&json!([operation])).expect("operations"));
        assert_eq!(refused(place.ask(status)).0, ProblemKind::Invalid, "{operation}");
    }
    let mut place = Place::with(Kind::Cluster, cluster());
    place.patch(&json!([{"op": "replace", "path": "/kubeconfig", "value": "other"}])).expect("changed");
    assert_eq!(place.opened(), "other");
    place.patch(&json!([{"op": "remove", "path": "/kubeconfig"}])).expect("changed");
    assert_eq!((place.opened().as_str(), &place.document().data["kubeconfigGeneration"]), ("", &json!(3)));
}

#[test]
fn the_present_sealed_value_is_no_change_except_in_a_dry_run() {
    for (kind, fields, patch) in [
        (Kind::Cluster, cluster(), json!({"kubeconfig": "canary"})),
        (Kind::Secret, secret(), json!({"data": {"a": "YQ=="}})),
    ] {
        let mut place = Place::with(kind, fields);
        assert_eq!(place.merge(patch.clone()).expect("the same").effect, Effect::Unchanged);
        let wrong = match kind {
            Kind::Cluster => json!({"kubeconfig": "guess"}),
            _ => json!({"data": {"a": "Zw=="}}),
        };
        let dry = |patch: Value| Request { dry_run: true, ..place.request(Action::Merge(Part::Document, body(patch))) };
        let decided = [dry(patch), dry(wrong)].map(|request| place.decide(&request).expect("decided"));
        let [right, wrong] = decided.map(|decision| (decision.effect, decision.document));
        assert_eq!(right, wrong, "a dry run confirms no guess");
        assert_eq!((right.0, right.1.generation), (Effect::Changed, 2));
    }
}

/// A dry run checks what a write would check: the size of the whole value.
#[test]
fn a_dry_run_of_a_value_that_is_too_large_fails_like_the_write() {
    let mut place = Place::with(Kind::Secret, secret());
    let part = |name: &str| json!({"data": {name: "YWFh".repeat(600_000)}});
    place.merge(part("b")).expect("changed");
    let merge = place.request(Action::Merge(Part::Document, body(part("c"))));
    for dry_run in [true, false] {
        let request = Request { dry_run, ..merge.clone() };
        let problem = place.decide(&request).err().expect("it is too large");
        assert_eq!(problem.kind, ProblemKind::TooLarge, "dry run: {dry_run}");
    }
    assert_eq!(place.merge(json!({"data": {"b": null, "c": "YQ=="}})).expect("changed").effect, Effect::Changed);
}

#[test]
fn a_value_whose_key_is_lost_can_be_replaced_and_stays_when_others_change() {
    let other = Keyring::parse(&SecretString::from("b1 ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=")).expect("a key");
    let mut place = Place::with(Kind::Secret, secret());
    place.keyring = other;
    let answer = place.merge(json!({"type": "u"})).expect("changed");
    assert_eq!(answer.item.expect("an item").changes[0].row.as_ref().expect("a row").sealed, None);
    let merged = place.merge(json!({"data": {"a": "eA=="}})).expect_err("its other values are needed");
    assert_eq!(merged.kind, ProblemKind::Unavailable);
    assert_eq!(merged.title, "the sealed field can't be opened: the key \"a1\" is not in keys_file");
    place.replace(secret()).expect("replaced");
    assert_eq!(place.opened(), r#"{"a":"YQ==","b":"Yg=="}"#);
}

#[test]
fn a_secret_without_data_has_none() {
    let place = Place::with(Kind::Secret, json!({}));
    assert_eq!(place.opened(), "{}");
    let expected = json!({"type": "Opaque", "dataGeneration": 1, "keys": []});
    assert_eq!(Value::Object(place.document().data.clone()), expected);
}
