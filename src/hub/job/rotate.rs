//! `towline hub rotate-key`: encrypts sealed fields again, until all of them use the first key of `keys_file`.
//!
//! A field is replaced only if it still has the value that was read, so that a change of a client is never undone. No version is
//! created: what clients see stays the same. A field that can't be opened stays as it is, and the others are replaced all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::db::{self, Database, Type, column};
use crate::documents::{Fresh, Key, Keyring, Kind, OpenError, SealError, SealedWith};

/// Most fields of one read, whatever their keys: a statement goes through no more of them.
const PAGE: i64 = 1_000;
/// A read ends with the field to be replaced that exceeds so many bytes. A field has at most 4 MiB.
const PAGE_BYTES: i64 = 4 << 20;
/// Most fields whose keys one read counts.
const COUNTED: i64 = 5_000;
/// The longest beginning of a field that names its key: a byte, the length of the name, and the name.
const HEAD: i32 = 2 + 255;
/// Before it looks again for fields that clients have sealed with another key meanwhile.
const AGAIN: Duration = Duration::from_secs(1);

/// `1 sealed field`, `2 sealed fields`.
pub(super) fn sealed_fields(count: u64) -> String {
    if count == 1 { "1 sealed field".to_owned() } else { format!("{count} sealed fields") }
}

/// Why the fields could not be encrypted again.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error("failed to read or replace sealed fields")]
    Database(#[from] db::Error),
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A row of an unknown kind or with an invalid id: a newer release wrote it.
    #[error("a document is of a kind that this release does not know")]
    Unknown,
}

/// A field that can't be opened. It names the key and never shows the value.
#[derive(Debug, thiserror::Error)]
#[error("failed to open the sealed field of {document}")]
pub struct Unopened {
    document: Key,
    source: OpenError,
}

#[derive(Debug, Default)]
pub struct Rotated {
    /// The number of fields that were encrypted again.
    pub fields: u64,
    /// The fields that are as they were.
    pub unopened: Vec<Unopened>,
}

/// The number of sealed fields by the key that they use; the empty name is for those stored as they are. It reads no more of a field
/// than the name of its key.
pub async fn count(database: &Database) -> Result<BTreeMap<String, u64>, RotateError> {
    const QUERY: &str = "count_keys";
    const TEXT: &str = "select kind, id::text, substring(sealed from 1 for $4) from towline_documents \
         where sealed is not null and (kind, id) > ($1, $2::text::uuid) order by kind, id limit $3";
    let mut counts = BTreeMap::new();
    let mut last = DocumentPosition::default();
    loop {
        let params = [
            (&last.kind as _, Type::TEXT),
            (&last.id as _, Type::TEXT),
            (&COUNTED as _, Type::INT8),
            (&HEAD as _, Type::INT4),
        ];
        let rows = database.all(QUERY, TEXT, &params).await?;
        for row in &rows {
            last = DocumentPosition { kind: column(QUERY, row, 0)?, id: column(QUERY, row, 1)? };
            *counts.entry(key_of(column(QUERY, row, 2)?)).or_default() += 1;
        }
        if rows.is_empty() {
            return Ok(counts);
        }
    }
}

/// Encrypts again what does not use the first key, until a pass over all fields finds nothing to replace.
///
/// After each page it rests for as long as the page has taken, so that others have at least half of the database's time.
pub async fn rotate(database: &Database, keyring: &Keyring) -> Result<Rotated, RotateError> {
    record(database, keyring).await?;
    let wanted = keyring.sealing_key().head();
    let mut rotated = Rotated::default();
    loop {
        let mut opened = 0;
        let mut last = DocumentPosition::default();
        // A client may have replaced a field that could not be opened.
        rotated.unopened.clear();
        loop {
            let begun = Instant::now();
            let Some(page) = page(database, &last, &wanted).await? else { break };
            for field in page.fields {
                match keyring.open(&field.document, field.id, &field.sealed) {
                    Ok(value) => {
                        opened += 1;
                        rotated.fields += replace(database, keyring, &field, value.expose_secret()).await?;
                    }
                    Err(source) => rotated.unopened.push(Unopened { document: field.document, source }),
                }
            }
            last = page.last;
            sleep(begun.elapsed()).await;
        }
        // A field that a client changed meanwhile may have been sealed by a replica that does not have the new key yet.
        if opened == 0 {
            return Ok(rotated);
        }
        sleep(AGAIN).await;
    }
}

/// Records that somebody has asked for it, before the first field is replaced.
async fn record(database: &Database, keyring: &Keyring) -> Result<(), RotateError> {
    const QUERY: &str = "record_rotation";
    const TEXT: &str = "insert into towline_history (at, actor, address, via, verb, details) values (clock_timestamp(), session_user, \
         coalesce(host(inet_client_addr()), ''), 'database', 'rotate-key', jsonb_build_object('note', $1::text)::text)";
    let key = name_of(keyring.sealing_key());
    let note = if key.is_empty() { "without a key".to_owned() } else { format!("to the key {key}") };
    database.execute(QUERY, TEXT, &[(&note as _, Type::TEXT)]).await?;
    Ok(())
}

async fn replace(database: &Database, keyring: &Keyring, field: &Field, value: &[u8]) -> Result<u64, RotateError> {
    const QUERY: &str = "rotate_key";
    const TEXT: &str =
        "update towline_documents set sealed = $4 where kind = $1 and id = $2::text::uuid and sealed = $3";
    let Field { document, id, sealed } = field;
    let fresh = keyring.seal(document, *id, value, Fresh::draw().nonce)?;
    let (plural, id) = (document.kind.plural(), id.to_string());
    let params =
        [(&plural as _, Type::TEXT), (&id as _, Type::TEXT), (sealed as _, Type::BYTEA), (&fresh as _, Type::BYTEA)];
    Ok(database.execute(QUERY, TEXT, &params).await?)
}

/// A sealed field of a document.
struct Field {
    document: Key,
    id: Uuid,
    sealed: Vec<u8>,
}

struct Page {
    /// Those to be replaced.
    fields: Vec<Field>,
    /// Up to here all have been read.
    last: DocumentPosition,
}

/// A document in the order of kind and id; at first, the place before all.
struct DocumentPosition {
    kind: String,
    id: String,
}

impl Default for DocumentPosition {
    fn default() -> Self {
        Self { kind: String::new(), id: Uuid::nil().to_string() }
    }
}

/// The next fields that don't begin with `wanted`, in the order of kind and id; `None` behind the last field. The length of a field
/// is known without reading it, and of one that begins with `wanted` no more is read than that. The last row is there in any case: it
/// says where the next page begins.
async fn page(database: &Database, last: &DocumentPosition, wanted: &[u8]) -> Result<Option<Page>, RotateError> {
    const QUERY: &str = "sealed_fields";
    const TEXT: &str = "select kind, id::text, namespace, name, case when is_other then sealed end from ( \
           select *, lead(true) over (order by kind, id) is null as is_last from ( \
             select *, sum(bytes) over (order by kind, id) - bytes as before from ( \
               select *, case when is_other then octet_length(sealed) else 0 end as bytes from ( \
                 select kind, id, namespace, name, sealed, substring(sealed from 1 for octet_length($3)) <> $3 as is_other \
                 from towline_documents where sealed is not null and (kind, id) > ($1, $2::text::uuid) \
                 order by kind, id limit $4) page) measured) bounded where before < $5) fields \
         where is_other or is_last order by kind, id";
    let params = [
        (&last.kind as _, Type::TEXT),
        (&last.id as _, Type::TEXT),
        (&wanted as _, Type::BYTEA),
        (&PAGE as _, Type::INT8),
        (&PAGE_BYTES as _, Type::INT8),
    ];
    let rows = database.all(QUERY, TEXT, &params).await?;
    let mut fields = Vec::with_capacity(rows.len());
    let mut last = None;
    for row in &rows {
        let (plural, id): (&str, &str) = (column(QUERY, row, 0)?, column(QUERY, row, 1)?);
        last = Some(DocumentPosition { kind: plural.to_owned(), id: id.to_owned() });
        if let Some(sealed) = column::<Option<Vec<u8>>>(QUERY, row, 4)? {
            let kind = Kind::of_plural(plural).ok_or(RotateError::Unknown)?;
            let id = id.parse::<Uuid>().map_err(|_| RotateError::Unknown)?;
            let (namespace, name): (&str, &str) = (column(QUERY, row, 2)?, column(QUERY, row, 3)?);
            fields.push(Field { document: Key::new(kind, namespace, name), id, sealed });
        }
    }
    Ok(last.map(|last| Page { fields, last }))
}

fn key_of(sealed: &[u8]) -> String {
    Keyring::key_of(sealed).map_or_else(|| "?".to_owned(), name_of)
}

/// The name of a key; empty for none.
pub fn name_of(key: SealedWith<'_>) -> String {
    match key {
        SealedWith::Nothing => String::new(),
        SealedWith::Key(id) => id.to_owned(),
    }
}
