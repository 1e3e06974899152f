//! Lists, page by page.
//!
//! The first page reads the newest version R and its rows in one statement. Further pages show the state at R exactly, whatever
//! was written in between: the documents that have not changed since R, and for the others the row of the log that held at R.
//! If the log no longer has those rows, the page is [`ListError::Gone`], and the client starts again.
//!
//! The database ends a page where it is full. Clients get its values as the database prints them ([`list_json`]); only who needs
//! [`Document`]s parses them ([`list`]).

mod item;
mod ordered;
mod statement;
mod token;

use super::blocking::BlockingPool;
use super::document::{Document, UnreadableRow};
use super::filter::{Fields, Filter};
use super::kind::Kind;
use super::large::{LargeSlot, LargeSlots};
use super::list_error::ListError;
use super::object::Object;
use super::problem::Problem;
use super::slots::SlotOwner;
use crate::cluster::full_text;
use crate::db::{Database, Row, column};
use ordered::Ordered;

pub(super) use item::Item;
pub use token::Continue;

/// Most items of a page, unless the client asks for fewer.
pub const DEFAULT_LIMIT: u32 = 500;
/// Most items of a page.
pub const MAX_LIMIT: u32 = 1000;
/// A page ends before the item that would make it larger than this, unless it is the first one.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A page that is asked for.
#[derive(Clone, Debug)]
pub struct ListQuery {
    pub filter: Filter,
    pub fields: Fields,
    /// Most items, from 1 to [`MAX_LIMIT`]; other values are replaced by the nearest of these.
    pub limit: u32,
    /// The place behind the previous page; `None` for the first one.
    pub after: Option<Continue>,
}

/// A page of a list, in the order of namespace and name, bytewise.
#[derive(Clone, Debug)]
pub struct Page<Items = Vec<Document>> {
    /// The version whose state the list shows.
    pub version: i64,
    /// At least one item, unless nothing is left.
    pub items: Items,
    /// The place behind this page; `None` if it is the last one.
    pub next: Option<Continue>,
}

/// Reads a page with one statement.
pub async fn list(database: &Database, query: &ListQuery) -> Result<Page, ListError> {
    let rows = Rows::fetch(database, query, MAX_BYTES).await?;
    let add = |items: &mut Vec<Document>, item: &Item<'_>| {
        items.push(item.document()?);
        Ok(())
    };
    rows.read(&BlockingPool::default(), add).await
}

/// The same with the items as clients see them: JSON, with a comma between two of them. A large page needs a slot of whoever takes it
/// before it is printed.
pub async fn list_json(
    database: &Database,
    blocking: &BlockingPool,
    query: &ListQuery,
    (slots, owner): (&LargeSlots, SlotOwner),
) -> Result<(Page<Vec<u8>>, LargeSlot), Problem> {
    let rows = Rows::fetch(database, query, MAX_BYTES).await?;
    let slot = slots.try_take(rows.bytes(), owner)?;
    let fields = query.fields;
    let add = move |items: &mut Vec<u8>, item: &Item<'_>| {
        if !items.is_empty() {
            items.push(b',');
        }
        item.write(fields, items)?;
        Ok(())
    };
    Ok((rows.read(blocking, add).await?, slot))
}

/// The same for a watch, which begins with the state, with another limit for the size of a page.
pub(super) async fn list_objects(
    database: &Database,
    blocking: &BlockingPool,
    query: &ListQuery,
    max_bytes: usize,
) -> Result<Page<Vec<Object>>, ListError> {
    let fields = query.fields;
    let add = move |(items, json): &mut (Vec<Object>, Vec<u8>), item: &Item<'_>| {
        json.clear();
        let metadata_end = item.write(fields, json)?;
        items.push(Object::rendered(json, metadata_end, item.version()));
        Ok(())
    };
    let page = Rows::fetch(database, query, max_bytes).await?.read(blocking, add).await?;
    Ok(Page { version: page.version, items: page.items.0, next: page.next })
}

/// The rows of a page. Their connection is free again: they may wait for their turn to be read.
struct Rows {
    all: Vec<Row>,
    kind: Kind,
    /// Whether it is a further page, which shows the state of an earlier version.
    is_later: bool,
}

impl Rows {
    const QUERY: &'static str = "list";
    /// Where the columns of an item begin.
    const FIRST: usize = 4;

    async fn fetch(database: &Database, query: &ListQuery, max_bytes: usize) -> Result<Self, ListError> {
        let statement = statement::of(query, query.limit.clamp(1, MAX_LIMIT), max_bytes);
        let rows = database.all(Self::QUERY, &statement.text, &statement.parameters.as_params()).await?;
        Ok(Self { all: rows, kind: query.filter.kind(), is_later: query.after.is_some() })
    }

    fn bytes(&self) -> usize {
        self.all.iter().map(Row::raw_size_bytes).sum()
    }

    /// Makes items of them; of many or large ones on a blocking thread.
    async fn read<Items: Default + Send + 'static>(
        self,
        blocking: &BlockingPool,
        add: impl Fn(&mut Items, &Item<'_>) -> Result<(), UnreadableRow> + Send + 'static,
    ) -> Result<Page<Items>, ListError> {
        blocking.run(self.bytes(), move || self.read_here(add)).await
    }

    fn read_here<Items: Default>(
        self,
        add: impl Fn(&mut Items, &Item<'_>) -> Result<(), UnreadableRow>,
    ) -> Result<Page<Items>, ListError> {
        const QUERY: &str = Rows::QUERY;
        let (mut items, mut ordered, mut last) = (Items::default(), Ordered::new(), None);
        // Without a row, the database has no versions.
        let mut state = None;
        for row in self.all {
            let (is_whole, is_gone, version): (bool, bool, i64) =
                (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?, column(QUERY, &row, 2)?);
            let found: i64 = column(QUERY, &row, 3)?;
            state = Some((is_whole, is_gone, version, found));
            let Some(number) = item::number(QUERY, &row, Self::FIRST)? else { continue };
            ordered.put(number, row);
            while let Some(row) = ordered.take() {
                let Some(item) = Item::read(QUERY, &row, Self::FIRST, self.kind)? else { continue };
                match add(&mut items, &item) {
                    Ok(()) => {}
                    // Every further attempt would fail. A client that starts again gets the document itself, not a row of the log.
                    Err(error) if self.is_later => {
                        let (version, error) = (item.version(), full_text(&error));
                        tracing::error!(
                            version,
                            error,
                            "a row of the log can't be read, ending the list that needs it"
                        );
                        return Err(ListError::Gone);
                    }
                    Err(error) => return Err(error.into()),
                }
                if ordered.taken() < found {
                    last = Some((item.namespace().to_owned(), item.name().to_owned()));
                }
            }
        }
        if ordered.has_gap() {
            return Err(ListError::Gap);
        }
        let (version, found) = match state {
            Some((true, false, version, found)) => (version, found),
            Some((true, true, ..)) => return Err(ListError::Gone),
            Some((false, ..)) | None => return Err(ListError::Restoring),
        };
        let next = last.filter(|_| ordered.taken() < found);
        Ok(Page { version, items, next: next.map(|(namespace, name)| Continue { version, namespace, name }) })
    }
}
