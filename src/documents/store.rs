//! Reads of single documents, through the pool. Each is one statement.

use super::document::{Document, Key};
use super::list_error::ListError;
use crate::db::{self, Database, Row, Type, column};

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

impl Store {
    /// Reads this database.
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// A document.
    pub async fn get(&self, key: &Key) -> Result<Option<Document>, ListError> {
        const QUERY: &str = "get";
        const TEXT: &str = "select (to_jsonb(d) - 'sealed')::text from towline_documents d \
             where kind = $1 and namespace = $2 and name = $3";
        let row = self.row(QUERY, TEXT, key).await?;
        row.map(|row| Ok(Document::from_row(column(QUERY, &row, 0)?)?)).transpose()
    }

    /// A document with its sealed field.
    pub async fn stored(&self, key: &Key) -> Result<Option<Stored>, ListError> {
        const QUERY: &str = "get_stored";
        const TEXT: &str = "select (to_jsonb(d) - 'sealed')::text, sealed from towline_documents d \
             where kind = $1 and namespace = $2 and name = $3";
        let Some(row) = self.row(QUERY, TEXT, key).await? else { return Ok(None) };
        let document = Document::from_row(column(QUERY, &row, 0)?)?;
        Ok(Some(Stored { document, sealed: column(QUERY, &row, 1)? }))
    }

    async fn row(&self, query: &'static str, text: &str, key: &Key) -> Result<Option<Row>, db::Error> {
        let kind = key.kind.plural();
        let params = [(&kind as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
        Ok(self.database.all(query, text, &params).await?.pop())
    }
}
