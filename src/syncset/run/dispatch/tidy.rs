//! Deletes rows of the guard that are not needed any more. Each minute; bounds the tables.

use super::error::DispatchError;
use crate::db::{Database, Type};
use crate::documents::Grant;

/// The row of a syncset that is gone permits deletions, so it stays as long as any pass may have stored objects: a pass ends long before.
const GUARDS: &str = "delete from towline_guard g where gone and not held and since < now() - interval '1 h' \
       and not exists (select from towline_applied a where a.syncset = g.syncset and a.tracked)";
const LOST: &str = "delete from towline_lost l where not exists (select from towline_applied a \
       where a.syncset = l.syncset and a.cluster = l.cluster and a.tracked and not a.adopted)";
/// What is suspended does not get old.
const DELETED: &str = "delete from towline_deleted d where at < now() - interval '10 min' \
       and not exists (select from towline_guard g where g.syncset = d.syncset and g.held)";
const HELD: &str = "(select from towline_claim where name = 'dispatcher' and holder = $1 and token = $2 and until > clock_timestamp())";

pub(super) async fn tidy(database: &Database, grant: &Grant) -> Result<(), DispatchError> {
    let holder = grant.holder.as_str();
    let params = [(&holder as _, Type::TEXT), (&grant.token as _, Type::INT8)];
    for (query, text) in [("tidy_guards", GUARDS), ("tidy_lost", LOST), ("tidy_deleted", DELETED)] {
        database.execute(query, &format!("{text} and exists {HELD}"), &params).await?;
    }
    Ok(())
}
