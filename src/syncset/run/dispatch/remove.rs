//! Deletes rows that nobody needs any more: of clusters that were removed, and each minute those of the guard.
//!
//! Work rows are locked in order of the cluster by one statement of a transaction alone. So those of removed clusters, whose
//! deletion locks them too, are deleted in a transaction of their own, which comes first and can be repeated.

use std::time::Duration;

use uuid::Uuid;

use super::{DispatchError, ids};
use crate::db::{Database, Type};
use crate::documents::{Grant, WorkQueue};
use crate::guard::WINDOW;

/// Most clusters of which rows are deleted at once.
const PAGE: usize = 500;
/// Most rows that a statement deletes.
const ROWS: u64 = 20_000;
/// Limit of the transaction that does it. It locks nothing that renewals of the dispatcher's claim wait for.
const REMOVE_WITHIN: Duration = Duration::from_secs(30);

/// Clusters without a document of which something is stored. Their rows are many; the index gives each cluster once.
const ORPHANS: &str = "with recursive applied(cluster) as ( \
       (select cluster from towline_applied order by cluster limit 1) \
       union all select (select a.cluster from towline_applied a where a.cluster > applied.cluster order by a.cluster limit 1) \
         from applied where applied.cluster is not null), \
     known as (select cluster from applied where cluster is not null union select cluster from towline_work \
       union select cluster from towline_cluster union select cluster from towline_result union select cluster from towline_patched \
       union select cluster from towline_lost union select cluster from towline_identity union select cluster from towline_turn) \
     select cluster::text from known where not exists (select from clusters c where c.kind = 'clusters' and c.id = known.cluster)";
/// Removes the requests for clusters that were removed, and waits for statements under their claims.
const REMOVE_WORK: &str = "delete from towline_work where cluster in (select w.cluster from towline_work w \
     where w.cluster = any($1::text[]::uuid[]) \
       and not exists (select from clusters c where c.kind = 'clusters' and c.id = w.cluster) order by w.cluster for update)";
/// Removes some of their rows, which may be any number: hostile clusters take whatever is sent to them.
const REMOVE_APPLIED: &str = "delete from towline_applied where ctid = any(array( \
       select a.ctid from towline_applied a where a.cluster = any($1::text[]::uuid[]) \
         and not exists (select from clusters c where c.kind = 'clusters' and c.id = a.cluster) \
         and (select origin = towline_origin() from towline_meta) limit";
/// Removes what is stored of such clusters. From now on no claim on them is alive under which more could be stored. While the database
/// is being restored, clusters may be still to come: its origin differs until the end.
///
/// It returns other documents of the namespace that lead to the same cluster, of which the first one owns that now. They are asked for in
/// the same transaction.
const REMOVE_STATE: &str = "with gone as materialized (select known.cluster from unnest($1::text[]::uuid[]) known(cluster) \
       where not exists (select from clusters c where c.kind = 'clusters' and c.id = known.cluster) \
         and (select origin = towline_origin() from towline_meta)), \
     waiting as materialized (select distinct o.cluster from gone join towline_identity i on i.cluster = gone.cluster \
       join towline_identity o on o.namespace = i.namespace and o.identity = i.identity \
       join clusters c on c.kind = 'clusters' and c.id = o.cluster), \
     identity as (delete from towline_identity i using gone where i.cluster = gone.cluster), \
     results as (delete from towline_result r using gone where r.cluster = gone.cluster), \
     applied as (delete from towline_applied a using gone where a.cluster = gone.cluster), \
     patched as (delete from towline_patched p using gone where p.cluster = gone.cluster), \
     lost as (delete from towline_lost l using gone where l.cluster = gone.cluster), \
     turns as (delete from towline_turn t using gone where t.cluster = gone.cluster), \
     cluster_row as (delete from towline_cluster p using gone where p.cluster = gone.cluster) \
     select cluster::text, set_config('idle_in_transaction_session_timeout', '3s', true) from waiting";

/// Deletes what is stored of clusters that were removed. It needs no claim: an id never comes back.
pub(super) async fn remove(database: &Database, clusters: &[Uuid]) -> Result<(), DispatchError> {
    let remove_applied = format!("{REMOVE_APPLIED} {ROWS}))");
    for page in clusters.chunks(PAGE) {
        let page: Vec<String> = page.iter().map(Uuid::to_string).collect();
        let params = [(&page as _, Type::TEXT_ARRAY)];
        database.execute("remove_work", REMOVE_WORK, &params).await?;
        while database.execute("remove_applied", &remove_applied, &params).await? >= ROWS {}
        let mut transaction = database.begin("remove", REMOVE_WITHIN).await?;
        let waiting = ids("remove_state", &transaction.all("remove_state", REMOVE_STATE, &params).await?)?;
        if !waiting.is_empty() {
            WorkQueue::ask_within(&mut transaction, &waiting, false).await?;
        }
        transaction.commit().await?;
    }
    Ok(())
}

/// The same for all clusters that have no document.
pub(super) async fn remove_all(database: &Database) -> Result<(), DispatchError> {
    const QUERY: &str = "orphaned_clusters";
    let orphans = ids(QUERY, &database.all(QUERY, ORPHANS, &[]).await?)?;
    remove(database, &orphans).await
}

/// The row of a syncset that is gone permits deletions, so it stays as long as any pass may have stored objects: a pass ends long before.
const GUARDS: &str = "delete from towline_guard g where gone and not held and since < now() - interval '1 h' \
       and not exists (select from towline_applied a where a.syncset = g.syncset and a.tracked)";
const LOST: &str = "delete from towline_lost l where not exists (select from towline_applied a \
       where a.syncset = l.syncset and a.cluster = l.cluster and a.tracked and not a.adopted)";
const CLAIMED: &str = "(select from towline_claim where name = 'dispatcher' and holder = $1 and token = $2 and until > clock_timestamp())";

/// What is suspended may have nothing left to delete. It is counted beside the batches, in turns: a batch waits for counts that end beside it.
const HELD: &str = "update towline_guard set checked = -greatest((select cursor from towline_claim where name = 'dispatcher'), 1) \
     where syncset in (select syncset from towline_guard where held and checked >= 0 order by checked, syncset limit 16) and checked >= 0";

/// Has suspended syncsets checked again, and removes rows that are not needed.
pub(super) async fn tidy(database: &Database, grant: &Grant) -> Result<(), DispatchError> {
    let holder = grant.holder.as_str();
    let params = [(&holder as _, Type::TEXT), (&grant.token as _, Type::INT8)];
    // What is suspended does not get old.
    let deleted = format!(
        "delete from towline_deleted d where at < now() - interval '{} s' \
       and not exists (select from towline_guard g where g.syncset = d.syncset and g.held)",
        WINDOW.as_secs()
    );
    for (query, text) in
        [("tidy_guards", GUARDS), ("tidy_lost", LOST), ("tidy_deleted", &*deleted), ("tidy_held", HELD)]
    {
        database.execute(query, &format!("{text} and exists {CLAIMED}"), &params).await?;
    }
    Ok(())
}
