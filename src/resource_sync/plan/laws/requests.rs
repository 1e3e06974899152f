//! The requests of the steps to the servers of the simulated world, with the verbs, bodies and guards of `execute.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::object;
use super::server::{Part, Refused, Sort, Who, is_deleting};
use super::world::{NAMESPACE, World};
use crate::cluster::Written;
use crate::resource_sync::plan::observed::{Namespace, Observed};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::patch;
use crate::resource_sync::plan::patch::replace_version;
use crate::resource_sync::plan::step::Step;
use crate::yaml::escape;

impl World {
    /// The requests of `execute.rs`, to these servers.
    pub(super) fn execute(&mut self, step: &Step, observed: &Observed) -> Result<Written, Refused> {
        let name = &*observed.pair.local.name;
        let marks = self.policy.marks.clone();
        let finalizer = &*marks.finalizer;
        let remote = observed.remote_object();
        let remote_patch = |world: &mut Self, part: Part, operations: Value| {
            world.remote.change(Sort::Synced, name, Who::Towline, part, |value| json_patch_to(value, operations))
        };
        match step {
            Step::AddFinalizer => {
                let remote = remote.ok_or(Refused::Invalid)?;
                let add = if remote.finalizers.is_empty() {
                    json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]})
                } else {
                    json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer})
                };
                remote_patch(self, Part::Main, json!([replace_version(remote), add]))
            }
            Step::RemoveFinalizer => {
                let remote = remote.ok_or(Refused::Invalid)?;
                let index = remote.finalizers.iter().position(|held| &**held == finalizer).ok_or(Refused::Invalid)?;
                let take_off = json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")});
                let mut operations = vec![replace_version(remote), take_off];
                if self.policy.write_back && remote.annotation(&marks.sync_error).is_some() {
                    let path = format!("/metadata/annotations/{}", escape(&marks.sync_error));
                    operations.push(json!({"op": "remove", "path": path}));
                }
                match remote_patch(self, Part::Main, Value::Array(operations)) {
                    Err(Refused::NotFound) => Ok(Written::default()),
                    result => result,
                }
            }
            Step::WriteRemoteStatus => {
                let operation = match observed.status_to_write(&self.policy) {
                    Some(status) => json!({"op": "add", "path": "/status", "value": status.value()}),
                    None => json!({"op": "remove", "path": "/status"}),
                };
                remote_patch(self, Part::Status, json!([operation]))
            }
            Step::NoteGenerations { remote, local } => {
                let remote_uid = observed.remote_object().map(|remote| Arc::clone(&remote.uid));
                let is_over =
                    observed.remote_object().is_some_and(|remote| remote.annotation(&marks.sync_error).is_some());
                let notes = [(&marks.remote_generation, remote), (&marks.local_generation, local)];
                self.remote.change(Sort::Synced, name, Who::Towline, Part::Main, |value| {
                    if remote_uid.is_some_and(|uid| value["metadata"]["uid"] != *uid) {
                        return Err(Refused::Invalid);
                    }
                    for (mark, generation) in notes {
                        value["metadata"]["annotations"][&**mark] = json!(generation.to_string());
                    }
                    if let Some(annotations) = value["metadata"]["annotations"].as_object_mut().filter(|_| is_over) {
                        annotations.remove(&*marks.sync_error);
                    }
                    Ok(())
                })
            }
            Step::NoteError(error) => self.note_error(name, &marks.sync_error, error.as_deref()),
            Step::CreateNamespace => {
                let body = json!({"metadata": {"annotations": labels_of(&marks.of_namespace(&observed.pair.local, observed.clusters.remote.uid.as_ref()))}});
                self.local.create(Sort::Namespace, NAMESPACE, &body, Who::Towline)
            }
            Step::CreateLocal => {
                let remote = remote.ok_or(Refused::Invalid)?;
                let (labels, annotations) =
                    patch::desired_metadata(remote, &observed.pair.local, &self.policy, &observed.clusters);
                let mut body = remote.content.value();
                body["metadata"] = json!({"labels": labels_of(&labels), "annotations": labels_of(&annotations)});
                self.local.create(Sort::Synced, name, &body, Who::Towline)
            }
            Step::AdoptLocal(change) | Step::PatchLocal(change) | Step::ReleaseLocal(change) => {
                let operations = change.json_patch(observed.local.as_ref().ok_or(Refused::Invalid)?);
                let patch = |value: &mut Value| json_patch_to(value, operations);
                self.local.change(Sort::Synced, name, Who::Towline, Part::Main, patch)
            }
            Step::DeleteLocal => {
                let read = observed.local.as_ref().ok_or(Refused::Invalid)?;
                self.may_delete(observed);
                self.local.delete(Sort::Synced, name, Some(read), Who::Towline).or_else(gone_is_done)
            }
            Step::DeleteNamespace => {
                let Namespace::Present { object, .. } = &observed.namespace else { return Err(Refused::Invalid) };
                self.local.delete(Sort::Namespace, NAMESPACE, Some(object), Who::Towline).or_else(gone_is_done)
            }
            Step::ReleaseNamespace => {
                self.local.change(Sort::Namespace, NAMESPACE, Who::Towline, Part::Main, |value| {
                    let annotations = value["metadata"]["annotations"].as_object_mut().ok_or(Refused::Invalid)?;
                    for mark in [
                        &marks.owner,
                        &marks.owner_resource,
                        &marks.owner_section,
                        &marks.local_name,
                        &marks.remote_cluster,
                    ] {
                        annotations.remove(&**mark);
                    }
                    Ok(())
                })
            }
            Step::UploadSecret(_) | Step::NoteSecretHash(_) | Step::RenewMarks(_) => Err(Refused::Invalid),
        }
    }

    fn note_error(&mut self, name: &str, mark: &str, error: Option<&str>) -> Result<Written, Refused> {
        self.remote.change(Sort::Synced, name, Who::Towline, Part::Main, |value| {
            let annotations = &mut value["metadata"]["annotations"];
            match (error, annotations.as_object_mut()) {
                (Some(error), _) => annotations[mark] = json!(error),
                (None, Some(annotations)) => drop(annotations.remove(mark)),
                (None, None) => {}
            }
            Ok(())
        })
    }

    /// Checks what towline must never do, whatever its caches show, before a deletion that will succeed.
    fn may_delete(&self, observed: &Observed) {
        let name = &*observed.pair.local.name;
        let Some(live) = self.local.get(Sort::Synced, name) else { return };
        let read = observed.local.as_ref().expect("a local object");
        if live["metadata"]["resourceVersion"] != *read.resource_version {
            return;
        }
        let local = object(&live);
        let marks = &self.policy.marks;
        assert!(!marks.is_paused(&local), "a paused object was deleted: {live}");
        assert!(
            !ownership::is_adopted(&local, &self.policy) || self.policy.delete_adopted,
            "an adopted object was deleted: {live}"
        );
        let ours = ownership::is_ours(&local, &self.policy)
            || ownership::may_go_unclaimed(&local, &self.policy)
            || observed.remote_object().is_some_and(|remote| remote.has_finalizer(&marks.finalizer))
            || matches!(observed.namespace, Namespace::Present { ours: true, .. });
        assert!(ours, "somebody else's object was deleted: {live}");
        let remote = self.remote.get(Sort::Synced, name);
        assert!(
            remote.is_none_or(|remote| is_deleting(&remote) || remote["metadata"]["uid"] != json!(marked_by(&live))),
            "an object was deleted whose remote one lives: {live}"
        );
    }
}

fn marked_by(live: &Value) -> &str {
    live["metadata"]["annotations"][super::REMOTE_UID].as_str().unwrap_or_default()
}

fn json_patch_to(value: &mut Value, operations: Value) -> Result<(), Refused> {
    let guard =
        operations.as_array().into_iter().flatten().find(|operation| operation["path"] == "/metadata/resourceVersion");
    if guard.is_some_and(|guard| guard["value"] != value["metadata"]["resourceVersion"]) {
        return Err(Refused::Conflict);
    }
    let patch: json_patch::Patch = serde_json::from_value(operations).map_err(|_| Refused::Invalid)?;
    json_patch::patch(value, &patch).map_err(|_| Refused::Invalid)
}

fn labels_of(keys: &BTreeMap<Arc<str>, Arc<str>>) -> Value {
    Value::Object(keys.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect::<Map<_, _>>())
}

/// A deletion of an object that is gone counts as done.
fn gone_is_done(refused: Refused) -> Result<Written, Refused> {
    if refused == Refused::NotFound { Ok(Written::default()) } else { Err(refused) }
}
