//! Whether two clusters are in step: object by object, and nothing left over.
//!
//! Written from the specification and not from the daemon's code, so that a mistake there is not repeated here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value};

use crate::Error;

/// What a section says about names and marks. The defaults are the configuration's.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Remote object name = local object name + this.
    pub remote_resource_suffix: String,
    /// Local namespace = remote namespace + this.
    pub local_namespace_suffix: String,
    pub namespace_prefix: String,
    /// Whether the kind has namespaces: then those with the prefix are listed, and not what others have there.
    pub namespaced: bool,
    /// Label selector on the remote objects.
    pub selector: String,
    pub annotation_domain: String,
    pub finalizer: String,
    /// Whether label and annotation maps are to be equal (`metadata = "mirror"`).
    pub mirror: bool,
    /// Annotations that stay on the remote (`metadata_exclude`); a `*` at the end stands for anything.
    pub metadata_exclude: Vec<String>,
    /// JSON pointers of fields that belong to the local side.
    pub local_fields: Vec<String>,
    /// Secrets that go to the remote.
    pub secret_names: Vec<String>,
    /// Whether status, generations and secrets go to the remote.
    pub write_back: bool,
    /// Local objects without a remote one that may be there, as `namespace/name`.
    pub unclaimed: BTreeSet<String>,
}

impl Default for Mapping {
    fn default() -> Self {
        Self {
            remote_resource_suffix: String::new(),
            local_namespace_suffix: String::new(),
            namespace_prefix: String::new(),
            namespaced: false,
            selector: String::new(),
            annotation_domain: "cloud.teleport.dev".to_owned(),
            finalizer: "sync-local".to_owned(),
            mirror: false,
            metadata_exclude: vec![
                "kubectl.kubernetes.io/last-applied-configuration".to_owned(),
                "argocd.argoproj.io/*".to_owned(),
                "kustomize.toolkit.fluxcd.io/*".to_owned(),
                "helm.toolkit.fluxcd.io/*".to_owned(),
                "meta.helm.sh/*".to_owned(),
                "config.kubernetes.io/owning-inventory".to_owned(),
            ],
            local_fields: Vec::new(),
            secret_names: Vec::new(),
            write_back: true,
            unclaimed: BTreeSet::new(),
        }
    }
}

impl Mapping {
    fn mark(&self, name: &str) -> String {
        format!("{}/{name}", self.annotation_domain)
    }

    /// Whether the remote's annotation is to be on the local object.
    fn goes_down(&self, annotation: &str) -> bool {
        let marks = ["paused", "sync-owner", "sync-owner-resource", "sync-owner-section", "sync-remote-uid"];
        let more = [
            "sync-remote-generation",
            "sync-local-generation",
            "sync-error",
            "sync-local-cluster",
            "last-uploaded-hash",
        ];
        let excluded = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => annotation.starts_with(prefix),
            None => annotation == pattern,
        };
        !marks.iter().chain(&more).any(|mark| annotation == self.mark(mark))
            && (self.mirror || !self.metadata_exclude.iter().any(excluded))
    }

    /// Where the local object of a remote one is; `None` where the section does not care for it.
    fn local_key(&self, remote: &DynamicObject) -> Option<Key> {
        let name = remote.name_any().strip_suffix(&self.remote_resource_suffix)?.to_owned();
        let Some(namespace) = remote.namespace() else { return Some(Key { namespace: None, name }) };
        let namespace =
            namespace.starts_with(&self.namespace_prefix).then(|| namespace + &self.local_namespace_suffix)?;
        Some(Key { namespace: Some(namespace), name })
    }

    /// Whether a local object is in the section's part of the cluster.
    fn covers(&self, namespace: Option<&str>) -> bool {
        namespace.is_none_or(|namespace| {
            namespace.starts_with(&self.namespace_prefix) && namespace.ends_with(&self.local_namespace_suffix)
        })
    }

    fn is_paused(&self, object: &DynamicObject) -> bool {
        object.annotations().get(&self.mark("paused")).is_some_and(|value| value == "true")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    namespace: Option<String>,
    name: String,
}

impl Key {
    fn of(object: &DynamicObject) -> Self {
        Self { namespace: object.namespace(), name: object.name_any() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "{namespace}/{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// Everything in which the clusters differ though they should not, one line each; empty when they are in step.
/// Pairs of which one side is paused are not looked at.
pub async fn differences(
    hub: &Client,
    edge: &Client,
    kind: &ApiResource,
    mapping: &Mapping,
) -> Result<Vec<String>, Error> {
    let params = ListParams::default().labels(&mapping.selector);
    let prefix = mapping.namespaced.then_some(mapping.namespace_prefix.as_str());
    let remote = objects(hub, kind, prefix, &params).await?;
    let everything = ListParams::default();
    let local = objects(edge, kind, prefix, &everything).await?;
    let mut local: BTreeMap<Key, DynamicObject> = local.into_iter().map(|object| (Key::of(&object), object)).collect();
    let mut found = Vec::new();
    let mut pairs = Vec::new();
    let mut live_namespaces = BTreeSet::new();
    for object in &remote {
        let Some(key) = mapping.local_key(object) else { continue };
        live_namespaces.extend(key.namespace.clone());
        let counterpart = local.remove(&key);
        if mapping.is_paused(object) || counterpart.as_ref().is_some_and(|local| mapping.is_paused(local)) {
            continue;
        }
        match counterpart {
            Some(counterpart) => {
                compare_pair(object, &counterpart, mapping, &mut found);
                pairs.push((Key::of(object), counterpart));
            }
            None => found.push(format!("{key}: missing on the edge")),
        }
    }
    for (key, object) in &local {
        let wanted = mapping.unclaimed.contains(&key.to_string()) || mapping.is_paused(object);
        if mapping.covers(key.namespace.as_deref()) && !wanted {
            found.push(format!("{key}: left over on the edge"));
        }
    }
    for namespace in list::<Namespace>(Api::all(edge.clone()), &everything, "the edge's namespaces").await? {
        let name = namespace.name_any();
        let ours = namespace.annotations().contains_key(&mapping.mark("sync-owner"));
        if ours && mapping.covers(Some(&name)) && !live_namespaces.contains(&name) {
            found.push(format!("namespace {name}: left over on the edge"));
        }
    }
    if mapping.write_back {
        compare_secrets(hub, edge, &pairs, mapping, &mut found).await?;
    }
    Ok(found)
}

/// The objects of a kind, or those in the namespaces with this prefix.
pub async fn objects(
    client: &Client,
    kind: &ApiResource,
    prefix: Option<&str>,
    params: &ListParams,
) -> Result<Vec<DynamicObject>, Error> {
    let what = "the objects";
    let Some(prefix) = prefix else { return list(Api::all_with(client.clone(), kind), params, what).await };
    let mut found = Vec::new();
    for namespace in list::<Namespace>(Api::all(client.clone()), &ListParams::default(), "the namespaces").await? {
        let name = namespace.name_any();
        if name.starts_with(prefix) {
            found.extend(list(Api::namespaced_with(client.clone(), &name, kind), params, what).await?);
        }
    }
    Ok(found)
}

async fn list<K>(api: Api<K>, params: &ListParams, what: &str) -> Result<Vec<K>, Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    Ok(api.list(params).await.map_err(Error::kubernetes(format!("list {what}")))?.items)
}

fn compare_pair(remote: &DynamicObject, local: &DynamicObject, mapping: &Mapping, found: &mut Vec<String>) {
    let key = Key::of(local);
    let mut differ = |what: &str, hub: &dyn std::fmt::Debug, edge: &dyn std::fmt::Debug| {
        found.push(format!("{key}: {what}: {hub:?} on the hub, {edge:?} on the edge"));
    };
    if let Some(since) = &remote.metadata.deletion_timestamp {
        differ("being deleted", &since.0, &local.metadata.deletion_timestamp);
    } else if local.metadata.deletion_timestamp.is_some() {
        differ("being deleted", &"not", &local.metadata.deletion_timestamp);
    }
    let (hub_spec, edge_spec) = (content(remote, mapping), content(local, mapping));
    for field in hub_spec.keys().chain(edge_spec.keys()).collect::<BTreeSet<_>>() {
        if hub_spec.get(field) != edge_spec.get(field) {
            differ(field, &hub_spec.get(field), &edge_spec.get(field));
        }
    }
    for (name, value) in remote.labels() {
        if local.labels().get(name) != Some(value) {
            differ(&format!("label {name}"), value, &local.labels().get(name));
        }
    }
    for (name, value) in remote.annotations().iter().filter(|(name, _)| mapping.goes_down(name)) {
        if local.annotations().get(name) != Some(value) {
            differ(&format!("annotation {name}"), value, &local.annotations().get(name));
        }
    }
    if mapping.mirror {
        for name in local.labels().keys().filter(|name| !remote.labels().contains_key(*name)) {
            differ(&format!("label {name}"), &"none", &local.labels().get(name));
        }
        for name in local.annotations().keys().filter(|name| !remote.annotations().contains_key(*name)) {
            differ(&format!("annotation {name}"), &"none", &local.annotations().get(name));
        }
    }
    let finalizer = mapping.mark(&mapping.finalizer);
    if !remote.finalizers().contains(&finalizer) {
        differ("finalizer", &remote.finalizers(), &"does not matter");
    }
    if local.finalizers().contains(&finalizer) {
        differ("finalizer", &"the only place for it", &local.finalizers());
    }
    if mapping.write_back {
        if remote.data.get("status") != local.data.get("status") {
            differ("status", &remote.data.get("status"), &local.data.get("status"));
        }
        // The first is set by the API server alone, so it is absent on kinds without generations.
        for (mark, object) in [("sync-remote-generation", remote), ("sync-local-generation", local)] {
            let noted = remote.annotations().get(&mapping.mark(mark));
            let live = object.metadata.generation.map(|generation| generation.to_string());
            if live.is_some() && noted != live.as_ref() {
                differ(mark, &noted, &live);
            }
        }
    }
}

/// What counts as spec: every top-level field but type, metadata and status, without the fields of the local side.
fn content(object: &DynamicObject, mapping: &Mapping) -> Map<String, Value> {
    let mut content = object.data.clone();
    for pointer in &mapping.local_fields {
        if let Some((parent, field)) = pointer.rsplit_once('/')
            && let Some(parent) = content.pointer_mut(parent).and_then(Value::as_object_mut)
        {
            parent.remove(&field.replace("~1", "/").replace("~0", "~"));
        }
    }
    let Value::Object(mut fields) = content else { return Map::new() };
    fields.remove("status");
    fields
}

/// The named secrets that the local object controls are on the hub, with the same content.
async fn compare_secrets(
    hub: &Client,
    edge: &Client,
    pairs: &[(Key, DynamicObject)],
    mapping: &Mapping,
    found: &mut Vec<String>,
) -> Result<(), Error> {
    if mapping.secret_names.is_empty() {
        return Ok(());
    }
    let everything = ListParams::default();
    let local = list::<Secret>(Api::all(edge.clone()), &everything, "the edge's secrets").await?;
    let remote = list::<Secret>(Api::all(hub.clone()), &everything, "the hub's secrets").await?;
    for secret in local.iter().filter(|secret| mapping.secret_names.contains(&secret.name_any())) {
        let controller = secret.owner_references().iter().find(|owner| owner.controller == Some(true));
        let owner = controller.and_then(|controller| {
            pairs.iter().find(|(_, object)| object.metadata.uid.as_deref() == Some(controller.uid.as_str()))
        });
        let Some((key, _)) = owner else { continue };
        let name = secret.name_any() + &mapping.remote_resource_suffix;
        let counterpart = remote.iter().find(|remote| remote.name_any() == name && remote.namespace() == key.namespace);
        match counterpart {
            None => found.push(format!("{key}: secret {name} is missing on the hub")),
            // Neither content nor hash is shown: a secret's content is nobody's business in a log.
            Some(counterpart) if counterpart.data != secret.data || counterpart.type_ != secret.type_ => {
                found.push(format!("{key}: secret {name} differs"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
