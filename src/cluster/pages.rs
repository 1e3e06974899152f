//! Paged lists of the metadata of a kind's objects.

use std::fmt;
use std::marker::PhantomData;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Cluster, Error, Kind};

const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Objects a page.
const PAGE_SIZE: usize = 500;

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    /// An empty list of a custom kind's metadata is null.
    items: Option<Items<T>>,
}

/// The objects of a page. Reading ends at the first one too many: a server that ignores the limit does not choose how many objects
/// are in memory.
struct Items<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Counting<T> {
            type Value = Items<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "at most {PAGE_SIZE} objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Items<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = elements.next_element()? {
                    if items.len() >= PAGE_SIZE {
                        return Err(A::Error::custom(format_args!("a page has more than {PAGE_SIZE} objects")));
                    }
                    items.push(item);
                }
                Ok(Items(items))
            }
        }

        deserializer.deserialize_seq(Counting(PhantomData))
    }
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// A list of metadata that is read page by page, so that no more than a page is in memory.
#[derive(Debug)]
pub struct Pages {
    resource: String,
    first: String,
    /// Where the next page is; none after the last one.
    next: Option<String>,
    most: usize,
    left: usize,
}

impl Pages {
    /// Of the objects of a kind in all namespaces that a label selector selects; an empty one selects all. It is an error if the
    /// server has more than `most`, and pages without objects count, too.
    pub fn of(kind: &Kind, labels: &str, most: usize) -> Self {
        let mut first = format!("{}?limit={PAGE_SIZE}", kind.collection_path(""));
        if !labels.is_empty() {
            first.push_str("&labelSelector=");
            first.extend(utf8_percent_encode(labels, NON_ALPHANUMERIC));
        }
        Self { resource: kind.full_resource(), next: Some(first.clone()), first, most, left: most }
    }

    /// Whether there is another page.
    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Reads the next page: only the metadata, as `T` reads it. None after the last page. After an error the same page is read
    /// again.
    pub async fn next<T: DeserializeOwned>(&mut self, cluster: &Cluster) -> Result<Option<Vec<T>>, Error> {
        let Some(path) = &self.next else { return Ok(None) };
        let page: Page<T> = cluster.fetch_as(path, METADATA_LIST).await?;
        let items = page.items.map(|Items(items)| items).unwrap_or_default();
        self.left = self.left.checked_sub(items.len().max(1)).ok_or_else(|| self.too_many())?;
        self.next = match page.metadata.next.as_str() {
            "" => None,
            token => Some(format!("{}&continue={}", self.first, utf8_percent_encode(token, NON_ALPHANUMERIC))),
        };
        Ok(Some(items))
    }

    fn too_many(&self) -> Error {
        let Self { resource, most, .. } = self;
        Error::Decode { source: format!("the list of {resource} has more than {most} objects").into() }
    }
}

impl Cluster {
    /// Calls `take` with each object of a list ([`Pages::of`]).
    pub async fn list_metadata<T: DeserializeOwned>(
        &self,
        kind: &Kind,
        labels: &str,
        most: usize,
        mut take: impl FnMut(T),
    ) -> Result<(), Error> {
        let mut pages = Pages::of(kind, labels, most);
        while let Some(items) = pages.next(self).await? {
            items.into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn an_empty_list_of_a_custom_kind_may_have_null_items() {
        for text in [r#"{"metadata":{"resourceVersion":"7"},"items":null}"#, r#"{"metadata":{},"items":[]}"#] {
            let page: Page<Value> = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(page.items.map_or(0, |Items(items)| items.len()), 0);
        }
    }

    #[test]
    fn a_page_with_too_many_objects_is_not_read_to_its_end() {
        let page = |count: usize, end: &str| {
            let items = vec!["{}"; count].join(",");
            serde_json::from_str::<Page<Value>>(&format!(r#"{{"metadata":{{}},"items":[{items}{end}"#))
        };
        let most = page(PAGE_SIZE, "]}").map(|page| page.items.map(|Items(items)| items.len()));
        assert!(matches!(most, Ok(Some(PAGE_SIZE))));
        // What follows is no JSON, and was not reached.
        let error = page(PAGE_SIZE + 1, ",?").map(drop).unwrap_err().to_string();
        assert!(error.starts_with("a page has more than 500 objects"), "{error}");
    }
}
