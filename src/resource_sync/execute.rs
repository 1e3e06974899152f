//! Steps as requests: which cluster, which verb, which body. Nothing is decided here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::patch::{escape, replace_version};
use super::plan::{Namespace, Observed, Step};
use super::secrets;
use super::section::Section;
use crate::cluster::{Cluster, Error, Kind, Object, ObjectKey, Propagation, Request, Verb, Written};
use crate::config::PropagationPolicy;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// Carries out a step; the reply tells the object's new version.
pub(super) async fn execute(section: &Section, step: &Step, observed: &Observed) -> Result<Written, Error> {
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
            let manager = section.policy().manager();
            patch(section.local_cluster(), &kind, &local.key, "", JSON_PATCH, &body, &manager).await
        }
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
            // The UID: generations of one object must not be noted on another of the same name.
            let metadata = json!({"uid": &*act.remote()?.uid, "annotations": annotations});
            act.patch_remote("", MERGE_PATCH, &json!({"metadata": metadata})).await
        }
        Step::NoteError(error) => {
            let annotations = json!({&*section.policy().marks.sync_error: error.as_deref()});
            let metadata = json!({"uid": &*act.remote()?.uid, "annotations": annotations});
            act.patch_remote("", MERGE_PATCH, &json!({"metadata": metadata})).await
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

/// The kind of namespaces.
pub(super) fn namespaces() -> Kind {
    Kind::core("Namespace", "namespaces", false)
}

fn secret_kind() -> Kind {
    Kind::core("Secret", "secrets", true)
}

struct Act<'a> {
    section: &'a Section,
    observed: &'a Observed,
}

impl Act<'_> {
    /// A plan only names what it observed; this is the answer should that ever not hold.
    fn vanished(&self, what: &str) -> Error {
        Error::Conflict { message: format!("no {what} of {} was observed", self.observed.local_key), exists: false }
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

    async fn patch_remote(
        &self,
        subresource: &'static str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<Written, Error> {
        let kind = self.remote_kind()?;
        let key = &self.remote()?.key;
        patch(self.section.remote_cluster(), &kind, key, subresource, content_type, body, self.section.remote_manager())
            .await
    }

    async fn add_finalizer(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let finalizer = &*self.section.policy().marks.finalizer;
        let add = if remote.finalizers.is_empty() {
            json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]})
        } else {
            json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer})
        };
        self.patch_remote("", JSON_PATCH, &json!([replace_version(remote), add])).await
    }

    async fn remove_finalizer(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let finalizer = &self.section.policy().marks.finalizer;
        let index =
            remote.finalizers.iter().position(|held| held == finalizer).ok_or_else(|| self.vanished("finalizer"))?;
        let mut operations =
            vec![replace_version(remote), json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")})];
        // Nobody is left to take it off later.
        let policy = self.section.policy();
        if policy.write_back && remote.annotation(&policy.marks.sync_error).is_some() {
            let path = format!("/metadata/annotations/{}", escape(&policy.marks.sync_error));
            operations.push(json!({"op": "remove", "path": path}));
        }
        match self.patch_remote("", JSON_PATCH, &Value::Array(operations)).await {
            // Somebody else took it off, and the object went.
            Err(Error::NotFound { .. }) => Ok(Written::default()),
            result => result,
        }
    }

    async fn write_remote_status(&self) -> Result<Written, Error> {
        let subresource = if self.remote_kind()?.status_subresource { "status" } else { "" };
        let operation = match &self.local()?.status {
            Some(status) => json!({"op": "add", "path": "/status", "value": status.value()}),
            None => json!({"op": "remove", "path": "/status"}),
        };
        self.patch_remote(subresource, JSON_PATCH, &json!([operation])).await
    }

    async fn upload_secret(&self, name: &str) -> Result<Written, Error> {
        let remote = self.remote()?;
        let secret =
            self.observed.secrets.iter().find(|secret| &*secret.name == name).ok_or_else(|| self.vanished("secret"))?;
        let key = ObjectKey::new(Arc::clone(&remote.key.namespace), self.section.mapping().remote_secret_name(name));
        let kind = self.remote_kind()?;
        let body = secrets::remote_body(secret, &key, remote, &kind, &self.section.policy().marks);
        self.section
            .remote_cluster()
            .write(Request {
                verb: Verb::Update,
                kind: &secret_kind(),
                key: &key,
                subresource: "",
                content_type: JSON,
                body: body.to_string().into_bytes(),
                manager: Some(self.section.remote_manager()),
            })
            .await
    }

    async fn note_secret_hash(&self, name: &str) -> Result<Written, Error> {
        let secret =
            self.observed.secrets.iter().find(|secret| &*secret.name == name).ok_or_else(|| self.vanished("secret"))?;
        let mark = &*self.section.policy().marks.uploaded_hash;
        let body = json!({"metadata": {"annotations": {mark: &*secret.hash}}});
        let manager = self.section.policy().manager();
        patch(self.section.local_cluster(), &secret_kind(), &secret.object.key, "", MERGE_PATCH, &body, &manager).await
    }

    async fn create_namespace(&self) -> Result<Written, Error> {
        let local = &self.observed.local_key;
        let key = ObjectKey::new("", Arc::clone(&local.namespace));
        let annotations = map(self.section.policy().marks.of_namespace(local));
        let body = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": &*key.name, "annotations": annotations},
        });
        self.create(&namespaces(), &key, &body).await
    }

    async fn release_namespace(&self) -> Result<Written, Error> {
        let marks = &self.section.policy().marks;
        let key = ObjectKey::new("", Arc::clone(&self.observed.local_key.namespace));
        let body = json!({"metadata": {"annotations": {
            &*marks.owner: null,
            &*marks.owner_resource: null,
            &*marks.owner_section: null,
            &*marks.local_name: null,
        }}});
        let manager = self.section.policy().manager();
        patch(self.section.local_cluster(), &namespaces(), &key, "", MERGE_PATCH, &body, &manager).await
    }

    async fn create_local(&self) -> Result<Written, Error> {
        let remote = self.remote()?;
        let kind = self.local_kind()?;
        let key = &self.observed.local_key;
        let (labels, annotations) = super::patch::desired_metadata(remote, key, self.section.policy());
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
        self.create(&kind, key, &Value::Object(body)).await
    }

    async fn create(&self, kind: &Kind, key: &ObjectKey, body: &Value) -> Result<Written, Error> {
        let request = Request {
            verb: Verb::Create,
            kind,
            key,
            subresource: "",
            content_type: JSON,
            body: body.to_string().into_bytes(),
            manager: Some(&self.section.policy().manager()),
        };
        self.section.local_cluster().write(request).await
    }
}

/// Labels or annotations as a request has them.
fn map(keys: BTreeMap<Arc<str>, Arc<str>>) -> Map<String, Value> {
    keys.into_iter().map(|(key, value)| (key.to_string(), json!(&*value))).collect()
}

async fn patch(
    cluster: &Cluster,
    kind: &Kind,
    key: &ObjectKey,
    subresource: &'static str,
    content_type: &'static str,
    body: &Value,
    manager: &str,
) -> Result<Written, Error> {
    let request = Request {
        verb: Verb::Patch,
        kind,
        key,
        subresource,
        content_type,
        body: body.to_string().into_bytes(),
        manager: Some(manager),
    };
    cluster.write(request).await
}
