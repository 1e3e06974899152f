use proptest::prelude::*;
use serde_json::json;

use super::*;

fn name(kind: SyncSetKind) -> SyncSetName {
    let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
    SyncSetName { kind, namespace: namespace.to_owned(), name: "base".to_owned() }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn selecting(selector: &Value, namespaces: &Value) -> Value {
    json!({"clusterDeploymentSelector": selector, "clusterNamespaces": namespaces})
}

#[test]
fn a_sync_set_is_for_the_clusters_of_its_namespace_that_it_names() {
    let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}, {"name": "west-2"}]});
    let audience = Audience::of(&name(SyncSetKind::SyncSet), &spec).expect("an audience");
    let includes = |namespace: &str, name: &str| audience.includes(namespace, name, &labels(&[("a", "b")]));
    assert!(includes("team-a", "west-1") && includes("team-a", "west-2"));
    assert!(!includes("team-a", "west-3") && !includes("team-b", "west-1") && !includes("", "west-1"));
    let nobody = Audience::of(&name(SyncSetKind::SyncSet), &json!({"clusterDeploymentRefs": []})).expect("an audience");
    assert!(!nobody.includes("team-a", "west-1", &labels(&[])));
}

#[test]
fn namespaces_limit_a_selector() {
    for (namespaces, included) in [
        (json!(["*"]), true),
        (json!(null), true),
        (json!(["other", "team-*"]), true),
        (json!(["team-a"]), true),
        (json!(["team-b", "a*"]), false),
        (json!([]), false),
    ] {
        let audience = Audience::of(&name(SyncSetKind::SelectorSyncSet), &selecting(&json!({}), &namespaces));
        let is_included = audience.expect("an audience").includes("team-a", "west-1", &labels(&[]));
        assert_eq!(is_included, included, "{namespaces}");
    }
}

#[test]
fn each_operator_treats_a_missing_label_as_kubernetes_does() {
    let with = labels(&[("env", "prod"), ("empty", "")]);
    for (expression, included) in [
        (json!({"key": "env", "operator": "In", "values": ["test", "prod"]}), true),
        (json!({"key": "none", "operator": "In", "values": [""]}), false),
        (json!({"key": "empty", "operator": "In", "values": [""]}), true),
        (json!({"key": "env", "operator": "NotIn", "values": ["prod"]}), false),
        (json!({"key": "none", "operator": "NotIn", "values": [""]}), true),
        (json!({"key": "empty", "operator": "Exists"}), true),
        (json!({"key": "none", "operator": "Exists", "values": []}), false),
        (json!({"key": "none", "operator": "DoesNotExist"}), true),
        (json!({"key": "empty", "operator": "DoesNotExist"}), false),
    ] {
        let spec = selecting(&json!({"matchExpressions": [expression]}), &json!(["*"]));
        let audience = Audience::of(&name(SyncSetKind::SelectorSyncSet), &spec).expect("an audience");
        assert_eq!(audience.includes("team-a", "west-1", &with), included, "{spec}");
    }
}

#[test]
fn an_audience_that_can_t_be_read_is_a_failure_and_neither_nobody_nor_all() {
    let selector = "spec.clusterDeploymentSelector";
    for (kind, spec, message) in [
        (SyncSetKind::SyncSet, json!({}), "spec.clusterDeploymentRefs: missing; allowed: a list".to_owned()),
        (
            SyncSetKind::SyncSet,
            json!({"clusterDeploymentRefs": [{"name": "a"}, {"nam": "b"}]}),
            "spec.clusterDeploymentRefs[1].name: missing; allowed: the name of a cluster".to_owned(),
        ),
        (SyncSetKind::SelectorSyncSet, json!({}), format!("{selector}: missing; allowed: a label selector")),
        (
            SyncSetKind::SelectorSyncSet,
            selecting(&json!({"matchLabels": {"a": 1}}), &json!(["*"])),
            format!("{selector}.matchLabels.a: 1; allowed: a label selector"),
        ),
        (
            SyncSetKind::SelectorSyncSet,
            selecting(&json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}), &json!(["*"])),
            format!("{selector}.matchExpressions.0.operator: \"Gt\"; allowed: a label selector"),
        ),
        (
            SyncSetKind::SelectorSyncSet,
            selecting(&json!({"matchFields": {}}), &json!(["*"])),
            format!("{selector}.matchFields: an unknown field; allowed: a label selector"),
        ),
        (
            SyncSetKind::SelectorSyncSet,
            selecting(&json!({}), &json!(["*", "a*b"])),
            format!("spec.clusterNamespaces[1]: \"a*b\"; allowed: {}", NamespacePattern::ALLOWED),
        ),
    ] {
        let failure = Audience::of(&name(kind), &spec).expect_err(&message);
        assert_eq!(failure.message, format!("failed to decode {message}"));
    }
}

/// A selector as the documentation of Kubernetes puts it, on the JSON itself.
fn oracle(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector["matchLabels"].as_object().expect("labels");
    let expressions = selector["matchExpressions"].as_array().expect("expressions");
    equal.iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        && expressions.iter().all(|expression| {
            let value = labels.get(expression["key"].as_str().expect("a key"));
            let is_listed = |value: &String| expression["values"].as_array().expect("values").contains(&json!(value));
            match expression["operator"].as_str().expect("an operator") {
                "In" => value.is_some_and(is_listed),
                "NotIn" => !value.is_some_and(is_listed),
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

fn any_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-c]", "[x-z]?", 0..4)
}

fn any_selector() -> impl Strategy<Value = Value> {
    let listing = ("[a-c]", prop_oneof![Just("In"), Just("NotIn")], prop::collection::vec("[x-z]?", 1..3))
        .prop_map(|(key, operator, values)| json!({"key": key, "operator": operator, "values": values}));
    let plain = ("[a-c]", prop_oneof![Just("Exists"), Just("DoesNotExist")])
        .prop_map(|(key, operator)| json!({"key": key, "operator": operator}));
    let expressions = prop::collection::vec(prop_oneof![listing, plain], 0..3);
    let equal = prop::collection::btree_map("[a-c]", "[x-z]?", 0..2);
    (equal, expressions).prop_map(|(equal, expressions)| json!({"matchLabels": equal, "matchExpressions": expressions}))
}

proptest! {
    #[test]
    fn selectors_mean_what_kubernetes_says(selector in any_selector(), labels in any_labels()) {
        let spec = selecting(&selector, &json!(["*"]));
        let audience = Audience::of(&name(SyncSetKind::SelectorSyncSet), &spec).expect("an audience");
        prop_assert_eq!(audience.includes("team-a", "west-1", &labels), oracle(&selector, &labels));
    }
}

#[test]
fn what_is_missing_or_a_newer_release_may_have_written_is_not_read_as_something_else() {
    for selector in [
        json!(null),
        json!([]),
        json!({"matchLabels": {"a": 1}}),
        json!({"matchExpressions": [{"key": "a", "operator": "Above", "values": ["1"]}]}),
        json!({"matchExpressions": [{"operator": "Exists"}]}),
    ] {
        assert_eq!(Audience::selected(Some(&selector), None), None, "{selector}");
    }
    for namespaces in [json!("a"), json!([1])] {
        assert_eq!(Audience::selected(Some(&json!({})), Some(&namespaces)), None, "{namespaces}");
    }
}
