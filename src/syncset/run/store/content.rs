//! Reads the payloads, rows and secrets that a pass needs and neither the process nor the snapshot has: one statement.

use std::sync::LazyLock;

use uuid::Uuid;

use super::columns::{AppliedColumns, PatchedColumns};
use super::{PassStore, StoreError, read};
use crate::db::{self, Row, Text, Type, column};
use crate::documents::{IS_WHOLE, ListError};
use crate::syncset::plan::snapshot::Sent;

const QUERY: &str = "syncset_content";
/// Most objects that may be noted as sent to a cluster, and most patches: more than twice as many as its syncsets may have, so that all may be
/// replaced by others. What is noted of so many takes about 100 MiB.
pub const MOST_ROWS: usize = 60_000;

/// Content of syncsets, and what was sent to the cluster before.
#[derive(Debug, Default)]
pub struct Content {
    /// Of the syncsets that were asked for and still exist. One may be of a newer version than the snapshot's.
    pub payloads: Vec<PayloadRow>,
    /// All of it, or [`MOST_ROWS`] and one of either.
    pub sent: Sent,
    /// Of the secrets that were asked for and still exist.
    pub secrets: Vec<SealedSecret>,
}

/// What is to be read.
#[derive(Debug, Default)]
pub struct Lacking {
    /// Syncsets as their documents have them.
    pub syncsets: Vec<Uuid>,
    /// Syncsets in the revision that was written with this version.
    pub revisions: Vec<(Uuid, i64)>,
    pub secrets: Vec<Uuid>,
}

/// What a syncset sends, as its document or a revision has it.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadRow {
    pub id: Uuid,
    /// Version of its last change, or of the revision.
    pub version: i64,
    /// Its `spec` as JSON. It may be large, so that it is parsed elsewhere.
    pub text: String,
}

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
static STATEMENT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select 'whole', '', case when {IS_WHOLE} then 1 else 0 end::bigint, null::text, null::bytea \
           from towline_meta m, towline_version s \
         union all select 'payload', id::text, version, (data->'spec')::text, null from towline_documents \
           where kind in ('syncsets', 'selectorsyncsets') and id = any($2::text[]::uuid[]) \
         union all select 'payload', v.syncset::text, v.version, v.content::text, null \
           from unnest($4::text[]::uuid[], $5::text[]::bigint[]) u(id, version) cross join lateral ( \
             select * from towline_revision v where v.syncset = u.id and v.version = u.version offset 0) v \
         union all (select 'applied', '', 0, to_jsonb(a)::text, null from towline_applied a \
           where cluster = $1::text::uuid limit {MOST_ROWS} + 1) \
         union all (select 'patched', '', 0, to_jsonb(p)::text, null from towline_patched p \
           where cluster = $1::text::uuid limit {MOST_ROWS} + 1) \
         union all select 'secret', id::text, version, null, sealed from secrets where kind = 'secrets' \
           and id = any($3::text[]::uuid[])"
    )
});

impl PassStore {
    /// What was sent to a cluster, if one is given, and what is lacking.
    pub async fn content(&self, cluster: Option<Uuid>, lacking: &Lacking) -> Result<Content, StoreError> {
        let (syncsets, secrets) = (texts(&lacking.syncsets), texts(&lacking.secrets));
        let cluster = cluster.map(|cluster| cluster.to_string());
        let of_revisions = lacking.revisions.iter().map(|(id, version)| (id.to_string(), version.to_string()));
        let (revised, versions): (Vec<String>, Vec<String>) = of_revisions.unzip();
        let params = [
            (&cluster as _, Type::TEXT),
            (&syncsets as _, Type::TEXT_ARRAY),
            (&secrets as _, Type::TEXT_ARRAY),
            (&revised as _, Type::TEXT_ARRAY),
            (&versions as _, Type::TEXT_ARRAY),
        ];
        let _slot = self.slot().await;
        let mut rows = self.database.rows(QUERY, Text::Prepared(&STATEMENT), &params).await?;
        let (mut content, mut is_whole) = (Content::default(), false);
        let (mut applied, mut patched) = (Vec::<AppliedColumns>::new(), Vec::<PatchedColumns>::new());
        while let Some(row) = rows.next().await? {
            match column(QUERY, &row, 0)? {
                "whole" => is_whole = column::<i64>(QUERY, &row, 2)? == 1,
                "payload" => {
                    let text: &str = column(QUERY, &row, 3)?;
                    let (id, version) = (id(&row)?, column(QUERY, &row, 2)?);
                    content.payloads.push(PayloadRow { id, version, text: text.to_owned() });
                }
                "applied" => applied.push(json(&row, "towline_applied")?),
                "patched" => patched.push(json(&row, "towline_patched")?),
                _ => {
                    let sealed: Option<&[u8]> = column(QUERY, &row, 4)?;
                    let (id, version) = (id(&row)?, column(QUERY, &row, 2)?);
                    content.secrets.push(SealedSecret { id, version, sealed: sealed.map(<[u8]>::to_vec) });
                }
            }
        }
        if !is_whole {
            return Err(StoreError::Restoring(ListError::Restoring));
        }
        content.sent = sent(applied, patched)?;
        Ok(content)
    }
}

/// What was sent, as its rows say it.
pub(super) fn sent(applied: Vec<AppliedColumns>, patched: Vec<PatchedColumns>) -> Result<Sent, StoreError> {
    Ok(Sent { applied: read(applied, "towline_applied")?, patched: read(patched, "towline_patched")? })
}

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
