//! What control planes put into objects of built-in kinds: allocated addresses, generated selectors, bound volumes, their notes.
//!
//! Such a value has a meaning in its own cluster only. The rest of an object is its *portable part*: what somebody ordered, and
//! what may be carried to another cluster. [`table`] lists for each kind what is not portable; the functions here apply it. They
//! are pure.
//!
//! Many of these fields may also be ordered (a fixed `clusterIP`, a claim for one certain volume). The record of field managers
//! (`managedFields`) tells the difference: an API server allocates values, and its admission plugins fill them in, after it has
//! noted the fields of a request. Controllers write under names of their own ([`is_control_plane`]), or say by an annotation
//! what they have filled in.

mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::object::{CanonicalJson, Decoded, Managed, Manager, Object};

pub use table::unsyncable;

/// A built-in kind whose objects are not portable as they are.
#[derive(Debug)]
pub struct BuiltIn {
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    fields: &'static [Field],
    /// Labels and annotations; a `*` at the end stands for anything.
    keys: &'static [&'static str],
    /// The status is left out on both sides: it says what its cluster has bound, counts or serves.
    leaves_status_out: bool,
}

/// A field that a control plane fills in.
#[derive(Debug)]
struct Field {
    /// The way to it; `*` stands for each item of a list.
    path: &'static [&'static str],
    /// When its value is the control plane's.
    when: When,
    /// The server keeps its value if an update leaves the field out. All others have to be sent back as they are.
    kept: bool,
}

/// When a value is the control plane's.
#[derive(Debug, Clone, Copy)]
enum When {
    Always,
    /// Unless somebody ordered it.
    NotOrdered,
    /// If the controller that filled it in says so by this annotation.
    Annotated(&'static str),
    /// By what the object ordered otherwise.
    Manifest(fn(&Manifest<'_>) -> bool),
    /// By the value, whoever ordered it.
    Value(fn(&Value) -> bool),
    /// By the value, unless somebody ordered it.
    NotOrderedValue(fn(&Value) -> bool),
}

/// What a condition may depend on.
struct Manifest<'a> {
    content: &'a Value,
    annotations: &'a [&'a str],
}

impl BuiltIn {
    /// The kind with this group and plural, if its objects are not portable as they are.
    pub fn of(group: &str, plural: &str) -> Option<&'static Self> {
        table::KINDS.iter().find(|kind| kind.group == group && kind.plural == plural)
    }

    /// The kind with this group and name, if its objects are not portable as they are.
    pub fn of_kind(group: &str, kind: &str) -> Option<&'static Self> {
        table::KINDS.iter().find(|built_in| built_in.group == group && built_in.kind == kind)
    }

    /// The portable part of an object.
    pub(in crate::cluster) fn portable(&self, managed: Managed) -> Decoded {
        managed.reduced(|object, content, managers| self.reduce(object, content, managers))
    }

    /// Reduces an object to its portable part, with its content and the record of its field managers.
    fn reduce(&self, object: &mut Object, content: &Value, managers: &[Manager<Value>]) {
        let annotations: Vec<Arc<str>> = object.annotations.keys().cloned().collect();
        let annotations: Vec<&str> = annotations.iter().map(AsRef::as_ref).collect();
        object.hidden_annotations |= self.take_keys(&mut object.annotations);
        object.hidden_labels |= self.take_keys(&mut object.labels);
        if self.leaves_status_out {
            object.status = None;
        }
        object.has_own_status =
            managers.iter().any(|entry| entry.subresource == "status" && is_control_plane(&entry.name));
        if self.fields.is_empty() {
            return;
        }
        let ordered: Vec<&Value> = managers
            .iter()
            .filter(|entry| entry.subresource.is_empty() && !is_control_plane(&entry.name))
            .filter_map(|entry| entry.fields.as_ref())
            .filter(|fields| !is_empty(fields))
            .collect();
        let manifest = Manifest { content, annotations: &annotations };
        let mut whole = content.clone();
        self.take_fields(&mut whole, &manifest, &ordered, |field| field.kept);
        let mut portable = whole.clone();
        self.take_fields(&mut portable, &manifest, &ordered, |field| !field.kept);
        object.whole = (portable != whole).then(|| CanonicalJson::of(&whole));
        object.content = CanonicalJson::of(&portable);
    }

    /// Takes out of a manifest what it can't order: what is the control plane's whoever writes it.
    pub fn reduce_manifest(&self, manifest: &mut Value) {
        let content = manifest.clone();
        let annotations: Vec<&str> = content
            .pointer("/metadata/annotations")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|annotations| annotations.keys().map(String::as_str))
            .collect();
        let conditions = Manifest { content: &content, annotations: &annotations };
        let is_never_ordered = |field: &Field| matches!(field.when, When::Manifest(_));
        self.take_fields(manifest, &conditions, &[], is_never_ordered);
    }

    fn take_fields(
        &self,
        content: &mut Value,
        manifest: &Manifest<'_>,
        ordered: &[&Value],
        which: impl Fn(&Field) -> bool,
    ) {
        for field in self.fields.iter().filter(|field| which(field)) {
            let is_own = |value: &Value, is_ordered: bool| match field.when {
                When::Always => true,
                When::NotOrdered => !is_ordered,
                When::Annotated(annotation) => manifest.annotations.contains(&annotation),
                When::Manifest(holds) => holds(manifest),
                When::Value(holds) => holds(value),
                When::NotOrderedValue(holds) => !is_ordered && holds(value),
            };
            take(content, field.path, ordered, &is_own);
        }
    }

    fn take_keys(&self, keys: &mut BTreeMap<Arc<str>, Arc<str>>) -> bool {
        let before = keys.len();
        keys.retain(|key, _| !self.keys.iter().any(|pattern| begins_or_is(pattern, key)));
        keys.len() < before
    }
}

/// Whether a field manager is a component of a control plane. A component that names no manager writes under the name of its
/// process: distributions that run the whole control plane in one process have one name for all components.
fn is_control_plane(manager: &str) -> bool {
    let components =
        ["kube-controller-manager", "kube-apiserver", "kube-scheduler", "kubelet", "openshift-controller-manager"];
    // K3s, MicroK8s and MicroShift.
    let single_processes = ["k3s", "kubelite", "microshift"];
    components.contains(&manager)
        || single_processes.contains(&manager)
        || manager.ends_with("cloud-controller-manager")
}

/// Whether a key matches a pattern: it is the pattern, or begins with what is before the `*` at the pattern's end.
pub fn begins_or_is(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => pattern == key,
    }
}

/// Takes the values at a path that are the control plane's out of a content. `ordered`: the sets of fields (`fieldsV1`) that others
/// own of this part of the object.
fn take(value: &mut Value, path: &[&str], ordered: &[&Value], is_own: &dyn Fn(&Value, bool) -> bool) {
    let Some((first, rest)) = path.split_first() else { return };
    match value {
        Value::Object(map) => {
            let below = within(ordered, |set| set.get(format!("f:{first}")));
            let Some(child) = map.get_mut(*first) else { return };
            if !rest.is_empty() {
                let had_items = child.as_array().is_some_and(|items| !items.is_empty());
                take(child, rest, &below, is_own);
                // A list without its last item is no list.
                if !(had_items && is_empty(child)) {
                    return;
                }
            } else if !is_own(child, !below.is_empty()) {
                return;
            }
            map.remove(*first);
        }
        Value::Array(items) if *first == "*" => {
            let of_item = |item: &Value| within(ordered, |set| item_of(set, item));
            if rest.is_empty() {
                items.retain(|item| !is_own(item, !of_item(item).is_empty()));
            } else {
                for item in items {
                    let below: Vec<&Value> = of_item(item);
                    take(item, rest, &below, is_own);
                }
            }
        }
        _ => {}
    }
}

/// The parts of sets of fields. A set without parts owns all that is below.
fn within<'s>(sets: &[&'s Value], part: impl Fn(&'s Value) -> Option<&'s Value>) -> Vec<&'s Value> {
    sets.iter().filter_map(|set| if is_empty(set) { Some(*set) } else { part(set) }).collect()
}

/// The part of a set of fields that is about an item of a list: `k:{"port":80,"protocol":"TCP"}`.
fn item_of<'s>(set: &'s Value, item: &Value) -> Option<&'s Value> {
    let is_of_item = |key: &str| {
        let keys = key.strip_prefix("k:").and_then(|keys| serde_json::from_str::<Value>(keys).ok());
        keys.as_ref()
            .and_then(Value::as_object)
            .is_some_and(|keys| keys.iter().all(|(field, value)| item.get(field) == Some(value)))
    };
    set.as_object()?.iter().find(|(key, _)| is_of_item(key)).map(|(_, part)| part)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Puts back into a wanted content what the control plane has put into the object: what is in `whole` and not in `portable`.
pub fn restore(wanted: &mut Value, portable: &Value, whole: &Value) {
    match (wanted, portable, whole) {
        (Value::Object(wanted), Value::Object(portable), Value::Object(whole)) => {
            for (field, held) in whole {
                match (portable.get(field), wanted.get_mut(field)) {
                    (None, None) => {
                        wanted.insert(field.clone(), held.clone());
                    }
                    // All but lists that both sides add to the source has ordered by now.
                    (None, Some(wanted)) if both_add_to(field) => restore(wanted, &Value::Array(Vec::new()), held),
                    (Some(portable), Some(wanted)) => restore(wanted, portable, held),
                    (_, _) => {}
                }
            }
        }
        (Value::Array(wanted), Value::Array(portable), Value::Array(whole)) => {
            if portable.len() < whole.len() {
                let added = whole.iter().filter(|item| !portable.contains(item) && !wanted.contains(item));
                let added: Vec<Value> = added.cloned().collect();
                wanted.extend(added);
            } else {
                let is_as_long = wanted.len() == whole.len();
                for (index, wanted) in wanted.iter_mut().enumerate() {
                    let at = match wanted.get("name") {
                        Some(name) => portable.iter().position(|item| item.get("name") == Some(name)),
                        None => Some(index).filter(|_| is_as_long),
                    };
                    if let Some((portable, whole)) = at.and_then(|at| portable.get(at).zip(whole.get(at))) {
                        restore(wanted, portable, whole);
                    }
                }
            }
        }
        _ => {}
    }
}

/// Whether a control plane adds items of its own to lists of this name.
fn both_add_to(list: &str) -> bool {
    let fields = table::KINDS.iter().flat_map(|kind| kind.fields);
    fields.into_iter().any(|field| matches!(field.path, [.., name, "*"] if *name == list))
}

#[cfg(test)]
mod tests;
