//! What marks the objects of a kind: finalizers, annotations, managers. Each is one paged list of metadata.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use super::{Cluster, Error, FIELD_MANAGER, Kind, ObjectKey};

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
struct ItemMetadata {
    name: Arc<str>,
    #[serde(default)]
    namespace: Arc<str>,
    #[serde(default)]
    uid: Arc<str>,
    #[serde(default, rename = "resourceVersion")]
    resource_version: Arc<str>,
    #[serde(default)]
    finalizers: Vec<String>,
    #[serde(default)]
    annotations: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(default, rename = "managedFields")]
    managers: Vec<ItemManager>,
}

#[derive(Deserialize)]
struct ItemManager {
    #[serde(default)]
    manager: String,
}

/// The metadata of an object that is neither its content nor its identity.
#[derive(Debug, Clone)]
pub struct Marked {
    /// Namespace and name.
    pub key: ObjectKey,
    pub resource_version: Arc<str>,
    pub finalizers: Vec<String>,
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// The `towline` field managers that wrote it.
    pub managers: Vec<String>,
}

impl Cluster {
    /// Calls `look` with each object of a kind: one paged list of metadata.
    pub async fn each_marked(&self, kind: &Kind, mut look: impl FnMut(Marked)) -> Result<(), Error> {
        self.metadata(
            kind,
            |ItemMetadata { name, namespace, resource_version, finalizers, annotations, managers, .. }| {
                let managers = managers.into_iter().map(|entry| entry.manager);
                let managers = managers.filter(|manager| manager.starts_with(FIELD_MANAGER)).collect();
                look(Marked {
                    key: ObjectKey::new(namespace, name),
                    resource_version,
                    finalizers,
                    annotations,
                    managers,
                });
            },
        )
        .await
    }

    /// The objects of a kind with such a finalizer: one paged list of metadata.
    pub async fn held_by(&self, kind: &Kind, is_such: impl Fn(&str) -> bool) -> Result<Vec<ObjectKey>, Error> {
        let mut held = Vec::new();
        self.metadata(kind, |item| {
            if item.finalizers.iter().any(|finalizer| is_such(finalizer)) {
                held.push(ObjectKey::new(item.namespace, item.name));
            }
        })
        .await?;
        Ok(held)
    }

    /// The keys of all objects of a kind by their UIDs: one paged list of metadata.
    pub async fn uids(&self, kind: &Kind) -> Result<HashMap<Arc<str>, ObjectKey>, Error> {
        let mut keys = HashMap::new();
        self.metadata(kind, |item| {
            keys.insert(item.uid, ObjectKey::new(item.namespace, item.name));
        })
        .await?;
        Ok(keys)
    }

    async fn metadata(&self, kind: &Kind, mut take: impl FnMut(ItemMetadata)) -> Result<(), Error> {
        self.list_metadata(kind, "", usize::MAX, |item: Item| take(item.metadata)).await
    }
}
