//! What a pass begins with: one statement, so that all of it is of one moment. Passes that begin in one moment share it.

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use uuid::Uuid;

use super::columns::{ClusterColumns, GuardColumns, ResultColumns, UnreadableColumn, kind, some_time, time};
use super::content::sent;
use super::{PassStore, StoreError, read};
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::db::{self, Row, Text, Type, column};
use crate::documents::{Document, IS_WHOLE, ListError};
use crate::syncset::plan::name::SyncSetName;
use crate::syncset::plan::naming::Resource;
use crate::syncset::plan::rows::{ClusterRow, GuardRow};
use crate::syncset::plan::snapshot::{Awaited, Candidate, MOST_BYTES, Sent, Snapshot, StoredCluster};

const QUERY: &str = "syncset_snapshot";
/// Of so many rows of applied objects and of patches, the snapshot has what they say: fewer cost less than another statement.
const FEW: i64 = 200;
/// The annotation of a `SyncSet` with the group under which its metrics count.
const METRICS_GROUP: &str = "hive.openshift.io/syncset-metrics-group";

/// What a syncset, the facts of a secret or a result counts beside its texts, in bytes.
const EACH: usize = 400;

/// A snapshot that has more bytes than there was room for. Nothing of it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub bytes: usize,
}

/// A snapshot that somebody waits for.
pub(super) struct Asked {
    cluster: String,
    /// It has at most so many bytes.
    room: i64,
    /// Dropped if it has to be read by itself.
    reply: oneshot::Sender<Result<Row, db::Error>>,
}

/// As the statement prints it.
#[derive(Deserialize)]
struct CandidateColumns {
    kind: String,
    id: Uuid,
    namespace: String,
    name: String,
    version: i64,
    generation: i64,
    pinned: Option<PinnedColumns>,
    metrics_group: Option<String>,
    created_at: String,
    is_being_deleted: bool,
    bytes: usize,
    objects: usize,
    is_cut: bool,
    spec: Map<String, Value>,
}

/// Of one with a rollout.
#[derive(Deserialize)]
struct PinnedColumns {
    /// As it was written; none if it is missing.
    version: Option<i64>,
    generation: Option<i64>,
    read_before: Option<String>,
    /// Whether the cluster is pinned to nothing, since its turn to get the first revision has not come.
    is_waiting: bool,
    awaited: Option<AwaitedColumns>,
}

#[derive(Deserialize)]
struct AwaitedColumns {
    spec: Value,
    resources: Option<Vec<Resource>>,
}

/// What a candidate is applied as.
const SPEC: &str = "coalesce(p.spec, d.spec)";

/// How many resources and patches a `spec` has, whatever it is.
fn counted() -> String {
    let of = |list| {
        format!("case jsonb_typeof({SPEC}->'{list}') when 'array' then jsonb_array_length({SPEC}->'{list}') else 0 end")
    };
    format!("{} + {}", of("resources"), of("patches"))
}

/// What the candidate `s` is on the cluster `c`: as its document has it, or in the revision to which the cluster is pinned, with the clusters
/// that the document says. Only syncsets with a rollout are looked up. One whose revision is missing is one that can't be read. `awaited` is
/// what the cluster is about to have by its rollout, without its content but for the names of objects.
const AS_PINNED: &str = "cross join lateral (select s.data->'spec' as spec offset 0) d \
    left join lateral ( \
      select coalesce(v.content, '{}') || coalesce((select jsonb_object_agg(key, value) from jsonb_each(d.spec) \
          where key in ('clusterDeploymentSelector', 'clusterNamespaces')), '{}') as spec, \
        jsonb_build_object('version', v.version, 'generation', v.generation, 'read_before', t.read_before, \
          'is_waiting', coalesce(t.revision, r.stable) is null, \
          'awaited', case when g.content is not null then jsonb_build_object('spec', g.content - '{resources,patches,health,rollout}'::text[], \
            'resources', case when jsonb_typeof(g.content->'resources') = 'array' then coalesce((select jsonb_agg(jsonb_build_array( \
                e->>'apiVersion', e->>'kind', e #>> '{metadata,namespace}', e #>> '{metadata,name}')) \
              from jsonb_array_elements(g.content->'resources') e), '[]') end) end) as pinned \
      from towline_rollout r left join towline_turn t on t.syncset = r.syncset and t.cluster = c.id \
        left join towline_revision v on v.syncset = r.syncset and v.revision = coalesce(t.revision, r.stable) \
        left join towline_revision g on g.syncset = r.syncset and (r.reason <> 'Aborted' or r.started < r.edited) \
          and g.revision = case when r.started < r.edited then r.newest else r.goal end \
          and g.revision is distinct from coalesce(t.revision, r.stable) \
      where d.spec ? 'rollout' and r.syncset = s.id offset 0) p on true";

/// A row for each cluster of $1, in this order. By its limit, which is no limit, the server plans for one: of an array it would expect ten, for
/// which a plan that is made anew for one seems cheaper, and worth compiling. What is in a row has no order: the caller has one of its own.
/// `offset 0` keeps a large `spec` from being unpacked for each of its uses. A syncset that another release has written, in whatever form, does not
/// keep the others from being read. The owner is looked up in the order of its index: sorted, all documents of the cluster would be read.
static STATEMENT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select snapshot.* from (select * from unnest($1::text[]::uuid[], $2::bigint[]) with ordinality a(cluster, room, at) \
           limit cardinality($1)) asked cross join lateral ( \
         with target as materialized (select * from clusters where kind = 'clusters' and id = asked.cluster), \
         own as materialized (select (to_jsonb(c) - 'sealed')::text as text, sealed from target c), \
         shown as materialized (select (to_jsonb(s) - 'sealed')::text as text from target c join clustersyncs s \
           on s.kind = 'clustersyncs' and s.namespace = c.namespace and s.name = c.name), \
         selectors as materialized ( \
           select t.selector from target c, jsonb_each_text(c.labels) l \
             join towline_terms t on t.key = l.key and t.value in (l.value, '*') \
           union select selector from towline_terms where key = '' and value = ''), \
         found as materialized ( \
           select 'SyncSet' as kind, s.id, s.namespace, s.name, s.version, s.generation, p.pinned, left(s.annotations->>'{METRICS_GROUP}', 63) as metrics_group, \
             s.created_at, s.deleted_at is not null as is_being_deleted, \
             coalesce(pg_column_size({SPEC}), 0) as bytes, {counted} as objects, \
             {SPEC} - '{{resources,patches,clusterDeploymentRefs,rollout}}'::text[] as spec \
           from target c join syncsets s on s.kind = 'syncsets' and s.namespace = c.namespace \
             and s.data #> '{{spec,clusterDeploymentRefs}}' @> jsonb_build_array(jsonb_build_object('name', c.name)) \
             {AS_PINNED} \
           union all \
           select 'SelectorSyncSet', s.id, s.namespace, s.name, s.version, s.generation, p.pinned, null, \
             s.created_at, s.deleted_at is not null, coalesce(pg_column_size({SPEC}), 0), {counted}, \
             case when jsonb_typeof({SPEC}) = 'object' \
               then {SPEC} - '{{resources,patches,rollout}}'::text[] else '{{}}' end \
           from target c, selectors join selectorsyncsets s \
             on s.kind = 'selectorsyncsets' and s.id = selectors.selector \
             {AS_PINNED}), \
         candidate as materialized ( \
           select kind, id, namespace, name, version, generation, metrics_group, created_at, is_being_deleted, bytes, objects, size, is_cut, \
             case when is_cut then spec - '{{secretMappings,health}}'::text[] else spec end as spec, \
             case when is_cut and pinned->'awaited' <> 'null' \
               then pinned || jsonb_build_object('awaited', jsonb_build_object('spec', null, 'resources', null)) else pinned end as pinned \
           from (select *, sum(size) over (order by kind desc, namespace, name) > {MOST_BYTES} as is_cut \
             from (select *, {EACH} + pg_column_size(spec) + coalesce(pg_column_size(pinned), 0) as size from found) f) f), \
         source as materialized ( \
           select m #>> '{{sourceRef,namespace}}' as namespace, m #>> '{{sourceRef,name}}' as name, \
             bool_or(coalesce(jsonb_typeof(m->'secretMetadata') = 'array' and m->'secretMetadata' <> '[]', false)) as is_listed \
           from candidate, jsonb_path_query(spec, '$.secretMappings[*]') m group by 1, 2), \
         secret as materialized ({secrets}), \
         outcome as materialized (select r.* from target c join towline_result r on r.cluster = c.id), \
         applied as materialized ( \
           select a.syncset, count(*) as rows from target c join towline_applied a on a.cluster = c.id group by a.syncset), \
         sent as materialized (select (coalesce(sum(rows), 0) \
           + (select count(*) from target c join towline_patched p on p.cluster = c.id))::bigint as rows from applied), \
         known as materialized ( \
           select id from candidate union select syncset from outcome union select syncset from applied), \
         cluster_row as materialized (select p.* from target c join towline_cluster p on p.cluster = c.id), \
         weight as materialized (select w.bytes, w.bytes <= asked.room as fits from (select ( \
             coalesce((select sum(octet_length(text) + coalesce(octet_length(sealed), 0)) from own), 0) \
             + coalesce((select sum(octet_length(text)) from shown), 0) \
             + coalesce((select sum(case when is_cut then {EACH} + pg_column_size(spec) else size end) from candidate), 0) \
             + coalesce((select sum(size) from secret), 0) \
             + coalesce((select sum({EACH} + coalesce(octet_length(message), 0) + coalesce(pg_column_size(health #- '{{objects}}'), 0)) \
               from outcome), 0))::bigint as bytes) w) \
         select {IS_WHOLE}, to_json(now()) #>> '{{}}', \
           (select cursor from towline_claim where name = 'dispatcher'), \
           (select text from own where fits), (select sealed from own where fits), (select text from shown where fits), \
           (select coalesce(jsonb_agg(to_jsonb(candidate)), '[]') from candidate where fits)::text, \
           (select coalesce(jsonb_agg(to_jsonb(secret)), '[]') from secret where fits)::text, \
           (select coalesce(jsonb_agg(to_jsonb(outcome) #- '{{health,objects}}'), '[]') from outcome where fits)::text, \
           (select coalesce(jsonb_agg(syncset), '[]') from applied)::text, (select rows from sent), \
           (select coalesce(jsonb_agg(to_jsonb(cluster_row)), '[]') from cluster_row)::text, \
           (select f.name from target c join towline_identity i on i.cluster = c.id cross join lateral ( \
              select o.name from towline_identity f join clusters o on o.kind = 'clusters' and o.id = f.cluster \
              where f.namespace = i.namespace and f.identity = i.identity and f.since < i.since order by f.since limit 1) f), \
           (select coalesce(jsonb_agg(jsonb_build_object('syncset', g.syncset, 'checked', g.checked, 'gone', g.gone, \
                'held', g.held)), '[]') from known join towline_guard g on g.syncset = known.id)::text, \
           (select coalesce(jsonb_object_agg(d.id, d.version), '{{}}') from known join towline_documents d \
              on d.kind in ('syncsets', 'selectorsyncsets') and d.id = known.id and d.deleted_at is null)::text, \
           (select case when rows <= {FEW} then (select coalesce(jsonb_agg(to_jsonb(a)), '[]') \
              from target c join towline_applied a on a.cluster = c.id) end from sent)::text, \
           (select case when rows <= {FEW} then (select coalesce(jsonb_agg(to_jsonb(p)), '[]') \
              from target c join towline_patched p on p.cluster = c.id) end from sent)::text, fits, weight.bytes \
         from towline_meta m, towline_version s, weight) snapshot order by asked.at",
        counted = counted(),
        secrets = facts("source"),
    )
});

/// The facts of the Secrets that are named in `source`. Labels and annotations are read only where a mapping lists some, and as long as there is
/// room for them beside the candidates, whose sizes are in `candidate`.
pub(super) fn facts(source: &str) -> String {
    format!(
        "select id, namespace, name, version, bytes, data_generation, secret_type, is_immutable, is_cut, \
           case when is_cut then '{{}}' else labels end as labels, case when is_cut then '{{}}' else annotations end as annotations, \
           case when is_cut then {EACH} else size end as size \
         from (select *, is_listed and sum(size) over (order by namespace, name) \
               + coalesce((select sum(size) from candidate where not is_cut), 0) > {MOST_BYTES} as is_cut \
           from (select *, {EACH} + octet_length(labels::text) + octet_length(annotations::text) as size \
             from (select s.id, s.namespace, s.name, s.version, coalesce(octet_length(s.sealed), 0) as bytes, \
                 coalesce((s.data->>'dataGeneration')::bigint, 0) as data_generation, coalesce(s.data->>'type', '') as secret_type, \
                 coalesce(s.data->'immutable' = 'true', false) as is_immutable, source.is_listed, \
                 case when source.is_listed then s.labels else '{{}}' end as labels, \
                 case when source.is_listed then s.annotations - '{LAST_APPLIED}' else '{{}}' end as annotations \
               from {source} source join secrets s \
                 on s.kind = 'secrets' and s.namespace = source.namespace and s.name = source.name) s) s) s"
    )
}

impl PassStore {
    /// What a pass over the cluster of this id begins with, if it is not more than so many bytes of JSON. What documents say beyond
    /// [`MOST_BYTES`] is cut: a syncset of which something is, is left out.
    pub async fn snapshot_within(&self, cluster: Uuid, room: usize) -> Result<Result<Snapshot, TooLarge>, StoreError> {
        let row = self.row(cluster.to_string(), i64::try_from(room).unwrap_or(i64::MAX)).await?;
        let row = row.as_ref().filter(|row| column(QUERY, row, 0).unwrap_or(false));
        let row = row.ok_or(StoreError::Restoring(ListError::Restoring))?;
        if column(QUERY, row, 17)? {
            return snapshot(row).map(Ok);
        }
        let bytes: i64 = column(QUERY, row, 18)?;
        Ok(Err(TooLarge { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }))
    }

    /// The row of a snapshot. Whoever has a slot reads it for all that wait by then: for the clusters of one claim, and of claims that were
    /// granted while there was no slot.
    async fn row(&self, cluster: String, room: i64) -> Result<Option<Row>, db::Error> {
        let (reply, mut answer) = oneshot::channel();
        self.asked.lock().push_back(Asked { cluster: cluster.clone(), room, reply });
        // The other clusters of the claim are asked for, too.
        yield_now().await;
        let answered = loop {
            tokio::select! {
                biased;
                answered = &mut answer => break answered,
                slot = self.slot() => {
                    if !self.read_asked().await {
                        drop(slot);
                        break answer.await;
                    }
                }
            }
        };
        if let Ok(row) = answered {
            return row.map(Some);
        }
        let _slot = self.slot().await;
        Ok(self.rows(&[cluster], &[room]).await?.pop())
    }

    /// Reads what is asked for, up to what is read together. Returns false if nothing is.
    async fn read_asked(&self) -> bool {
        let asked: Vec<Asked> = {
            let mut asked = self.asked.lock();
            // A pass may have been ended meanwhile.
            asked.retain(|asked| !asked.reply.is_closed());
            let most = self.together.min(asked.len());
            asked.drain(..most).collect()
        };
        let clusters: Vec<_> = asked.iter().map(|asked| asked.cluster.clone()).collect();
        let rooms: Vec<_> = asked.iter().map(|asked| asked.room).collect();
        if asked.is_empty() {
            return false;
        }
        let rows = match self.rows(&clusters, &rooms).await {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(error) if asked.len() == 1 => vec![Err(error)],
            // It may be about one of them.
            Err(_) => Vec::new(),
        };
        for (Asked { reply, .. }, row) in asked.into_iter().zip(rows) {
            drop(reply.send(row));
        }
        true
    }

    async fn rows(&self, clusters: &[String], rooms: &[i64]) -> Result<Vec<Row>, db::Error> {
        let params = [(&clusters as _, Type::TEXT_ARRAY), (&rooms as _, Type::INT8_ARRAY)];
        self.database.all(QUERY, Text::Prepared(&STATEMENT), &params).await
    }
}

impl PassStore {
    /// Whether a syncset is one of this hub's: it exists, or something that it has sent is still to be deleted somewhere. Those of the
    /// cluster are in its snapshot.
    pub async fn knows(&self, snapshot: &Snapshot, syncset: Uuid) -> Result<bool, StoreError> {
        const QUERY: &str = "known_syncset";
        const TEXT: &str = "select exists (select from towline_documents d where d.kind in ('syncsets', 'selectorsyncsets') \
               and d.id = $1::text::uuid) or exists (select from towline_result r where r.syncset = $1::text::uuid)";
        if snapshot.knows(syncset) {
            return Ok(true);
        }
        let syncset = syncset.to_string();
        let _slot = self.slot().await;
        let rows = self.database.all(QUERY, Text::Prepared(TEXT), &[(&syncset as _, Type::TEXT)]).await?;
        Ok(rows.first().map_or(Ok(false), |row| column(QUERY, row, 0))?)
    }
}

/// What was sent to the cluster, if that is little.
fn few_sent(row: &Row) -> Result<Option<Sent>, StoreError> {
    if column::<i64>(QUERY, row, 10)? > FEW {
        return Ok(None);
    }
    sent(parsed(row, 15, "towline_applied")?, parsed(row, 16, "towline_patched")?).map(Some)
}

fn snapshot(row: &Row) -> Result<Snapshot, StoreError> {
    let document = |index| -> Result<Option<Document>, StoreError> {
        let text = column::<Option<&str>>(QUERY, row, index)?;
        text.map(Document::from_row).transpose().map_err(StoreError::Document)
    };
    let at = time(column(QUERY, row, 1)?).map_err(|source| StoreError::Row { table: "towline_meta", source })?;
    let sealed = column(QUERY, row, 4)?;
    let cluster = document(3)?.map(|document| StoredCluster { document, sealed });
    let mut candidates: Vec<CandidateColumns> = parsed(row, 6, "selectorsyncsets")?;
    let awaited = candidates.iter_mut().filter_map(awaited).collect::<Result<_, _>>();
    let awaited = awaited.map_err(|source| StoreError::Row { table: "towline_revision", source })?;
    candidates.retain(|candidate| candidate.pinned.as_ref().is_none_or(|pinned| !pinned.is_waiting));
    let results: Vec<ResultColumns> = parsed(row, 8, "towline_result")?;
    let cluster_row: Vec<ClusterColumns> = parsed(row, 11, "towline_cluster")?;
    let resyncs = cluster_row.first().map_or(0, ClusterColumns::resyncs);
    let has_failure = cluster_row.first().is_some_and(ClusterColumns::has_failure);
    let cluster_row = read(cluster_row, "towline_cluster")?.pop();
    let identity = cluster_row.as_ref().and_then(|cluster_row: &ClusterRow| cluster_row.identity.as_deref());
    let health =
        results.iter().filter_map(ResultColumns::health).filter(|(_, health)| health.is_on(identity)).collect();
    Ok(Snapshot {
        at,
        // Without its row, which every schema has, everything is unchecked.
        cursor: column::<Option<i64>>(QUERY, row, 2)?.unwrap_or_default(),
        cluster,
        cluster_sync: document(5)?,
        candidates: read(candidates, "selectorsyncsets")?,
        awaited,
        secrets: parsed(row, 7, "secrets")?,
        results: read(results, "towline_result")?,
        health,
        rows: usize::try_from(column::<i64>(QUERY, row, 10)?).unwrap_or(usize::MAX),
        with_applied: parsed(row, 9, "towline_applied")?,
        cluster_row,
        has_failure,
        resyncs,
        owner: column(QUERY, row, 12)?,
        guards: parsed::<Vec<GuardColumns>>(row, 13, "towline_guard")?.into_iter().map(GuardRow::from).collect(),
        living: parsed(row, 14, "syncsets")?,
        sent: few_sent(row)?,
    })
}

fn parsed<T: DeserializeOwned>(row: &Row, index: usize, table: &'static str) -> Result<T, StoreError> {
    let text: &str = column(QUERY, row, index)?;
    serde_json::from_str(text).map_err(|source| StoreError::Json { table, source })
}

/// What a rollout is about to bring, which is taken from the candidate.
fn awaited(columns: &mut CandidateColumns) -> Option<Result<Awaited, UnreadableColumn>> {
    let AwaitedColumns { spec, resources } = columns.pinned.as_mut()?.awaited.take()?;
    let audience = columns.spec.clone();
    let (namespace, name) = (columns.namespace.clone(), columns.name.clone());
    let of_kind = |kind| Awaited { name: SyncSetName { kind, namespace, name }, audience, spec, resources };
    (!columns.is_being_deleted).then(|| kind(&columns.kind).map(of_kind))
}

impl TryFrom<CandidateColumns> for Candidate {
    type Error = UnreadableColumn;

    fn try_from(columns: CandidateColumns) -> Result<Self, UnreadableColumn> {
        let pinned = columns.pinned.as_ref();
        Ok(Self {
            id: columns.id,
            name: SyncSetName { kind: kind(&columns.kind)?, namespace: columns.namespace, name: columns.name },
            version: pinned.and_then(|pinned| pinned.version).unwrap_or(columns.version),
            generation: pinned.and_then(|pinned| pinned.generation).unwrap_or(columns.generation),
            is_pinned: pinned.is_some(),
            read_before: some_time(pinned.and_then(|pinned| pinned.read_before.as_ref()))?,
            metrics_group: columns.metrics_group,
            created_at: time(&columns.created_at)?,
            is_being_deleted: columns.is_being_deleted,
            bytes: columns.bytes,
            objects: columns.objects,
            is_cut: columns.is_cut,
            spec: columns.spec,
        })
    }
}
