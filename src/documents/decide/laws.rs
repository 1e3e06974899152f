//! Laws of decisions, on random documents and requests.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};

use super::tests::{Place, body};
use super::*;

/// No generated text has these letters in it but values of sealed fields.
const CANARY: &str = "QUeTZal0";

fn texts(most: usize) -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-d]{1,2}", "[a-z0-9]{0,3}", 0..most)
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has finite numbers", |number| number.is_finite()).prop_map(Value::from),
        "[a-zä\"\\\\\n]{0,4}".prop_map(Value::from),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    prop_oneof![1 => Just(Value::Null), 4 => scalar()].prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn status() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]", json_value(), 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// Own fields of a kind, each of which may be absent.
fn own_fields(kind: Kind) -> BoxedStrategy<Value> {
    let canary = "[a-z]{0,2}".prop_map(|text| format!("{text}{CANARY}"));
    match kind {
        Kind::Cluster => (prop::option::of(any::<bool>()), prop::option::of(canary))
            .prop_map(|(paused, kubeconfig)| json!({"paused": paused, "kubeconfig": kubeconfig}))
            .boxed(),
        Kind::Secret => {
            let data = prop::collection::btree_map("[a-d]", canary.prop_map(|text| format!("{CANARY}{text}{CANARY}").chars().take(16).collect::<String>()), 0..3);
            (prop::option::of("[a-z]{1,3}"), prop::option::of(data))
                .prop_map(|(kind, data)| json!({"type": kind, "data": data}))
                .boxed()
        }
        _ => (prop::option::of(texts(3)), prop::collection::vec(json_value(), 0..3))
            .prop_map(|(labels, values)| {
                let resource = |(index, value)| {
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{index}"), "namespace": "a"}, "data": value})
                };
                let resources: Vec<_> = values.into_iter().enumerate().map(resource).collect();
                json!({"spec": {"clusterSelector": labels.map(|labels| json!({"matchLabels": labels})), "resources": resources}})
            })
            .boxed(),
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Cluster), Just(Kind::Secret), Just(Kind::SelectorSyncSet)]
}

/// A valid body; fields may be absent.
fn document(kind: Kind) -> impl Strategy<Value = Value> {
    let finalizers = prop::option::of(prop::sample::subsequence(vec!["a.io/x", "b.io/y", "c.io/z"], 0..3));
    (prop::option::of(texts(4)), prop::option::of(texts(4)), finalizers, own_fields(kind)).prop_map(
        |(labels, annotations, finalizers, own)| {
            let mut fields = json!({"labels": labels, "annotations": annotations, "finalizers": finalizers});
            for (field, value) in own.as_object().expect("an object") {
                fields[field.as_str()] = value.clone();
            }
            fields
        },
    )
}

fn two_documents() -> impl Strategy<Value = (Kind, Value, Value)> {
    kind().prop_flat_map(|kind| (Just(kind), document(kind), document(kind)))
}

/// A document in a database; new clusters need a kubeconfig.
fn placed(kind: Kind, mut fields: Value) -> Place {
    if kind == Kind::Cluster && fields["kubeconfig"].is_null() {
        fields["kubeconfig"] = json!("");
    }
    Place::with(kind, fields)
}

/// As a client sees it.
fn seen(document: &Document) -> Value {
    serde_json::to_value(document).expect("JSON")
}

/// The document as the database gives it back: its row as text.
fn read_again(document: &Document) -> Document {
    let mut row = json!({"kind": document.kind.plural(), "id": document.id, "namespace": document.namespace, "name": document.name,
        "labels": document.labels, "annotations": document.annotations, "finalizers": document.finalizers,
        "generation": document.generation, "version": document.version, "created_at": document.created_at,
        "updated_at": document.updated_at, "deleted_at": document.deleted_at, "status": document.status});
    row["data"] = Value::Object(document.data.clone());
    Document::from_row(&row.to_string()).expect("a row")
}

fn same_documents(left: &Document, right: &Document) -> Result<(), TestCaseError> {
    prop_assert_eq!(seen(left), seen(right));
    Ok(())
}

proptest! {
    #[test]
    fn what_a_put_answers_is_what_a_get_shows((kind, first, second) in two_documents()) {
        let mut place = placed(kind, first);
        let answer = place.replace(second.clone()).expect("replaced");
        same_documents(&answer.document, &read_again(place.document()))?;
        let labels = if second["labels"].is_null() { json!({}) } else { second["labels"].clone() };
        prop_assert_eq!(&seen(&answer.document)["labels"], &labels);
    }

    #[test]
    fn a_decision_on_its_own_result_changes_nothing((kind, first, second) in two_documents()) {
        let mut place = placed(kind, first.clone());
        place.replace(second.clone()).expect("replaced");
        prop_assert_eq!(place.replace(second.clone()).expect("again").effect, Effect::Unchanged);
        // An answer that is sent back changes nothing either.
        let answer = seen(place.document());
        prop_assert_eq!(place.replace(answer.clone()).expect("the answer").effect, Effect::Unchanged);
        prop_assert_eq!(place.merge(answer).expect("the answer").effect, Effect::Unchanged);
        let applied = |fields: &Value| Action::Apply(body(fields.clone()));
        place.ask(applied(&first)).expect("applied");
        prop_assert_eq!(place.ask(applied(&first)).expect("again").effect, Effect::Unchanged);
        place.merge(second.clone()).expect("merged");
        prop_assert_eq!(place.merge(second).expect("again").effect, Effect::Unchanged);
    }

    #[test]
    fn a_merge_patch_of_a_status_is_that_of_rfc_7396(first in status(), patch in status()) {
        let mut place = placed(Kind::Cluster, json!({}));
        let put = json!({"status": first, "resourceVersion": place.document().version.to_string()});
        place.ask(Action::Replace(Part::Status, body(put))).expect("replaced");
        let answer = place.ask(Action::Merge(Part::Status, body(json!({"status": patch})))).expect("merged");
        let mut model = first;
        json_patch::merge(&mut model, &patch);
        prop_assert_eq!(Value::Object(answer.document.status), model);
    }

    #[test]
    fn a_merge_patch_of_labels_is_that_of_rfc_7396(
        first in texts(5),
        patch in prop::collection::btree_map("[a-d]{1,2}", prop::option::of("[a-z]{0,2}"), 0..5),
    ) {
        let mut place = placed(Kind::SelectorSyncSet, json!({"labels": first}));
        let answer = place.merge(json!({"labels": patch})).expect("merged");
        let mut model = json!(first);
        json_patch::merge(&mut model, &json!(patch));
        prop_assert_eq!(json!(answer.document.labels), model);
    }

    #[test]
    fn every_version_has_a_change_and_every_own_change_a_generation((kind, first, second) in two_documents()) {
        let mut place = placed(kind, first);
        let before = place.document().clone();
        let answer = place.merge(second).expect("merged");
        let after = answer.document;
        prop_assert_eq!(answer.effect == Effect::Changed, seen(&after) != seen(&before) );
        prop_assert_eq!(after.generation > before.generation, after.data != before.data);
    }

    #[test]
    fn a_sealed_value_is_in_no_answer_problem_or_debug(
        (kind, first, second) in two_documents(),
        misplaced in prop_oneof![Just("kubeconfg"), Just("datas"), Just("kubeconfig"), Just("data"), Just("Data")],
        wrong in prop_oneof![
            Just(json!(CANARY)), Just(json!({"a": CANARY})), Just(json!([CANARY])), Just(json!({"a": {"b": CANARY}})), Just(json!({"a/b": CANARY})),
        ],
    ) {
        let mut place = placed(kind, first);
        let mut broken = second.clone();
        broken[misplaced] = wrong.clone();
        let operations = |operation: &str| {
            let patch = json!([{"op": operation, "path": format!("/{misplaced}"), "value": wrong}]);
            Operations::of(&patch).expect("operations")
        };
        for fields in [second, broken] {
            let mut replacing = fields.clone();
            replacing["resourceVersion"] = json!(place.document().version.to_string());
            for action in [
                Action::Create(body(fields.clone())),
                Action::Apply(body(fields.clone())),
                Action::Replace(Part::Document, body(replacing.clone())),
                Action::Merge(Part::Document, body(fields.clone())),
                Action::Patch(Part::Document, operations("add")),
                Action::Patch(Part::Document, operations("test")),
                Action::Patch(Part::Status, operations("add")),
            ] {
                let request = place.request(action);
                let told = match place.send(&request) {
                    Ok(answer) => {
                        let item = answer.item.map(|item| serde_json::to_string(&item).expect("JSON"));
                        format!("{} {:?} {item:?}", seen(&answer.document), answer.document)
                    }
                    Err(problem) => format!("{problem:?} {problem}"),
                };
                let debug = format!("{request:?}");
                prop_assert!(!told.contains(CANARY), "{told}");
                prop_assert!(!debug.contains(CANARY), "{debug}");
                if place.stored.is_none() {
                    return Ok(());
                }
            }
        }
    }
}
