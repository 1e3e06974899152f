//! Versions after a failover or a restore.
//!
//! Such a database may have lost its last versions, and would give them out again. Whoever notices that its origin has changed calls
//! [`renumber`], which puts all further versions far above those that anybody can have seen. It ends all claims, too.

use crate::db::{self, Connection, Database, Row, Type, column};

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
