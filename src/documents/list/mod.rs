//! Lists, page by page (L1 to L5, V8).
//!
//! The first page reads the newest version R and its rows in one statement. Further pages show the state at R exactly, whatever
//! was written in between: the documents that have not changed since R, and for the others the row of the log that held at R.
//! If the log no longer has those rows, the page is [`ListError::Gone`], and the client starts again.

mod statement;
mod token;

use super::document::Document;
use super::filter::{Fields, Filter};
use super::list_error::ListError;
use crate::db::{Database, column};

pub use token::Continue;

/// Most items of a page, unless the client asks for fewer (L1).
pub const DEFAULT_LIMIT: u32 = 500;
/// Most items of a page (L1).
pub const MAX_LIMIT: u32 = 1000;
/// A page ends before the item that would make it larger than this, unless it is the first one (L2).
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A page that is asked for.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Which documents.
    pub filter: Filter,
    /// How much of each.
    pub fields: Fields,
    /// Most items, from 1 to [`MAX_LIMIT`]; other values are replaced by the nearest of these.
    pub limit: u32,
    /// The place behind the previous page; `None` for the first one.
    pub after: Option<Continue>,
}

/// A page of a list, in the order of namespace and name, bytewise.
#[derive(Clone, Debug)]
pub struct Page {
    /// The version whose state the list shows.
    pub version: i64,
    /// At least one item, unless nothing is left.
    pub items: Vec<Document>,
    /// The place behind this page; `None` if it is the last one.
    pub next: Option<Continue>,
}

/// Reads a page with one statement.
pub async fn list(database: &Database, query: &ListQuery) -> Result<Page, ListError> {
    page(database, query, MAX_BYTES).await
}

/// The same with another limit for the size of a page.
pub(super) async fn page(database: &Database, query: &ListQuery, max_bytes: usize) -> Result<Page, ListError> {
    const QUERY: &str = "list";
    let limit = query.limit.clamp(1, MAX_LIMIT);
    let statement = statement::of(query, limit);
    let mut rows = database.rows(QUERY, &statement.text, &statement.parameters.as_params()).await?;
    let mut version = query.after.as_ref().map(|after| after.version);
    let (mut items, mut has_more, mut is_gone) = (Items::new(limit as usize, max_bytes), false, false);
    // Rows that are left unread would end the connection.
    while let Some(row) = rows.next().await? {
        if query.after.is_some() {
            is_gone = column(QUERY, &row, 0)?;
        } else {
            version = Some(column(QUERY, &row, 0)?);
        }
        let Some(document) = column::<Option<&str>>(QUERY, &row, 1)? else { continue };
        if !items.has_room_for(document.len()) {
            has_more = true;
            if items.is_full() {
                // The last row.
                continue;
            }
            // A new connection costs less than to read large documents that are not shown.
            break;
        }
        items.add(Document::from_row(document)?, document.len());
    }
    if is_gone {
        return Err(ListError::Gone);
    }
    // Both statements always return a row.
    let version = version.ok_or(ListError::Gone)?;
    let items = items.documents;
    let last = items.last().filter(|_| has_more);
    let next = last.map(|last| Continue { version, namespace: last.namespace.clone(), name: last.name.clone() });
    Ok(Page { version, items, next })
}

/// The items of a page so far.
struct Items {
    documents: Vec<Document>,
    limit: usize,
    bytes: usize,
    max_bytes: usize,
}

impl Items {
    fn new(limit: usize, max_bytes: usize) -> Self {
        Self { documents: Vec::new(), limit, bytes: 0, max_bytes }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.documents.is_empty() || !self.is_full() && self.bytes + bytes <= self.max_bytes
    }

    fn is_full(&self) -> bool {
        self.documents.len() >= self.limit
    }

    fn add(&mut self, document: Document, bytes: usize) {
        self.documents.push(document);
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        let row = r#"{"id": "6f1c0000-0000-4000-8000-000000000000", "data": {}, "kind": "clusters", "name": "c1", "labels": {},
            "status": {}, "version": 41, "namespace": "foo", "created_at": "2026-11-21T23:40:00+00:00", "deleted_at": null,
            "finalizers": [], "generation": 1, "updated_at": "2026-11-21T23:40:00+00:00", "annotations": {}}"#;
        Document::from_row(row).expect("a row")
    }

    #[test]
    fn a_page_ends_at_its_limit_or_its_size_and_has_at_least_one_item() {
        let mut items = Items::new(3, 100);
        assert!(items.has_room_for(1000), "the first item always has room");
        items.add(document(), 40);
        assert!(items.has_room_for(60) && !items.has_room_for(61));
        items.add(document(), 60);
        assert!(items.has_room_for(0) && !items.has_room_for(1));
        items.add(document(), 0);
        assert!(!items.has_room_for(0), "the limit is reached");
        let mut items = Items::new(3, 100);
        items.add(document(), 1000);
        assert!(!items.has_room_for(0));
    }
}
