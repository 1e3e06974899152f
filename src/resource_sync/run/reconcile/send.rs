//! A step on its way: its request, and what the index records before it is sent and when it is answered. The plan has decided
//! on the step; this module knows the cluster, the verb and the body.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::PairRun;
use crate::cluster::{Error, Kind, Object, ObjectKey, Payload, Propagation, Request, Verb, Written};
use crate::resource_sync::config::PropagationPolicy;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::conflicts::{Effect, order};
use crate::resource_sync::plan::observed::{Namespace, Observed};
use crate::resource_sync::plan::patch::{desired_metadata, replace_version};
use crate::resource_sync::plan::renewal::{Renewal, RenewedObject};
use crate::resource_sync::plan::secrets;
use crate::resource_sync::plan::step::{Contended, Step};
use crate::resource_sync::run::index::expectations::Side;
use crate::resource_sync::run::section::Section;
use crate::resource_sync::run::section::events::PairEvent;
use crate::yaml::escape;

impl PairRun<'_> {
    /// Sends a step. Before, the index records that it is sent: if this run ends before the answer comes, the next run has to know.
    /// `contenders` are the other writers that were found at `asked_at`.
    pub(super) async fn send(
        &self,
        step: &Step,
        effects: &[Effect],
        contenders: Vec<(Contended, String)>,
        asked_at: Instant,
    ) -> Result<Written, Error> {
        self.sending(step, effects, contenders, asked_at);
        let result = execute(self.section, step, &self.observed).await;
        match &result {
            Ok(written) => self.acknowledged(step, effects, written),
            Err(error) => self.refused(step, error),
        }
        result
    }

    /// Records that a step is sent, counts the rewrites in it, and reports those who make them necessary. A conflict is decided by the
    /// moment at which it was asked for: a contention that has expired since would be new here without a cause. The Event may be lost
    /// among many; the log and the report have it in any case.
    fn sending(&self, step: &Step, effects: &[Effect], mut contenders: Vec<(Contended, String)>, asked_at: Instant) {
        let (section, key) = (self.section, self.key);
        let mut rewrites = 0;
        let found = section.index(|index| {
            if *step == Step::AddFinalizer {
                index.table.pair(key, asked_at).holds_remote = true;
            }
            index.expectations.change(key, |expected| expected.set_unknown(step, true));
            let mut found = Vec::new();
            for effect in effects {
                let tracker = index.table.conflicts.of(key, || order(self.shown.as_deref()), asked_at);
                let Some(is_conflict) = tracker.sent(effect, asked_at) else { continue };
                rewrites += 1;
                let asked = contenders.iter().position(|(what, _)| is_conflict && *what == effect.what);
                if let Some((what, cause)) = asked.map(|at| contenders.swap_remove(at)) {
                    index.table.conflicts.told(key, &what, cause.clone(), asked_at);
                    found.push((what, cause));
                }
            }
            found
        });
        (0..rewrites).for_each(|_| section.metrics.contended_field());
        for (what, cause) in found {
            tracing::warn!(section = %section.name(), %key, cause, "another writer keeps changing what the section writes");
            section.emit_event(PairEvent::contended(&key.local, self.observed.local.as_deref(), &what, &cause));
        }
    }

    /// Records what the caches have yet to show, and what the server may make of the write.
    fn acknowledged(&self, step: &Step, effects: &[Effect], written: &Written) {
        let (section, key, observed) = (self.section, self.key, &self.observed);
        let (policy, caches) = (section.policy(), section.caches());
        let lag = section.index(|index| {
            let now = Instant::now();
            for effect in effects {
                index.table.conflicts.of(key, || order(self.shown.as_deref()), now).wrote(effect);
            }
            index.expectations.change(key, |expected| {
                expected.acknowledged(step, written, observed, &caches, policy);
                if let Some((index, side, secret)) = self.secret_of(step) {
                    expected.wrote_secret(index, side, secret, written);
                }
            });
            // The caches are read under the lock of the index, so that the watch event of this write is recorded either before
            // this or after it.
            match step {
                Step::RemoveFinalizer => index.released(key, now),
                Step::UploadSecret(name) => index.uploaded(key, name, now),
                Step::WriteRemoteStatus if observed.local.is_some() => {
                    let shown = caches.remote.get(&key.remote);
                    let server_result = &mut index.table.pair(key, now).server_result;
                    if let Some(remote) = observed.remote_object() {
                        server_result.wrote_status(observed.status_to_write(policy), remote, written);
                    }
                    server_result.observe(shown.as_deref(), None, policy);
                    return Some((Direction::Status, index.table.status_written(key, now)?));
                }
                Step::CreateLocal | Step::PatchLocal(_) => {
                    let shown = caches.local.get(&key.local);
                    let wrote_content = !matches!(step, Step::PatchLocal(change) if change.content.is_none());
                    if let (true, Some(remote)) = (wrote_content, observed.remote_object()) {
                        let server_result = &mut index.table.pair(key, now).server_result;
                        server_result.wrote_content(remote, written);
                        server_result.observe(None, shown.as_deref(), policy);
                    }
                    return Some((Direction::Spec, index.table.spec_written(key, now)?));
                }
                _ => {}
            }
            None
        });
        if let Some((direction, lag)) = lag {
            section.metrics.written(direction, lag);
        }
        match (step, &observed.local, &observed.namespace) {
            (Step::AdoptLocal(_), ..) => section.report_adoption(observed),
            (Step::DeleteLocal, Some(local), _) => section.log_deletion(local, observed),
            (Step::DeleteNamespace, _, Namespace::Present { object, .. }) => section.log_deletion(object, observed),
            _ => {}
        }
    }

    /// The secret that a step writes: the index of its name, and where it is.
    fn secret_of(&self, step: &Step) -> Option<(usize, Side, ObjectKey)> {
        let (section, key) = (self.section, self.key);
        let (name, side, key) = match step {
            Step::UploadSecret(name) => {
                let on_remote = section.mapping().remote_secret_name(name);
                (name, Side::Remote, ObjectKey::new(Arc::clone(&key.remote.namespace), on_remote))
            }
            Step::NoteSecretHash(name) => {
                (name, Side::Local, ObjectKey::new(Arc::clone(&key.local.namespace), Arc::clone(name)))
            }
            _ => return None,
        };
        let index = section.config().secret_names.iter().position(|configured| **configured == **name)?;
        Some((index, side, key))
    }

    /// A step failed: records what the caches have to show first, and lets other pairs try what this one could not do.
    fn refused(&self, step: &Step, error: &Error) {
        let (key, observed) = (self.key, &self.observed);
        self.section.index(|index| {
            index.expectations.change(key, |expected| {
                expected.set_unknown(step, error.outcome_is_unknown());
                if matches!(error, Error::Conflict { .. } | Error::NotFound { .. }) {
                    expected.refused(step, observed);
                }
            });
            match (step, &observed.namespace) {
                (Step::CreateLocal, _) if matches!(error, Error::Conflict { exists: true, .. }) => {
                    index.table.pair(key, Instant::now()).local_was_there = true;
                }
                // The retry is left to the back-off, and not to the refresh.
                (Step::UploadSecret(name), _) => index.uploaded(key, name, Instant::now()),
                (Step::CreateNamespace, _) => index.namespaces.was_not_made(&key.local.namespace),
                (Step::DeleteNamespace, Namespace::Present { object, .. }) => {
                    index.namespaces.forget_deletion(&object.key.name);
                }
                _ => {}
            }
        });
    }
}

/// Carries out a step. The reply has the object's new version.
async fn execute(section: &Section, step: &Step, observed: &Observed) -> Result<Written, Error> {
    let act = Act { section, observed };
    match step {
        Step::AddFinalizer => act.add_finalizer().await,
        Step::RemoveFinalizer => act.remove_finalizer().await,
        Step::WriteRemoteStatus => act.write_remote_status().await,
        Step::UploadSecret(name) => act.upload_secret(name).await,
        Step::NoteSecretHash(name) => act.note_secret_hash(name).await,
        Step::CreateNamespace => act.create_namespace().await,
        Step::CreateLocal => act.create_local().await,
        Step::AdoptLocal(change) | Step::PatchLocal(change) | Step::ReleaseLocal(change) => {
            let local = act.local()?;
            let kind = act.local_kind()?;
            let body = change.json_patch(local);
            act.write_local(Request::patch(&kind, &local.key, Payload::json_patch(&body))).await
        }
        Step::RenewMarks(renewal) => act.renew_marks(renewal).await,
        Step::NoteGenerations { remote, local } => {
            let marks = &section.policy().marks;
            let mut annotations = json!({
                &*marks.remote_generation: remote.to_string(),
                &*marks.local_generation: local.to_string(),
            });
            if let (Some(annotations), Some(_)) =
                (annotations.as_object_mut(), act.remote()?.annotation(&marks.sync_error))
            {
                annotations.insert(marks.sync_error.to_string(), Value::Null);
            }
            if let (Some(annotations), Some(uid)) =
                (annotations.as_object_mut(), observed.holder_to_renew(section.policy()))
            {
                annotations.insert(marks.local_cluster.to_string(), json!(&*uid));
            }
            // With the UID, so that the generations are not written to a later object of the same name.
            let metadata = json!({"uid": &*act.remote()?.uid, "annotations": annotations});
            act.patch_remote("", Payload::merge_patch(&json!({"metadata": metadata}))).await
        }
        Step::NoteError(error) => {
            let annotations = json!({&*section.policy().marks.sync_error: error.as_deref()});
            let metadata = json!({"uid": &*act.remote()?.uid, "annotations": annotations});
            act.patch_remote("", Payload::merge_patch(&json!({"metadata": metadata}))).await
        }
        Step::DeleteLocal => {
            let local = act.local()?;
            let kind = act.local_kind()?;
            section.local_cluster().delete(&kind, local, act.propagation()).await
        }
        Step::DeleteNamespace => match &observed.namespace {
            Namespace::Present { object, .. } => {
                section.local_cluster().delete(&namespaces(), object, act.propagation()).await
            }
            Namespace::None | Namespace::Missing => Err(act.vanished("namespace")),
        },
        Step::ReleaseNamespace => act.release_namespace().await,
    }
}

pub(super) fn namespaces() -> Kind {
    Kind::core("Namespace", "namespaces", false)
}

pub(super) fn secret_kind() -> Kind {
    Kind::core("Secret", "secrets", true)
}

struct Act<'a> {
    section: &'a Section,
    observed: &'a Observed,
}

impl Act<'_> {
    /// The error for a step about an object that was not observed. The plan makes no such step.
    fn vanished(&self, what: &str) -> Error {
        Error::Conflict { message: format!("no {what} of {} was observed", self.observed.pair.local), exists: false }
    }

    fn local(&self) -> Result<&Arc<Object>, Error> {
        self.observed.local.as_ref().ok_or_else(|| self.vanished("local object"))
    }

    fn remote(&self) -> Result<&Arc<Object>, Error> {
        self.observed.remote_object().ok_or_else(|| self.vanished("remote object"))
    }

    fn local_kind(&self) -> Result<Arc<Kind>, Error> {
        self.section.local_kind().ok_or_else(|| self.vanished("kind"))
    }

    fn remote_kind(&self) -> Result<Arc<Kind>, Error> {
        self.section.remote_kind().ok_or_else(|| self.vanished("kind"))
    }

    fn propagation(&self) -> Propagation {
        match self.section.config().propagation_policy {
            PropagationPolicy::Foreground => Propagation::Foreground,
            PropagationPolicy::Background => Propagation::Background,
            PropagationPolicy::Orphan => Propagation::Orphan,
        }
    }

    async fn patch_remote(&self, subresource: &'static str, patch: Payload) -> Result<Written, Error> {
        let kind = self.remote_kind()?;
        let request = Request::patch(&kind, &self.remote()?.key, patch).on(subresource);
        self.section.remote_cluster().write(request.by(self.section.remote_manager())).await
    }

    /// On the local cluster every section writes under a field manager of its own.
    async fn write_local(&self, request: Request<'_>) -> Result<Written, Error> {
        self.section.local_cluster().write(request.by(&self.section.policy().manager)).await
    }

    async fn renew_marks(&self, renewal: &Renewal) -> Result<Written, Error> {
        match (renewal.place, &self.observed.namespace) {
            (RenewedObject::Remote, _) => {
                self.patch_remote("", Payload::json_patch(&renewal.json_patch(self.remote()?))).await
            }
            (RenewedObject::Namespace, Namespace::Present { object, .. }) => {
                let body = Payload::json_patch(&renewal.json_patch(object));
                self.write_local(Request::patch(&namespaces(), &object.key, body)).await
            }
            (RenewedObject::Namespace, _) => Err(self.vanished("namespace")),
        }
    }

    async fn add_finalizer(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let policy = self.section.policy();
        let finalizer = &*policy.marks.finalizer;
        let add = if remote.finalizers.is_empty() {
            json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]})
        } else {
            json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer})
        };
        let mut operations = vec![replace_version(remote), add];
        if let Some(uid) = self.observed.holder_to_note(policy) {
            operations.push(annotate(remote, &policy.marks.local_cluster, &uid));
        }
        self.patch_remote("", Payload::json_patch(&Value::Array(operations))).await
    }

    async fn remove_finalizer(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let policy = self.section.policy();
        let marks = &policy.marks;
        let ours = remote.finalizers.iter().enumerate().filter(|(_, held)| marks.is_finalizer_on(remote, held));
        let mut operations = vec![replace_version(remote)];
        // From the last to the first, so that removing one does not change the index of the next.
        let take_off = ours.map(|(index, _)| json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")}));
        operations.extend(take_off.collect::<Vec<_>>().into_iter().rev());
        if operations.len() == 1 {
            return Err(self.vanished("finalizer"));
        }
        // Nothing removes these annotations after the finalizer is gone.
        if policy.write_back {
            for mark in marks.gone_with_finalizer(remote) {
                operations.push(json!({"op": "remove", "path": format!("/metadata/annotations/{}", escape(&mark))}));
            }
        }
        if let Some(note) = self.observed.holder_to_leave(policy) {
            operations.push(annotate(remote, &marks.local_cluster, &note));
        }
        match self.patch_remote("", Payload::json_patch(&Value::Array(operations))).await {
            // Another writer has removed the finalizer, and the object is gone.
            Err(Error::NotFound { .. }) => Ok(Written::default()),
            result => result,
        }
    }

    async fn write_remote_status(&self) -> Result<Written, Error> {
        let subresource = if self.remote_kind()?.status_subresource { "status" } else { "" };
        let operation = match self.observed.status_to_write(self.section.policy()) {
            Some(status) => json!({"op": "add", "path": "/status", "value": status.value()}),
            None => json!({"op": "remove", "path": "/status"}),
        };
        self.patch_remote(subresource, Payload::json_patch(&json!([operation]))).await
    }

    async fn upload_secret(&self, name: &str) -> Result<Written, Error> {
        let remote = self.remote()?;
        let secret =
            self.observed.secrets.iter().find(|secret| &*secret.name == name).ok_or_else(|| self.vanished("secret"))?;
        let key = ObjectKey::new(Arc::clone(&remote.key.namespace), self.section.mapping().remote_secret_name(name));
        let kind = self.remote_kind()?;
        let body = secrets::remote_body(secret, &key, remote, &kind, self.section.policy());
        let secret_kind = secret_kind();
        let request = Request::new(Verb::Update, &secret_kind, &key, Payload::json(&body));
        self.section.remote_cluster().write(request.by(self.section.remote_manager())).await
    }

    async fn note_secret_hash(&self, name: &str) -> Result<Written, Error> {
        let secret =
            self.observed.secrets.iter().find(|secret| &*secret.name == name).ok_or_else(|| self.vanished("secret"))?;
        let marks = &self.section.policy().marks;
        let body = json!({"metadata": {"annotations": {(*marks.uploaded_hash): &*secret.hash}}});
        self.write_local(Request::patch(&secret_kind(), &secret.object.key, Payload::merge_patch(&body))).await
    }

    async fn create_namespace(&self) -> Result<Written, Error> {
        let local = &self.observed.pair.local;
        let key = ObjectKey::new("", Arc::clone(&local.namespace));
        let annotations =
            map(self.section.policy().marks.of_namespace(local, self.observed.clusters.remote.uid.as_ref()));
        let body = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": &*key.name, "annotations": annotations},
        });
        self.write_local(Request::create(&namespaces(), &key, &body)).await
    }

    async fn release_namespace(&self) -> Result<Written, Error> {
        let marks = &self.section.policy().marks;
        let key = ObjectKey::new("", Arc::clone(&self.observed.pair.local.namespace));
        let annotations: Map<String, Value> =
            marks.on_namespace().into_iter().map(|mark| (mark.to_string(), Value::Null)).collect();
        let body = json!({"metadata": {"annotations": annotations}});
        self.write_local(Request::patch(&namespaces(), &key, Payload::merge_patch(&body))).await
    }

    async fn create_local(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let kind = self.local_kind()?;
        let key = &self.observed.pair.local;
        let (labels, annotations) = desired_metadata(remote, key, self.section.policy(), &self.observed.clusters);
        let mut metadata = json!({"name": &*key.name, "labels": map(labels), "annotations": map(annotations)});
        if let (false, Some(metadata)) = (key.namespace.is_empty(), metadata.as_object_mut()) {
            metadata.insert("namespace".into(), json!(&*key.namespace));
        }
        let mut body = match remote.content.value() {
            Value::Object(content) => content,
            _ => Map::new(),
        };
        body.insert("apiVersion".into(), json!(kind.resource.api_version));
        body.insert("kind".into(), json!(kind.resource.kind));
        body.insert("metadata".into(), metadata);
        self.write_local(Request::create(&kind, key, &Value::Object(body))).await
    }
}

/// The operation of a JSON patch that sets an annotation.
fn annotate(object: &Object, key: &str, value: &str) -> Value {
    if object.annotations.is_empty() && !object.hidden_annotations {
        return json!({"op": "add", "path": "/metadata/annotations", "value": {key: value}});
    }
    json!({"op": "add", "path": format!("/metadata/annotations/{}", escape(key)), "value": value})
}

/// Labels or annotations as a JSON object.
fn map(keys: BTreeMap<Arc<str>, Arc<str>>) -> Map<String, Value> {
    keys.into_iter().map(|(key, value)| (key.to_string(), json!(&*value))).collect()
}
