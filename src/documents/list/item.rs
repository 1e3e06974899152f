//! An item of a page: a row of the list's statement.

use serde_json::{Map, Value};

use crate::db::{self, FromSql, Row, Type, column};
use crate::documents::compact;
use crate::documents::document::{Document, Timestamp, UnreadableRow};
use crate::documents::filter::Fields;
use crate::documents::kind::Kind;
use crate::documents::object::Object;

/// A document of a page, or a single one. Its values are as the database prints them.
pub(in crate::documents) struct Item<'r> {
    kind: Kind,
    namespace: &'r str,
    name: &'r str,
    version: i64,
    content: Content<'r>,
}

enum Content<'r> {
    /// The columns of a document.
    Columns(Box<Columns<'r>>),
    /// A document of the log.
    Logged(&'r str),
}

struct Columns<'r> {
    id: &'r str,
    generation: i64,
    labels: &'r str,
    annotations: &'r str,
    finalizers: Vec<&'r str>,
    created_at: Timestamp,
    updated_at: Timestamp,
    deleted_at: Option<Timestamp>,
    /// With [`Fields::Metadata`] the statement leaves out this and the status.
    data: Option<&'r str>,
    status: Option<&'r str>,
}

/// The place in the page, from 1, of the item whose columns begin with this one; `None` if there is none.
pub(super) fn number(query: &'static str, row: &Row, first: usize) -> Result<Option<i64>, db::Error> {
    column(query, row, first)
}

impl<'r> Item<'r> {
    /// The item whose columns begin with this one of a row; `None` if there is none.
    pub(in crate::documents) fn read(
        query: &'static str,
        row: &'r Row,
        first: usize,
        kind: Kind,
    ) -> Result<Option<Self>, db::Error> {
        if number(query, row, first)?.is_none() {
            return Ok(None);
        }
        let mut index = first + 1;
        let mut next = || {
            index += 1;
            index - 1
        };
        let (namespace, name) = (column(query, row, next())?, column(query, row, next())?);
        let version = column(query, row, next())?;
        let content = match column(query, row, next())? {
            Some(id) => Content::Columns(Box::new(Columns {
                id,
                generation: column(query, row, next())?,
                labels: column(query, row, next())?,
                annotations: column(query, row, next())?,
                finalizers: column(query, row, next())?,
                created_at: column::<Moment>(query, row, next())?.0,
                updated_at: column::<Moment>(query, row, next())?.0,
                deleted_at: column::<Option<Moment>>(query, row, next())?.map(|moment| moment.0),
                data: column(query, row, next())?,
                status: column(query, row, next())?,
            })),
            None => Content::Logged(column(query, row, first + 14)?),
        };
        Ok(Some(Self { kind, namespace, name, version, content }))
    }

    pub(super) fn namespace(&self) -> &'r str {
        self.namespace
    }

    pub(super) fn name(&self) -> &'r str {
        self.name
    }

    pub(in crate::documents) fn version(&self) -> i64 {
        self.version
    }

    pub(in crate::documents) fn document(&self) -> Result<Document, UnreadableRow> {
        let columns = match &self.content {
            Content::Columns(columns) => columns,
            Content::Logged(text) => return Document::from_row(text),
        };
        let map = |text: Option<&str>| text.map_or(Ok(Map::new()), serde_json::from_str::<Map<String, Value>>);
        Ok(Document {
            kind: self.kind,
            id: serde_json::from_value(Value::from(columns.id))?,
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            labels: serde_json::from_str(columns.labels)?,
            annotations: serde_json::from_str(columns.annotations)?,
            finalizers: columns.finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect(),
            generation: columns.generation,
            version: self.version,
            created_at: columns.created_at.clone(),
            updated_at: columns.updated_at.clone(),
            deleted_at: columns.deleted_at.clone(),
            data: map(columns.data)?,
            status: map(columns.status)?,
        })
    }

    /// Appends the document as JSON, as its own serialization would, and returns the length of its metadata without the brace that
    /// closes them.
    pub(in crate::documents) fn write(&self, fields: Fields, into: &mut Vec<u8>) -> Result<usize, UnreadableRow> {
        let columns = match &self.content {
            Content::Columns(columns) => columns,
            Content::Logged(text) => {
                let object = Object::of(&Document::from_row(text)?);
                object.write(fields, into);
                return Ok(object.metadata_end());
            }
        };
        let begin = into.len();
        let mut text = |field: &str, value: &str| {
            into.extend_from_slice(field.as_bytes());
            // A text always becomes JSON.
            let _ = serde_json::to_writer(&mut *into, value);
        };
        text("{\"kind\":", self.kind.name());
        text(",\"id\":", columns.id);
        if self.kind.is_namespaced() {
            text(",\"namespace\":", self.namespace);
        }
        text(",\"name\":", self.name);
        text(",\"resourceVersion\":", &self.version.to_string());
        into.extend_from_slice(b",\"generation\":");
        into.extend_from_slice(columns.generation.to_string().as_bytes());
        into.extend_from_slice(b",\"labels\":");
        compact::write(columns.labels, into);
        into.extend_from_slice(b",\"annotations\":");
        compact::write(columns.annotations, into);
        into.extend_from_slice(b",\"finalizers\":");
        serde_json::to_writer(&mut *into, &columns.finalizers)?;
        let times = [
            ("createdAt", Some(&columns.created_at)),
            ("updatedAt", Some(&columns.updated_at)),
            ("deletedAt", columns.deleted_at.as_ref()),
        ];
        for (field, time) in times {
            if let Some(time) = time {
                into.extend_from_slice(format!(",\"{field}\":\"{time}\"").as_bytes());
            }
        }
        let metadata_end = into.len() - begin;
        if let (Fields::All, Some(data), Some(status)) = (fields, columns.data, columns.status) {
            compact::write_fields(data, into);
            into.extend_from_slice(b",\"status\":");
            compact::write(status, into);
        }
        into.push(b'}');
        Ok(metadata_end)
    }
}

/// `timestamptz`: microseconds since 2000.
struct Moment(Timestamp);

impl<'r> FromSql<'r> for Moment {
    fn from_sql(of_type: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        /// From 1970 to 2000.
        const EPOCH: i64 = 946_684_800_000_000;
        let microseconds = i64::from_sql(of_type, raw)?;
        let moment = jiff::Timestamp::from_microsecond(microseconds.saturating_add(EPOCH))?;
        Ok(Self(moment.into()))
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::TIMESTAMPTZ
    }
}
