//! What a change has made of a document.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::documents::body::same;
use crate::documents::document::Document;
use crate::documents::kind::Kind;
use crate::documents::validate::without_secret_values;
use crate::yaml::escape;

/// Most bytes of what is stored of a difference.
const LARGEST: usize = 8 << 10;
/// What a record takes beside its changes, at most.
const OTHERS: usize = 256;
/// Where there is no room for a longer value, its length is stored.
const LONG: usize = 100;

/// What a record tells beside who, when and which document. It never has a value of a sealed field, and none of a core Secret.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// What has become of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'static str>,
    /// What changed in labels, annotations, finalizers and own fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<FieldChange>,
    /// How many more changes there are, for which there is no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<usize>,
    /// Sealed fields that changed, which are not shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<&'static str>,
}

/// A change at one place.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FieldChange {
    /// A JSON pointer. What goes from a list has its place before, and all else its place afterwards.
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
    /// Instead of a value for which there is no room: its bytes as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_bytes: Option<usize>,
}

impl Details {
    /// What differs between a document and what becomes of it. A document that does not exist is none. Whoever makes a change decides how long it
    /// is, and hides none behind it: the shortest ones are stored first, and of the others what they change.
    pub fn of(before: Option<&Document>, after: Option<&Document>) -> Self {
        let (old, new) = (before.map(fields).unwrap_or_default(), after.map(fields).unwrap_or_default());
        let mut walk = Walk::default();
        for field in old.keys().chain(new.keys().filter(|field| !old.contains_key(*field))) {
            walk.below(field, |walk| match (old.get(field), new.get(field)) {
                (Some(before), Some(after)) => walk.values(before, after),
                (before, after) => walk.change(before.map(AsRef::as_ref), after.map(AsRef::as_ref)),
            });
        }
        let (changes, left_out) = walk.end();
        Self { result: None, changes, left_out: Some(left_out).filter(|count| *count > 0), hidden: Vec::new() }
    }

    /// As it is stored.
    pub fn into_text(self) -> String {
        // Texts, numbers and maps with text keys always become JSON.
        serde_json::to_string(&self).unwrap_or_default()
    }
}

/// The bytes that something takes as JSON.
fn length(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Nothing fails to be counted.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// What users write of a document, where it is not empty. When a sealed field was set follows from the change itself.
fn fields(document: &Document) -> BTreeMap<&str, Cow<'_, Value>> {
    let texts = |texts: &BTreeMap<String, String>| {
        Value::Object(texts.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect())
    };
    let is_syncset = matches!(document.kind, Kind::SyncSet | Kind::SelectorSyncSet);
    let own = document.data.iter().map(|(field, value)| {
        (field.as_str(), if is_syncset { without_secret_values(value) } else { Cow::Borrowed(value) })
    });
    let mut fields: BTreeMap<_, _> = own.collect();
    if let Some(sealed) = document.kind.sealed() {
        fields.remove(sealed.generation_field());
    }
    if !document.labels.is_empty() {
        fields.insert("labels", Cow::Owned(texts(&document.labels)));
    }
    if !document.annotations.is_empty() {
        fields.insert("annotations", Cow::Owned(texts(&document.annotations)));
    }
    if !document.finalizers.is_empty() {
        fields.insert("finalizers", Cow::Owned(Value::from(document.finalizers.clone())));
    }
    fields
}

/// A walk through two documents.
#[derive(Default)]
struct Walk<'d> {
    path: String,
    /// The changes for which there is room if long values are replaced by their lengths; the longest one is on top.
    changes: BinaryHeap<Found<'d>>,
    /// What these take then.
    bytes: usize,
    /// How many have been found.
    count: usize,
}

/// A change that has been found, in the order of what it takes as a whole.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Found<'d> {
    bytes: usize,
    number: usize,
    path: String,
    /// The bytes that it takes if long values are replaced by their lengths.
    least: usize,
    values: Values<'d>,
}

/// What was there and what is, each with the bytes that it takes; the order of changes does not depend on it.
struct Values<'d>([Option<(&'d Value, usize)>; 2]);

impl PartialEq for Values<'_> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Values<'_> {}

impl PartialOrd for Values<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Values<'_> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl<'d> Walk<'d> {
    fn values(&mut self, before: &'d Value, after: &'d Value) {
        match (before, after) {
            (Value::Object(old), Value::Object(new)) => {
                for (field, before) in old {
                    self.below(field, |walk| match new.get(field) {
                        Some(after) => walk.values(before, after),
                        None => walk.change(Some(before), None),
                    });
                }
                for (field, after) in new.iter().filter(|(field, _)| !old.contains_key(*field)) {
                    self.below(field, |walk| walk.change(None, Some(after)));
                }
            }
            (Value::Array(old), Value::Array(new)) => self.lists(old, new),
            (before, after) if same(before, after) => {}
            (before, after) => self.change(Some(before), Some(after)),
        }
    }

    /// What lists have in common at their beginning and at their end is left out. The others are compared in their order.
    fn lists(&mut self, old: &'d [Value], new: &'d [Value]) {
        let is_same = |(before, after): &(&Value, &Value)| same(before, after);
        let first = old.iter().zip(new).take_while(is_same).count();
        let (old_rest, new_rest) = (old.get(first..).unwrap_or_default(), new.get(first..).unwrap_or_default());
        let last = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(is_same).count();
        let end = |rest: &[Value]| rest.len() - last;
        let old_rest = old_rest.get(..end(old_rest)).unwrap_or_default();
        let new_rest = new_rest.get(..end(new_rest)).unwrap_or_default();
        for index in 0..old_rest.len().max(new_rest.len()) {
            let (before, after) = (old_rest.get(index), new_rest.get(index));
            self.below(&(first + index).to_string(), |walk| match (before, after) {
                (Some(before), Some(after)) => walk.values(before, after),
                (before, after) => walk.change(before, after),
            });
        }
    }

    fn below(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(&escape(name));
        visit(self);
        self.path.truncate(length);
    }

    fn change(&mut self, before: Option<&'d Value>, after: Option<&'d Value>) {
        // The names of its parts, and what a length takes at most.
        const NAMES: usize = "{\"path\":,\"beforeBytes\":,\"afterBytes\":},".len();
        const LENGTH: usize = 8;
        if before.is_none() && after.is_none() {
            return;
        }
        let number = self.count;
        self.count += 1;
        // One that would be left out at once is only counted: a long path may lead to very many.
        let present = [before, after].into_iter().flatten().count();
        let shortest = NAMES + "\"\"".len() + self.path.len() + present;
        if self.bytes + shortest > LARGEST - OTHERS
            && self.changes.peek().is_none_or(|longest| shortest >= longest.bytes)
        {
            return;
        }
        let values = [before, after].map(|value| value.map(|value| (value, length(value))));
        let lengths = values.iter().flatten().map(|(_, bytes)| *bytes);
        let names = NAMES + length(&self.path);
        let bytes = names + lengths.clone().sum::<usize>();
        let least = names + lengths.map(|bytes| if bytes > LONG { LENGTH } else { bytes }).sum::<usize>();
        self.bytes += least;
        self.changes.push(Found { bytes, number, path: self.path.clone(), least, values: Values(values) });
        while self.bytes > LARGEST - OTHERS {
            let Some(longest) = self.changes.pop() else { break };
            self.bytes -= longest.least;
        }
    }

    /// The changes that are stored, in the order of the document, and how many are left out.
    fn end(self) -> (Vec<FieldChange>, usize) {
        let left_out = self.count - self.changes.len();
        let mut room = (LARGEST - OTHERS).saturating_sub(self.bytes);
        let mut changes = Vec::with_capacity(self.changes.len());
        for Found { bytes, number, path, least, values: Values([before, after]) } in self.changes.into_sorted_vec() {
            let is_whole = bytes - least <= room;
            room -= if is_whole { bytes - least } else { 0 };
            let is_shown = |bytes: usize| is_whole || bytes <= LONG;
            let shown = |value: Option<(&Value, usize)>| value.filter(|of| is_shown(of.1)).map(|of| of.0.clone());
            let told = |value: Option<(&Value, usize)>| value.filter(|of| !is_shown(of.1)).map(|of| of.1);
            let (before_bytes, after_bytes) = (told(before), told(after));
            let change = FieldChange { path, before: shown(before), after: shown(after), before_bytes, after_bytes };
            changes.push((number, change));
        }
        changes.sort_by_key(|(number, _)| *number);
        (changes.into_iter().map(|(_, change)| change).collect(), left_out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn cluster(labels: &Value, data: &Value) -> Document {
        let row = json!({"kind": "clusters", "id": "6f1c0000-0000-4000-8000-000000000000", "namespace": "foo", "name": "c1",
            "labels": labels, "annotations": {}, "finalizers": [], "generation": 3, "version": 7, "created_at": "2026-11-21T23:40:00Z",
            "updated_at": "2026-11-21T23:41:00Z", "deleted_at": null, "data": data, "status": {"seen": labels}});
        Document::from_row(&row.to_string()).expect("a row")
    }

    fn told(before: Option<&Document>, after: Option<&Document>) -> Value {
        serde_json::from_str(&Details::of(before, after).into_text()).expect("JSON")
    }

    #[test]
    fn a_difference_has_each_field_that_changed_and_no_status() {
        let before = cluster(&json!({"a/b": "1", "c": "2"}), &json!({"paused": false, "kubeconfigGeneration": 1}));
        let after = cluster(&json!({"a/b": "3", "d": "4"}), &json!({"paused": true, "kubeconfigGeneration": 2}));
        let expected = json!({"changes": [
            {"path": "/labels/a~1b", "before": "1", "after": "3"}, {"path": "/labels/c", "before": "2"},
            {"path": "/labels/d", "after": "4"}, {"path": "/paused", "before": false, "after": true}]});
        assert_eq!(told(Some(&before), Some(&after)), expected);
        assert_eq!(told(Some(&before), Some(&before)), json!({}));
        let expected = json!({"changes": [
            {"path": "/labels", "after": {"a/b": "1", "c": "2"}}, {"path": "/paused", "after": false}]});
        assert_eq!(told(None, Some(&before)), expected);
        let expected = json!({"changes": [
            {"path": "/labels", "before": {"a/b": "1", "c": "2"}}, {"path": "/paused", "before": false}]});
        assert_eq!(told(Some(&before), None), expected);
    }

    #[test]
    fn values_of_secrets_that_an_old_syncset_has_are_not_told_when_they_go() {
        let syncset = |spec: &Value| Document { kind: Kind::SyncSet, ..cluster(&json!({}), &json!({"spec": spec})) };
        let secret = |value: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": value,
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value}},
                "data": {"a": value}, "stringData": {"b": value}})
        };
        let patch = json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "patch": "canary-4"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}});
        let list = json!({"kind": "List", "items": [secret("canary-3")]});
        let old = syncset(&json!({"resources": [secret("canary-1"), map, list], "patches": [patch]}));
        let new = syncset(&json!({"resources": [map]}));
        for after in [Some(&new), None] {
            let told = told(Some(&old), after).to_string().replace("\"name\":\"canary", "");
            assert!(!told.contains("canary") && told.contains("(not shown)"), "{told}");
        }
        // Another group's kind of this name is no Secret.
        let other = syncset(&json!({"resources": [{"apiVersion": "x.io/v1", "kind": "Secret", "data": {"a": "1"}}]}));
        assert!(told(Some(&other), None).to_string().contains(r#"{"a":"1"}"#));
    }

    #[test]
    fn an_element_that_comes_into_a_list_is_one_change() {
        let list = |elements: &[u64]| cluster(&json!({}), &json!({"list": elements}));
        let changes = |old: &[u64], new: &[u64]| told(Some(&list(old)), Some(&list(new)))["changes"].clone();
        assert_eq!(changes(&[1, 2, 3], &[1, 9, 2, 3]), json!([{"path": "/list/1", "after": 9}]));
        assert_eq!(changes(&[1, 2, 3], &[2, 3]), json!([{"path": "/list/0", "before": 1}]));
        assert_eq!(changes(&[1, 1], &[1, 1, 1]), json!([{"path": "/list/2", "after": 1}]));
        assert_eq!(changes(&[1, 2, 3], &[1, 9, 3]), json!([{"path": "/list/1", "before": 2, "after": 9}]));
    }

    /// Whoever makes a change decides what it is beside.
    #[test]
    fn a_change_is_told_whatever_is_changed_beside_it_and_what_is_left_out_is_counted() {
        let of = |image: &str, beside: &Value| {
            cluster(&json!({}), &json!({"a": beside, "spec": {"image": image}, "z": beside}))
        };
        let none = of("good", &json!(1));
        let long = "x".repeat(9 << 10);
        let image = json!({"path": "/spec/image", "before": "good", "after": "bad"});
        let bytes = long.len() + 2;
        let expected = json!({"changes": [{"path": "/a", "before": 1, "afterBytes": bytes}, image,
            {"path": "/z", "before": 1, "afterBytes": bytes}]});
        assert_eq!(told(Some(&none), Some(&of("bad", &json!(long)))), expected);
        // Many that are not short, and a few of which one has room as a whole.
        let many = |letter: &str| (0..2000).map(|n| (format!("key-{n}"), json!(letter.repeat(30)))).collect::<Value>();
        let (old, new) = (of("good", &many("a")), of("bad", &many("b")));
        let text = Details::of(Some(&old), Some(&new)).into_text();
        assert!(text.len() <= LARGEST, "{}", text.len());
        let told_of = told(Some(&old), Some(&new));
        let changes = told_of["changes"].as_array().expect("changes");
        assert!(changes.contains(&image) && changes.len() > 50, "{told_of}");
        assert_eq!(told_of["leftOut"], 4001 - changes.len());
        // A name as long as a document allows is copied for none of its parts.
        let parts = |part: usize| json!({"k".repeat(1 << 20): vec![part; 100_000]});
        let (old, new) = (of("good", &parts(1)), of("bad", &parts(2)));
        assert_eq!(told(Some(&old), Some(&new)), json!({"changes": [image], "leftOut": 200_000}));
        let middle = told(Some(&none), Some(&of("bad", &json!("y".repeat(5000)))));
        let changes = middle["changes"].as_array().expect("changes");
        assert_eq!(changes.iter().filter(|change| change["after"].is_string()).count(), 2, "{middle}");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..3_u8).prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a~/]", inner, 0..3).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn there_is_a_difference_exactly_between_documents_that_differ(old in value(), new in value()) {
            let documents = [&old, &new].map(|value| cluster(&json!({}), &json!({"a": value})));
            let changes = told(Some(&documents[0]), Some(&documents[1]));
            prop_assert_eq!(changes == json!({}), same(&old, &new), "{}", changes);
            for change in changes["changes"].as_array().into_iter().flatten() {
                let at = |value: &Value| json!({"a": value}).pointer(change["path"].as_str().expect("a path")).cloned();
                prop_assert!(change.get("before").is_none_or(|before| Some(before) == at(&old).as_ref()), "{}", change);
                prop_assert!(change.get("after").is_none_or(|after| Some(after) == at(&new).as_ref()), "{}", change);
            }
        }
    }
}
