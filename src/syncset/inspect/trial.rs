//! What a syncset would do on one cluster, found out with `dryRun=All`: nothing that is sent here changes anything.
//!
//! An object counts as changed if its labels, its annotations or the entry of our manager in its `managedFields` would be others: the
//! server gives that entry the time of the write if the write changes anything, also a value alone. Within one second after another
//! write of ours a changed value is not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::conflict::{conflicts, told};
use super::fields::taken;
use crate::cluster::{Cluster, Error, Kind, KindError, KindId, ManagedFields, Metadata, ObjectKey, Payload, Request};
use crate::syncset::rules::name::ObjectRef;
use crate::syncset::rules::pass::Manager;
use crate::syncset::rules::spec::{Behavior, Desired, DesiredPatch, PatchType, Rendered, Rendering};
use crate::syncset::rules::wanted::{Scope, group_defined_by, is_namespace};

/// The code of a kind without strategic merge patches.
const UNSUPPORTED_PATCH: u16 = 415;

/// What would become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It would be created.
    Create,
    /// It would be changed.
    Change,
    /// It would stay as it is.
    Same,
    /// Fields would be taken from other managers: which, and from whom.
    Conflict(Vec<String>),
    /// It can't be sent, or would be refused.
    Failed(String),
}

/// What a syncset itself brings, and which therefore need not be there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Brought {
    objects: BTreeSet<ObjectRef>,
    namespaces: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Brought {
    fn by(rendered: &Rendered) -> Self {
        let mut brought = Self::default();
        for desired in ready(rendered) {
            if is_namespace(&desired.object) {
                brought.namespaces.insert(desired.object.name.clone());
            }
            brought.groups.extend(group_defined_by(&desired.object).map(str::to_owned));
            brought.objects.insert(desired.object.clone());
        }
        brought
    }
}

/// The objects of a syncset that render.
pub(super) fn ready(rendered: &Rendered) -> impl Iterator<Item = &Desired> {
    rendered.resources.iter().chain(&rendered.secrets).filter_map(|rendering| match rendering {
        Rendering::Ready(desired) => Some(desired),
        Rendering::Failed { .. } => None,
    })
}

/// The kinds that a syncset needs.
pub(super) fn kinds(rendered: &Rendered) -> BTreeSet<KindId> {
    let of_patches = rendered.patches.iter().filter_map(|rendering| match rendering {
        Rendering::Ready(patch) => Some(KindId::of(&patch.api_version, &patch.object.kind)),
        Rendering::Failed { .. } => None,
    });
    let of_objects = ready(rendered).map(|desired| KindId::of(&desired.api_version, &desired.object.kind));
    of_objects.chain(of_patches).collect()
}

/// Tries what a syncset wants on a cluster.
pub(super) struct Trial<'k> {
    cluster: Cluster,
    kinds: &'k BTreeMap<KindId, Result<Kind, KindError>>,
    brought: Brought,
    behavior: Behavior,
}

impl<'k> Trial<'k> {
    /// On this cluster, which serves these kinds.
    pub(super) fn new(
        cluster: Cluster,
        kinds: &'k BTreeMap<KindId, Result<Kind, KindError>>,
        rendered: &Rendered,
        behavior: Behavior,
    ) -> Self {
        Self { cluster, kinds, brought: Brought::by(rendered), behavior }
    }

    /// Whether objects of a kind have namespaces.
    pub(super) fn scope(&self, object: &ObjectRef) -> Scope {
        let mut kinds = self.kinds.iter().filter(|(id, _)| id.group == object.group && id.kind == object.kind);
        match kinds.find_map(|(_, kind)| kind.as_ref().ok()) {
            Some(kind) if kind.namespaced => Scope::Namespaced,
            Some(_) => Scope::Cluster,
            None => Scope::Unknown,
        }
    }

    /// What would become of an object. `is_adopted` says that it is known to have existed before us. An error says that the cluster
    /// does not answer.
    pub(super) async fn object(&self, desired: &Desired, is_adopted: bool) -> Result<Verdict, Error> {
        let (kind, key) = match self.place(&desired.api_version, &desired.object) {
            Ok(place) => place,
            Err(NoPlace::Unread(error)) => return settled(error),
            Err(NoPlace::Unserved(_)) if self.brought.groups.contains(&desired.object.group) => {
                return Ok(Verdict::Create);
            }
            Err(NoPlace::Unserved(text)) => return Ok(Verdict::Failed(text)),
        };
        let desired = if kind.namespaced { desired.clone() } else { desired.clone().without_namespace() };
        // As a pass marks it.
        let mark = match self.behavior {
            Behavior::CreateOnly => None,
            _ if desired.may_adopt => Some(false),
            _ => is_adopted.then_some(true),
        };
        let body = desired.sent(mark, None);
        let apply = || Request::apply(kind, &key, &body).by(Manager::Apply.as_str()).tried();
        let before = match self.cluster.read_metadata(kind, &key).await {
            Ok(before) => before,
            Err(error) => return settled(error),
        };
        let Some(before) = before else {
            let request = match self.behavior {
                Behavior::Apply => apply(),
                _ => Request::create(kind, &key, &body).by(Manager::Update.as_str()).tried(),
            };
            return match self.cluster.change(request).await {
                Ok(_) => Ok(Verdict::Create),
                Err(error) if self.is_explained(&error, &key) => Ok(Verdict::Create),
                Err(error) => settled(error),
            };
        };
        if before.is_terminating {
            return Ok(Verdict::Failed("it is being deleted".to_owned()));
        }
        match self.behavior {
            Behavior::CreateOnly => Ok(Verdict::Same),
            Behavior::CreateOrUpdate => {
                let patched = self.patched(kind, &key, &body, PatchType::Strategic, Manager::Update).await;
                compared(&before, patched, Manager::Update)
            }
            Behavior::Apply => match self.cluster.change(apply()).await {
                Err(Error::Conflict { message, exists: false }) => {
                    let forced = self.cluster.change(apply().forced()).await.map(|forced| forced.body);
                    let owners = owners(&message, &body, &before);
                    Ok(match compared(&before, forced, Manager::Apply)? {
                        Verdict::Failed(text) => Verdict::Failed(text),
                        _ => Verdict::Conflict(owners),
                    })
                }
                applied => compared(&before, applied.map(|applied| applied.body), Manager::Apply),
            },
        }
    }

    /// What would become of an object that is patched.
    pub(super) async fn patch(&self, patch: &DesiredPatch) -> Result<Verdict, Error> {
        let is_brought = self.brought.objects.contains(&patch.object);
        let (kind, key) = match self.place(&patch.api_version, &patch.object) {
            Ok(place) => place,
            Err(_) if is_brought => return Ok(Verdict::Same),
            Err(NoPlace::Unread(error)) => return settled(error),
            Err(NoPlace::Unserved(text)) => return Ok(Verdict::Failed(text)),
        };
        match self.cluster.read_metadata(kind, &key).await {
            Ok(Some(before)) => {
                let patched = self.patched(kind, &key, &patch.body, patch.patch_type, Manager::Patch).await;
                compared(&before, patched, Manager::Patch)
            }
            Ok(None) if is_brought => Ok(Verdict::Same),
            Ok(None) => Ok(Verdict::Failed("there is no such object to patch".to_owned())),
            Err(error) => settled(error),
        }
    }

    async fn patched(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        body: &serde_json::Value,
        patch_type: PatchType,
        manager: Manager,
    ) -> Result<Metadata, Error> {
        let send = async |payload| {
            let request = Request::patch(kind, key, payload).by(manager.as_str()).tried();
            self.cluster.change(request).await.map(|changed| changed.body)
        };
        match patch_type {
            PatchType::Json => send(Payload::json_patch(body)).await,
            PatchType::Merge => send(Payload::merge_patch(body)).await,
            PatchType::Strategic => match send(Payload::strategic_merge_patch(body)).await {
                Err(Error::Rejected { code: UNSUPPORTED_PATCH, .. }) => send(Payload::merge_patch(body)).await,
                patched => patched,
            },
        }
    }

    /// Where an object is.
    fn place(&self, api_version: &str, object: &ObjectRef) -> Result<(&Kind, ObjectKey), NoPlace> {
        let id = KindId::of(api_version, &object.kind);
        match self.kinds.get(&id) {
            Some(Ok(kind)) if kind.namespaced && object.namespace.is_empty() => {
                Err(NoPlace::Unserved("the kind has namespaces, and none is given".to_owned()))
            }
            Some(Ok(kind)) => {
                let namespace = if kind.namespaced { object.namespace.as_str() } else { "" };
                Ok((kind, ObjectKey::new(namespace, object.name.as_str())))
            }
            Some(Err(KindError::Unread(error))) => Err(NoPlace::Unread(error.clone())),
            Some(Err(unserved)) => Err(NoPlace::Unserved(unserved.to_string())),
            None => Err(NoPlace::Unserved(format!("the cluster does not serve {id}"))),
        }
    }

    /// Whether an object is refused only because its namespace is not there yet.
    fn is_explained(&self, error: &Error, key: &ObjectKey) -> bool {
        let is_missing = matches!(error, Error::NotFound { .. } | Error::NotServed { .. });
        is_missing && self.brought.namespaces.contains(key.namespace.as_ref())
    }
}

/// Why it is not known where an object is.
enum NoPlace {
    Unread(Error),
    Unserved(String),
}

/// What a refusal says of the object; an error if it says something about the cluster.
fn settled(error: Error) -> Result<Verdict, Error> {
    if says_nothing_of_objects(&error) { Err(error) } else { Ok(Verdict::Failed(error.message())) }
}

/// Whether it is the cluster that does not answer, or not to us.
pub(super) fn says_nothing_of_objects(error: &Error) -> bool {
    error.is_unreachable() || matches!(error, Error::Unauthorized { .. })
}

fn compared(before: &Metadata, after: Result<Metadata, Error>, manager: Manager) -> Result<Verdict, Error> {
    match after {
        Ok(after) if is_same(before, &after, manager) => Ok(Verdict::Same),
        Ok(_) => Ok(Verdict::Change),
        Err(error) => settled(error),
    }
}

fn is_same(before: &Metadata, after: &Metadata, manager: Manager) -> bool {
    let operation = if manager == Manager::Apply { "Apply" } else { "Update" };
    let is_ours = |entry: &&ManagedFields| {
        entry.manager == manager.as_str() && entry.operation == operation && entry.subresource.is_empty()
    };
    let entry = |metadata: &Metadata| metadata.managers.iter().find(is_ours).cloned();
    before.labels == after.labels && before.annotations == after.annotations && entry(before) == entry(after)
}

/// The fields that an apply would take, each with its owner. About a Secret the message names no managers.
fn owners(message: &str, body: &serde_json::Value, before: &Metadata) -> Vec<String> {
    let named = conflicts(message);
    if !named.is_empty() {
        return named.iter().map(|(manager, fields)| told(fields, manager)).collect();
    }
    let taken = taken(body, &before.managers, Manager::Apply.as_str());
    taken.iter().map(|taken| told(&taken.fields, &taken.manager)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metadata(labels: &Value, managers: &Value) -> Metadata {
        let object = json!({"metadata": {"name": "site", "namespace": "team", "uid": "u", "resourceVersion": "7",
            "labels": labels, "managedFields": managers}});
        serde_json::from_value(object).expect("metadata")
    }

    fn entry(manager: &str, operation: &str, time: &str) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time, "fieldsV1": {"f:data": {"f:a": {}}}})
    }

    #[test]
    fn an_object_changes_with_our_entry_and_its_labels_and_not_with_those_of_others() {
        let ours = |time: &str| json!([entry("towline", "Apply", time), entry("hpa", "Update", "t0")]);
        let before = metadata(&json!({"a": "b"}), &ours("t1"));
        let is_same = |after: &Metadata| is_same(&before, after, Manager::Apply);
        assert!(is_same(&metadata(&json!({"a": "b"}), &json!([entry("towline", "Apply", "t1")]))));
        assert!(!is_same(&metadata(&json!({"a": "b"}), &ours("t2"))));
        assert!(!is_same(&metadata(&json!({"a": "c"}), &ours("t1"))));
        assert!(!is_same(&metadata(&json!({"a": "b"}), &json!([entry("towline", "Update", "t1")]))));
    }

    #[test]
    fn a_conflict_about_a_secret_names_the_managers_of_the_fields_that_we_set() {
        let before = metadata(&json!({}), &json!([entry("kubectl-edit", "Update", "t1")]));
        let body = json!({"data": {"a": "canary", "b": "canary"}});
        assert_eq!(owners("HTTP 409 Conflict: .data.a", &body, &before), [".data.a belongs to kubectl-edit"]);
        let message = "Apply failed with 1 conflict: conflict with \"hpa\" using v1: .data.b";
        assert_eq!(owners(message, &body, &before), [".data.b belongs to hpa"]);
    }
}
