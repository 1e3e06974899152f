//! Reads of single documents, through the pool. Each is one statement.

use super::document::{Document, Key};
use super::list_error::ListError;
use super::weight::Weight;
use super::whole;
use crate::db::{Database, Row, Type, column};

/// Reads documents.
#[derive(Clone)]
pub struct Store {
    database: Database,
}

/// A document with its sealed field as it is stored.
#[derive(Clone, PartialEq)]
pub struct Stored {
    /// The document.
    pub document: Document,
    /// Its sealed field, sealed; none where it was never set.
    pub sealed: Option<Vec<u8>>,
}

/// A document that has not been read yet, which takes long if it is large.
pub struct StoredRow {
    text: String,
    sealed: Option<Vec<u8>>,
}

impl StoredRow {
    /// A row as `to_jsonb(row) - 'sealed'` prints it, and its sealed field.
    pub(super) fn of(text: String, sealed: Option<Vec<u8>>) -> Self {
        Self { text, sealed }
    }

    /// Bytes of its text.
    pub fn length(&self) -> usize {
        self.text.len()
    }

    /// How much there is to read.
    pub fn weight(&self) -> Weight {
        Weight::of_json(self.text.as_bytes())
    }

    /// Reads it.
    pub fn read(self) -> Result<Stored, ListError> {
        Ok(Stored { document: Document::from_row(&self.text)?, sealed: self.sealed })
    }
}

impl Store {
    /// Reads this database.
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// A document.
    pub async fn get(&self, key: &Key) -> Result<Option<Document>, ListError> {
        const QUERY: &str = "get";
        let Some(row) = self.row(QUERY, "null::bytea", key).await? else { return Ok(None) };
        let document = column::<Option<&str>>(QUERY, &row, 1)?;
        document.map(|document| Ok(Document::from_row(document)?)).transpose()
    }

    /// A document with its sealed field.
    pub async fn stored(&self, key: &Key) -> Result<Option<StoredRow>, ListError> {
        const QUERY: &str = "get_stored";
        let Some(row) = self.row(QUERY, "sealed", key).await? else { return Ok(None) };
        let Some(document) = column::<Option<&str>>(QUERY, &row, 1)? else { return Ok(None) };
        Ok(Some(StoredRow::of(document.to_owned(), column(QUERY, &row, 2)?)))
    }

    /// Whether the database is whole, the document, and this expression of its row.
    async fn row(&self, query: &'static str, sealed: &str, key: &Key) -> Result<Option<Row>, ListError> {
        let text = format!(
            "select s.is_whole, d.* from ( \
               select {is_whole} as is_whole from towline_meta m, towline_version s) s \
             left join lateral ( \
               select (to_jsonb(t) - 'sealed')::text, {sealed} from towline_documents t \
               where kind = $1 and namespace = $2 and name = $3) d on true",
            is_whole = whole::CONDITION,
        );
        let kind = key.kind.plural();
        let params = [(&kind as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
        let row = self.database.all(query, &text, &params).await?.pop();
        match row.as_ref().map(|row| column::<bool>(query, row, 0)).transpose()? {
            Some(true) => Ok(row),
            Some(false) | None => Err(ListError::Restoring),
        }
    }
}
