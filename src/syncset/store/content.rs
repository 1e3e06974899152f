//! What a pass reads when something is due: one statement.

use uuid::Uuid;

use super::columns::{AppliedColumns, PatchedColumns};
use super::snapshot::read;
use super::{PassStore, StoreError};
use crate::db::{self, Row, Type, column};
use crate::documents::{IS_WHOLE, ListError};
use crate::syncset::rules::rows::{AppliedRow, PatchedRow};

const QUERY: &str = "syncset_content";
/// What a pass takes for a row beside its text: it has it as such and by its object, which is also among what is wanted.
const ROW: usize = 1 << 10;

/// Content of syncsets, and what was sent to the cluster before.
#[derive(Debug, Default)]
pub struct Content {
    /// Of the syncsets that were asked for and still exist. One may be of a newer version than the snapshot's.
    pub payloads: Vec<PayloadRow>,
    /// All rows of the cluster.
    pub applied: Vec<AppliedRow>,
    /// All rows of the cluster.
    pub patched: Vec<PatchedRow>,
    /// Of the secrets that were asked for and still exist.
    pub secrets: Vec<SealedSecret>,
    /// Bytes of all these payloads and secrets.
    pub bytes: usize,
    /// The memory that a pass takes for all the rows, about.
    pub rows: usize,
    /// Whether some of that is left out, since there was no room.
    pub is_cut: bool,
}

/// What a syncset sends, as its document has it.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadRow {
    /// The syncset's id.
    pub id: Uuid,
    /// Version of its last change.
    pub version: i64,
    /// Its whole `spec` as JSON. It may be large, so that it is parsed elsewhere.
    pub text: String,
}

/// Data of a `Secret` document.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret {
    pub id: Uuid,
    /// Version of its last change.
    pub version: i64,
    /// Its data, sealed.
    pub sealed: Option<Vec<u8>>,
}

/// The first row says whether the database is whole. Each of the others has what it is, an id, a version, and JSON or bytes: payloads
/// are large, and each is a row of its own.
fn statement() -> String {
    format!(
        "select 'whole', '', case when {IS_WHOLE} then 1 else 0 end::bigint, null::text, null::bytea \
           from towline_meta m, towline_version s \
         union all select 'payload', id::text, version, (data->'spec')::text, null from towline_documents \
           where kind in ('syncsets', 'selectorsyncsets') and id = any($2::text[]::uuid[]) \
         union all select 'applied', '', 0, to_jsonb(a)::text, null from towline_applied a where cluster = $1::text::uuid \
         union all select 'patched', '', 0, to_jsonb(p)::text, null from towline_patched p where cluster = $1::text::uuid \
         union all select 'secret', id::text, version, null, sealed from secrets where kind = 'secrets' \
           and id = any($3::text[]::uuid[])"
    )
}

impl PassStore {
    /// What was sent to a cluster, if one is given, with the payloads of these syncsets and the data of these secrets, as far as there
    /// is room: `has_room` says so, given the bytes of what was read with the next one, and the memory for rows.
    pub async fn content(
        &self,
        cluster: Option<Uuid>,
        syncsets: &[Uuid],
        secrets: &[Uuid],
        has_room: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Content, StoreError> {
        let (syncsets, secrets) = (texts(syncsets), texts(secrets));
        let cluster = cluster.map(|cluster| cluster.to_string());
        let params =
            [(&cluster as _, Type::TEXT), (&syncsets as _, Type::TEXT_ARRAY), (&secrets as _, Type::TEXT_ARRAY)];
        let _turn = self.turn().await;
        let mut rows = self.database.rows(QUERY, &statement(), &params).await?;
        let (mut content, mut is_whole) = (Content::default(), false);
        let (mut applied, mut patched) = (Vec::<AppliedColumns>::new(), Vec::<PatchedColumns>::new());
        while let Some(row) = rows.next().await? {
            match column(QUERY, &row, 0)? {
                "whole" => is_whole = column::<i64>(QUERY, &row, 2)? == 1,
                "payload" => {
                    let text: &str = column(QUERY, &row, 3)?;
                    if content.takes(has_room, text.len()) {
                        let (id, version) = (id(&row)?, column(QUERY, &row, 2)?);
                        content.payloads.push(PayloadRow { id, version, text: text.to_owned() });
                    }
                }
                "applied" => {
                    if content.takes_row(has_room, column::<&str>(QUERY, &row, 3)?.len()) {
                        applied.push(json(&row, "towline_applied")?);
                    }
                }
                "patched" => {
                    if content.takes_row(has_room, column::<&str>(QUERY, &row, 3)?.len()) {
                        patched.push(json(&row, "towline_patched")?);
                    }
                }
                _ => {
                    let sealed: Option<&[u8]> = column(QUERY, &row, 4)?;
                    if content.takes(has_room, sealed.map_or(0, <[u8]>::len)) {
                        let (id, version) = (id(&row)?, column(QUERY, &row, 2)?);
                        content.secrets.push(SealedSecret { id, version, sealed: sealed.map(<[u8]>::to_vec) });
                    }
                }
            }
        }
        if !is_whole {
            return Err(StoreError::Restoring(ListError::Restoring));
        }
        content.applied = read(applied, "towline_applied")?;
        content.patched = read(patched, "towline_patched")?;
        Ok(content)
    }
}

impl Content {
    /// Counts so many bytes more, and says whether there is room for them.
    fn takes(&mut self, has_room: &mut (dyn FnMut(usize) -> bool + Send), bytes: usize) -> bool {
        self.bytes += bytes;
        self.has_room(has_room)
    }

    /// The same for a row with a text of so many bytes.
    fn takes_row(&mut self, has_room: &mut (dyn FnMut(usize) -> bool + Send), bytes: usize) -> bool {
        self.rows += bytes + ROW;
        self.has_room(has_room)
    }

    fn has_room(&mut self, has_room: &mut (dyn FnMut(usize) -> bool + Send)) -> bool {
        self.is_cut = self.is_cut || !has_room(self.bytes + self.rows);
        !self.is_cut
    }
}

/// As the statement takes ids.
pub(super) fn texts(ids: &[Uuid]) -> Vec<String> {
    ids.iter().map(Uuid::to_string).collect()
}

fn json<T: serde::de::DeserializeOwned>(row: &Row, table: &'static str) -> Result<T, StoreError> {
    let text: &str = column(QUERY, row, 3)?;
    serde_json::from_str(text).map_err(|source| StoreError::Json { table, source })
}

fn id(row: &Row) -> Result<Uuid, db::Error> {
    let text: &str = column(QUERY, row, 1)?;
    text.parse().map_err(|error| db::Error::Decode { query: QUERY, source: std::sync::Arc::new(error) })
}

/// Shows no data.
impl std::fmt::Debug for SealedSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, version, sealed: _ } = self;
        formatter.debug_struct("SealedSecret").field("id", id).field("version", version).finish_non_exhaustive()
    }
}
