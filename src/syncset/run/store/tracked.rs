//! What a syncset has on clusters, as the guard counts it.

use uuid::Uuid;

use crate::db::{self, Database, Json, Row, Type, column};
use crate::guard::WINDOW;
use crate::syncset::plan::guard::{Amount, TrackedObjects, precious_row};
use crate::syncset::plan::naming::Objects;
use crate::syncset::plan::rows::TAKEN;

/// The clusters where a syncset has objects that it may delete, or has deleted some within ten minutes: of these, or of all. Of objects that
/// are in `plain` it only says how many there are, and of all if there is none. What somebody has taken from it is not counted again. What is suspended does not get old. Each cluster is looked up, whatever the server
/// believes of the tables: a join would read all rows of all clusters.
fn statement() -> String {
    format!(
        "with has as materialized (select a.cluster, count(*) as objects, count(*) filter (where {precious}) as precious, \
             jsonb_agg(jsonb_build_array(a.api_group, a.kind, a.namespace, a.name)) filter (where $2::jsonb is not null and (a.api_group, a.kind, a.namespace, a.name) \
               not in (select e->>0, e->>1, e->>2, e->>3 from jsonb_array_elements($2) e)) as others \
           from towline_applied a where a.syncset = $1::text::uuid and a.tracked and not a.adopted and (a.wanted or a.gone < {TAKEN}) \
             and ($3::text[] is null or a.cluster = any($3::text[]::uuid[])) group by a.cluster), \
         deleted as materialized (select d.cluster, sum(d.objects) as objects from towline_deleted d \
             left join towline_guard g on g.syncset = d.syncset \
           where d.syncset = $1::text::uuid and d.at > (case when g.held then g.since else now() end) - interval '{window} s' \
             and ($3::text[] is null or d.cluster = any($3::text[]::uuid[])) group by d.cluster) \
         select c.id::text, c.namespace, c.name, c.labels::text, coalesce(h.objects, 0), coalesce(h.precious, 0), h.others::text, \
           coalesce(l.approved, 0)::bigint, coalesce(l.approved_precious, 0)::bigint, coalesce(l.allowed, false), coalesce(l.counted, false), coalesce(d.objects, 0)::bigint \
         from has h full join deleted d on d.cluster = h.cluster \
           cross join lateral (select c.id, c.namespace, c.name, c.labels from clusters c where c.kind = 'clusters' \
             and c.id = coalesce(h.cluster, d.cluster) and c.deleted_at is null limit 1) c \
           left join lateral (select l.* from towline_lost l where l.cluster = c.id and l.syncset = $1::text::uuid limit 1) l on true",
        precious = precious_row("a"),
        window = WINDOW.as_secs(),
    )
}

/// Reads what a syncset has on these clusters, or on all.
pub(in crate::syncset) async fn tracked_objects(
    database: &Database,
    syncset: Uuid,
    plain: Option<&Objects>,
    clusters: Option<&[Uuid]>,
    mut found: impl FnMut(Uuid, TrackedObjects) + Send,
) -> Result<(), db::Error> {
    const QUERY: &str = "tracked_objects";
    let (syncset, plain) = (syncset.to_string(), plain.map(Json));
    let clusters: Option<Vec<String>> = clusters.map(|clusters| clusters.iter().map(Uuid::to_string).collect());
    let params = [(&syncset as _, Type::TEXT), (&plain as _, Type::JSONB), (&clusters as _, Type::TEXT_ARRAY)];
    let mut rows = database.rows(QUERY, &statement(), &params).await?;
    while let Some(row) = rows.next().await? {
        let (id, objects) = tracked(QUERY, &row)?;
        found(id, objects);
    }
    Ok(())
}

fn tracked(query: &'static str, row: &Row) -> Result<(Uuid, TrackedObjects), db::Error> {
    let count = |index| -> Result<usize, db::Error> {
        let count: i64 = column(query, row, index)?;
        Ok(usize::try_from(count).unwrap_or_default())
    };
    let id: &str = column(query, row, 0)?;
    let id = id.parse().map_err(|error| db::Error::Decode { query, source: std::sync::Arc::new(error) })?;
    // The database prints valid JSON.
    let others = column::<Option<&str>>(query, row, 6)?.and_then(|text| serde_json::from_str(text).ok());
    let objects = TrackedObjects {
        namespace: column(query, row, 1)?,
        name: column(query, row, 2)?,
        labels: serde_json::from_str(column(query, row, 3)?).unwrap_or_default(),
        has: Amount { objects: count(4)?, precious: count(5)? },
        others: others.unwrap_or_default(),
        approved: Amount { objects: count(7)?, precious: count(8)? },
        was_allowed: column(query, row, 9)?,
        was_counted: column(query, row, 10)?,
        deleted: count(11)?,
    };
    Ok((id, objects))
}
