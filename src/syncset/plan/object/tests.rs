use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::syncset::plan::name::{Digest, ObjectRef, SyncSetKind};
use crate::syncset::plan::spec::{Position, SecretSource};

const ID: Uuid = Uuid::from_u128(0x1234);

fn syncset() -> SyncSetName {
    SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team-a".to_owned(), name: "base".to_owned() }
}

fn normalized(mut body: Value) -> Result<Value, WrongPart> {
    normalize(&mut body, &syncset(), ID).map(|()| body)
}

/// With the marks that every object gets.
fn marked(mut body: Value) -> Value {
    body["metadata"]["labels"]["hive.openshift.io/managed"] = json!("true");
    body["metadata"]["annotations"]["towline.dev/syncset"] = json!("SyncSet/team-a/base");
    body["metadata"]["annotations"]["towline.dev/syncset-id"] = json!("00000000-0000-0000-0000-000000001234");
    body
}

#[test]
fn every_object_gets_our_marks_whatever_it_has() {
    let plain = json!({"kind": "A", "metadata": {"name": "a"}});
    assert_eq!(normalized(plain.clone()), Ok(marked(plain)));
    let given = json!({"kind": "A", "metadata": {"name": "a",
        "labels": {"hive.openshift.io/managed": "false", "b": "c"},
        "annotations": {"towline.dev/syncset-id": "other", "towline.dev/syncset": "other", "d": "e"}}});
    assert_eq!(normalized(given.clone()), Ok(marked(given)));
    // Copied from a cluster where it existed before.
    let copied = json!({"kind": "A", "metadata": {"name": "a", "annotations": {ADOPTED: "true"}}});
    assert_eq!(normalized(copied), Ok(marked(json!({"kind": "A", "metadata": {"name": "a"}}))));
    let mut body = json!({"metadata": {}});
    let selecting =
        SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "all".to_owned() };
    normalize(&mut body, &selecting, ID).expect("an object");
    assert_eq!(body["metadata"]["annotations"]["towline.dev/syncset"], "SelectorSyncSet/all");
}

#[test]
fn nulls_of_the_metadata_and_what_servers_set_are_removed_and_other_nulls_stay() {
    let given = json!({"kind": "A", "status": null, "metadata": {"name": "a", "namespace": "", "generateName": "a-",
        "managedFields": [], "uid": "u", "resourceVersion": "7", "creationTimestamp": null, "generation": 3, "selfLink": "/a",
        "labels": null, "annotations": {"b": null, "uid": "kept"}},
        "spec": {"uid": "kept", "a": null, "list": [null, {"b": null, "c": 1}, [null]]}});
    let expected = json!({"kind": "A", "status": null, "metadata": {"name": "a", "annotations": {"uid": "kept"}},
        "spec": {"uid": "kept", "a": null, "list": [null, {"b": null, "c": 1}, [null]]}});
    assert_eq!(normalized(given), Ok(marked(expected)));
}

#[test]
fn an_object_with_owners_is_not_sent() {
    let owned = |owners: Value| json!({"kind": "A", "metadata": {"name": "a", "ownerReferences": owners}});
    assert_eq!(normalized(owned(json!([]))), Ok(marked(json!({"kind": "A", "metadata": {"name": "a"}}))));
    let error = normalized(owned(json!([{"uid": "canary"}]))).expect_err("an owner");
    assert_eq!(error.place, "metadata.ownerReferences");
    assert!(!error.to_string().contains("canary"), "{error}");
}

#[test]
fn a_part_of_another_type_is_an_error_and_no_panic() {
    for (wrong, place) in [
        (json!(7), "the object"),
        (json!({"metadata": []}), "metadata"),
        (json!({"metadata": {"labels": "a"}}), "metadata.labels"),
        (json!({"metadata": {"annotations": [1]}}), "metadata.annotations"),
    ] {
        assert_eq!(normalized(wrong).map_err(|error| error.place), Err(place));
    }
}

#[test]
fn a_copied_secret_has_what_the_mapping_lists_but_no_marks_of_other_tools_and_none_of_ours() {
    let texts = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
    };
    let source = SecretSource {
        namespace: "team-a".to_owned(),
        name: "pull".to_owned(),
        id: Uuid::from_u128(2),
        data_generation: 5,
        secret_type: "kubernetes.io/tls".to_owned(),
        is_immutable: false,
        labels: texts(&[
            ("a", "b"),
            ("app.kubernetes.io/managed-by", "Helm"),
            ("argocd.argoproj.io/secret-type", "cluster"),
        ]),
        annotations: texts(&[
            ("c", "d"),
            (LAST_APPLIED, "canary"),
            ("argocd.argoproj.io/tracking-id", "x"),
            ("reflector.v1.k8s.emberstack.com/reflection-auto-enabled", "true"),
            ("towline.dev/prune", "false"),
            ("towline.dev/adopt", "true"),
            ("towline.dev/recreate", "true"),
            ("towline.dev/ignore-fields", "/data"),
        ]),
    };
    let content = SecretContent { source, data: [("key".to_owned(), "dmFsdWU=".into())].into() };
    let mapping = |namespace: &str| SecretMapping {
        source_namespace: "team-a".to_owned(),
        source_name: "pull".to_owned(),
        target_namespace: namespace.to_owned(),
        target_name: "copy".to_owned(),
        metadata: vec!["a".to_owned(), "c=d".to_owned(), "t*".to_owned(), "argocd.argoproj.io/*".to_owned()],
    };
    let expected = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": {"key": "dmFsdWU="},
        "metadata": {"name": "copy", "namespace": "default", "labels": {"a": "b"}, "annotations": {"c": "d"}}});
    assert_eq!(of_secret(&mapping("default"), &content), expected);
    let listed = ["towline.dev/*", RECREATE].map(str::to_owned).to_vec();
    let listed = of_secret(&SecretMapping { metadata: listed, ..mapping("default") }, &content);
    assert_eq!(listed["metadata"]["annotations"], json!({RECREATE: "true"}), "only by its name");
    // Whoever may write the secret gives no orders to tools on the clusters to which somebody else maps it.
    let unlisted = of_secret(&SecretMapping { metadata: Vec::new(), ..mapping("default") }, &content);
    assert_eq!(unlisted["metadata"], json!({"name": "copy", "namespace": "default", "labels": {}, "annotations": {}}));
    let mut immutable = content.clone();
    immutable.source.is_immutable = true;
    assert_eq!(of_secret(&mapping("default"), &immutable)["immutable"], true);
    let placeless = normalized(of_secret(&mapping(""), &content)).expect("a secret");
    assert_eq!(placeless["metadata"].get("namespace"), None);
    assert!(!format!("{content:?}").contains("dmFsdWU="));
}

#[test]
fn only_the_text_true_lets_a_resource_be_adopted_or_recreated() {
    let annotated = |value: Value| json!({"metadata": {"annotations": {ADOPT: value, RECREATE: value}}});
    for (body, may) in [
        (annotated(json!("true")), true),
        (annotated(json!("yes")), false),
        (annotated(json!(true)), false),
        (json!({}), false),
    ] {
        assert_eq!((may_adopt(&body), may_recreate(&body, "apps", "Deployment")), (may, may), "{body}");
        for (group, kind) in NEVER_RECREATED {
            assert!(!may_recreate(&body, group, kind));
        }
        assert_eq!(may_recreate(&body, "a.io", "Namespace"), may);
    }
}

#[test]
fn dropping_the_namespace_keeps_the_content() {
    let object = |namespace: &str| ObjectRef {
        group: String::new(),
        kind: "Namespace".to_owned(),
        namespace: namespace.to_owned(),
        name: "a".to_owned(),
    };
    let desired = || Desired {
        place: Position::Resource(0),
        object: object("b"),
        api_version: "v1".to_owned(),
        body: normalized(json!({"metadata": {"name": "a", "namespace": "b"}})).expect("an object"),
        content: Digest([7; 32]),
        may_adopt: false,
        may_recreate: false,
    };
    let placeless = Desired {
        object: object(""),
        body: normalized(json!({"metadata": {"name": "a"}})).expect("an object"),
        ..desired()
    };
    assert!(desired().without_namespace() == placeless && placeless.clone().without_namespace() == placeless);
}

#[test]
fn an_object_is_sent_with_the_mark_that_it_has_and_a_precondition() {
    let object =
        ObjectRef { group: String::new(), kind: "A".to_owned(), namespace: String::new(), name: "a".to_owned() };
    let desired = Desired {
        place: Position::Resource(0),
        object,
        api_version: "v1".to_owned(),
        body: normalized(json!({"metadata": {"name": "a"}})).expect("an object"),
        content: Digest([7; 32]),
        may_adopt: false,
        may_recreate: false,
    };
    let marks = [None, Some(true), Some(false)];
    let preconditions = [None, Some(Precondition::Uid("u-1")), Some(Precondition::Absent)];
    for (is_adopted, only_if) in marks.into_iter().flat_map(|mark| preconditions.map(|only_if| (mark, only_if))) {
        let mut expected = desired.body.clone();
        if let Some(is_adopted) = is_adopted {
            expected["metadata"]["annotations"][ADOPTED] = json!(if is_adopted { "true" } else { "false" });
        }
        match only_if {
            None => {}
            Some(Precondition::Uid(uid)) => expected["metadata"]["uid"] = json!(uid),
            Some(Precondition::Absent) => expected["metadata"]["resourceVersion"] = json!("1"),
        }
        assert_eq!(*desired.sent(is_adopted, only_if), expected);
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let scalar =
        prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
    scalar.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]|uid|labels|annotations|stringData|metadata", inner, 0..3)
                .prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    })
}

fn has_null_member(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(|value| value.is_null() || has_null_member(value)),
        Value::Array(elements) => elements.iter().any(has_null_member),
        _ => false,
    }
}

proptest! {
    #[test]
    fn normalizing_twice_is_normalizing_once(
        metadata in any_value(), strings in any_value(), data in any_value(), spec in any_value(), is_secret in any::<bool>(),
    ) {
        let kind = if is_secret { "Secret" } else { "ConfigMap" };
        let body = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "stringData": strings, "data": data,
            "spec": spec});
        if let Ok(once) = normalized(body) {
            prop_assert!(!has_null_member(&once["metadata"]));
            prop_assert_eq!(normalized(once.clone()), Ok(once));
        }
    }
}
