//! Reads of single documents, through the pool. Each is one statement.

use std::sync::LazyLock;

use super::blocking::BlockingPool;
use super::cluster_sync;
use super::document::{Document, Key};
use super::filter::Fields;
use super::kind::Kind;
use super::list::Item;
use super::list_error::ListError;
use super::restored::IS_WHOLE;
use super::syncset_health;
use crate::db::{Database, Row, Text, Type, column};

/// Reads documents.
#[derive(Clone)]
pub struct Store {
    database: Database,
}

/// A document with its sealed field as it is stored.
#[derive(Clone, PartialEq)]
pub struct Stored {
    pub document: Document,
    /// Its sealed field, sealed; none where it was never set.
    pub sealed: Option<Vec<u8>>,
}

/// A document that has not been read yet, which takes long if it is large.
pub struct StoredRow {
    text: String,
    sealed: Option<Vec<u8>>,
}

/// A document that has not been printed yet, which takes long if it is large.
pub struct FoundRow {
    row: Row,
    kind: Kind,
    version: i64,
    is_as_stored: bool,
}

impl FoundRow {
    const QUERY: &'static str = "get";
    /// Its first column, behind whether the database is whole.
    const FIRST: usize = 1;
    const IS_AS_STORED: usize = 15;

    /// Its resource version.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Whether it shows what is stored of the document and nothing else, so that its version says whether the answer would be the same.
    pub fn is_as_stored(&self) -> bool {
        self.is_as_stored
    }

    /// Bytes of its text, about.
    pub fn length(&self) -> usize {
        self.row.raw_size_bytes()
    }

    /// The document as clients see it, as JSON. A large one is printed on a thread of `blocking`.
    pub async fn print(self, blocking: &BlockingPool) -> Result<Vec<u8>, ListError> {
        let length = self.length();
        let print = move || {
            let mut json = Vec::with_capacity(length);
            if let Some(item) = Item::read(Self::QUERY, &self.row, Self::FIRST, self.kind)? {
                item.write(Fields::All, &mut json)?;
            }
            Ok(json)
        };
        blocking.run(length, print).await
    }
}

impl StoredRow {
    /// A row as `to_jsonb(row) - 'sealed'` prints it, and its sealed field.
    pub(super) fn of(text: String, sealed: Option<Vec<u8>>) -> Self {
        Self { text, sealed }
    }

    /// Bytes of its text and of its sealed field.
    pub fn length(&self) -> usize {
        self.text.len() + self.sealed.as_ref().map_or(0, Vec::len)
    }

    /// Whether its text has this part.
    pub(super) fn contains(&self, part: &str) -> bool {
        self.text.contains(part)
    }

    pub fn read(self) -> Result<Stored, ListError> {
        Ok(Stored { document: Document::from_row(&self.text)?, sealed: self.sealed })
    }
}

impl Store {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    pub async fn get(&self, key: &Key) -> Result<Option<Document>, ListError> {
        let Some(row) = self.row(FoundRow::QUERY, &AS_STORED, key).await? else { return Ok(None) };
        let item = Item::read(FoundRow::QUERY, &row, FoundRow::FIRST, key.kind)?;
        item.map(|item| Ok(item.document()?)).transpose()
    }

    /// A document to be printed, a `ClusterSync` with the objects that its syncsets delete, a syncset with its health and its rollout.
    pub async fn found(&self, key: &Key) -> Result<Option<FoundRow>, ListError> {
        let text = match key.kind {
            Kind::Cluster | Kind::Secret => &AS_STORED,
            Kind::ClusterSync => &CLUSTER_SYNC,
            Kind::SyncSet | Kind::SelectorSyncSet => &SYNCSET,
        };
        let Some(row) = self.row(FoundRow::QUERY, text, key).await? else { return Ok(None) };
        let version = Item::read(FoundRow::QUERY, &row, FoundRow::FIRST, key.kind)?.map(|item| item.version());
        let Some(version) = version else { return Ok(None) };
        let is_as_stored = column(FoundRow::QUERY, &row, FoundRow::IS_AS_STORED)?;
        Ok(Some(FoundRow { row, kind: key.kind, version, is_as_stored }))
    }

    /// A document with its sealed field.
    pub async fn stored(&self, key: &Key) -> Result<Option<StoredRow>, ListError> {
        const QUERY: &str = "get_stored";
        let Some(row) = self.row(QUERY, &SEALED, key).await? else { return Ok(None) };
        let Some(document) = column::<Option<&str>>(QUERY, &row, 1)? else { return Ok(None) };
        Ok(Some(StoredRow::of(document.to_owned(), column(QUERY, &row, 2)?)))
    }

    /// Whether the database is whole, and what a statement reads of the document.
    async fn row(&self, query: &'static str, text: &'static str, key: &Key) -> Result<Option<Row>, ListError> {
        let kind = key.kind.plural();
        let params = [(&kind as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
        let row = self.database.all(query, Text::Prepared(text), &params).await?.pop();
        match row.as_ref().map(|row| column::<bool>(query, row, 0)).transpose()? {
            Some(true) => Ok(row),
            Some(false) | None => Err(ListError::Restoring),
        }
    }
}

/// The columns of an item of a list.
static AS_STORED: LazyLock<String> = LazyLock::new(|| item("status", "true"));
static CLUSTER_SYNC: LazyLock<String> = LazyLock::new(|| item(&cluster_sync::status(), "false"));
static SYNCSET: LazyLock<String> = LazyLock::new(|| {
    let status = format!("({}) || {ROLLOUT}", syncset_health::status());
    item(&status, &format!("not {} and (t.data #> '{{spec,rollout}}') is null", syncset_health::HAS_HEALTH))
});
static SEALED: LazyLock<String> = LazyLock::new(|| text("(to_jsonb(t) - 'sealed')::text, sealed"));

/// How far the rollout of a syncset is, beside its status. One that has yet to begin is shown as it begins.
const ROLLOUT: &str = "coalesce((select jsonb_build_object('rollout', jsonb_strip_nulls(jsonb_build_object('state', n.state, \
     'reason', nullif(n.reason, ''), 'revision', n.goal, 'stable', r.stable, 'wave', \
       case when n.state = 'Running' or (n.state = 'Stopped' and n.goal = r.newest and n.goal is distinct from r.stable) \
       then coalesce(t.data #>> array['spec', 'rollout', 'waves', n.wave::text, 'name'], 'rest') end))) \
   from towline_rollout r cross join lateral (select towline_begins(r) as begins) b \
   cross join lateral (select case when b.begins then 'Running' else r.state end as state, \
     case when b.begins then 'Guarding' else r.reason end as reason, case when b.begins then r.newest else r.goal end as goal, \
     case when b.begins then 0 else r.wave end as wave) n where r.syncset = t.id), '{}')";

fn item(status: &str, is_as_stored: &str) -> String {
    text(&format!(
        "1::bigint as number, namespace, name, version, id::text, generation, labels::text, annotations::text, finalizers, \
         created_at, updated_at, deleted_at, data::text, ({status})::text as status, \
         {is_as_stored} as is_as_stored"
    ))
}

/// Reads whether the database is whole, and these columns of the document.
fn text(columns: &str) -> String {
    format!(
        "select s.is_whole, d.* from ( \
           select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) s \
         left join lateral ( \
           select {columns} from towline_documents t where kind = $1 and namespace = $2 and name = $3) d on true",
    )
}
