//! What fails on all clusters together.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{NAMESPACE, SyncsetApi, namespaces};
use crate::db::{Row, column};
use crate::documents::{IS_WHOLE, ListError, Parameters, Problem};
use crate::job::routes::{ApiRequest, QueryParameter, QueryValue};
use crate::syncset::inspect::ClusterReference;
use crate::syncset::run::counts::fleet::NamespaceFilter;
use crate::syncset::run::counts::unreachable_within;

const QUERY: &str = "syncset_failures";
/// Groups of an answer unless its request says.
const DEFAULT_GROUPS: u32 = 100;
/// Most groups of an answer, each with a message of some kilobytes at most.
const MOST_GROUPS: u32 = 500;
/// Most clusters that are named of a group.
const MOST_CLUSTERS: i64 = 5;

pub(super) const PARAMETERS: &[QueryParameter] = &[
    NAMESPACE,
    QueryParameter {
        name: "limit",
        about: "Most groups of failures; 100 by default",
        value: QueryValue::Number { least: 1, most: MOST_GROUPS },
    },
];

/// Failures, grouped.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SyncSetFailureList {
    /// The groups with the most clusters, these first.
    items: Vec<SyncSetFailure>,
    /// How many groups there are.
    total: i64,
    /// How many clusters that are not paused do not answer, or have a kubeconfig that is refused.
    unreachable: usize,
    /// The first of them, by namespace and name.
    unreachable_clusters: Vec<ClusterReference>,
}

/// A syncset that fails for the same reason on some clusters, with messages that differ at most in numbers, or whose objects do not work there: of the
/// same kind, and for the same reason.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct SyncSetFailure {
    /// `SyncSet` or `SelectorSyncSet`.
    kind: String,
    /// The syncset's namespace; absent for a `SelectorSyncSet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// The syncset's name.
    name: String,
    /// The state of its objects, if it was applied: `Failed`, or another one that has lasted for too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    health: Option<String>,
    /// Why it fails: a word of a closed set; or why its objects have this state.
    reason: String,
    /// The message of the first cluster.
    message: String,
    /// The number of clusters.
    count: i64,
    /// The first of them, by namespace and name.
    clusters: Vec<ClusterReference>,
}

/// The rows of syncsets that fail, or whose objects do not work. The latter go by the kind of the worst object; where the cluster does not answer,
/// they are not known any more.
fn ill(of: &str) -> String {
    format!(
        "select r.cluster, r.kind, r.namespace, r.name, r.reason, r.message, null as health, null as of_kind from towline_result r \
         where {of} r.result = 'Failure' \
         union all \
         select r.cluster, r.kind, r.namespace, r.name, r.health->>'reason', r.health->>'message', r.health_state, \
           r.health #>> '{{objects,0,kind}}' from towline_result r \
         where {of} r.result = 'Success' and r.health_inputs = r.inputs and (r.health_state = 'Failed' or r.health->>'reason' = 'Late') \
           and not exists (select from towline_cluster p where p.cluster = r.cluster and p.reachable = false)"
    )
}

/// The groups. Numbers in messages are those of `rules::status`: runs of hexadecimal digits with a decimal one in it. It always returns a
/// row; its kind is null if nothing fails. For those who may read everything, what fails is found by its own index before anything is
/// joined: a server that has last analyzed the tables when they were empty would look for the failures of each cluster. For others, those
/// of each cluster that they may read are looked up.
fn statement(namespaces: &NamespaceFilter, limit: i64, parameters: &mut Parameters) -> String {
    let failing = if namespaces.names.is_some() {
        let within = namespaces.condition(parameters);
        format!(
            "select c.namespace as of_cluster, c.name as of_name, r.* from clusters c \
               cross join lateral (select * from ({of_cluster}) i offset 0) r \
             where c.kind = 'clusters' and c.deleted_at is null{within}",
            of_cluster = ill("r.cluster = c.id and")
        )
    } else {
        "select c.namespace as of_cluster, c.name as of_name, r.* from failed r \
           join clusters c on c.kind = 'clusters' and c.id = r.cluster where c.deleted_at is null"
            .to_owned()
    };
    let limit = parameters.number(limit);
    format!(
        "with failed as materialized ({all}), \
         failing as ( \
           select f.*, coalesce(f.of_kind, regexp_replace(f.message, '[A-Fa-f]*[0-9][0-9A-Fa-f]*', '#', 'g')) as pattern from ({failing}) f), \
         ranked as ( \
           select f.*, row_number() over (partition by kind, namespace, name, health, reason, pattern order by of_cluster, of_name) as place \
           from failing f), \
         grouped as ( \
           select kind, namespace, name, health, reason, min(message) filter (where place = 1) as message, count(*) as count, \
             array_agg(of_cluster order by place) filter (where place <= {MOST_CLUSTERS}) as namespaces, \
             array_agg(of_name order by place) filter (where place <= {MOST_CLUSTERS}) as clusters \
           from ranked group by kind, namespace, name, health, reason, pattern), \
         shown as ( \
           select g.*, count(*) over () as total from grouped g \
           order by count desc, kind desc, namespace, name, reason, message limit {limit}) \
         select w.is_whole, s.kind, s.namespace, s.name, s.reason, s.message, s.count, s.namespaces, s.clusters, s.total, s.health \
         from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join shown s on true \
         order by s.count desc, s.kind desc, s.namespace, s.name, s.reason, s.message",
        all = ill("")
    )
}

/// What fails where the caller may read, or in one namespace.
pub(super) async fn list(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<SyncSetFailureList, Problem> {
    let limit = i64::from(request.number("limit").unwrap_or(DEFAULT_GROUPS));
    Ok(read(&api, &namespaces(&request)?, limit).await?)
}

async fn read(api: &SyncsetApi, namespaces: &NamespaceFilter, limit: i64) -> Result<SyncSetFailureList, ListError> {
    let mut parameters = Parameters::default();
    let text = statement(namespaces, limit, &mut parameters);
    let rows = api.database.all(QUERY, &text, &parameters.as_params()).await?;
    let first = rows.first().ok_or(ListError::Restoring)?;
    if !column::<bool>(QUERY, first, 0)? {
        return Err(ListError::Restoring);
    }
    let total = column::<Option<i64>>(QUERY, first, 9)?.unwrap_or_default();
    let items = rows.iter().filter_map(|row| group(row).transpose()).collect::<Result<_, _>>()?;
    let (unreachable, first) = unreachable_within(&api.database, namespaces).await?;
    Ok(SyncSetFailureList { items, total, unreachable, unreachable_clusters: references(first) })
}

/// A row; none for that which says that nothing fails.
fn group(row: &Row) -> Result<Option<SyncSetFailure>, ListError> {
    let Some(kind) = column::<Option<String>>(QUERY, row, 1)? else { return Ok(None) };
    let namespace: String = column(QUERY, row, 2)?;
    let (namespaces, clusters): (Vec<String>, Vec<String>) = (column(QUERY, row, 7)?, column(QUERY, row, 8)?);
    Ok(Some(SyncSetFailure {
        kind,
        namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
        name: column(QUERY, row, 3)?,
        health: column(QUERY, row, 10)?,
        reason: column(QUERY, row, 4)?,
        message: column(QUERY, row, 5)?,
        count: column(QUERY, row, 6)?,
        clusters: references(namespaces.into_iter().zip(clusters)),
    }))
}

fn references(clusters: impl IntoIterator<Item = (String, String)>) -> Vec<ClusterReference> {
    clusters.into_iter().map(|(namespace, name)| ClusterReference { namespace, name }).collect()
}
