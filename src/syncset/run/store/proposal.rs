//! What a syncset that is only proposed is compared with: the stored one of its name, and the clusters. Nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use super::content::texts;
use super::{PassStore, SecretFacts, StoreError, places};
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::db::{self, Type, column};
use crate::documents::{IS_WHOLE, Key, ListError};
use crate::syncset::plan::guard::{Amount, SyncsetState, Tally, TrackedObjects};

/// The stored syncset of a name, as the guard checks its deletions.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSyncset {
    pub id: Uuid,
    pub generation: i64,
    /// Its `spec`, without resources and patches.
    pub spec: Value,
    /// Whether its deletions are suspended.
    pub suspended: bool,
    /// The generation that was approved.
    pub approved: i64,
}

/// A cluster, as selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPlace {
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// An object as somebody asks for it: an empty namespace and no group are any.
#[derive(Clone, Copy, Debug)]
pub struct AskedObject<'o> {
    pub kind: &'o str,
    pub group: Option<&'o str>,
    pub namespace: &'o str,
    pub name: &'o str,
}

impl PassStore {
    /// The labels of syncsets that have a resource of this kind and name, as it stands there, and are none of `selected`: at most five. Of those
    /// without a namespace only for who may read everywhere. Looked into are a thousand of up to 100 KiB.
    pub async fn syncsets_beside(
        &self,
        cluster_namespace: &str,
        object: AskedObject<'_>,
        selected: &[Uuid],
        is_everywhere: bool,
    ) -> Result<Vec<String>, StoreError> {
        const QUERY: &str = "syncsets_beside";
        const TEXT: &str = "with looked as ( \
               (select 'SyncSet ' || namespace || '/' || name as label, data #> '{spec,resources}' as resources from syncsets \
                 where kind = 'syncsets' and namespace = $1 and kib <= 100 and deleted_at is null and id <> all($2::text[]::uuid[]) limit 1000) \
               union all (select 'SelectorSyncSet ' || name, data #> '{spec,resources}' from selectorsyncsets \
                 where kind = 'selectorsyncsets' and $3::text = '*' and kib <= 100 and deleted_at is null and id <> all($2::text[]::uuid[]) \
                 limit 1000)) \
             select label from looked where exists (select from jsonb_array_elements( \
                 case jsonb_typeof(resources) when 'array' then resources else '[]' end) e \
               where e->>'kind' = $4 and e #>> '{metadata,name}' = $5 and $6 in ('', coalesce(e #>> '{metadata,namespace}', $6)) \
                 and ($7::text is null or $7 = case when e->>'apiVersion' like '%/%' then split_part(e->>'apiVersion', '/', 1) else '' end)) \
             order by label limit 5";
        let selected = texts(selected);
        let reach = if is_everywhere { "*" } else { "" };
        let params = [
            (&cluster_namespace as _, Type::TEXT),
            (&selected as _, Type::TEXT_ARRAY),
            (&reach as _, Type::TEXT),
            (&object.kind as _, Type::TEXT),
            (&object.name as _, Type::TEXT),
            (&object.namespace as _, Type::TEXT),
            (&object.group as _, Type::TEXT),
        ];
        let rows = self.database.all(QUERY, TEXT, &params).await?;
        Ok(rows.iter().map(|row| Ok(column::<&str>(QUERY, row, 0)?.to_owned())).collect::<Result<_, db::Error>>()?)
    }

    /// The stored syncset of this name, if there is one.
    pub async fn stored_syncset(&self, key: &Key) -> Result<Option<StoredSyncset>, StoreError> {
        const QUERY: &str = "stored_syncset";
        let text = format!(
            "select {IS_WHOLE}, d.id::text, coalesce(d.generation, 0), ((d.data->'spec') - '{{resources,patches}}'::text[])::text, \
               coalesce(g.held, false), coalesce(g.approved, 0) \
             from (towline_meta m cross join towline_version s) \
             left join towline_documents d on d.kind = $1 and d.namespace = $2 and d.name = $3 and d.deleted_at is null \
             left join towline_guard g on g.syncset = d.id"
        );
        let plural = key.kind.plural();
        let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
        let _turn = self.turn().await;
        let _turn = self.turn().await;
        let rows = self.database.all(QUERY, &text, &params).await?;
        let row = rows.first().filter(|row| column(QUERY, row, 0).unwrap_or(false));
        let row = row.ok_or(StoreError::Restoring(ListError::Restoring))?;
        let Some(id) = column::<Option<&str>>(QUERY, row, 1)? else { return Ok(None) };
        let spec = column::<Option<&str>>(QUERY, row, 3)?.unwrap_or("null");
        Ok(Some(StoredSyncset {
            id: uuid(QUERY, id)?,
            generation: column(QUERY, row, 2)?,
            spec: serde_json::from_str(spec).map_err(|source| StoreError::Json { table: "syncsets", source })?,
            suspended: column(QUERY, row, 4)?,
            approved: column(QUERY, row, 5)?,
        }))
    }

    /// What a stored syncset would delete if it was edited to be as `state` says, which ends what was approved.
    pub async fn tally(&self, syncset: Uuid, state: &SyncsetState) -> Result<Tally, StoreError> {
        let mut tally = Tally::default();
        let _turn = self.turn().await;
        let found = |_, mut place: TrackedObjects| {
            place.approved = Amount::default();
            let (loses, much) = state.loses(&place);
            tally.add(&place, loses, much);
        };
        places(&self.database, syncset, state.plain().as_ref(), None, found).await?;
        Ok(tally)
    }

    /// All clusters, or those of one namespace, by namespace and name.
    pub async fn cluster_places(&self, namespace: Option<&str>) -> Result<Vec<ClusterPlace>, StoreError> {
        const QUERY: &str = "cluster_places";
        const TEXT: &str = "select c.id::text, c.namespace, c.name, c.labels::text from clusters c \
             where c.kind = 'clusters' and c.deleted_at is null and ($1::text is null or c.namespace = $1) order by c.namespace, c.name";
        let _turn = self.turn().await;
        let rows = self.database.all(QUERY, TEXT, &[(&namespace as _, Type::TEXT)]).await?;
        let place = |row| {
            let labels = column::<&str>(QUERY, row, 3)?;
            Ok(ClusterPlace {
                id: uuid(QUERY, column(QUERY, row, 0)?)?,
                namespace: column(QUERY, row, 1)?,
                name: column(QUERY, row, 2)?,
                labels: serde_json::from_str(labels)
                    .map_err(|source| StoreError::Json { table: "clusters", source })?,
            })
        };
        rows.iter().map(place).collect()
    }

    /// What is known of `Secret` documents without their data, by namespace and name.
    pub async fn secret_facts(&self, places: &[(String, String)]) -> Result<Vec<SecretFacts>, StoreError> {
        const QUERY: &str = "secret_facts";
        let text = format!(
            "select coalesce(jsonb_agg(to_jsonb(f)), '[]')::text from ( \
               select s.id, s.namespace, s.name, s.version, coalesce(octet_length(s.sealed), 0) as bytes, \
                 coalesce((s.data->>'dataGeneration')::bigint, 0) as data_generation, \
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
