//! What a syncset that is only proposed is compared with: the stored one of its name, and the clusters. Nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use super::{PassStore, SecretFacts, StoreError, is_left};
use crate::db::{self, Type, column};
use crate::documents::{IS_WHOLE, Key, ListError};
use crate::syncset::rules::guard::{Cause, Dropped, Objects, precious_row};
use crate::syncset::rules::object::LAST_APPLIED;

/// From when on losses of a syncset count: those of the last ten minutes, and what is held does not get old.
const SINCE: &str = "(case when g.held then g.since else now() end - interval '10 min')";

/// The stored syncset of a name, as its deletions are judged.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSyncset {
    pub id: Uuid,
    pub generation: i64,
    /// Its `spec`, without resources and patches.
    pub spec: Value,
    /// The objects that it named when it was judged last.
    pub objects: Option<Objects>,
    /// What edits have dropped within the time that counts.
    pub dropped: Vec<Dropped>,
    /// Why its deletions are held.
    pub held: Option<Cause>,
    /// The generation that was approved.
    pub approved: i64,
    /// Clusters on which it has deleted its objects within the time that counts.
    pub executed: usize,
}

/// A cluster, as selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPlace {
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Whether the stored syncset tracks objects on it that it may delete.
    pub is_tracked: bool,
    /// Whether a Namespace, a CRD or a PVC is among them.
    pub has_precious: bool,
    /// What is known of it as a cluster that the stored syncset has lost.
    pub loss: Option<Loss>,
}

/// A cluster that a syncset matched no more, or where objects got other names (`towline_lost`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whether that was within the time that counts, and was not approved.
    pub counts: bool,
    /// Whether the cluster was matched again after the objects had been deleted, so that the next loss is a new one.
    pub is_back: bool,
    /// Whether some of the objects that got other names are still to be deleted. None if the cluster was matched no more.
    pub renamed_left: Option<bool>,
}

impl PassStore {
    /// The stored syncset of this name, if there is one.
    pub async fn stored_syncset(&self, key: &Key) -> Result<Option<StoredSyncset>, StoreError> {
        const QUERY: &str = "stored_syncset";
        let text = format!(
            "select {IS_WHOLE}, d.id::text, coalesce(d.generation, 0), ((d.data->'spec') - '{{resources,patches}}'::text[])::text, \
               g.objects::text, case when g.held then g.cause end, coalesce(g.approved, 0), \
               (select count(*) from towline_lost l where l.syncset = d.id \
                 and l.at > {SINCE} and not exists ( \
                   select from towline_applied a where a.syncset = d.id and a.tracked and not a.adopted and a.cluster = l.cluster)), \
               (select jsonb_agg(e) from jsonb_array_elements(g.dropped) e where (e->>'at')::timestamptz > {SINCE})::text \
             from (towline_meta m cross join towline_version s) \
             left join towline_documents d on d.kind = $1 and d.namespace = $2 and d.name = $3 and d.deleted_at is null \
             left join towline_guard g on g.syncset = d.id"
        );
        let plural = key.kind.plural();
        let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
        let _turn = self.turn().await;
        let rows = self.database.all(QUERY, &text, &params).await?;
        let row = rows.first().filter(|row| column(QUERY, row, 0).unwrap_or(false));
        let row = row.ok_or(StoreError::Restoring(ListError::Restoring))?;
        let Some(id) = column::<Option<&str>>(QUERY, row, 1)? else { return Ok(None) };
        let spec = column::<Option<&str>>(QUERY, row, 3)?.unwrap_or("null");
        let (objects, dropped) = (column::<Option<&str>>(QUERY, row, 4)?, column::<Option<&str>>(QUERY, row, 8)?);
        Ok(Some(StoredSyncset {
            id: uuid(QUERY, id)?,
            generation: column(QUERY, row, 2)?,
            spec: serde_json::from_str(spec).map_err(|source| StoreError::Json { table: "syncsets", source })?,
            objects: objects.and_then(|objects| serde_json::from_str(objects).ok()),
            dropped: dropped.and_then(|dropped| serde_json::from_str(dropped).ok()).unwrap_or_default(),
            held: column::<Option<&str>>(QUERY, row, 5)?.and_then(Cause::of_name),
            approved: column(QUERY, row, 6)?,
            executed: usize::try_from(column::<i64>(QUERY, row, 7)?).unwrap_or_default(),
        }))
    }

    /// All clusters, or those of one namespace, by namespace and name. `syncset` is the one of which it says where it tracks objects.
    pub async fn cluster_places(
        &self,
        syncset: Option<Uuid>,
        namespace: Option<&str>,
    ) -> Result<Vec<ClusterPlace>, StoreError> {
        const QUERY: &str = "cluster_places";
        let text = format!(
            "select c.id::text, c.namespace, c.name, c.labels::text, exists ( \
               select from towline_applied a where a.cluster = c.id and a.syncset = $1::text::uuid and a.tracked and not a.adopted), \
               l.at > {SINCE}, l.back, \
               case when l.objects is not null then {is_left} end, \
               exists (select from towline_applied a where a.cluster = c.id and a.syncset = $1::text::uuid and a.tracked and not a.adopted \
                 and {precious}) \
             from clusters c left join towline_guard g on g.syncset = $1::text::uuid \
               left join lateral (select l.* from towline_lost l \
                 where l.cluster = c.id and l.syncset = $1::text::uuid limit 1) l on true \
             where c.kind = 'clusters' and c.deleted_at is null and ($2::text is null or c.namespace = $2) \
             order by c.namespace, c.name",
            is_left = is_left("l"),
            precious = precious_row("a"),
        );
        let syncset = syncset.map(|syncset| syncset.to_string());
        let params = [(&syncset as _, Type::TEXT), (&namespace as _, Type::TEXT)];
        let _turn = self.turn().await;
        let rows = self.database.all(QUERY, &text, &params).await?;
        let place = |row| {
            let labels = column::<&str>(QUERY, row, 3)?;
            let (counts, is_back) = (column::<Option<bool>>(QUERY, row, 5)?, column::<Option<bool>>(QUERY, row, 6)?);
            Ok(ClusterPlace {
                id: uuid(QUERY, column(QUERY, row, 0)?)?,
                namespace: column(QUERY, row, 1)?,
                name: column(QUERY, row, 2)?,
                labels: serde_json::from_str(labels)
                    .map_err(|source| StoreError::Json { table: "clusters", source })?,
                is_tracked: column(QUERY, row, 4)?,
                has_precious: column(QUERY, row, 8)?,
                loss: match counts.zip(is_back) {
                    None => None,
                    Some((counts, is_back)) => Some(Loss { counts, is_back, renamed_left: column(QUERY, row, 7)? }),
                },
            })
        };
        rows.iter().map(place).collect()
    }

    /// What is known of `Secret` documents without their data, by namespace and name.
    pub async fn secret_facts(&self, places: &[(String, String)]) -> Result<Vec<SecretFacts>, StoreError> {
        const QUERY: &str = "secret_facts";
        let text = format!(
            "select coalesce(jsonb_agg(to_jsonb(f)), '[]')::text from ( \
               select s.id, s.namespace, s.name, s.version, coalesce((s.data->>'dataGeneration')::bigint, 0) as data_generation, \
                 coalesce(s.data->>'type', '') as secret_type, coalesce(s.data->'immutable' = 'true', false) as is_immutable, \
             s.labels, s.annotations - '{LAST_APPLIED}' as annotations \
               from (select distinct * from unnest($1::text[], $2::text[]) p(namespace, name)) p join secrets s \
                 on s.kind = 'secrets' and s.namespace = p.namespace and s.name = p.name) f"
        );
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let (namespaces, names): (Vec<String>, Vec<String>) = places.iter().cloned().unzip();
        let params = [(&namespaces as _, Type::TEXT_ARRAY), (&names as _, Type::TEXT_ARRAY)];
        let _turn = self.turn().await;
        let rows = self.database.all(QUERY, &text, &params).await?;
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        let text = column::<&str>(QUERY, row, 0)?;
        serde_json::from_str(text).map_err(|source| StoreError::Json { table: "secrets", source })
    }
}

fn uuid(query: &'static str, text: &str) -> Result<Uuid, StoreError> {
    text.parse().map_err(|error| db::Error::Decode { query, source: Arc::new(error) }.into())
}
