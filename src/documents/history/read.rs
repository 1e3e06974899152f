//! Reads records, the newest first.

use super::super::document::{Key, Timestamp};
use crate::db::{self, Database, Param, Type, column};

const QUERY: &str = "history";
/// A page ends with the record whose details exceed so many bytes; one has at most 8 KiB.
const PAGE_BYTES: i64 = 256 << 10;

/// The kind of the records that say how many of a namespace were dropped, which concern all of its documents.
pub const FORGOTTEN: &str = "history";

/// Which records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    pub subject: Subject,
    /// None that are older.
    pub since: Option<Timestamp>,
    /// Only those behind this one.
    pub after: Option<Position>,
    /// Most records of the page.
    pub limit: u32,
}

/// What records are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Documents of this name, also those that are gone.
    Document(Key),
    /// All documents of a namespace.
    Namespace(String),
    AllDocuments,
    /// Also what concerns no document: refused requests, migrations and the like.
    Everything,
}

/// The place of a record: its time, and its number among all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    at: Timestamp,
    number: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    pub at: Timestamp,
    pub actor: String,
    pub address: String,
    pub via: String,
    pub verb: String,
    /// The kind of the document, by its plural; empty in what concerns none.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub id: Option<String>,
    pub version: Option<i64>,
    /// JSON.
    pub details: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPage {
    pub records: Vec<StoredRecord>,
    /// The last record of the page, if there are more behind it.
    pub next: Option<Position>,
}

impl Position {
    /// As clients get it.
    pub fn encode(&self) -> String {
        format!("{}_{}", self.at, self.number)
    }

    /// Reads what [`Self::encode`] has made; none of another text.
    pub fn decode(text: &str) -> Option<Self> {
        let (at, number) = text.split_once('_')?;
        let (at, number) = (at.parse().ok()?, number.parse().ok()?);
        let position = Self { at, number };
        (position.encode() == text && position.at.is_storable()).then_some(position)
    }
}

/// One page: a statement, which reads by an index from the place where the page begins.
pub async fn page(database: &Database, query: &HistoryQuery) -> Result<RecordPage, db::Error> {
    let HistoryQuery { subject, since, after, limit } = query;
    let limit = i64::from(*limit);
    let more = limit + 1;
    let since = since.as_ref().map(ToString::to_string);
    let after = after.as_ref().map(|Position { at, number }| (at.to_string(), *number));
    let plural = if let Subject::Document(key) = subject { key.kind.plural() } else { "" };
    let mut params: Vec<Param<'_>> = vec![(&limit, Type::INT8), (&more, Type::INT8), (&PAGE_BYTES, Type::INT8)];
    let of_subject = match subject {
        Subject::Document(key) => {
            params.extend([
                (&plural as _, Type::TEXT),
                (&key.namespace as _, Type::TEXT),
                (&key.name as _, Type::TEXT),
            ]);
            "kind = $4 and namespace = $5 and name = $6"
        }
        Subject::Namespace(namespace) => {
            params.push((namespace, Type::TEXT));
            "namespace = $4 and kind <> ''"
        }
        Subject::AllDocuments => "kind <> ''",
        Subject::Everything => "true",
    };
    let mut bounds = Vec::new();
    if let Some(since) = &since {
        params.push((since, Type::TEXT));
        bounds.push(format!(" and at >= ${}::text::timestamptz", params.len()));
    }
    if let Some((at, number)) = &after {
        params.extend([(at as _, Type::TEXT), (number as _, Type::INT8)]);
        bounds.push(format!(" and (at, number) < (${}::text::timestamptz, ${})", params.len() - 1, params.len()));
    }
    let bounds = bounds.concat();
    // What the namespace has lost is a part of what is known of each of its documents.
    let lost = if matches!(subject, Subject::Document(_)) {
        format!(
            "union all (select * from towline_history where kind = '{FORGOTTEN}' and namespace = $5 and name = ''{bounds} \
             order by at desc, number desc limit $2)"
        )
    } else {
        String::new()
    };
    let text = format!(
        "select to_json(at) #>> '{{}}', number, actor, address, via, verb, kind, namespace, name, id::text, version, details, found from ( \
           select *, count(*) over () as found, row_number() over newest as place, \
             sum(octet_length(details)) over newest - octet_length(details) as bytes from ( \
             select * from ( \
               (select * from towline_history where {of_subject}{bounds} order by at desc, number desc limit $2) {lost}) records \
             order by at desc, number desc limit $2) page \
           window newest as (order by at desc, number desc)) measured \
         where place <= $1 and bytes < $3 order by at desc, number desc"
    );
    let rows = database.all(QUERY, &text, &params).await?;
    let (mut records, mut next) = (Vec::with_capacity(rows.len()), None);
    for row in &rows {
        let at: Timestamp = column::<&str>(QUERY, row, 0)?
            .parse()
            .map_err(|error: jiff::Error| db::Error::Decode { query: QUERY, source: std::sync::Arc::new(error) })?;
        let found: i64 = column(QUERY, row, 12)?;
        let has_more = usize::try_from(found).is_ok_and(|found| found > rows.len());
        next = has_more.then_some(Position { at: at.clone(), number: column(QUERY, row, 1)? });
        records.push(StoredRecord {
            at,
            actor: column(QUERY, row, 2)?,
            address: column(QUERY, row, 3)?,
            via: column(QUERY, row, 4)?,
            verb: column(QUERY, row, 5)?,
            kind: column(QUERY, row, 6)?,
            namespace: column(QUERY, row, 7)?,
            name: column(QUERY, row, 8)?,
            id: column(QUERY, row, 9)?,
            version: column(QUERY, row, 10)?,
            details: column(QUERY, row, 11)?,
        });
    }
    Ok(RecordPage { records, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_and_nothing_else_is() {
        let position = Position { at: "2026-11-28T17:11:04.1234Z".parse().expect("a time"), number: 17 };
        assert_eq!(position.encode(), "2026-11-28T17:11:04.123400Z_17");
        assert_eq!(Position::decode(&position.encode()), Some(position));
        for wrong in [
            "",
            "_",
            "17",
            "2026-11-28T17:11:04Z_17",
            "-000100-11-28T17:11:04.000000Z_1",
            "0000-11-28T17:11:04.000000Z_1",
            "2026-11-28T17:11:04.123400Z_+1",
        ] {
            assert_eq!(Position::decode(wrong), None, "{wrong}");
        }
    }
}
