//! Changes to which manager owns which fields of an object (`managedFields`).
//!
//! Server-side apply removes a field that is no longer given if only the manager that applies owns it, and nothing else. So a field that is to
//! stay is taken from our entry before we stop to give it, and one that is to go, such as a default of the server, is added to it. Both are a
//! JSON patch, which the server refuses if the object has changed meanwhile. It changes no field of the object itself.

use serde_json::{Map, Value, json};

use crate::cluster::{ManagedFields, Metadata};
use crate::documents::FieldPointer;

/// The fields of a list or map that is owned as a whole can't be given up one by one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} is part of a field that is only written as a whole")]
pub struct PartOfWhole {
    part: FieldPointer,
    /// It is a map: one that was written when it was empty looks the same, and is no whole if it is empty still.
    pub is_map: bool,
}

/// The patch by which a manager no longer owns these fields; none if it does not own them. `body` is the object as it is wanted: its lists say
/// which element a number stands for. `live` is the whole object as it is, if that was read.
pub fn given_up(
    metadata: &Metadata,
    (manager, operation): (&str, &str),
    pointers: &[FieldPointer],
    body: &Value,
    live: Option<&Value>,
) -> Result<Option<Value>, PartOfWhole> {
    // Entries of all managers count: a field that one of them owns as a whole is atomic for everybody.
    let mut all = json!({});
    for entry in metadata.managers.iter().filter(|entry| entry.subresource.is_empty()) {
        merge(&mut all, entry.fields_value());
    }
    for part in pointers {
        if let Some(is_map) = whole_around(&all, part.segments(), body, live, operation == "Apply") {
            return Err(PartOfWhole { part: part.clone(), is_map });
        }
    }
    let mut has_changed = false;
    let mut entries = Vec::new();
    for entry in &metadata.managers {
        let mut fields = entry.fields_value();
        if is_of(entry, manager, operation) {
            for pointer in pointers {
                has_changed |= remove(&mut fields, pointer.segments(), Some(body));
            }
        }
        entries.push(written(entry, &fields));
    }
    Ok(has_changed.then(|| patch(&entries, metadata)))
}

/// A merge patch has no parts of lists.
pub fn outside_lists(pointers: &[FieldPointer], body: &Value) -> Result<(), PartOfWhole> {
    let is_in_list = |pointer: &&FieldPointer| is_in_list(body, pointer.segments());
    pointers.iter().find(is_in_list).map_or(Ok(()), |part| Err(PartOfWhole { part: part.clone(), is_map: false }))
}

/// The patch by which a manager owns these fields, and nobody else does. `body` is the object as it is wanted.
pub fn claimed(
    metadata: &Metadata,
    (manager, operation): (&str, &str),
    pointers: &[FieldPointer],
    body: &Value,
) -> Value {
    let mut all = json!({});
    for entry in metadata.managers.iter().filter(|entry| entry.subresource.is_empty()) {
        merge(&mut all, entry.fields_value());
    }
    let has_entry = metadata.managers.iter().any(|entry| is_of(entry, manager, operation));
    let api_version = body.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    // An object that somebody else has made has none of ours.
    let new = (!has_entry).then(|| ManagedFields {
        manager: manager.to_owned(),
        operation: operation.to_owned(),
        api_version: api_version.to_owned(),
        fields: "{}".into(),
        ..ManagedFields::default()
    });
    let entries = metadata.managers.iter().chain(&new).map(|entry| {
        let mut fields = entry.fields_value();
        for pointer in pointers {
            if is_of(entry, manager, operation) {
                add(&mut fields, &all, pointer.segments(), Some(body));
            } else if entry.subresource.is_empty() {
                remove(&mut fields, pointer.segments(), Some(body));
            }
        }
        written(entry, &fields)
    });
    patch(&entries.collect::<Vec<_>>(), metadata)
}

fn is_of(entry: &ManagedFields, manager: &str, operation: &str) -> bool {
    entry.manager == manager && entry.operation == operation && entry.subresource.is_empty()
}

/// An entry as servers write it, with these fields.
fn written(entry: &ManagedFields, fields: &Value) -> Value {
    let mut written = json!({"manager": entry.manager, "operation": entry.operation, "apiVersion": entry.api_version,
        "fieldsType": "FieldsV1", "fieldsV1": fields});
    if let Some(map) = written.as_object_mut() {
        if let Some(time) = &entry.time {
            map.insert("time".to_owned(), json!(time));
        }
        if !entry.subresource.is_empty() {
            map.insert("subresource".to_owned(), json!(entry.subresource));
        }
    }
    written
}

fn patch(entries: &[Value], metadata: &Metadata) -> Value {
    json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": &*metadata.resource_version},
    ])
}

/// Takes a field and all below it from a set of fields. Returns whether it was in it.
fn remove(fields: &mut Value, segments: &[String], body: Option<&Value>) -> bool {
    let (Some((segment, rest)), Value::Object(members)) = (segments.split_first(), fields) else { return false };
    let mut is_removed = false;
    for key in matching(members, segment, body) {
        if rest.is_empty() {
            members.remove(&key);
            is_removed = true;
        } else if let Some(below) = members.get_mut(&key)
            && remove(below, rest, child(body, &key))
        {
            is_removed = true;
            // An empty set stands for the field as a whole.
            if is_leaf(below) {
                members.remove(&key);
            }
        }
    }
    is_removed
}

/// Adds a field to a set. Elements of lists are added if somebody has them: one that nobody has is new, and has nothing to be removed.
fn add(fields: &mut Value, all: &Value, segments: &[String], body: Option<&Value>) {
    let (Some((segment, rest)), Value::Object(members)) = (segments.split_first(), fields) else { return };
    let mut keys = all.as_object().map(|all| matching(all, segment, body)).unwrap_or_default();
    if keys.is_empty() && !body.is_some_and(Value::is_array) {
        keys.push(format!("f:{segment}"));
    }
    for key in keys {
        let below = child(body, &key).cloned();
        let all_below = all.get(&key).unwrap_or(&Value::Null);
        let member = members.entry(&key).or_insert_with(|| json!({}));
        match rest {
            // All of it, whatever parts were owned before.
            [] => *member = json!({}),
            rest => {
                add(member, all_below, rest, below.as_ref());
                // It would stand for the field as a whole.
                if is_leaf(member) && !is_leaf(all_below) {
                    members.remove(&key);
                }
            }
        }
    }
}

fn is_leaf(fields: &Value) -> bool {
    fields.as_object().is_some_and(Map::is_empty)
}

/// Whether the object gives a field as a whole in which this one is, so that what is there of it would be lost; if so, whether that is a map.
/// `live` is what is there, if that is known.
fn whole_around(
    fields: &Value,
    segments: &[String],
    body: &Value,
    live: Option<&Value>,
    is_applied: bool,
) -> Option<bool> {
    let (Some((segment, rest)), Some(members)) = (segments.split_first(), fields.as_object()) else { return None };
    if rest.is_empty() {
        return None;
    }
    matching(members, segment, Some(body)).iter().find_map(|key| {
        let (below, given) = (members.get(key)?, child(Some(body), key)?);
        let live = live.map(|live| child(Some(live), key).unwrap_or(&Value::Null));
        let is_filled = |value: &Value| value.as_object().is_some_and(|fields| !fields.is_empty());
        match given {
            _ if !is_leaf(below) => whole_around(below, rest, given, live, is_applied),
            Value::Array(elements) => (!elements.is_empty()).then_some(false),
            // A patch merges the members of each object.
            Value::Object(_) => {
                let is_written = is_filled(given) && (is_applied || is_given(given, rest));
                (is_written && live.is_none_or(is_filled)).then_some(true)
            }
            _ => None,
        }
    })
}

fn is_in_list(body: &Value, segments: &[String]) -> bool {
    let Some((segment, rest)) = segments.split_first() else { return false };
    match body {
        Value::Array(elements) => !elements.is_empty(),
        Value::Object(fields) if segment == "*" => fields.values().any(|value| is_in_list(value, rest)),
        Value::Object(fields) => fields.get(segment).is_some_and(|value| is_in_list(value, rest)),
        _ => false,
    }
}

/// The union of two sets of fields.
pub fn merge(fields: &mut Value, more: Value) {
    let (Value::Object(fields), Value::Object(more)) = (fields, more) else { return };
    for (name, below) in more {
        merge(fields.entry(name).or_insert_with(|| json!({})), below);
    }
}

/// The members of a set that a segment of a pointer stands for.
fn matching(members: &Map<String, Value>, segment: &str, body: Option<&Value>) -> Vec<String> {
    let is_meant = |key: &&String| match key.split_once(':') {
        Some(("f", name)) => segment == "*" || name == segment,
        Some(("k", _)) => {
            let element = segment.parse::<usize>().ok().and_then(|index| body?.get(index));
            segment == "*" || element.is_some_and(|element| has_keys(element, key))
        }
        Some(("v" | "i", _)) => segment == "*",
        _ => false,
    };
    members.keys().filter(is_meant).cloned().collect()
}

/// The part of the object that a member of a set stands for.
fn child<'b>(body: Option<&'b Value>, key: &str) -> Option<&'b Value> {
    match key.strip_prefix("f:") {
        Some(name) => body?.get(name),
        None => body?.as_array()?.iter().find(|element| has_keys(element, key)),
    }
}

/// Whether it is the element of a list with these keys; a key that it does not give may be a default.
fn has_keys(element: &Value, key: &str) -> bool {
    let keys = key.strip_prefix("k:").and_then(|keys| serde_json::from_str(keys).ok());
    let Some(Value::Object(keys)) = keys else { return false };
    keys.iter().all(|(name, value)| element.get(name).is_none_or(|given| given == value))
}

/// Whether an object has a field that the pointer means.
fn is_given(body: &Value, segments: &[String]) -> bool {
    let Some((segment, rest)) = segments.split_first() else { return true };
    match body {
        Value::Object(fields) if segment == "*" => fields.values().any(|value| is_given(value, rest)),
        Value::Object(fields) => fields.get(segment).is_some_and(|value| is_given(value, rest)),
        Value::Array(elements) if segment == "*" => elements.iter().any(|value| is_given(value, rest)),
        Value::Array(elements) => {
            let index = segment.parse::<usize>().ok();
            index.and_then(|index| elements.get(index)).is_some_and(|value| is_given(value, rest))
        }
        _ => false,
    }
}

/// The object without these fields. What has nothing left without them goes as well, but for elements of lists.
pub fn without(body: &Value, pointers: &[FieldPointer]) -> Value {
    let mut body = body.clone();
    for pointer in pointers {
        strip(&mut body, pointer.segments());
    }
    body
}

fn strip(value: &mut Value, segments: &[String]) {
    let Some((segment, rest)) = segments.split_first() else { return };
    match value {
        Value::Object(fields) => {
            let names: Vec<String> =
                if segment == "*" { fields.keys().cloned().collect() } else { vec![segment.clone()] };
            for name in names {
                if rest.is_empty() {
                    fields.remove(&name);
                } else if let Some(below) = fields.get_mut(&name) {
                    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
                    let was_empty = is_empty(below);
                    strip(below, rest);
                    if !was_empty && is_empty(below) {
                        fields.remove(&name);
                    }
                }
            }
        }
        Value::Array(elements) => {
            let index = segment.parse::<usize>().ok();
            let is_meant = |at: usize| segment == "*" || index == Some(at);
            if rest.is_empty() {
                let mut at = 0..;
                elements.retain(|_| !at.next().is_some_and(is_meant));
            } else {
                let meant = elements.iter_mut().enumerate().filter(|(at, _)| is_meant(*at));
                meant.for_each(|(_, element)| strip(element, rest));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::field_pointers;

    fn pointers(text: &str) -> Vec<FieldPointer> {
        field_pointers(text).expect("pointers")
    }

    fn metadata(entries: &Value) -> Metadata {
        serde_json::from_value(
            json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "managedFields": entries}}),
        )
        .expect("metadata")
    }

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "t", "fieldsV1": fields})
    }

    const OURS: (&str, &str) = ("towline", "Apply");
    const UPDATES: (&str, &str) = ("towline-update", "Update");

    fn left(patch: Option<Value>) -> Vec<Value> {
        let patch = patch.expect("a patch");
        assert_eq!(patch[1], json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}));
        patch[0]["value"].as_array().expect("entries").clone()
    }

    #[test]
    fn what_is_left_alone_is_taken_from_our_entry_and_from_no_other() {
        let hook = |name: &str| format!("k:{{\"name\":\"{name}\"}}");
        let fields = json!({"f:spec": {"f:replicas": {}}, "f:webhooks": {
            hook("a"): {".": {}, "f:name": {}, "f:clientConfig": {"f:caBundle": {}, "f:url": {}}},
            hook("b"): {".": {}, "f:name": {}, "f:clientConfig": {"f:caBundle": {}}}}});
        let found = metadata(&json!([entry("towline", "Apply", &fields), entry("other", "Update", &fields)]));
        let body = json!({"spec": {"replicas": 1}, "webhooks": [{"name": "b"}, {"name": "a"}]});
        let all = pointers("/spec/replicas,/webhooks/*/clientConfig/caBundle,/nothing");
        let expected = json!({"f:webhooks": {
            hook("a"): {".": {}, "f:name": {}, "f:clientConfig": {"f:url": {}}},
            hook("b"): {".": {}, "f:name": {}}}});
        let entries = left(given_up(&found, OURS, &all, &body, None).expect("parts"));
        assert_eq!(entries, [entry("towline", "Apply", &expected), entry("other", "Update", &fields)]);
        // Done once.
        assert_eq!(given_up(&metadata(&json!(entries)), OURS, &all, &body, None), Ok(None));
        // A number is the place in the object that is wanted.
        let first = given_up(&found, OURS, &pointers("/webhooks/0/clientConfig"), &body, None).expect("parts");
        assert_eq!(left(first)[0]["fieldsV1"]["f:webhooks"][hook("b")], json!({".": {}, "f:name": {}}));
    }

    #[test]
    fn a_part_of_what_is_written_as_a_whole_cant_be_left_alone() {
        let found = metadata(&json!([entry("towline", "Apply", &json!({"f:spec": {"f:list": {}}}))]));
        let body = json!({"spec": {"list": [{"a": 1}]}});
        let error = given_up(&found, OURS, &pointers("/spec/list/*/a"), &body, None).expect_err("a part");
        assert_eq!(error.to_string(), "/spec/list/*/a is part of a field that is only written as a whole");
        let theirs = pointers("/spec/list/*/b");
        assert!(given_up(&found, OURS, &theirs, &body, None).is_err(), "that of others would be lost");
        assert_eq!(given_up(&found, OURS, &theirs, &json!({"spec": {"list": []}}), None), Ok(None), "there is no list");
        // What others have made shows what is a whole before we have written anything.
        let of_others = metadata(&json!([entry("other", "Update", &json!({"f:spec": {"f:list": {}}}))]));
        assert!(given_up(&of_others, OURS, &theirs, &body, None).is_err());
        // An apply sends a map as a whole that a patch merges.
        let selector = json!({"spec": {"selector": {"a": "1"}}});
        let mine = metadata(&json!([entry("towline", "Apply", &json!({"f:spec": {"f:selector": {}}}))]));
        let (given, other) = (pointers("/spec/selector/a"), pointers("/spec/selector/b"));
        assert!(given_up(&mine, OURS, &other, &selector, None).is_err());
        assert_eq!(given_up(&mine, UPDATES, &other, &selector, None), Ok(None));
        assert!(given_up(&mine, UPDATES, &given, &selector, None).is_err());
        // One that was written when it was empty looks the same; what is there tells.
        let (empty, filled) = (json!({"spec": {"selector": {}}}), json!({"spec": {"selector": {"b": "2"}}}));
        assert_eq!(given_up(&mine, OURS, &other, &selector, Some(&empty)), Ok(None));
        assert_eq!(given_up(&mine, OURS, &other, &selector, Some(&json!({}))), Ok(None));
        assert!(given_up(&mine, OURS, &other, &selector, Some(&filled)).is_err());
        assert!(given_up(&found, OURS, &theirs, &body, Some(&json!({}))).is_err(), "a list is always a whole");
        assert!(outside_lists(&theirs, &body).is_err());
        assert_eq!(outside_lists(&pointers("/spec/list,/spec/selector/a"), &body), Ok(()));
        let whole = given_up(&found, OURS, &pointers("/spec/list"), &body, None).expect("the whole");
        assert_eq!(left(whole)[0]["fieldsV1"], json!({}));
    }

    #[test]
    fn what_is_to_go_is_added_to_our_entry_and_taken_from_all_others() {
        let volume = "k:{\"name\":\"v\"}";
        let ours = json!({"f:spec": {"f:volumes": {volume: {".": {}, "f:name": {}}}}});
        let theirs = json!({"f:spec": {"f:strategy": {"f:type": {}, "f:rollingUpdate": {"f:maxSurge": {}}}}});
        let mut status = entry("other", "Update", &theirs);
        status["subresource"] = json!("status");
        let found =
            metadata(&json!([entry("towline", "Apply", &ours), entry("other", "Update", &theirs), status.clone()]));
        let body = json!({"spec": {"strategy": {"type": "Recreate"}, "volumes": [{"name": "n"}, {"name": "v"}]}});
        let gone = ["/spec/strategy/rollingUpdate", "/spec/volumes/1/emptyDir", "/spec/volumes/0/emptyDir"];
        let entries = left(Some(claimed(&found, OURS, &pointers(&gone.join(",")), &body)));
        let expected = json!({"f:spec": {"f:strategy": {"f:rollingUpdate": {}},
            "f:volumes": {volume: {".": {}, "f:name": {}, "f:emptyDir": {}}}}});
        let rest = json!({"f:spec": {"f:strategy": {"f:type": {}}}});
        assert_eq!(entries, [entry("towline", "Apply", &expected), entry("other", "Update", &rest), status]);

        // An object that another has made has no entry of ours.
        let theirs = json!({"f:spec": {"f:volumes": {volume: {".": {}, "f:name": {}, "f:emptyDir": {}}}}});
        let mut body = body;
        body["apiVersion"] = json!("apps/v1");
        let found = metadata(&json!([entry("other", "Update", &theirs)]));
        let gone = pointers("/spec/volumes/1/emptyDir,/spec/volumes/0/emptyDir");
        let entries = left(Some(claimed(&found, OURS, &gone, &body)));
        let rest = json!({"f:spec": {"f:volumes": {volume: {".": {}, "f:name": {}}}}});
        let ours = json!({"manager": "towline", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:volumes": {volume: {"f:emptyDir": {}}}}}});
        assert_eq!(entries, [entry("other", "Update", &rest), ours]);
    }

    #[test]
    fn an_object_without_fields_keeps_everything_else() {
        let body = json!({"spec": {"replicas": 1, "a": {"b": {"c": 1}}, "empty": {}},
            "webhooks": [{"name": "a", "clientConfig": {"caBundle": "x"}}, {"name": "b"}], "list": [1, 2]});
        let expected = json!({"spec": {"empty": {}}, "webhooks": [{"name": "a"}, {"name": "b"}], "list": [1]});
        let text = "/spec/replicas,/spec/a/b/c,/webhooks/*/clientConfig/caBundle,/list/1,/spec/none/x";
        assert_eq!(without(&body, &pointers(text)), expected);
        assert_eq!(without(&expected, &pointers(text)), expected);
    }
}
