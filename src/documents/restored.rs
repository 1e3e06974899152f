//! A database that was restored, or that failed over.
//!
//! While a dump is being restored, tables are missing, empty or half full, and the row of `towline_meta` comes after the documents.
//! Its origin is then that of another database, and at the end the sequence is set back. So as long as a write would be refused,
//! reads are, too: half a list looks like many deletions.
//!
//! Such a database may have lost its last versions, and would give them out again. Whoever notices that its origin has changed calls
//! [`renumber`], which puts all further versions far above those that anybody can have seen. It ends all claims, too.

use crate::db::{self, Connection, Database, Row, Type, column};

/// The condition on `m`, the row of `towline_meta`, and `s`, the sequence `towline_version`; `towline_write` has the same.
pub const IS_WHOLE: &str = "(m.origin = towline_origin() and m.base <= s.last_value)";

/// Why a read is refused.
pub(super) const NOT_WHOLE: &str = "the database is being restored, or its versions have not been renumbered since";

const QUERY: &str = "renumber";
const TEXT: &str = "select towline_renumber($1)";

/// Renumbers if the origin has changed, or always with `force` (a disk snapshot was restored, which has the same origin). Returns
/// the version above which all further ones are; `None` if there was nothing to do.
pub async fn renumber(database: &Database, force: bool) -> Result<Option<i64>, db::Error> {
    base(&database.all(QUERY, TEXT, &[(&force, Type::BOOL)]).await?)
}

/// [`renumber`] on a dedicated connection.
pub(super) async fn renumber_on(connection: &mut Connection, force: bool) -> Result<Option<i64>, db::Error> {
    base(&connection.all(QUERY, TEXT, &[(&force, Type::BOOL)]).await?)
}

fn base(rows: &[Row]) -> Result<Option<i64>, db::Error> {
    let base = rows.first().map_or(Ok(None), |row| column::<Option<i64>>(QUERY, row, 0))?;
    if let Some(base) = base {
        tracing::warn!(base, "versions renumbered: the database was restored or failed over");
    }
    Ok(base)
}
