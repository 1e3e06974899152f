//! What a change has made of a document.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::documents::body::same;
use crate::documents::document::Document;
use crate::documents::kind::Kind;
use crate::documents::validate::without_secret_values;

use crate::yaml::escape;
/// A longer difference is not stored: the record says that there was one.
const LARGEST: usize = 8 << 10;

/// What a record tells beside who, when and which document. It never has a value of a sealed field, and none of a core Secret.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details<'d> {
    /// What has become of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'static str>,
    /// What changed in labels, annotations, finalizers and own fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<FieldChange<'d>>,
    /// Sealed fields that changed, which are not shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    too_large: bool,
}

/// A change at one place.
#[derive(Debug, PartialEq, Serialize)]
struct FieldChange<'d> {
    /// A JSON pointer. What goes from a list has its place before, and all else its place afterwards.
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Cow<'d, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Cow<'d, Value>>,
}

impl<'d> Details<'d> {
    /// What differs between a document and what becomes of it. A document that does not exist is none.
    pub fn of(before: Option<&'d Document>, after: Option<&'d Document>) -> Self {
        let (old, new) = (before.map(fields).unwrap_or_default(), after.map(fields).unwrap_or_default());
        let mut walk = Walk { path: String::new(), bytes: 0, changes: Vec::new() };
        for field in old.keys().chain(new.keys().filter(|field| !old.contains_key(*field))) {
            walk.below(field, |walk| walk.pair(old.get(field).cloned(), new.get(field).cloned()));
        }
        let too_large = walk.bytes > LARGEST;
        let changes = if too_large { Vec::new() } else { walk.changes };
        Self { result: None, changes, hidden: Vec::new(), too_large }
    }

    /// As it is stored.
    pub fn into_text(mut self) -> String {
        let mut text = Bounded(Vec::new());
        if serde_json::to_writer(&mut text, &self).is_err() {
            self.changes = Vec::new();
            self.too_large = true;
            // Short texts always become JSON.
            return serde_json::to_string(&self).unwrap_or_default();
        }
        String::from_utf8(text.0).unwrap_or_default()
    }
}

/// A text that takes no more than [`LARGEST`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
struct Walk<'d> {
    path: String,
    /// What the paths take; beyond [`LARGEST`] the walk ends.
    bytes: usize,
    changes: Vec<FieldChange<'d>>,
}

impl<'d> Walk<'d> {
    fn pair(&mut self, before: Option<Cow<'d, Value>>, after: Option<Cow<'d, Value>>) {
        match (before, after) {
            (Some(Cow::Borrowed(before)), Some(Cow::Borrowed(after))) => self.values(before, after),
            // Labels and the like, which are short.
            (Some(before), Some(after)) => {
                let mut inner = Walk { path: std::mem::take(&mut self.path), bytes: self.bytes, changes: Vec::new() };
                inner.values(&before, &after);
                self.path = std::mem::take(&mut inner.path);
                self.bytes = inner.bytes;
                let owned = |value: Option<Cow<'_, Value>>| value.map(|value| Cow::Owned(value.into_owned()));
                self.changes.extend(inner.changes.into_iter().map(|change| FieldChange {
                    path: change.path,
                    before: owned(change.before),
                    after: owned(change.after),
                }));
            }
            (before, after) => self.change(before, after),
        }
    }

    fn values(&mut self, before: &'d Value, after: &'d Value) {
        match (before, after) {
            _ if self.bytes > LARGEST => {}
            (Value::Object(old), Value::Object(new)) => {
                for (field, before) in old {
                    self.below(field, |walk| match new.get(field) {
                        Some(after) => walk.values(before, after),
                        None => walk.change(Some(Cow::Borrowed(before)), None),
                    });
                }
                for (field, after) in new.iter().filter(|(field, _)| !old.contains_key(*field)) {
                    self.below(field, |walk| walk.change(None, Some(Cow::Borrowed(after))));
                }
            }
            (Value::Array(old), Value::Array(new)) => self.lists(old, new),
            (before, after) if same(before, after) => {}
            (before, after) => self.change(Some(Cow::Borrowed(before)), Some(Cow::Borrowed(after))),
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
                (before, after) => walk.change(before.map(Cow::Borrowed), after.map(Cow::Borrowed)),
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

    fn change(&mut self, before: Option<Cow<'d, Value>>, after: Option<Cow<'d, Value>>) {
        // As much as the names of its parts take, at least.
        self.bytes += self.path.len() + "{\"path\":\"\",\"after\":0},".len();
        if self.bytes <= LARGEST && (before.is_some() || after.is_some()) {
            self.changes.push(FieldChange { path: self.path.clone(), before, after });
        }
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

    #[test]
    fn a_difference_of_more_than_8_kib_is_not_stored() {
        let small = cluster(&json!({}), &json!({"text": "x"}));
        let (large, many) = ("x".repeat(LARGEST), vec![json!({}); LARGEST]);
        for data in [json!({"text": large}), json!({"text": many})] {
            let large = cluster(&json!({}), &data);
            assert_eq!(told(Some(&small), Some(&large)), json!({"tooLarge": true}));
        }
        let (old, new) = (vec![json!(1); LARGEST], vec![json!(2); LARGEST]);
        let lists = [old, new].map(|list| cluster(&json!({}), &json!({"list": list})));
        assert_eq!(told(Some(&lists[0]), Some(&lists[1])), json!({"tooLarge": true}));
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
