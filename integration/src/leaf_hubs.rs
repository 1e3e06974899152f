//! Hub objects, and what leaf hubs have reported of them into the hub's database: the same for tests and bench.

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::Error;
use crate::crds::hub_kind;
use crate::load::{Write, burst};

/// Requests at the same time, where objects are made.
const AT_ONCE: usize = 16;
/// The kinds whose objects are made, with their tables of schema `spec`, which have the same names.
const WANTED: [&str; 4] = ["policies", "placementrules", "placements", "subscriptions"];

#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub policies: usize,
    /// Clusters in which each policy is: as many rows.
    pub clusters: usize,
    /// Objects of each other kind, with a row from each of three leaf hubs.
    pub others: usize,
}

/// Makes objects without a status in a namespace, and fills the tables with what is reported of them. Gives the policies,
/// with their UIDs.
pub async fn fill(
    hub: &Client,
    database: &tokio_postgres::Client,
    namespace: &str,
    counts: Counts,
) -> Result<Vec<(String, String)>, Error> {
    let mut policies = Vec::new();
    for kind in WANTED {
        let count = if kind == "policies" { counts.policies } else { counts.others };
        let made = make(hub, namespace, kind, count).await?;
        let (names, ids): (Vec<&str>, Vec<&str>) = made.iter().map(|(name, id)| (&**name, &**id)).unzip();
        let rows = format!(
            "INSERT INTO spec.{kind} (id, payload) SELECT id::uuid, jsonb_build_object('metadata', \
             jsonb_build_object('namespace', $3, 'name', name)) \
             FROM unnest(string_to_array($1, ','), string_to_array($2, ',')) AS made (id, name)"
        );
        execute(database, "fill spec", &rows, &[&ids.join(","), &names.join(","), namespace]).await?;
        if kind == "policies" {
            policies = made;
        }
    }
    let compliance = format!(
        "INSERT INTO status.compliance SELECT id, 'cluster-' || lpad(c::text, 4, '0'), 'hub-' || c % 3, 'none', \
         'compliant' FROM spec.policies, generate_series(1, {}) c",
        counts.clusters
    );
    execute(database, "fill status.compliance", &compliance, &[]).await?;
    for (spec, table, content) in reports() {
        let rows = format!(
            "INSERT INTO status.{table} SELECT gen_random_uuid(), 'hub-' || h, jsonb_build_object('metadata', \
             (payload -> 'metadata') || jsonb_build_object('labels', jsonb_build_object( \
             'cluster.open-cluster-management.io/placement', payload -> 'metadata' ->> 'name'))) || $1::text::jsonb \
             FROM spec.{spec}, generate_series(1, 3) h"
        );
        execute(database, "fill schema status", &rows, &[&content.to_string()]).await?;
    }
    Ok(policies)
}

/// The tables that [`fill`] fills.
pub fn tables() -> Vec<String> {
    let spec = WANTED.map(|table| format!("spec.{table}"));
    let status = reports().map(|(_, table, _)| format!("status.{table}"));
    spec.into_iter().chain(status).chain(["status.compliance".to_owned()]).collect()
}

/// Runs a statement whose parameters are all texts. `what` names it in errors.
pub async fn execute(
    database: &tokio_postgres::Client,
    what: &'static str,
    sql: &str,
    params: &[&str],
) -> Result<u64, Error> {
    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
        params.iter().map(|param| (param as &(dyn ToSql + Sync), Type::TEXT)).collect();
    database.execute_typed(sql, &typed).await.map_err(Error::database(what))
}

/// Objects of a kind, with their UIDs.
async fn make(hub: &Client, namespace: &str, plural: &str, count: usize) -> Result<Vec<(String, String)>, Error> {
    let kind = hub_kind(plural)?;
    let writes = (0..count).map(|number| {
        let name = format!("object-{number:05}");
        let body = json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": {"number": number},
        });
        Write::create(&kind, Some(namespace), &name, &body)
    });
    burst(hub, writes.collect(), AT_ONCE).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(hub.clone(), namespace, &kind);
    let made = api.list_metadata(&ListParams::default()).await.map_err(Error::kubernetes("list what was made"))?;
    Ok(made.items.iter().map(|object| (object.name_any(), object.uid().unwrap_or_default())).collect())
}

/// What each leaf hub reports of an object: the table of the object, that of the report, and its content.
fn reports() -> [(&'static str, &'static str, Value); 5] {
    let decisions = json!([
        {"clusterName": "cluster-0001", "clusterNamespace": "cluster-0001", "reason": ""},
        {"clusterName": "cluster-0002", "clusterNamespace": "cluster-0002", "reason": ""},
    ]);
    let rules = json!({"status": {"decisions": decisions}});
    let packages = json!({"statuses": {"packages": [{"name": "web", "phase": "Deployed"}]}});
    let report = json!({
        "reportType": "Application", "summary": {"deployed": "2", "failed": "1", "clusters": "3"},
        "results": [{"source": "cluster-0001", "result": "deployed"}], "resources": [{"kind": "Deployment", "name": "web"}],
    });
    [
        ("placementrules", "placementrules", rules.clone()),
        ("placements", "placements", json!({"status": {"numberOfSelectedClusters": 7}})),
        ("placements", "placementdecisions", rules),
        ("subscriptions", "subscription_statuses", packages),
        ("subscriptions", "subscription_reports", report),
    ]
}
