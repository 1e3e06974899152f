//! What a pass writes. Each write is one statement. It first locks the row of the pass's claim and writes nothing
//! if the claim has ended. The lock conflicts with a new grant, and with the deletion of the row with its cluster; so no row is written
//! after the rows of a deleted cluster were deleted.
//!
//! The same statement reads the cluster's revision, so that a pass learns without a statement of its own that what it rests on has
//! changed. The last write of a pass also ends its claim.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;
use uuid::Uuid;

use super::columns::{AppliedColumns, AppliedKey, ClusterColumns, PatchedColumns, ResultColumns};
use super::content::texts;
use super::{PassStore, StoreError};
use crate::db::{Json, Param, Row, Text, Type, column};
use crate::documents::{Document, Entry, Work, WorkClaim, WorkEnd};
use crate::syncset::plan::guard::precious_row;
use crate::syncset::plan::health::Health;
use crate::syncset::plan::pass::Writes;
use crate::syncset::plan::rows::{AppliedRow, ClusterRow};

/// How a cluster is, as of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterUpdate {
    pub row: ClusterRow,
    /// The snapshot's. If a full pass was demanded since, the next one stays due.
    pub resyncs: i64,
}

/// What may have changed for a cluster while a pass is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRevision {
    /// How many passes were requested so far, as [`Work::wanted`](crate::documents::Work::wanted) says it.
    pub wanted: i64,
    /// Version of the cluster's document; none if it is gone.
    pub version: Option<i64>,
}

/// The revision of the cluster whose claim is in parameters $1 to $3; no row if the claim has ended.
const REVISION: &str = "held as materialized (select w.cluster, w.wanted, \
       (select c.version from clusters c where c.kind = 'clusters' and c.id = w.cluster) as version \
     from towline_work w where w.cluster = $1::text::uuid and w.holder = $2 and w.token = $3 and w.until > clock_timestamp() \
     for key share of w)";
/// Writes rows of applied objects, which are in parameter $4.
const APPLIED: &str = "applied as (insert into towline_applied select r.* from held \
       join jsonb_populate_recordset(null::towline_applied, $4) r on r.cluster = held.cluster \
     on conflict (cluster, api_group, kind, namespace, name, syncset) do update set api_version = excluded.api_version, \
       content = excluded.content, wanted = excluded.wanted, tracked = excluded.tracked, adopted = excluded.adopted, \
       uid = excluded.uid, version = excluded.version, owned = excluded.owned, resent = excluded.resent, \
       gone = excluded.gone)";
/// Writes and deletes the other rows, which are in the parameters from $5 on. A list that is empty changes nothing.
const OTHERS: &str = "\
     forgotten as (delete from towline_applied a using held, jsonb_populate_recordset(null::towline_applied, $5) g \
       where a.cluster = held.cluster and a.api_group = g.api_group and a.kind = g.kind and a.namespace = g.namespace \
         and a.name = g.name and a.syncset = g.syncset \
       returning a.*), \
     results as (insert into towline_result (cluster, syncset, kind, namespace, name, inputs, generation, result, reason, message, \
         since, first_success, pending_deletions) \
       select r.cluster, r.syncset, r.kind, r.namespace, r.name, r.inputs, r.generation, r.result, r.reason, r.message, \
         r.since, r.first_success, r.pending_deletions from held \
         join jsonb_populate_recordset(null::towline_result, $6) r on r.cluster = held.cluster \
       on conflict (cluster, syncset) do update set kind = excluded.kind, namespace = excluded.namespace, name = excluded.name, \
         inputs = excluded.inputs, generation = excluded.generation, result = excluded.result, reason = excluded.reason, \
         message = excluded.message, since = excluded.since, first_success = excluded.first_success, \
         pending_deletions = excluded.pending_deletions \
       returning 1), \
     finished as (delete from towline_result r using held where r.cluster = held.cluster and r.syncset = any($7::text[]::uuid[]) \
       returning 1), \
     patched as (insert into towline_patched select r.* from held \
         join jsonb_populate_recordset(null::towline_patched, $8) r on r.cluster = held.cluster \
       on conflict (cluster, syncset, position) do update set content = excluded.content, uid = excluded.uid, \
         version = excluded.version), \
     cluster_row as (insert into towline_cluster as p select r.* from held \
         join jsonb_populate_recordset(null::towline_cluster, $9) r on r.cluster = held.cluster \
       on conflict (cluster) do update set identity = excluded.identity, home = excluded.home, kubeconfig_generation = excluded.kubeconfig_generation, \
         reachable = excluded.reachable, last_contact = excluded.last_contact, last_full = excluded.last_full, \
         next_full = case when p.resyncs = excluded.resyncs then excluded.next_full end, \
         attempts = excluded.attempts, retry_at = excluded.retry_at, asked_generation = excluded.asked_generation, \
         left_at = excluded.left_at, failure = null \
       returning 1), \
     dropped as (delete from towline_patched t using held, \
         unnest($10::text[]::uuid[], $11::bigint[]) d(syncset, position) \
       where t.cluster = held.cluster and t.syncset = d.syncset and t.position = d.position)";
/// Counts what syncsets have deleted, of the rows in $5, for the guard. What was approved does not count. An approval is used up by whatever
/// is forgotten, deleted or not: else it would be left for something else. All of it is of the moment before the statement.
fn deleted() -> String {
    format!(
        "gone as materialized (select a.cluster, a.syncset, count(*)::int as objects, (count(*) filter (where {precious}))::int as precious, \
             (count(*) filter (where g.deleted))::int as deleted \
           from forgotten a join jsonb_to_recordset($5) g(api_group text, kind text, namespace text, name text, syncset uuid, deleted boolean) \
             on a.api_group = g.api_group and a.kind = g.kind and a.namespace = g.namespace and a.name = g.name and a.syncset = g.syncset \
           where a.tracked and not a.adopted group by a.cluster, a.syncset), \
         used as (update towline_lost l set approved = greatest(l.approved - gone.objects, 0), \
             approved_precious = greatest(l.approved_precious - gone.precious, 0) \
           from gone where l.cluster = gone.cluster and l.syncset = gone.syncset and l.approved > 0 returning 1), \
         deleted as (insert into towline_deleted (syncset, cluster, at, objects) \
           select gone.syncset, gone.cluster, now(), gone.deleted - coalesce(l.approved, 0) from gone \
             left join towline_lost l on l.cluster = gone.cluster and l.syncset = gone.syncset \
             where gone.deleted > coalesce(l.approved, 0))",
        precious = precious_row("a"),
    )
}

static SAVE: LazyLock<String> =
    LazyLock::new(|| format!("with {REVISION}, {APPLIED}, {OTHERS}, {} select wanted, version from held", deleted()));
/// The same, and ends the claim. The row of the claim is locked for that last, after those of the cluster, of what it has lost and of its
/// results: the dispatcher locks them in this order, and would lose its turn to a circle.
static SAVE_AND_END: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {REVISION}, {APPLIED}, {OTHERS}, {deleted}, \
         written as materialized (select (select count(*) from cluster_row) + (select count(*) from used) \
           + (select count(*) from results) + (select count(*) from finished) as rows), \
         ended as (update towline_work w set {ended} from held, written \
           where w.cluster = held.cluster and w.holder = $2 and w.token = $3 and written.rows >= 0 returning w.wanted <> $12 as is_ready) \
         select is_ready from ended",
        deleted = deleted(),
        ended = WorkEnd::assignments(12),
    )
});
static SAVE_HEALTH: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {REVISION}, read as (update towline_result r set health = h.health \
           from held, jsonb_to_recordset($4) h(syncset uuid, health jsonb) \
           where r.cluster = held.cluster and r.syncset = h.syncset) \
         select wanted, version from held"
    )
});
/// Notes why no pass can begin, and reads the `ClusterSync` without what it says of syncsets: of too many, that is large.
static FAIL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {REVISION}, noted as (insert into towline_cluster as p (cluster, kubeconfig_generation, attempts, failure) \
           select cluster, 0, 0, jsonb_build_object('reason', $4::text, 'message', $5::text, 'since', now()) from held \
           on conflict (cluster) do update set failure = excluded.failure \
             where p.failure->>'reason' is distinct from excluded.failure->>'reason') \
         select (select jsonb_set(jsonb_set(to_jsonb(s) - 'sealed', '{{status,syncSets}}', '[]'), '{{status,selectorSyncSets}}', '[]')::text \
           from clusters c join clustersyncs s on s.kind = 'clustersyncs' and s.namespace = c.namespace and s.name = c.name \
           where c.kind = 'clusters' and c.id = held.cluster) from held"
    )
});
static LOOK: LazyLock<String> = LazyLock::new(|| format!("with {REVISION} select wanted, version from held"));

/// Makes full passes of clusters due; $1 has their ids, or is null for all of them. They begin when the clusters are asked for. A row
/// that is new has a count above that of a pass which has read none.
pub(in crate::syncset) const RESYNC: &str = "insert into towline_cluster (cluster, kubeconfig_generation, attempts, resyncs) \
     select id, 0, 0, 1 from clusters where $1::text[] is null or id = any($1::text[]::uuid[]) order by id \
     on conflict (cluster) do update set next_full = null, resyncs = towline_cluster.resyncs + 1";

impl PassStore {
    /// Writes what a pass has found out, or is about to do, and how the cluster is if that is known by now. A row is
    /// in one list at most, and there once.
    pub async fn save(
        &self,
        claim: &WorkClaim,
        writes: &Writes,
        cluster_row: Option<&ClusterUpdate>,
    ) -> Result<ClusterRevision, StoreError> {
        const QUERY: &str = "save_pass";
        let columns = Columns::of(claim, writes, cluster_row)?;
        let _slot = self.slot().await;
        revision(QUERY, &self.database.all(QUERY, Text::Prepared(&SAVE), &columns.params(claim)).await?)
    }

    /// Writes what has come of a pass, and ends its claim. Returns whether the cluster is ready again: somebody asked for another pass
    /// meanwhile. If it fails, the claim may not have ended, but it is renewed no more.
    pub async fn end(
        &self,
        work: &Work,
        end: &WorkEnd,
        writes: &Writes,
        cluster_row: &ClusterUpdate,
    ) -> Result<bool, StoreError> {
        const QUERY: &str = "end_pass";
        let claim = work.writing();
        let columns = Columns::of(&claim, writes, Some(cluster_row))?;
        let params: Vec<_> = columns.params(&claim).into_iter().chain(end.params(&work.wanted)).collect();
        let _slot = self.slot().await;
        work.release();
        let rows = self.database.all(QUERY, Text::Prepared(&SAVE_AND_END), &params).await?;
        Ok(column(QUERY, rows.first().ok_or(StoreError::ClaimLost)?, 0)?)
    }

    /// What is known of the health of these syncsets, with their objects. What another release has written is read anew.
    pub async fn health(
        &self,
        cluster: Uuid,
        syncsets: impl Iterator<Item = Uuid>,
    ) -> Result<BTreeMap<Uuid, Health>, StoreError> {
        const QUERY: &str = "stored_health";
        const TEXT: &str = "select syncset::text, health::text from towline_result \
             where cluster = $1::text::uuid and syncset = any($2::text[]::uuid[]) and health is not null";
        let (cluster, syncsets) = (cluster.to_string(), texts(&syncsets.collect::<Vec<_>>()));
        let params: [Param<'_>; 2] = [(&cluster, Type::TEXT), (&syncsets, Type::TEXT_ARRAY)];
        let _slot = self.slot().await;
        let mut known = BTreeMap::new();
        for row in self.database.all(QUERY, Text::Prepared(TEXT), &params).await? {
            let (syncset, health): (&str, &str) = (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?);
            if let (Ok(syncset), Ok(health)) = (syncset.parse(), serde_json::from_str(health)) {
                known.insert(syncset, health);
            }
        }
        Ok(known)
    }

    /// Writes what was read of the health of these syncsets.
    pub async fn save_health(&self, claim: &WorkClaim, read: &BTreeMap<Uuid, Health>) -> Result<(), StoreError> {
        const QUERY: &str = "save_health";
        let rows: Vec<_> =
            read.iter().map(|(syncset, health)| serde_json::json!({"syncset": syncset, "health": health})).collect();
        let (cluster, rows) = (claim.cluster.to_string(), json(&rows, "towline_result")?);
        let params: [Param<'_>; 4] =
            [(&cluster, Type::TEXT), (&claim.holder, Type::TEXT), (&claim.token, Type::INT8), (&rows, Type::JSONB)];
        let _slot = self.slot().await;
        revision(QUERY, &self.database.all(QUERY, Text::Prepared(&SAVE_HEALTH), &params).await?).map(drop)
    }

    /// Notes that no pass over the cluster can begin, and why, until it is written again how the cluster is. Returns its `ClusterSync` as it is
    /// without results of syncsets; none if it is gone.
    pub async fn fail(&self, claim: &WorkClaim, reason: &str, message: &str) -> Result<Option<Document>, StoreError> {
        const QUERY: &str = "fail_cluster";
        let cluster = claim.cluster.to_string();
        let params: [Param<'_>; 5] = [
            (&cluster, Type::TEXT),
            (&claim.holder, Type::TEXT),
            (&claim.token, Type::INT8),
            (&reason, Type::TEXT),
            (&message, Type::TEXT),
        ];
        let _slot = self.slot().await;
        let rows = self.database.all(QUERY, Text::Prepared(&FAIL), &params).await?;
        let text: Option<&str> = column(QUERY, rows.first().ok_or(StoreError::ClaimLost)?, 0)?;
        text.map(Document::from_row).transpose().map_err(StoreError::Document)
    }

    /// The present revision of the cluster.
    pub async fn revision(&self, claim: &WorkClaim) -> Result<ClusterRevision, StoreError> {
        const QUERY: &str = "state_of_pass";
        let cluster = claim.cluster.to_string();
        let params = [(&cluster as _, Type::TEXT), (&claim.holder as _, Type::TEXT), (&claim.token as _, Type::INT8)];
        let _slot = self.slot().await;
        revision(QUERY, &self.database.all(QUERY, Text::Prepared(&LOOK), &params).await?)
    }

    /// Makes full passes of these clusters due. They begin when the clusters are asked for.
    pub async fn resync(&self, clusters: &[Uuid], entry: &Entry) -> Result<(), StoreError> {
        let (clusters, text) = (texts(clusters), format!("with noted as ({}) {RESYNC}", Entry::statement(2)));
        self.database.execute("resync", &text, &[(&clusters, Type::TEXT_ARRAY), (&Json(entry), Type::JSONB)]).await?;
        Ok(())
    }
}

/// What is written, as the statement takes it.
struct Columns {
    cluster: String,
    applied: Json<serde_json::Value>,
    forgotten: Json<serde_json::Value>,
    results: Json<serde_json::Value>,
    finished: Vec<String>,
    patched: Json<serde_json::Value>,
    cluster_row: Json<serde_json::Value>,
    unpatched: Vec<String>,
    positions: Vec<i64>,
}

impl Columns {
    fn of(claim: &WorkClaim, writes: &Writes, cluster_row: Option<&ClusterUpdate>) -> Result<Self, StoreError> {
        let id = claim.cluster;
        let forgotten: Vec<_> = writes
            .forgotten
            .iter()
            .map(|row @ (object, syncset)| AppliedKey::of(object, *syncset, writes.has_removed(row)))
            .collect();
        let results: Vec<_> = writes.results.iter().map(|row| ResultColumns::of(id, row)).collect();
        let patched: Vec<_> = writes.patched.iter().map(|row| PatchedColumns::of(id, row)).collect();
        let cluster_row: Vec<_> = cluster_row
            .iter()
            .map(|cluster_row| ClusterColumns::of(id, &cluster_row.row, cluster_row.resyncs))
            .collect();
        let position = |position: usize| i64::try_from(position).unwrap_or(i64::MAX);
        Ok(Self {
            cluster: id.to_string(),
            applied: json(&applied(id, &writes.applied), "towline_applied")?,
            forgotten: json(&forgotten, "towline_applied")?,
            results: json(&results, "towline_result")?,
            finished: texts(&writes.finished),
            patched: json(&patched, "towline_patched")?,
            cluster_row: json(&cluster_row, "towline_cluster")?,
            unpatched: writes.unpatched.iter().map(|(syncset, _)| syncset.to_string()).collect(),
            positions: writes.unpatched.iter().map(|(_, at)| position(*at)).collect(),
        })
    }

    /// With the claim, the parameters $1 to $11.
    fn params<'c>(&'c self, claim: &'c WorkClaim) -> [Param<'c>; 11] {
        [
            (&self.cluster, Type::TEXT),
            (&claim.holder, Type::TEXT),
            (&claim.token, Type::INT8),
            (&self.applied, Type::JSONB),
            (&self.forgotten, Type::JSONB),
            (&self.results, Type::JSONB),
            (&self.finished, Type::TEXT_ARRAY),
            (&self.patched, Type::JSONB),
            (&self.cluster_row, Type::JSONB),
            (&self.unpatched, Type::TEXT_ARRAY),
            (&self.positions, Type::INT8_ARRAY),
        ]
    }
}

fn applied(cluster: Uuid, rows: &[AppliedRow]) -> Vec<AppliedColumns> {
    rows.iter().map(|row| AppliedColumns::of(cluster, row)).collect()
}

fn json(rows: &impl Serialize, table: &'static str) -> Result<Json<serde_json::Value>, StoreError> {
    serde_json::to_value(rows).map(Json).map_err(|source| StoreError::Json { table, source })
}

/// The first columns of the only row. Without a row the claim has ended.
fn revision(query: &'static str, rows: &[Row]) -> Result<ClusterRevision, StoreError> {
    let row = rows.first().ok_or(StoreError::ClaimLost)?;
    Ok(ClusterRevision { wanted: column(query, row, 0)?, version: column(query, row, 1)? })
}
