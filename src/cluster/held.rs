//! The metadata of the objects of a kind: paged lists.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Cluster, Error, FIELD_MANAGER, Kind, ObjectKey};

const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Objects a page.
const PAGE_SIZE: u32 = 500;

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    /// An empty list of a custom kind's metadata is null.
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

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
    /// Version.
    pub resource_version: Arc<str>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Annotations.
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

    /// Calls `take` with each object of a kind in all namespaces that a label selector selects (an empty one selects all), page
    /// by page: only with its metadata, as `T` reads it. At most with so many; it is an error if the server has more, and
    /// pages without objects count, too.
    pub async fn list_metadata<T: DeserializeOwned>(
        &self,
        kind: &Kind,
        labels: &str,
        most: usize,
        mut take: impl FnMut(T),
    ) -> Result<(), Error> {
        let mut first = format!("{}?limit={PAGE_SIZE}", kind.collection_path(""));
        if !labels.is_empty() {
            first.push_str("&labelSelector=");
            first.extend(utf8_percent_encode(labels, NON_ALPHANUMERIC));
        }
        let (mut path, mut left) = (first.clone(), most);
        loop {
            let page: Page<T> = self.fetch_as(&path, METADATA_LIST).await?;
            let items = page.items.unwrap_or_default();
            left = left.checked_sub(items.len().max(1)).ok_or_else(|| too_many(kind, most))?;
            items.into_iter().for_each(&mut take);
            if page.metadata.next.is_empty() {
                return Ok(());
            }
            // A continue token is URL-safe.
            path = format!("{first}&continue={}", page.metadata.next);
        }
    }
}

fn too_many(kind: &Kind, most: usize) -> Error {
    Error::Decode { source: format!("the list of {} has more than {most} objects", kind.full_resource()).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_of_a_custom_kind_may_have_null_items() {
        for text in [r#"{"metadata":{"resourceVersion":"7"},"items":null}"#, r#"{"metadata":{},"items":[]}"#] {
            let page: Page<Item> = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(page.items.into_iter().flatten().count(), 0);
        }
    }
}
