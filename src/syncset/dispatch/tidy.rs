//! What of judging is not needed any more. Each minute; bounds the tables.

use super::ask::concerned;
use super::concern::Concern;
use super::error::DispatchError;
use super::held::Released;
use super::ids;
use super::judge::Verdicts;
use super::turn::{WITHIN, ask};
use crate::db::{self, Database, Type, column};
use crate::documents::Grant;
use crate::syncset::store::is_left;

/// A syncset is held as long as anybody tracks its objects, or until those of the clusters that it matches no more, or under other names,
/// where it tracks some have been removed. Objects that were adopted are never deleted. What edits have dropped counts no more then, unless
/// the hold was about labels.
fn release() -> String {
    format!(
        "update towline_guard g set held = false, cause = null, since = now(), held_objects = null, \
           objects = coalesce(held_objects, objects), \
           dropped = case when cause in ('unmatched', 'renamed') then dropped end where held and cause is distinct from 'unreadable' and ( \
           not exists (select from towline_applied a where a.syncset = g.syncset and a.tracked and not a.adopted) \
           or (cause in ('unmatched', 'renamed') and not exists (select from towline_lost l where l.syncset = g.syncset and not l.back \
             and l.at > '-infinity' and ({})))) \
         returning syncset::text, kind, namespace, name",
        is_left("l")
    )
}

/// It is judged under a lock of the same row.
const LOCK: &str = "select set_config('idle_in_transaction_session_timeout', '3s', true) from towline_claim \
     where name = 'dispatcher' and holder = $1 and token = $2 and until > clock_timestamp() \
       and (select origin = towline_origin() from towline_meta) for update";
/// The row of a syncset that is gone permits deletions, so it stays as long as any pass may have stored objects: a pass ends long before.
const FORGET: &str = "delete from towline_guard g where gone and not held and since < now() - interval '1 h' \
       and not exists (select from towline_applied a where a.syncset = g.syncset and a.tracked)";
/// What was lost and is deleted counts for ten minutes, or as long as its syncset is held. If the cluster is matched again, what is
/// tracked there was applied afterwards; of objects that got other names it is known which they were.
fn forget_lost() -> String {
    format!(
        "delete from towline_lost l where at < now() - interval '10 min' \
           and not exists (select from towline_guard g where g.syncset = l.syncset and g.held) \
           and ((back and objects is null) or not ({}))",
        is_left("l")
    )
}
const HELD: &str = "(select from towline_claim where name = 'dispatcher' and holder = $1 and token = $2 and until > clock_timestamp())";

/// Removes it, and lets go what holds nothing any more: the clusters where something waits for that are asked for.
pub(super) async fn tidy(database: &Database, grant: &Grant) -> Result<(), DispatchError> {
    const QUERY: &str = "tidy_held";
    let holder = grant.holder.as_str();
    let params = [(&holder as _, Type::TEXT), (&grant.token as _, Type::INT8)];
    let mut transaction = database.begin("tidy", WITHIN).await?;
    if transaction.execute("lock_tidying", LOCK, &params).await? == 0 {
        return Err(DispatchError::LeaseExpired);
    }
    let rows = transaction.all(QUERY, &release(), &[]).await?;
    let named = |(row, id)| {
        Ok::<_, db::Error>(Released::new(id, column(QUERY, row, 1)?, column(QUERY, row, 2)?, column(QUERY, row, 3)?))
    };
    let released = rows.iter().zip(ids(QUERY, &rows)?).map(named).collect::<Result<Vec<_>, _>>()?;
    let clusters = concerned(&mut transaction, &Concern::default(), &released).await?;
    ask(&mut transaction, &clusters, true).await?;
    transaction.commit().await?;
    Verdicts { released, ..Verdicts::default() }.announce();
    for (query, text) in [("tidy_guards", FORGET), ("tidy_lost", &forget_lost())] {
        database.execute(query, &format!("{text} and exists {HELD}"), &params).await?;
    }
    Ok(())
}
