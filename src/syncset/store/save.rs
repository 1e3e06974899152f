//! What a pass writes. Each write is one statement, but for that of another identity, which is a transaction of two. It first locks the row of the pass's claim and writes nothing
//! if the claim has ended. The lock conflicts with a new grant, and with the deletion of the row with its cluster; so no row is written
//! after the rows of a deleted cluster were deleted.
//!
//! If the pass says that it wants something no longer, the same statement asks for passes of the other documents of the cluster
//! that have the same object: they may be about to delete it, and have looked before. If the document leads to another cluster
//! than before, it asks for those of both clusters. And it reads how the cluster stands, so that a pass learns without a statement of
//! its own that what it rests on has changed.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::columns::{AppliedColumns, AppliedKey, PaceColumns, PatchedColumns, ResultColumns};
use super::content::texts;
use super::snapshot::{elsewhere, wanted_elsewhere};
use super::{PassStore, StoreError};
use crate::db::{Json, Row, Type, column};
use crate::documents::WorkClaim;
use crate::syncset::rules::name::ObjectRef;
use crate::syncset::rules::pass::Writes;
use crate::syncset::rules::rows::{AppliedRow, PaceRow};

/// How a cluster is, as of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// To be written.
    pub row: PaceRow,
    /// The snapshot's. If a full pass was demanded since, the next one stays due.
    pub resyncs: i64,
    /// The identity of the cluster that is stored and the one of the row, if that is another one: who else has them is told.
    pub identities: Vec<String>,
}

/// How a cluster stands while a pass is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many passes were requested so far, as [`Work::wanted`](crate::documents::Work::wanted) says it.
    pub wanted: i64,
    /// Version of the cluster's document; none if it is gone.
    pub version: Option<i64>,
    /// Whether other documents lead to the same cluster.
    pub is_shared: bool,
}

/// Which cluster the kubeconfig leads to, as far as a write depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing<'s> {
    /// The identity of the cluster that the pass works on.
    pub identity: Option<&'s str>,
    /// Whether nothing is written if other documents have this identity.
    pub unless_shared: bool,
}

/// How the cluster stands whose claim is in parameters $1 to $3; no row if the claim has ended. $4 is its identity.
const STANDING: &str = "standing as materialized (select w.cluster, w.wanted, \
       (select c.version from clusters c where c.kind = 'clusters' and c.id = w.cluster) as version, \
       exists (select from towline_pace o join clusters c on c.kind = 'clusters' and c.id = o.cluster \
         where o.identity = $4::text and o.cluster <> w.cluster) as is_shared \
     from towline_work w where w.cluster = $1::text::uuid and w.holder = $2 and w.token = $3 and w.until > clock_timestamp() \
     for key share of w)";
/// The claim, if something may be written: $5 says that nothing may be if the cluster is shared.
const HELD: &str = "held as materialized (select cluster from standing where not ($5::bool and is_shared))";
/// What is wanted no longer: rows in $6 and $7.
const DROPPED_OBJECTS: &str = "dropped_objects as materialized (select api_group, kind, namespace, name \
         from jsonb_populate_recordset(null::towline_applied, $6) where not wanted \
       union select api_group, kind, namespace, name from jsonb_populate_recordset(null::towline_applied, $7))";
/// Between which identities the cluster moves, if it does.
const MOVED: &str = "moved as materialized (select r.identity as now, p.identity as before \
       from held join jsonb_populate_recordset(null::towline_pace, $11) r on r.cluster = held.cluster \
         left join towline_pace p on p.cluster = held.cluster where r.identity is distinct from p.identity)";
/// Asks for all other documents of clusters between which the document moves: of how many documents a cluster has, they show something.
/// And asks for other documents of the cluster, as [`WorkQueue::ask`](crate::documents::WorkQueue::ask) does, if $14 says so: of the one
/// that the pass works on, and of the one that it was before. Those that have a row of what is wanted no longer, or of a namespace or a
/// definition in which it is: they may have left that for this document's sake. Whether they want it themselves does not count, since
/// they may be about to store that they do not. Each part uses the primary key of the rows. The row of `towline_pace` is locked before
/// those of `towline_work`, as [`BEREFT`] does it: it is written when they are counted.
const TOLD: &str = "told as (insert into towline_work (cluster, ready_at, urgent) \
       select t.cluster, now(), false from (select o.cluster from (select now as identity from moved union select before from moved) m \
         cross join lateral (select p.cluster from towline_pace p where p.identity = m.identity offset 0) o \
         join clusters c on c.kind = 'clusters' and c.id = o.cluster and c.id <> $1::text::uuid \
       union select o.cluster from held join towline_pace o on o.cluster <> held.cluster \
         join clusters c on c.kind = 'clusters' and c.id = o.cluster \
       where $14::bool and o.identity in ($4::text, (select p.identity from towline_pace p where p.cluster = $1::text::uuid)) \
         and (exists (select from dropped_objects d join towline_applied a on a.cluster = o.cluster and a.api_group = d.api_group \
             and a.kind = d.kind and a.namespace = d.namespace and a.name = d.name) \
           or exists (select from dropped_objects d join towline_applied a on a.cluster = o.cluster and a.api_group = '' \
             and a.kind = 'Namespace' and a.namespace = '' and a.name = d.namespace) \
           or exists (select from towline_applied a where a.cluster = o.cluster and a.api_group = 'apiextensions.k8s.io' \
             and a.kind = 'CustomResourceDefinition' \
             and substr(a.name, strpos(a.name, '.') + 1) in (select d.api_group from dropped_objects d)))) t \
       where (select count(*) from pace) >= 0 order by t.cluster \
     on conflict (cluster) do update set wanted = towline_work.wanted + 1, attempts = 0, \
       ready_at = least(towline_work.ready_at, excluded.ready_at) returning 1)";
/// Writes rows of applied objects, which are in parameter $6.
const APPLIED: &str = "applied as (insert into towline_applied select r.* from held \
       join jsonb_populate_recordset(null::towline_applied, $6) r on r.cluster = held.cluster \
     on conflict (cluster, api_group, kind, namespace, name, syncset) do update set api_version = excluded.api_version, \
       content = excluded.content, wanted = excluded.wanted, tracked = excluded.tracked, adopted = excluded.adopted, \
       uid = excluded.uid, version = excluded.version, owned = excluded.owned, resent = excluded.resent, \
       gone = excluded.gone)";
/// Writes and deletes the other rows, which are in the parameters from $7 on. A list that is empty changes nothing.
const OTHERS: &str = "\
     forgotten as (delete from towline_applied a using held, jsonb_populate_recordset(null::towline_applied, $7) g \
       where a.cluster = held.cluster and a.api_group = g.api_group and a.kind = g.kind and a.namespace = g.namespace \
         and a.name = g.name and a.syncset = g.syncset), \
     results as (insert into towline_result select r.* from held \
         join jsonb_populate_recordset(null::towline_result, $8) r on r.cluster = held.cluster \
       on conflict (cluster, syncset) do update set kind = excluded.kind, namespace = excluded.namespace, name = excluded.name, \
         inputs = excluded.inputs, generation = excluded.generation, result = excluded.result, reason = excluded.reason, \
         message = excluded.message, since = excluded.since, first_success = excluded.first_success, \
         pending_deletions = excluded.pending_deletions), \
     finished as (delete from towline_result r using held where r.cluster = held.cluster and r.syncset = any($9::text[]::uuid[])), \
     patched as (insert into towline_patched select r.* from held \
         join jsonb_populate_recordset(null::towline_patched, $10) r on r.cluster = held.cluster \
       on conflict (cluster, syncset, position) do update set content = excluded.content, uid = excluded.uid, \
         version = excluded.version), \
     pace as (insert into towline_pace as p select r.* from held \
         join jsonb_populate_recordset(null::towline_pace, $11) r on r.cluster = held.cluster \
       on conflict (cluster) do update set identity = excluded.identity, home = excluded.home, kubeconfig_generation = excluded.kubeconfig_generation, \
         reachable = excluded.reachable, last_contact = excluded.last_contact, last_full = excluded.last_full, \
         next_full = case when p.resyncs = excluded.resyncs then excluded.next_full end, \
         attempts = excluded.attempts, retry_at = excluded.retry_at, asked_generation = excluded.asked_generation returning 1), \
     dropped as (delete from towline_patched t using held, \
         unnest($12::text[]::uuid[], $13::bigint[]) d(syncset, position) \
       where t.cluster = held.cluster and t.syncset = d.syncset and t.position = d.position)";
/// Makes full passes of clusters due, as [`RESYNC`] does, and asks for them. The rows of `towline_pace` are locked before those of
/// `towline_work`.
const BEREFT: &str = "resynced as (insert into towline_pace (cluster, kubeconfig_generation, attempts, resyncs) \
       select cluster, 0, 0, 1 from bereft order by cluster \
     on conflict (cluster) do update set next_full = null, resyncs = towline_pace.resyncs + 1 returning cluster), \
     asked as (insert into towline_work (cluster, ready_at, urgent) \
       select r.cluster, now(), true from (select cluster from resynced order by cluster) r \
     on conflict (cluster) do update set wanted = towline_work.wanted + 1, attempts = 0, urgent = true, \
       ready_at = least(towline_work.ready_at, excluded.ready_at) returning 1)";
/// Until the end of a transaction nobody else stores that a document leads to one of these clusters.
const LOCK_IDENTITIES: &str = "select set_config('idle_in_transaction_session_timeout', '3s', true), \
     pg_advisory_xact_lock('towline_pace'::regclass::int, hash) \
     from (select distinct hashtext(i) as hash from unnest($1::text[]) i order by 1) h";
/// Longest wait for that, and for the write that follows.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(10);
/// Makes full passes of clusters due; $1 has their ids, or is null for all of them. They begin when the clusters are asked for. A row
/// that is new has a count above that of a pass which has read none.
pub(in crate::syncset) const RESYNC: &str = "insert into towline_pace (cluster, kubeconfig_generation, attempts, resyncs) \
     select id, 0, 0, 1 from clusters where $1::text[] is null or id = any($1::text[]::uuid[]) order by id \
     on conflict (cluster) do update set next_full = null, resyncs = towline_pace.resyncs + 1";

impl PassStore {
    /// Writes what a pass has found out, or is about to do, and how the cluster is if that is known by now. A row is
    /// in one list at most, and there once.
    pub async fn save(&self, claim: &WorkClaim, writes: &Writes, pace: Option<&Pace>) -> Result<(), StoreError> {
        self.save_in(claim, writes, pace, &Sharing::default()).await.map(|_| ())
    }

    /// The same in a cluster that other documents may lead to, too. Those that have an object
    /// are asked for if the pass wants it no longer.
    pub async fn save_in(
        &self,
        claim: &WorkClaim,
        writes: &Writes,
        pace: Option<&Pace>,
        sharing: &Sharing<'_>,
    ) -> Result<Standing, StoreError> {
        const QUERY: &str = "save_pass";
        let id = claim.cluster;
        let cluster = id.to_string();
        let forgotten: Vec<_> =
            writes.forgotten.iter().map(|(object, syncset)| AppliedKey::of(object, *syncset)).collect();
        let results: Vec<_> = writes.results.iter().map(|row| ResultColumns::of(id, row)).collect();
        let patched: Vec<_> = writes.patched.iter().map(|row| PatchedColumns::of(id, row)).collect();
        let identities = pace.map(|pace| pace.identities.clone()).unwrap_or_default();
        let pace: Vec<_> = pace.iter().map(|pace| PaceColumns::of(id, &pace.row, pace.resyncs)).collect();
        let applied = json(&applied(id, &writes.applied), "towline_applied")?;
        let forgotten = json(&forgotten, "towline_applied")?;
        let results = json(&results, "towline_result")?;
        let finished = texts(&writes.finished);
        let patched = json(&patched, "towline_patched")?;
        let pace = json(&pace, "towline_pace")?;
        let unpatched: Vec<String> = writes.unpatched.iter().map(|(syncset, _)| syncset.to_string()).collect();
        let positions: Vec<i64> =
            writes.unpatched.iter().map(|(_, position)| i64::try_from(*position).unwrap_or(i64::MAX)).collect();
        let has_drops = writes.drops();
        let params = [
            (&cluster as _, Type::TEXT),
            (&claim.holder as _, Type::TEXT),
            (&claim.token as _, Type::INT8),
            (&sharing.identity as _, Type::TEXT),
            (&sharing.unless_shared as _, Type::BOOL),
            (&applied as _, Type::JSONB),
            (&forgotten as _, Type::JSONB),
            (&results as _, Type::JSONB),
            (&finished as _, Type::TEXT_ARRAY),
            (&patched as _, Type::JSONB),
            (&pace as _, Type::JSONB),
            (&unpatched as _, Type::TEXT_ARRAY),
            (&positions as _, Type::INT8_ARRAY),
            (&has_drops as _, Type::BOOL),
        ];
        let text = format!(
            "with {STANDING}, {HELD}, {APPLIED}, {OTHERS}, {DROPPED_OBJECTS}, {MOVED}, {TOLD} select wanted, version, is_shared, \
               (select pg_notify('towline_work', '') from told limit 1) from standing"
        );
        let _turn = self.turn().await;
        if identities.is_empty() {
            return standing(QUERY, &self.database.all(QUERY, &text, &params).await?);
        }
        // Two documents that find out at once that they lead to one cluster would not see each other. A process that stops before the end
        // must not hold rows for longer than renewals of claims can wait for them.
        let mut transaction = self.database.begin("identify", IDENTIFY_WITHIN).await?;
        transaction.execute("lock_identities", LOCK_IDENTITIES, &[(&identities as _, Type::TEXT_ARRAY)]).await?;
        let standing = standing(QUERY, &transaction.all(QUERY, &text, &params).await?)?;
        transaction.commit().await?;
        Ok(standing)
    }

    /// Makes full passes of the other documents of the cluster due that want something which is gone, or something that went with it.
    pub async fn tell_bereft(
        &self,
        claim: &WorkClaim,
        identity: &str,
        gone: &[ObjectRef],
    ) -> Result<Standing, StoreError> {
        const QUERY: &str = "tell_bereft";
        let cluster = claim.cluster.to_string();
        let objects = elsewhere(gone);
        let params = [
            (&cluster as _, Type::TEXT),
            (&claim.holder as _, Type::TEXT),
            (&claim.token as _, Type::INT8),
            (&identity as _, Type::TEXT),
            (&objects as _, Type::JSONB),
        ];
        let text = format!(
            "with {STANDING}, bereft as materialized (select b.cluster::uuid as cluster from ({wanted}) b join standing on true), \
               {BEREFT} select wanted, version, is_shared, (select pg_notify('towline_work', '') from asked limit 1) from standing",
            wanted = wanted_elsewhere("$4", "$5"),
        );
        let _turn = self.turn().await;
        standing(QUERY, &self.database.all(QUERY, &text, &params).await?)
    }

    /// How the cluster stands.
    pub async fn standing(&self, claim: &WorkClaim, identity: Option<&str>) -> Result<Standing, StoreError> {
        const QUERY: &str = "standing_of_pass";
        let cluster = claim.cluster.to_string();
        let params = [
            (&cluster as _, Type::TEXT),
            (&claim.holder as _, Type::TEXT),
            (&claim.token as _, Type::INT8),
            (&identity as _, Type::TEXT),
        ];
        let text = format!("with {STANDING} select wanted, version, is_shared from standing");
        let _turn = self.turn().await;
        standing(QUERY, &self.database.all(QUERY, &text, &params).await?)
    }

    /// Makes full passes of these clusters due. They begin when the clusters are asked for.
    pub async fn resync(&self, clusters: &[Uuid]) -> Result<(), StoreError> {
        let clusters = texts(clusters);
        self.database.execute("resync", RESYNC, &[(&clusters, Type::TEXT_ARRAY)]).await?;
        Ok(())
    }
}

fn applied(cluster: Uuid, rows: &[AppliedRow]) -> Vec<AppliedColumns> {
    rows.iter().map(|row| AppliedColumns::of(cluster, row)).collect()
}

fn json(rows: &impl Serialize, table: &'static str) -> Result<Json<serde_json::Value>, StoreError> {
    serde_json::to_value(rows).map(Json).map_err(|source| StoreError::Json { table, source })
}

/// The first columns of the only row. Without a row the claim has ended.
fn standing(query: &'static str, rows: &[Row]) -> Result<Standing, StoreError> {
    let row = rows.first().ok_or(StoreError::LeaseExpired)?;
    Ok(Standing { wanted: column(query, row, 0)?, version: column(query, row, 1)?, is_shared: column(query, row, 2)? })
}
