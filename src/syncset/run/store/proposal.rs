//! What a syncset that is only proposed is compared with: the stored one of its name, and the clusters. Nothing is written.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::content::texts;
use super::snapshot::facts;
use super::{PassStore, StoreError, tracked_objects};
use crate::db::{self, Param, Type, column};
use crate::documents::{IS_WHOLE, Key, ListError, Parameters};
use crate::syncset::plan::guard::{Amount, SyncsetState, Tally, TrackedObjects};
use crate::syncset::plan::snapshot::SecretFacts;

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

/// The clusters that a syncset would be for, beside those that the stored one of its name is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// How many there are.
    pub clusters: usize,
    /// How many of these the stored syncset is not for.
    pub new: usize,
    /// How many the stored syncset is for, and this one is not; and the first of those, as `(namespace, name)`.
    pub no_longer: usize,
    pub first_no_longer: Vec<(String, String)>,
    /// How many of those that it names are not there; and the first of those, by name.
    pub missing: usize,
    pub first_missing: Vec<String>,
    /// Some of the clusters, evenly spread over all by namespace and name.
    pub sample: Vec<ClusterPlace>,
}

/// A cluster by its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ClusterPlace {
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
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
        let _slot = self.slot().await;
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
        let _slot = self.slot().await;
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
        let _slot = self.slot().await;
        let found = |_, mut place: TrackedObjects| {
            place.approved = Amount::default();
            let (loses, much) = state.loses(&place);
            tally.add(&place, loses, much);
        };
        tracked_objects(&self.database, syncset, state.plain().as_ref(), None, found).await?;
        Ok(tally)
    }

    /// The clusters for which the first of these conditions on `c`, a row of the clusters, holds, beside those for which the second one does:
    /// their numbers, the first ones and a sample, so that it takes no memory for each. `names` are all that a `SyncSet` names, with its namespace.
    pub async fn selected(
        &self,
        conditions: impl FnOnce(&mut Parameters) -> [String; 2],
        names: Option<(&str, Vec<String>)>,
        (sample, first): (usize, usize),
    ) -> Result<Selected, StoreError> {
        const QUERY: &str = "selected_clusters";
        let mut parameters = Parameters::default();
        let [now, before] = conditions(&mut parameters);
        let (namespace, names) = names.map_or(("", None), |(namespace, names)| (namespace, Some(names)));
        let (namespace, names) = (parameters.text(namespace), parameters.texts(names));
        let [sample, first] = [sample, first].map(|most| parameters.number(i64::try_from(most).unwrap_or(i64::MAX)));
        // The place of an element of the sample is a whole multiple of the distance between two of them, rounded down.
        let text = format!(
            "with place as materialized (select * from ( \
               select c.id, c.namespace, c.name, {now} as is_now, {before} as was from clusters c \
               where c.kind = 'clusters' and c.deleted_at is null) p where is_now or was), \
             chosen as materialized (select id, namespace, name, row_number() over (order by namespace, name) - 1 as place, \
               count(*) over () as clusters, least(count(*) over (), {sample}) as sampled from place where is_now), \
             missing as materialized (select n.name from unnest({names}::text[]) n(name) where not exists ( \
               select from clusters c where c.kind = 'clusters' and c.namespace = {namespace} and c.name = n.name and c.deleted_at is null)) \
             select count(*) filter (where is_now), count(*) filter (where is_now and not was), count(*) filter (where not is_now), \
               (select jsonb_agg(jsonb_build_array(namespace, name) order by namespace, name) from ( \
                  select namespace, name from place where not is_now order by namespace, name limit {first}) f)::text, \
               (select count(*) from missing), \
               (select jsonb_agg(name) from (select name from missing order by name collate \"C\" limit {first}) f)::text, \
               (select jsonb_agg(jsonb_build_object('id', id, 'namespace', namespace, 'name', name) order by place) from chosen \
                  where ((place * sampled + clusters - 1) / clusters) * clusters < (place + 1) * sampled)::text \
             from place"
        );
        let _slot = self.slot().await;
        let rows = self.database.all(QUERY, &text, &parameters.as_params()).await?;
        let Some(row) = rows.first() else { return Ok(Selected::default()) };
        let count = |index| -> Result<usize, db::Error> {
            Ok(usize::try_from(column::<i64>(QUERY, row, index)?).unwrap_or_default())
        };
        Ok(Selected {
            clusters: count(0)?,
            new: count(1)?,
            no_longer: count(2)?,
            first_no_longer: listed(column(QUERY, row, 3)?)?,
            missing: count(4)?,
            first_missing: listed(column(QUERY, row, 5)?)?,
            sample: listed(column(QUERY, row, 6)?)?,
        })
    }

    /// What is known of `Secret` documents without their data, by namespace and name; with labels and annotations, if any are listed.
    pub async fn secret_facts(&self, sources: &[(String, String, bool)]) -> Result<Vec<SecretFacts>, StoreError> {
        const QUERY: &str = "secret_facts";
        let text = format!(
            "with candidate as (select 0 as size, false as is_cut), source as ( \
               select namespace, name, bool_or(is_listed) as is_listed \
               from unnest($1::text[], $2::text[], $3::text[]::bool[]) s(namespace, name, is_listed) group by 1, 2) \
             select coalesce(jsonb_agg(to_jsonb(f)), '[]')::text from ({}) f",
            facts("source")
        );
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let (mut namespaces, mut names, mut listed) = (Vec::new(), Vec::new(), Vec::new());
        for (namespace, name, is_listed) in sources {
            namespaces.push(namespace.clone());
            names.push(name.clone());
            listed.push(is_listed.to_string());
        }
        let params: [Param<'_>; 3] =
            [(&namespaces, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY), (&listed, Type::TEXT_ARRAY)];
        let _slot = self.slot().await;
        let rows = self.database.all(QUERY, &text, &params).await?;
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        let text = column::<&str>(QUERY, row, 0)?;
        serde_json::from_str(text).map_err(|source| StoreError::Json { table: "secrets", source })
    }
}

/// What the database has put into a list; null if there is nothing.
fn listed<T: DeserializeOwned>(text: Option<&str>) -> Result<Vec<T>, StoreError> {
    text.map_or(Ok(Vec::new()), serde_json::from_str).map_err(|source| StoreError::Json { table: "clusters", source })
}

fn uuid(query: &'static str, text: &str) -> Result<Uuid, StoreError> {
    text.parse().map_err(|error| db::Error::Decode { query, source: Arc::new(error) }.into())
}
