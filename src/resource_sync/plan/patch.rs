//! Differences between the desired and the actual local object, and the patches that remove them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::elsewhere::Clusters;
use super::marks::{is_adopted_mark, is_note, is_released_mark, stays_on_local};
use super::ownership::{self, is_ours};
use super::policy::Policy;
use super::server_result::{ServerResult, fingerprint, local_fingerprint, remove};
use crate::cluster::built_in::restore;
use crate::cluster::{CanonicalJson, Object, ObjectKey};
use crate::resource_sync::config::{Metadata, SpecPointer};
use crate::yaml::escape;

type Keys = BTreeMap<Arc<str>, Arc<str>>;

/// A change of a local object: its content as a whole, if it differs, and single labels and annotations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LocalChange {
    /// The desired content, where it differs.
    pub content: Option<CanonicalJson>,
    /// Labels to set (`Some`) or to remove (`None`).
    pub labels: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// Annotations to set (`Some`) or to remove (`None`).
    pub annotations: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// Removes the record of field managers. With `mirror` the record says that an object is or was ours.
    pub strip_managers: bool,
    /// The effect of the change depends on the rest of the object, which must not have changed since it was read.
    pub guarded: bool,
}

impl LocalChange {
    fn is_empty(&self) -> bool {
        self.content.is_none() && self.labels.is_empty() && self.annotations.is_empty()
    }

    /// The change without its content or its labels and annotations, where those are contended; `None` if nothing is left.
    pub fn without(mut self, content: bool, metadata: bool) -> Option<Self> {
        if content {
            self.content = None;
        }
        if metadata {
            self.labels.clear();
            self.annotations.clear();
        }
        (!self.is_empty()).then_some(self)
    }

    /// Applies the change to an object in memory.
    pub fn apply_to(&self, local: &mut Object, policy: &Policy) {
        if let Some(content) = &self.content {
            local.whole = local.whole.as_ref().map(|_| whole_content(content, local));
            local.content = content.clone();
        }
        let mut owned = local.owned_by_mut(&policy.manager).map(std::mem::take).unwrap_or_default();
        owned.manager = Arc::clone(&policy.manager);
        for (held, changes, owned) in [
            (&mut local.labels, &self.labels, &mut owned.labels),
            (&mut local.annotations, &self.annotations, &mut owned.annotations),
        ] {
            for (key, value) in changes {
                if let Some(value) = value {
                    held.insert(Arc::clone(key), Arc::clone(value));
                    owned.insert(Arc::clone(key));
                } else {
                    held.remove(key);
                    owned.remove(key);
                }
            }
        }
        local.owned.retain(|held| !held.manager.is_empty());
        local.owned.push(owned);
        if self.strip_managers {
            local.owned.clear();
        }
    }

    /// The JSON patch of the change: one write that also removes fields of other writers and keeps nulls and empty lists.
    pub fn json_patch(&self, local: &Object) -> Value {
        let mut operations = Vec::new();
        if self.guarded {
            // Not `test`: a failed test is answered with 422, which looks like a rejection; a stale version with 409.
            operations.push(replace_version(local));
        }
        if let Some(content) = &self.content {
            let wanted = fields(&whole_content(content, local));
            let held = fields(local.whole.as_ref().unwrap_or(&local.content));
            for field in held.keys().filter(|field| !wanted.contains_key(*field)) {
                operations.push(json!({"op": "remove", "path": format!("/{}", escape(field))}));
            }
            for (field, value) in wanted {
                if held.get(&field) != Some(&value) {
                    operations.push(json!({"op": "add", "path": format!("/{}", escape(&field)), "value": value}));
                }
            }
        }
        for (name, changes, held, are_hidden) in [
            ("labels", &self.labels, &local.labels, local.hidden_labels),
            ("annotations", &self.annotations, &local.annotations, local.hidden_annotations),
        ] {
            if changes.is_empty() {
                continue;
            }
            if held.is_empty() && !are_hidden {
                let map: Map<String, Value> = changes
                    .iter()
                    .filter_map(|(key, value)| Some((key.to_string(), json!(value.as_deref()?))))
                    .collect();
                operations.push(json!({"op": "add", "path": format!("/metadata/{name}"), "value": map}));
                continue;
            }
            for (key, value) in changes {
                let path = format!("/metadata/{name}/{}", escape(key));
                operations.push(match value {
                    Some(value) => json!({"op": "add", "path": path, "value": &**value}),
                    None => json!({"op": "remove", "path": path}),
                });
            }
        }
        if self.strip_managers {
            // A list with one empty entry removes the record. An empty list would change nothing.
            operations.push(json!({"op": "replace", "path": "/metadata/managedFields", "value": [{}]}));
        }
        Value::Array(operations)
    }
}

/// A wanted content, with what the control plane has put into the local object and an update must not take away.
fn whole_content(wanted: &CanonicalJson, local: &Object) -> CanonicalJson {
    let Some(whole) = &local.whole else { return wanted.clone() };
    let mut wanted = wanted.value();
    restore(&mut wanted, &local.content.value(), &whole.value());
    CanonicalJson::of(&wanted)
}

/// The operation that makes a JSON patch fail with a conflict if the object has changed since it was read.
pub fn replace_version(object: &Object) -> Value {
    json!({"op": "replace", "path": "/metadata/resourceVersion", "value": &*object.resource_version})
}

/// The desired content of the local object, where it differs from the present one, and whether the effect of writing
/// it depends on the rest of the object.
pub fn content_change(
    remote: &Object,
    local: &Object,
    policy: &Policy,
    server_result: &ServerResult,
) -> Option<(CanonicalJson, bool)> {
    if remote.content == local.content
        || server_result
            .content_is_result(fingerprint(Some(&remote.content)), local_fingerprint(&local.content, policy))
    {
        return None;
    }
    // Local values, and those of the control plane, are written back as they were read, and must not overwrite newer ones.
    let writes_back = local.whole.is_some() || !policy.local_fields.is_empty();
    let wanted = if policy.local_fields.is_empty() {
        remote.content.clone()
    } else {
        with_local_fields(&remote.content, &local.content, &policy.local_fields)
    };
    if wanted == local.content {
        return None;
    }
    // Only top-level fields that differ are written, each as a whole. If another client changed a field other than `spec`
    // meanwhile, its value would stay and look like the server's result.
    let (to_be, held) = (fields(&wanted), fields(&local.content));
    let guarded = writes_back
        || held.keys().any(|field| !to_be.contains_key(field))
        || held.keys().chain(to_be.keys()).any(|field| field != "spec");
    Some((wanted, guarded))
}

/// The change that brings the local object in step with the remote one; `None` if nothing differs.
pub fn local_change(
    remote: &Object,
    local: &Object,
    policy: &Policy,
    clusters: &Clusters,
    server_result: &ServerResult,
) -> Option<LocalChange> {
    let mut change = LocalChange::default();
    if let Some((content, guarded)) = content_change(remote, local, policy, server_result) {
        (change.content, change.guarded) = (Some(content), guarded);
    }
    let (labels, annotations) = desired_metadata(remote, &local.key, policy, clusters);
    change.labels = key_changes(&labels, &local.labels, policy.metadata, |key| {
        ownership::owns_key(local, policy, |owned| owned.labels.contains(key))
    });
    change.annotations = key_changes(&annotations, &local.annotations, policy.metadata, |key| {
        ownership::owns_key(local, policy, |owned| owned.annotations.contains(key))
    });
    let is_stale = |key: &Arc<str>| policy.metadata == Metadata::Mirror && *key == policy.marks.remote_cluster;
    change.annotations.retain(|key, value| value.is_some() || is_stale(key) || !stays_on_local(key));
    if change.is_empty() {
        return None;
    }
    // The reply then tells the generation of a content that was seen.
    change.guarded |= policy.annotations_raise_generation && !change.annotations.is_empty();
    for (changes, held) in [(&change.labels, &local.labels), (&change.annotations, &local.annotations)] {
        // An operation on a single key fails without the map, and a removal without the key.
        change.guarded |= !changes.is_empty() && (held.is_empty() || changes.values().any(Option::is_none));
    }
    Some(change)
}

/// The change that marks an existing object as adopted.
pub fn adoption(remote: &Object, local: &Object, policy: &Policy, clusters: &Clusters) -> LocalChange {
    let mut annotations = BTreeMap::from([(Arc::clone(&policy.marks.adopted), Some("true".into()))]);
    if policy.metadata == Metadata::Merge {
        annotations.extend(own_marks(remote, &local.key, policy, clusters).map(|(mark, value)| (mark, Some(value))));
    }
    // A mark that it was let go before is no longer true.
    annotations.extend(local.annotations.keys().filter(|key| is_released_mark(key)).map(|key| (Arc::clone(key), None)));
    LocalChange { annotations, guarded: true, ..LocalChange::default() }
}

/// The marks of a local object, with `merge`.
fn own_marks(
    remote: &Object,
    local: &ObjectKey,
    policy: &Policy,
    clusters: &Clusters,
) -> impl Iterator<Item = (Arc<str>, Arc<str>)> {
    let marks = &policy.marks;
    let source = clusters.source_mark(remote).map(|source| (Arc::clone(&marks.remote_cluster), source));
    [
        (Arc::clone(&marks.remote_uid), Arc::clone(&remote.uid)),
        (Arc::clone(&marks.local_name), local.to_string().into()),
    ]
    .into_iter()
    .chain(source)
}

/// The labels and annotations that the local object has to have because of the remote one.
pub fn desired_metadata(remote: &Object, local: &ObjectKey, policy: &Policy, clusters: &Clusters) -> (Keys, Keys) {
    let marks = &policy.marks;
    match policy.metadata {
        Metadata::Mirror => {
            let annotations = remote
                .annotations
                .iter()
                .filter(|(key, _)| !is_note(key) && !is_adopted_mark(key) && !is_released_mark(key))
                .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
                .collect();
            (remote.labels.clone(), annotations)
        }
        Metadata::Merge => {
            let taken = |keys: &Keys| -> Keys {
                keys.iter()
                    .filter(|(key, value)| !policy.is_excluded(key, value))
                    .filter(|(key, _)| {
                        !marks.is_mark(key) && !is_note(key) && !is_adopted_mark(key) && !is_released_mark(key)
                    })
                    .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
                    .collect()
            };
            let mut annotations = taken(&remote.annotations);
            annotations.extend(own_marks(remote, local, policy, clusters));
            (taken(&remote.labels), annotations)
        }
    }
}

/// The change that lets a local object go, while the section continues; `None` if it is not ours. It stays known that the
/// object was ours: with `merge` by the managed fields, with `mirror`, where these mean that it *is* ours, by a mark.
pub fn let_go(local: &Object, policy: &Policy) -> Option<LocalChange> {
    match policy.metadata {
        Metadata::Merge => release(local, policy),
        Metadata::Mirror => is_ours(local, policy).then(|| {
            let mut annotations = BTreeMap::from([(Arc::clone(&policy.marks.released), Some("true".into()))]);
            annotations
                .extend(local.annotations.keys().filter(|key| is_adopted_mark(key)).map(|key| (Arc::clone(key), None)));
            LocalChange { annotations, guarded: true, ..LocalChange::default() }
        }),
    }
}

/// The change that removes our marks from a local object for good; `None` if it has none.
pub fn release(local: &Object, policy: &Policy) -> Option<LocalChange> {
    let marks = &policy.marks;
    let is_of_former_domain =
        |key: &Arc<str>| local.owned_by(&policy.manager).is_some() && (is_adopted_mark(key) || is_released_mark(key));
    let is_ours = |key: &Arc<str>| marks.on_local().contains(&key) || is_of_former_domain(key);
    let held = local.annotations.keys().filter(|key| is_ours(key));
    let annotations: BTreeMap<_, _> = held.map(|mark| (Arc::clone(mark), None)).collect();
    let strip_managers = policy.metadata == Metadata::Mirror && !local.owned.is_empty();
    (strip_managers || !annotations.is_empty()).then(|| LocalChange {
        annotations,
        strip_managers,
        guarded: true,
        ..LocalChange::default()
    })
}

fn key_changes(
    wanted: &Keys,
    held: &Keys,
    metadata: Metadata,
    ours: impl Fn(&Arc<str>) -> bool,
) -> BTreeMap<Arc<str>, Option<Arc<str>>> {
    let mut changes = BTreeMap::new();
    for (key, value) in wanted {
        if held.get(key) != Some(value) {
            changes.insert(Arc::clone(key), Some(Arc::clone(value)));
        }
    }
    for key in held.keys().filter(|key| !wanted.contains_key(*key)) {
        if metadata == Metadata::Mirror || ours(key) {
            changes.insert(Arc::clone(key), None);
        }
    }
    changes
}

/// The remote content with the local fields of the local object.
fn with_local_fields(remote: &CanonicalJson, local: &CanonicalJson, pointers: &[SpecPointer]) -> CanonicalJson {
    let (mut wanted, held) = (remote.value(), local.value());
    for pointer in pointers {
        match held.pointer(pointer.as_str()) {
            Some(value) => set(&mut wanted, pointer.segments(), value.clone()),
            None => remove(&mut wanted, pointer.segments()),
        }
    }
    CanonicalJson::of(&wanted)
}

fn set(target: &mut Value, segments: &[String], value: Value) {
    let Some((first, rest)) = segments.split_first() else {
        *target = value;
        return;
    };
    match target {
        Value::Object(map) => {
            // A parent that only the local object has is created with the field.
            set(map.entry(first.clone()).or_insert_with(|| json!({})), rest, value);
        }
        Value::Array(items) => {
            if let Some(item) = first.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                set(item, rest, value);
            }
        }
        // Where the remote object has a scalar or null and the local one a structure, the remote object wins.
        _ => {}
    }
}

fn fields(content: &CanonicalJson) -> Map<String, Value> {
    match content.value() {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
