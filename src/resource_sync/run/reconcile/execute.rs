//! Sends the request of a step. The plan has decided which; this module knows the cluster, the verb and the body.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cluster::{Error, Kind, Object, ObjectKey, Payload, Propagation, Request, Verb, Written};
use crate::resource_sync::config::PropagationPolicy;
use crate::resource_sync::plan::next::{Namespace, Observed, Step};
use crate::resource_sync::plan::patch::{escape, replace_version};
use crate::resource_sync::plan::renewal::{Renewal, RenewedObject};
use crate::resource_sync::plan::secrets;
use crate::resource_sync::run::section::Section;

/// Carries out a step. The reply has the object's new version.
pub(crate) async fn execute(section: &Section, step: &Step, observed: &Observed) -> Result<Written, Error> {
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

pub(crate) fn namespaces() -> Kind {
    Kind::core("Namespace", "namespaces", false)
}

pub(crate) fn secret_kind() -> Kind {
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
        let annotations = map(self.section.policy().marks.of_namespace(local, &self.observed.clusters.remote));
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
        let (labels, annotations) = crate::resource_sync::plan::patch::desired_metadata(
            remote,
            key,
            self.section.policy(),
            &self.observed.clusters,
        );
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
