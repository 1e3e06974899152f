//! Paged lists of the metadata of a kind's objects.

mod elements;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};

pub use elements::Element;

use super::reply::{Reading, Unreadable};
use super::{Cluster, Error, Kind};
use elements::{Elements, LARGEST_ELEMENT};

const WHOLE_LIST: &str = "application/json";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Objects a page.
const PAGE_SIZE: usize = 500;

/// A page without its objects.
#[derive(Deserialize)]
struct Frame {
    metadata: PageMetadata,
    /// An empty list of a custom kind's metadata is null.
    #[serde(default, rename = "items", deserialize_with = "no_items")]
    _items: (),
}

/// Objects that are left in the frame are under a name that only looks like another one.
fn no_items<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match Option::<Vec<IgnoredAny>>::deserialize(deserializer)? {
        Some(items) if !items.is_empty() => Err(D::Error::custom("the list of objects is not where it should be")),
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// A page that arrives. Reading ends at the first object too many: a server that ignores the limit does not choose how many objects
/// are in memory.
struct PageReading<F, T> {
    elements: Elements,
    choose: F,
    chosen: Vec<T>,
    count: usize,
}

/// What was read of a page.
struct Page<T> {
    chosen: Vec<T>,
    count: usize,
    next: String,
}

impl<F, T> PageReading<F, T> {
    fn new(largest: usize, choose: F) -> Self {
        Self { elements: Elements::new(largest), choose, chosen: Vec::new(), count: 0 }
    }
}

impl<F, T> Reading for PageReading<F, T>
where
    F: FnMut(Element<'_>) -> serde_json::Result<Option<T>>,
{
    type Read = Page<T>;

    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable> {
        let Self { elements, choose, chosen, count } = self;
        elements.feed(data, |element| {
            *count += 1;
            if *count > PAGE_SIZE {
                return Err(Unreadable::TooMuch(format!("a page has more than {PAGE_SIZE} objects")));
            }
            chosen.extend(choose(element)?);
            Ok(())
        })
    }

    fn end(self, _: StatusCode) -> serde_json::Result<Page<T>> {
        let Frame { metadata: PageMetadata { next }, .. } = serde_json::from_slice(self.elements.frame())?;
        Ok(Page { chosen: self.chosen, count: self.count, next })
    }
}

/// A list of metadata, or of whole objects, that is read page by page, and object by object, so that no more is in memory than what is taken from a page.
#[derive(Debug)]
pub struct Pages {
    resource: String,
    first: String,
    /// Where the next page is; none after the last one.
    next: Option<String>,
    most: usize,
    left: usize,
    /// The most bytes of an object, or of its metadata.
    largest: usize,
    accept: &'static str,
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
        let next = Some(first.clone());
        Self {
            resource: kind.full_resource(),
            next,
            first,
            most,
            left: most,
            largest: LARGEST_ELEMENT,
            accept: METADATA_LIST,
        }
    }

    /// The same list, of which an object with more metadata than this is an error: who reads several lists at once has an object of
    /// each in memory.
    #[must_use]
    pub fn of_objects_up_to(self, bytes: usize) -> Self {
        Self { largest: bytes, ..self }
    }

    /// The same list with the objects as a whole.
    #[must_use]
    pub fn of_whole_objects(self) -> Self {
        Self { accept: WHOLE_LIST, ..self }
    }

    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Reads the next page: only the metadata, as `T` reads it. None after the last page. After an error the same page is read
    /// again.
    pub async fn next<T: DeserializeOwned + Send>(&mut self, cluster: &Cluster) -> Result<Option<Vec<T>>, Error> {
        self.next_chosen(cluster, |element| element.read().map(Some)).await
    }

    /// The same with what `choose` takes from each object. The others count, and nothing is kept of them.
    pub async fn next_chosen<T: Send>(
        &mut self,
        cluster: &Cluster,
        choose: impl FnMut(Element<'_>) -> serde_json::Result<Option<T>> + Send,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some(path) = &self.next else { return Ok(None) };
        let page = cluster.fetch_in_parts(path, self.accept, PageReading::new(self.largest, choose)).await?;
        self.left = self.left.checked_sub(page.count.max(1)).ok_or_else(|| self.too_many())?;
        self.next = match page.next.as_str() {
            "" => None,
            token => Some(format!("{}&continue={}", self.first, utf8_percent_encode(token, NON_ALPHANUMERIC))),
        };
        Ok(Some(page.chosen))
    }

    fn too_many(&self) -> Error {
        let Self { resource, most, .. } = self;
        Error::Decode { source: format!("the list of {resource} has more than {most} objects").into() }
    }
}

impl Cluster {
    /// Calls `take` with each object of a list ([`Pages::of`]).
    pub(super) async fn list_metadata<T: DeserializeOwned + Send>(
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

    fn read(text: &str) -> Result<Page<Value>, Unreadable> {
        let mut reading = PageReading::new(LARGEST_ELEMENT, |element: Element<'_>| element.read().map(Some));
        reading.take(text.as_bytes())?;
        Ok(reading.end(StatusCode::OK)?)
    }

    #[test]
    fn an_empty_list_of_a_custom_kind_may_have_null_items() {
        for text in [r#"{"metadata":{"resourceVersion":"7"},"items":null}"#, r#"{"metadata":{},"items":[]}"#] {
            let page = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((page.count, page.chosen.len(), page.next.as_str()), (0, 0, ""));
        }
    }

    #[test]
    fn a_page_with_too_many_objects_is_not_read_to_its_end() {
        let page = |count: usize, end: &str| {
            let items = vec!["{}"; count].join(",");
            read(&format!(r#"{{"metadata":{{"continue":"t"}},"items":[{items}{end}"#))
        };
        let most = page(PAGE_SIZE, "]}").unwrap();
        assert_eq!((most.count, most.chosen.len(), most.next.as_str()), (PAGE_SIZE, PAGE_SIZE, "t"));
        // What follows is no JSON, and was not reached.
        let error = page(PAGE_SIZE + 1, ",?").map(drop).unwrap_err().to_string();
        assert!(error.starts_with("a page has more than 500 objects"), "{error}");
    }

    #[test]
    fn of_objects_that_are_not_chosen_nothing_is_kept_but_they_count() {
        let mut reading = PageReading::new(LARGEST_ELEMENT, |element: Element<'_>| {
            let key = element.key()?;
            Ok((&*key.name == "b").then_some(key))
        });
        let text = r#"{"metadata":{},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}},{"metadata":{"name":"c"}}]}"#;
        reading.take(text.as_bytes()).unwrap();
        let page = reading.end(StatusCode::OK).unwrap();
        assert_eq!((page.chosen, page.count), (vec![crate::cluster::ObjectKey::new("", "b")], 3));
    }

    #[test]
    fn a_page_whose_objects_are_elsewhere_is_an_error_and_not_an_empty_list() {
        for text in ["{}", r#"{"metadata":{},"\u0069tems":[{}]}"#, r#"{"metadata":{},"items":{}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
        // The same member twice.
        assert!(read(r#"{"metadata":{},"items":[{}],"items":[{}]}"#).is_err());
    }
}
