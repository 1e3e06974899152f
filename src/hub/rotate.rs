//! `towline hub rotate-key`: encrypts sealed fields again, until all of them use the first key of `keys_file`.
//!
//! A field is replaced only if it still has the value that was read, so that a change of a client is never undone. No version is
//! created: what clients see stays the same.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::db::{self, Database, Type, column};
use crate::documents::{Fresh, Keyring, Kind, OpenError, SealError, SealedWith};

/// Documents of one read.
const PAGE: i64 = 200;

/// Why a field could not be encrypted again.
#[derive(Debug, thiserror::Error)]
pub(super) enum RotateError {
    /// The database does not answer.
    #[error("failed to read or replace sealed fields")]
    Database(#[from] db::Error),
    /// A field can't be opened.
    #[error("failed to open the sealed field of {kind} {id}")]
    Open {
        /// The document's kind.
        kind: &'static str,
        /// Its id.
        id: Uuid,
        /// Why.
        source: OpenError,
    },
    /// A field can't be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A row of an unknown kind or with an invalid id: a newer release wrote it.
    #[error("a document is of a kind that this release does not know")]
    Unknown,
}

use secrecy::ExposeSecret;

/// The number of sealed fields by the key that they use; the empty name is for those stored as they are.
pub(super) async fn count(database: &Database) -> Result<BTreeMap<String, u64>, RotateError> {
    let mut counts = BTreeMap::new();
    let mut after = None;
    while let Some(page) = page(database, after.as_ref()).await? {
        for (_, _, sealed) in &page.fields {
            *counts.entry(key_of(sealed)).or_default() += 1;
        }
        after = Some(page.last);
    }
    Ok(counts)
}

/// Encrypts again what does not use the first key. Returns the number of fields.
pub(super) async fn rotate(database: &Database, keyring: &Keyring) -> Result<u64, RotateError> {
    let wanted = name_of(keyring.sealing_key());
    let mut total = 0;
    loop {
        let (mut replaced, mut others) = (0, 0);
        let mut after = None;
        while let Some(page) = page(database, after.as_ref()).await? {
            for (kind, id, sealed) in page.fields.iter().filter(|(_, _, sealed)| key_of(sealed) != wanted) {
                others += 1;
                replaced += replace(database, keyring, *kind, *id, sealed).await?;
            }
            after = Some(page.last);
        }
        total += replaced;
        // A field that a client changed meanwhile may have been sealed by a replica that does not have the new key yet.
        if others == 0 {
            return Ok(total);
        }
    }
}

async fn replace(
    database: &Database,
    keyring: &Keyring,
    kind: Kind,
    id: Uuid,
    sealed: &[u8],
) -> Result<u64, RotateError> {
    const QUERY: &str = "rotate_key";
    const TEXT: &str =
        "update towline_documents set sealed = $4 where kind = $1 and id = $2::text::uuid and sealed = $3";
    let opened = keyring.open(kind, id, sealed);
    let opened = opened.map_err(|source| RotateError::Open { kind: kind.name(), id, source })?;
    let fresh = keyring.seal(kind, id, opened.expose_secret(), Fresh::draw().nonce)?;
    let (plural, id) = (kind.plural(), id.to_string());
    let params =
        [(&plural as _, Type::TEXT), (&id as _, Type::TEXT), (&sealed as _, Type::BYTEA), (&fresh as _, Type::BYTEA)];
    Ok(database.execute(QUERY, TEXT, &params).await?)
}

struct Page {
    fields: Vec<(Kind, Uuid, Vec<u8>)>,
    last: (String, String),
}

/// The next sealed fields, in the order of kind and id.
async fn page(database: &Database, after: Option<&(String, String)>) -> Result<Option<Page>, RotateError> {
    const QUERY: &str = "sealed_fields";
    const TEXT: &str = "select kind, id::text, sealed from towline_documents where sealed is not null \
         and (kind, id) > ($1, $2::text::uuid) order by kind, id limit $3";
    let first = (String::new(), Uuid::nil().to_string());
    let (kind, id) = after.unwrap_or(&first);
    let rows = database.all(QUERY, TEXT, &[(kind, Type::TEXT), (id, Type::TEXT), (&PAGE, Type::INT8)]).await?;
    let mut fields = Vec::with_capacity(rows.len());
    for row in &rows {
        let (kind, id): (&str, &str) = (column(QUERY, row, 0)?, column(QUERY, row, 1)?);
        let kind = Kind::of_plural(kind).ok_or(RotateError::Unknown)?;
        fields.push((kind, id.parse::<Uuid>().map_err(|_| RotateError::Unknown)?, column(QUERY, row, 2)?));
    }
    let last = fields.last().map(|(kind, id, _)| (kind.plural().to_owned(), id.to_string()));
    Ok(last.map(|last| Page { fields, last }))
}

fn key_of(sealed: &[u8]) -> String {
    Keyring::key_of(sealed).map_or_else(|| "?".to_owned(), name_of)
}

/// The name of a key; empty for none.
pub(super) fn name_of(key: SealedWith<'_>) -> String {
    match key {
        SealedWith::Nothing => String::new(),
        SealedWith::Key(id) => id.to_owned(),
    }
}
