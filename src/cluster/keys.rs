//! The keys, finalizers and UIDs of a kind's objects. Each is one paged list of metadata.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::{Cluster, Error, Kind, ObjectKey};

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
    #[serde(default)]
    finalizers: Vec<String>,
}

impl Cluster {
    /// The objects of a kind with such a finalizer: one paged list of metadata.
    pub async fn held_by(&self, kind: &Kind, is_such: impl Fn(&str) -> bool) -> Result<Vec<ObjectKey>, Error> {
        let mut held = Vec::new();
        self.metadata(kind, "", |item| {
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
        self.metadata(kind, "", |item| {
            keys.insert(item.uid, ObjectKey::new(item.namespace, item.name));
        })
        .await?;
        Ok(keys)
    }

    /// The keys of the objects of a kind that these labels select: one paged list of metadata.
    pub async fn keys(&self, kind: &Kind, labels: &str, mut take: impl FnMut(ObjectKey)) -> Result<(), Error> {
        self.metadata(kind, labels, |item| take(ObjectKey::new(item.namespace, item.name))).await
    }

    async fn metadata(&self, kind: &Kind, labels: &str, mut take: impl FnMut(ItemMetadata)) -> Result<(), Error> {
        self.list_metadata(kind, labels, usize::MAX, |item: Item| take(item.metadata)).await
    }
}
