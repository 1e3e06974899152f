//! A simulated API server with everything that resource sync depends on: versions, generations, finalizers, preconditions,
//! terminating namespaces, a status subresource, defaulting and pruning, and the owners of labels. Controllers that finish deletions
//! are part of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::cluster::{Object, Written};

/// Why a write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// 409.
    Conflict,
    /// 404.
    NotFound,
    /// 422.
    Invalid,
    /// 403 with cause `NamespaceTerminating`.
    Terminating,
    /// No answer came.
    Unknown,
}

/// The two kinds of objects there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    Synced,
    Namespace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Towline,
    SomebodyElse,
}

/// The part of an object that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Main,
    Status,
}

/// How the server treats the synced kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a trait of its own, and all combinations occur")]
pub(super) struct Traits {
    pub(super) generations: bool,
    pub(super) status_subresource: bool,
    pub(super) defaults_spec: bool,
    pub(super) prunes_status: bool,
    /// As with Deployments.
    pub(super) annotations_raise_generation: bool,
}

#[derive(Debug, Clone)]
struct Stored {
    value: Value,
    /// Labels and annotations that towline was the last to set, by map and key.
    owned: BTreeSet<(&'static str, String)>,
    /// Whether towline has written the object.
    ours: bool,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub(super) struct News {
    pub(super) sort: Sort,
    pub(super) name: String,
    pub(super) object: Value,
    pub(super) gone: bool,
}

/// One cluster.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    traits: Traits,
    objects: BTreeMap<(Sort, String), Stored>,
    /// All events since the beginning.
    pub(super) log: Vec<News>,
    version: u64,
    /// Successful writes of towline, no-ops included.
    pub(super) writes: usize,
}

impl Server {
    pub(super) fn new(name: &'static str, traits: Traits) -> Self {
        Self { name, traits, objects: BTreeMap::new(), log: Vec::new(), version: 100, writes: 0 }
    }

    /// The same server without its history.
    pub(super) fn fork(&self) -> Self {
        Self { objects: self.objects.clone(), log: Vec::new(), ..*self }
    }

    /// The object as it is now.
    pub(super) fn get(&self, sort: Sort, name: &str) -> Option<Value> {
        self.objects.get(&(sort, name.to_owned())).map(shown)
    }

    /// Whether towline ever wrote the object.
    pub(super) fn was_written_by_us(&self, name: &str) -> bool {
        self.objects.get(&(Sort::Synced, name.to_owned())).is_some_and(|stored| stored.ours)
    }

    pub(super) fn names(&self, sort: Sort) -> Vec<String> {
        self.objects.keys().filter(|(held, _)| *held == sort).map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn create(&mut self, sort: Sort, name: &str, body: &Value, who: Who) -> Result<Written, Refused> {
        if sort == Sort::Synced && self.name == "local" {
            match self.get(Sort::Namespace, super::world::NAMESPACE) {
                None => return Err(Refused::NotFound),
                Some(namespace) if is_deleting(&namespace) => return Err(Refused::Terminating),
                Some(_) => {}
            }
        }
        if self.get(sort, name).is_some() {
            return Err(Refused::Conflict);
        }
        let mut value = body.clone();
        if sort == Sort::Synced && self.traits.status_subresource {
            value.as_object_mut().ok_or(Refused::Invalid)?.remove("status");
        }
        let born = self.version;
        value["metadata"]["name"] = json!(name);
        value["metadata"]["uid"] = json!(format!("{}-{born}", self.name));
        value["metadata"]["namespace"] = if sort == Sort::Synced { json!(super::world::NAMESPACE) } else { json!("") };
        value["metadata"]["generation"] = json!(0);
        let empty = Stored { value: json!({"metadata": {}}), owned: BTreeSet::new(), ours: false };
        Ok(self.commit(sort, name, &empty, value, who))
    }

    /// Changes one part of an object.
    pub(super) fn change(
        &mut self,
        sort: Sort,
        name: &str,
        who: Who,
        part: Part,
        change: impl FnOnce(&mut Value) -> Result<(), Refused>,
    ) -> Result<Written, Refused> {
        let stored = self.objects.get(&(sort, name.to_owned())).cloned().ok_or(Refused::NotFound)?;
        let mut stored = stored;
        let mut value = shown(&stored);
        change(&mut value)?;
        let managers = value["metadata"].as_object_mut().and_then(|metadata| metadata.remove("managedFields"));
        let is_stripped = managers == Some(json!([{}]));
        if is_stripped {
            stored.owned.clear();
        }
        if self.traits.status_subresource {
            let (mut kept, status) = match part {
                Part::Main => (value, stored.value.get("status").cloned()),
                Part::Status => (stored.value.clone(), value.get("status").cloned()),
            };
            let fields = kept.as_object_mut().ok_or(Refused::Invalid)?;
            fields.remove("status");
            fields.extend(status.map(|status| ("status".to_owned(), status)));
            value = kept;
        }
        if is_stripped {
            return Ok(self.strip(sort, name, stored));
        }
        Ok(self.commit(sort, name, &stored, value, who))
    }

    /// Removes the record of managers, which is a change too.
    fn strip(&mut self, sort: Sort, name: &str, mut stored: Stored) -> Written {
        self.writes += 1;
        self.version += 1;
        stored.ours = false;
        stored.value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push(News { sort, name: name.to_owned(), object: shown(&stored), gone: false });
        let written = self.written(&stored.value);
        self.objects.insert((sort, name.to_owned()), stored);
        written
    }

    /// Deletes an object, if it has not changed since it was read.
    pub(super) fn delete(
        &mut self,
        sort: Sort,
        name: &str,
        read: Option<&Object>,
        who: Who,
    ) -> Result<Written, Refused> {
        let stored = self.objects.get(&(sort, name.to_owned())).cloned().ok_or(Refused::NotFound)?;
        let metadata = &stored.value["metadata"];
        if read
            .is_some_and(|read| metadata["uid"] != *read.uid || metadata["resourceVersion"] != *read.resource_version)
        {
            return Err(Refused::Conflict);
        }
        let mut value = stored.value.clone();
        if !is_deleting(&value) {
            super::terminating(&mut value);
            if sort == Sort::Namespace {
                value["metadata"]["finalizers"] = json!(["kubernetes"]);
            } else if who == Who::Towline {
                push(&mut value["metadata"], "finalizers", "foregroundDeletion");
            }
            if self.traits.generations && sort == Sort::Synced {
                bump(&mut value);
            }
        }
        Ok(self.commit(sort, name, &stored, value, who))
    }

    /// Lets the cluster's controllers do one thing. Returns false if there is nothing to do.
    pub(super) fn control(&mut self) -> bool {
        for (sort, name) in self.objects.keys().cloned().collect::<Vec<_>>() {
            let Some(value) = self.get(sort, &name) else { continue };
            if !is_deleting(&value) {
                let namespace = self.get(Sort::Namespace, super::world::NAMESPACE);
                if sort == Sort::Synced && self.name == "local" && namespace.is_some_and(|held| is_deleting(&held)) {
                    return self.delete(sort, &name, None, Who::SomebodyElse).is_ok();
                }
                continue;
            }
            let held = |value: &Value| value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            let finished: Vec<Value> = match sort {
                Sort::Namespace if !self.names(Sort::Synced).is_empty() => continue,
                Sort::Namespace => Vec::new(),
                Sort::Synced => held(&value)
                    .into_iter()
                    .filter(|finalizer| *finalizer != "foregroundDeletion" && *finalizer != "local/hold")
                    .collect(),
            };
            if finished.len() < held(&value).len() {
                let done = self.change(sort, &name, Who::SomebodyElse, Part::Main, |value| {
                    value["metadata"]["finalizers"] = Value::Array(finished);
                    Ok(())
                });
                return done.is_ok();
            }
        }
        false
    }

    fn commit(&mut self, sort: Sort, name: &str, before: &Stored, mut value: Value, who: Who) -> Written {
        self.writes += usize::from(who == Who::Towline);
        if sort == Sort::Synced {
            self.normalize(&mut value);
        }
        let key = (sort, name.to_owned());
        if value != before.value {
            self.version += 1;
            if self.traits.generations && self.spec_differs(&before.value, &value) {
                bump(&mut value);
            }
            value["metadata"]["resourceVersion"] = json!(self.version.to_string());
            let mut after = Stored { value, ..before.clone() };
            after.ours |= who == Who::Towline;
            own_changes(&before.value, &mut after, who);
            let finalizers = after.value["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
            let gone = is_deleting(&after.value) && finalizers == 0;
            if gone && !is_deleting(&before.value) {
                // An object that goes at once is never seen terminating.
                after.value["metadata"].as_object_mut().expect("a map").remove("deletionTimestamp");
            }
            self.log.push(News { sort, name: name.to_owned(), object: shown(&after), gone });
            value = after.value.clone();
            if gone {
                self.objects.remove(&key);
            } else {
                self.objects.insert(key, after);
            }
        }
        self.written(&value)
    }

    fn written(&self, value: &Value) -> Written {
        let metadata = &value["metadata"];
        Written {
            uid: metadata["uid"].as_str().expect("a UID").into(),
            resource_version: metadata["resourceVersion"].as_str().expect("a version").into(),
            generation: if self.traits.generations {
                metadata["generation"].as_i64().expect("a generation")
            } else {
                0
            },
        }
    }

    fn normalize(&self, value: &mut Value) {
        if self.traits.defaults_spec
            && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
        {
            spec.entry("engine").or_insert(json!("standard"));
        }
        if self.traits.prunes_status
            && let Some(status) = value.get_mut("status").and_then(Value::as_object_mut)
        {
            status.remove("pruned");
        }
        for map in ["labels", "annotations"] {
            if value["metadata"].get(map).and_then(Value::as_object).is_some_and(Map::is_empty) {
                value["metadata"].as_object_mut().expect("a map").remove(map);
            }
        }
        if value["metadata"].get("finalizers").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            value["metadata"].as_object_mut().expect("a map").remove("finalizers");
        }
        // Indexing has created these.
        value["metadata"].as_object_mut().expect("a map").retain(|_, field| !field.is_null());
    }

    fn spec_differs(&self, before: &Value, after: &Value) -> bool {
        if self.traits.annotations_raise_generation
            && before["metadata"].get("annotations") != after["metadata"].get("annotations")
        {
            return true;
        }
        let spec = |value: &Value| {
            let mut fields = value.as_object().cloned().unwrap_or_default();
            fields.remove("metadata");
            if self.traits.status_subresource {
                fields.remove("status");
            }
            fields
        };
        before["metadata"].get("uid").is_none() || spec(before) != spec(after)
    }
}

pub(super) fn is_deleting(value: &Value) -> bool {
    value["metadata"].get("deletionTimestamp").is_some()
}

/// Adds an element to a list that may be missing.
pub(super) fn push(metadata: &mut Value, list: &str, element: &str) {
    let mut elements = metadata[list].as_array().cloned().unwrap_or_default();
    if !elements.iter().any(|held| *held == element) {
        elements.push(json!(element));
    }
    metadata[list] = Value::Array(elements);
}

fn bump(value: &mut Value) {
    let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
    value["metadata"]["generation"] = json!(generation + 1);
}

/// Labels and annotations belong to the last writer.
fn own_changes(before: &Value, after: &mut Stored, who: Who) {
    for map in ["labels", "annotations"] {
        let entries =
            |value: &Value| value["metadata"].get(map).and_then(Value::as_object).cloned().unwrap_or_default();
        let (old, new) = (entries(before), entries(&after.value));
        for (key, value) in &new {
            if old.get(key) != Some(value) {
                if who == Who::Towline {
                    after.owned.insert((map, key.clone()));
                } else {
                    after.owned.remove(&(map, key.clone()));
                }
            }
        }
        after.owned.retain(|(held, key)| *held != map || new.contains_key(key));
    }
}

/// The object as the server shows it, with the owners of its keys.
fn shown(stored: &Stored) -> Value {
    let mut value = stored.value.clone();
    if stored.ours {
        let fields = |map: &str| -> Map<String, Value> {
            let keys = stored.owned.iter().filter(|(held, _)| *held == map);
            keys.map(|(_, key)| (format!("f:{key}"), json!({}))).collect()
        };
        value["metadata"]["managedFields"] = json!([{"manager": super::MANAGER, "fieldsV1": {"f:metadata": {
            "f:labels": fields("labels"), "f:annotations": fields("annotations"),
        }}}]);
    }
    value
}
