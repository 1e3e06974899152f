//! Writes for which one request is not enough: fields that are left alone after the creation, lists that the server would merge by the wrong
//! key, fields that a change forbids and that the change itself does not remove, and Secrets for a `ServiceAccount`. Any other write is the one
//! request that it names.

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Error, Kind, Metadata, ObjectKey, Payload, Request, Stated};
use crate::documents::FieldPointer;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::left_alone;
use crate::syncset::plan::ownership::{PartOfWhole, claimed, given_up, outside_lists, without};
use crate::syncset::plan::pass::Manager;
use crate::syncset::plan::spec::PatchType;
use crate::syncset::plan::{lists, unions};

/// How often something is read again that has changed before it was written.
const MOST_TRIES: u8 = 3;
const BAD_REQUEST: u16 = 400;
const UNSUPPORTED_PATCH: u16 = 415;
const INVALID: u16 = 422;
/// The type of Secrets for a `ServiceAccount`, and the annotations that name it.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

#[derive(Clone, Copy)]
pub struct ObjectOnCluster<'c> {
    pub(in crate::syncset) cluster: &'c Cluster,
    pub(in crate::syncset) kind: &'c Kind,
    pub(in crate::syncset) key: &'c ObjectKey,
    pub(in crate::syncset) object: &'c ObjectRef,
}

/// In whose name, and whether it is only tried.
#[derive(Clone, Copy)]
pub struct By {
    pub(in crate::syncset) manager: &'static str,
    pub(in crate::syncset) is_tried: bool,
}

impl ObjectOnCluster<'_> {
    pub(super) async fn apply(&self, body: &Value) -> Result<Stated<Metadata>, Error> {
        self.check_account(body, |_| false).await?;
        let pointers = left_alone(body);
        if pointers.is_empty() {
            return self.apply_whole(body).await;
        }
        // What is known not to be there is sent with a version that no object has, so that the server creates it or refuses it.
        let is_new = body.pointer("/metadata/resourceVersion").is_some();
        if !is_new && self.give_up(Manager::Apply, &pointers, body, None).await?.is_some() {
            return self.apply_whole(&without(body, &pointers)).await;
        }
        let created = self.apply_whole(body).await?;
        self.give_up_created(Manager::Apply, &pointers, body, created).await
    }

    /// Creates the object, without what is null: an update removes that.
    pub(super) async fn create(&self, body: &Value) -> Result<Stated<Metadata>, Error> {
        let (body, _) = &unions::without_nulls(body);
        self.check_account(body, |_| false).await?;
        let manager = Manager::Update;
        let created = self.cluster.change(Request::create(self.kind, self.key, body).by(manager.as_str())).await?;
        let pointers = left_alone(body);
        if pointers.is_empty() {
            return Ok(created);
        }
        self.give_up_created(manager, &pointers, body, created).await
    }

    /// Patches the object with what is wanted of it.
    pub(super) async fn update(&self, body: &Value, patch_type: PatchType) -> Result<Stated<Metadata>, Error> {
        self.check_account(body, |_| false).await?;
        let by = By { manager: Manager::Update.as_str(), is_tried: false };
        let pointers = left_alone(body);
        if pointers.is_empty() || patch_type == PatchType::Json {
            return self.patch(body, patch_type, by).await;
        }
        if patch_type == PatchType::Merge {
            check_merge(&pointers, body)?;
        }
        self.give_up(Manager::Update, &pointers, body, None).await?;
        self.patch(&without(body, &pointers), patch_type, by).await
    }

    /// Patches the object. What the patch can't go along with is cleared if the server refuses it for that.
    pub(in crate::syncset) async fn patch(
        &self,
        body: &Value,
        patch_type: PatchType,
        by: By,
    ) -> Result<Stated<Metadata>, Error> {
        let patched = self.patch_once(body, patch_type, by).await;
        let cleared = match &patched {
            Err(Error::Rejected { code: INVALID, .. }) if patch_type != PatchType::Json => {
                unions::cleared(self.object, body)
            }
            _ => None,
        };
        match cleared {
            // If the server rejects that as well, the error of the original patch is the one that tells why.
            Some(cleared) => match self.patch_once(&cleared, patch_type, by).await {
                Err(Error::Rejected { .. }) => patched,
                settled => settled,
            },
            None => patched,
        }
    }

    async fn patch_once(&self, body: &Value, patch_type: PatchType, by: By) -> Result<Stated<Metadata>, Error> {
        let payload = match patch_type {
            PatchType::Strategic if lists::are_at_risk(self.object, body) => return self.patch_lists(body, by).await,
            PatchType::Strategic => Payload::strategic_merge_patch(body),
            PatchType::Merge => Payload::merge_patch(body),
            PatchType::Json => Payload::json_patch(body),
        };
        self.cluster.change(self.request(payload, by)).await
    }

    fn request(&self, payload: Payload, By { manager, is_tried }: By) -> Request<'_> {
        let request = Request::patch(self.kind, self.key, payload).by(manager);
        if is_tried { request.tried() } else { request }
    }

    /// Sends lists as a whole that the server would merge by the wrong key, and looks whether everything is there that was asked for.
    async fn patch_lists(&self, body: &Value, by: By) -> Result<Stated<Metadata>, Error> {
        let mut tries = 0;
        loop {
            let Some(live) = self.cluster.read_whole(self.kind, self.key).await? else {
                let plain = Payload::strategic_merge_patch(body);
                return self.cluster.change(self.request(plain, by)).await;
            };
            let mut patch = lists::merged(self.object, body, &live);
            if let Some(version) = live.pointer("/metadata/resourceVersion")
                && let Some(metadata) = metadata_of(&mut patch)
            {
                metadata.insert("resourceVersion".to_owned(), version.clone());
            }
            let request = self.request(Payload::strategic_merge_patch(&patch), by);
            tries += 1;
            match self.cluster.change_whole(request).await {
                Err(Error::Conflict { .. }) if tries < MOST_TRIES => {}
                Err(error) => return Err(error),
                Ok((written, after)) => {
                    return match lists::lacking(self.object, body, &after) {
                        None => Ok(written),
                        Some(lacking) => Err(refused(format!("it was accepted, but {lacking}"))),
                    };
                }
            }
        }
    }

    /// Applies the object. If the server refuses that as invalid, and accepts it without fields that it can't go along with, these are claimed:
    /// then the apply removes them. So are fields that are null.
    async fn apply_whole(&self, body: &Value) -> Result<Stated<Metadata>, Error> {
        let applied = self.apply_once(body).await;
        let Err(Error::Rejected { code: INVALID, .. }) = &applied else { return applied };
        let cleared = unions::cleared(self.object, body).unwrap_or_else(|| body.clone());
        let (plain, _) = unions::without_nulls(body);
        let (_, pointers) = unions::without_nulls(&cleared);
        if pointers.is_empty() {
            return applied;
        }
        let tried = By { manager: Manager::Update.as_str(), is_tried: true };
        let tried = match self.patch_once(&cleared, PatchType::Strategic, tried).await {
            Err(Error::Rejected { code: UNSUPPORTED_PATCH, .. }) => {
                self.patch_once(&cleared, PatchType::Merge, tried).await
            }
            tried => tried,
        };
        match tried {
            // A new object has nothing to be removed.
            Err(Error::NotFound { .. }) if plain != *body => self.apply_once(&plain).await,
            Err(_) => applied,
            Ok(_) => {
                let Some(before) = self.cluster.read_metadata(self.kind, self.key).await? else { return applied };
                let patch = claimed(&before, owner(Manager::Apply), &pointers, &plain);
                self.cluster.change(self.json_patch(&patch, Manager::Apply)).await?;
                self.apply_once(&plain).await
            }
        }
    }

    async fn apply_once(&self, body: &Value) -> Result<Stated<Metadata>, Error> {
        let request = Request::apply(self.kind, self.key, body).by(Manager::Apply.as_str()).forced();
        self.cluster.change(request).await
    }

    /// Takes fields that are left alone from our entry, of which `found` is what is known. None if there is no such object.
    async fn give_up(
        &self,
        manager: Manager,
        pointers: &[FieldPointer],
        body: &Value,
        found: Option<Metadata>,
    ) -> Result<Option<Metadata>, Error> {
        let mut found = found;
        let mut tries = 0;
        loop {
            let known = match found.take() {
                Some(known) => Some(known),
                None => self.cluster.read_metadata(self.kind, self.key).await?,
            };
            let Some(known) = known else { return Ok(None) };
            let Some(patch) = self.given_up(manager, pointers, body, &known).await? else { return Ok(Some(known)) };
            tries += 1;
            match self.cluster.change(self.json_patch(&patch, manager)).await {
                Ok(written) => return Ok(Some(written.body)),
                Err(Error::Conflict { .. }) if tries < MOST_TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same of an object that was just written. That must not be forgotten because this fails: each later write gives the fields up first.
    async fn give_up_created(
        &self,
        manager: Manager,
        pointers: &[FieldPointer],
        body: &Value,
        written: Stated<Metadata>,
    ) -> Result<Stated<Metadata>, Error> {
        let Stated { created, body: found } = written;
        match self.give_up(manager, pointers, body, Some(found.clone())).await {
            Ok(Some(found)) => Ok(Stated { created, body: found }),
            Err(error @ Error::Rejected { code: BAD_REQUEST, .. }) => Err(error),
            // Also if somebody has deleted it meanwhile, which the next full pass finds out.
            Ok(None) | Err(_) => Ok(Stated { created, body: found }),
        }
    }

    /// The patch by which our entry no longer has fields that are left alone; none if it has none of them. Parts of what is only written as
    /// a whole are refused. This writes nothing.
    pub(in crate::syncset) async fn given_up(
        &self,
        manager: Manager,
        pointers: &[FieldPointer],
        body: &Value,
        known: &Metadata,
    ) -> Result<Option<Value>, Error> {
        if pointers.is_empty() {
            return Ok(None);
        }
        let patch = match given_up(known, owner(manager), pointers, body, None) {
            Err(PartOfWhole { is_map: true, .. }) => {
                // Rare, and large. What is not there will be what is sent.
                let live = Box::pin(self.cluster.read_whole(self.kind, self.key)).await?;
                given_up(known, owner(manager), pointers, body, Some(live.as_ref().unwrap_or(body)))
            }
            patch => patch,
        };
        patch.map_err(|error| refused(error.to_string()))
    }

    /// A cluster deletes a Secret for a `ServiceAccount` at once if there is no such account, or one with another UID. An account that is
    /// brought will be there before the Secret. This writes nothing.
    pub(in crate::syncset) async fn check_account(
        &self,
        body: &Value,
        is_brought: impl FnOnce(&ObjectRef) -> bool,
    ) -> Result<(), Error> {
        let is_secret = self.object.group.is_empty() && self.object.kind == "Secret";
        if !is_secret || body.get("type").and_then(Value::as_str) != Some(ACCOUNT_TOKEN) {
            return Ok(());
        }
        let annotations = body.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let text = |name: &str| annotations.and_then(|all| all.get(name)).and_then(Value::as_str);
        // Without a name the server refuses it.
        let Some(name) = text(ACCOUNT_NAME) else { return Ok(()) };
        let gvk = GroupVersionKind::gvk("", "v1", "ServiceAccount");
        let account = ObjectRef { kind: gvk.kind.clone(), name: name.to_owned(), ..self.object.clone() };
        let resource = ApiResource::from_gvk_with_plural(&gvk, "serviceaccounts");
        let accounts = Kind { resource, namespaced: true, status_subresource: false };
        let key = ObjectKey::new(self.object.namespace.as_str(), name);
        let found = match self.cluster.read_metadata(&accounts, &key).await {
            Ok(found) => found,
            // Who may not read accounts may still write the Secret.
            Err(Error::Forbidden { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_another = |uid: &str| found.as_ref().is_none_or(|found| *found.uid != *uid);
        match &found {
            None if !is_brought(&account) => Err(refused(format!(
                "the cluster deletes such a Secret at once, since there is no ServiceAccount {name}: create that before it"
            ))),
            _ if text(ACCOUNT_UID).is_some_and(is_another) => Err(refused(format!(
                "the cluster deletes such a Secret at once, since its annotation {ACCOUNT_UID} is not the UID of the ServiceAccount {name} \
                 there: leave the annotation out; the token of another cluster belongs into a Secret of type Opaque"
            ))),
            _ => Ok(()),
        }
    }

    fn json_patch(&self, patch: &Value, manager: Manager) -> Request<'_> {
        Request::patch(self.kind, self.key, Payload::json_patch(patch)).by(manager.as_str())
    }
}

/// A merge patch replaces lists, so that it can't leave a part of one alone.
pub fn check_merge(pointers: &[FieldPointer], body: &Value) -> Result<(), Error> {
    outside_lists(pointers, body).map_err(|error| refused(error.to_string()))
}

/// A manager and its operation, as entries of `managedFields` have them.
fn owner(manager: Manager) -> (&'static str, &'static str) {
    (manager.as_str(), if manager == Manager::Apply { "Apply" } else { "Update" })
}

fn metadata_of(patch: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    patch.as_object_mut()?.entry("metadata").or_insert_with(|| json!({})).as_object_mut()
}

/// The server has accepted a write, and it is not what was asked for.
fn refused(message: String) -> Error {
    Error::Rejected { code: BAD_REQUEST, reason: "Invalid".to_owned(), message }
}
