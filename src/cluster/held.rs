//! Which objects bear a finalizer, whatever their labels.

use std::sync::Arc;

use serde::Deserialize;

use super::{Cluster, Error, Kind, ObjectKey};

const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Objects a page.
const PAGE_SIZE: u32 = 500;

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    items: Vec<Item>,
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
    finalizers: Vec<String>,
}

impl Cluster {
    /// The objects of a kind that bear a finalizer: one list of metadata, in pages.
    pub async fn held_by(&self, kind: &Kind, finalizer: &str) -> Result<Vec<ObjectKey>, Error> {
        let collection = kind.collection_path("");
        let mut path = format!("{collection}?limit={PAGE_SIZE}");
        let mut held = Vec::new();
        loop {
            let page: Page = self.fetch_as(&path, METADATA_LIST).await?;
            let ours = page.items.into_iter().map(|item| item.metadata);
            let ours = ours.filter(|item| item.finalizers.iter().any(|held| held == finalizer));
            held.extend(ours.map(|item| ObjectKey::new(item.namespace, item.name)));
            if page.metadata.next.is_empty() {
                return Ok(held);
            }
            // A token is URL-safe as it is.
            path = format!("{collection}?limit={PAGE_SIZE}&continue={}", page.metadata.next);
        }
    }
}
