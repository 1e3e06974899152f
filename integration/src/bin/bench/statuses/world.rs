//! A hub, a database server, and what leaf hubs have reported to it.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::try_join;
use integration::crds::{self, hub_kind};
use integration::load::{Write, burst};
use integration::postgres::{self, Database, Transport};
use integration::rbac::grant_status_sync;
use integration::{ControlPlane, Error, Options as PlaneOptions, Postgres, Towline, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use super::seen::Word;
use crate::options::{Size, StatusOptions};

/// Where all objects are.
const NAMESPACE: &str = "bench-statuses";
/// Requests of this program at the same time, where it makes objects.
const AT_ONCE: usize = 16;
/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);
/// The daemon's families, as it calls them.
pub(crate) const FAMILIES: [&str; 6] =
    ["policies", "placementrules", "placements", "placementdecisions", "subscription_statuses", "subscription_reports"];
/// The kinds whose objects this program makes, with their tables of schema `spec`, which have the same names.
const WANTED: [&str; 4] = ["policies", "placementrules", "placements", "subscriptions"];
/// The kinds that are written beside the policies.
pub(crate) const OTHERS: [&str; 5] =
    ["placementrules", "placements", "placementdecisions", "subscriptionstatuses", "subscriptionreports"];

/// One control plane with an etcd of its own, and one database server.
pub(crate) struct World {
    /// Where the statuses go.
    pub(crate) hub: ControlPlane,
    /// Where they come from.
    pub(crate) server: Postgres,
    /// The database.
    pub(crate) database: Database,
    /// The leaf hubs' connection.
    pub(crate) sql: tokio_postgres::Client,
    /// For objects and for the load; its requests are not the daemon's.
    pub(crate) client: Client,
}

/// The policies that are there, with their UIDs.
pub(crate) struct Policies {
    /// By name.
    pub(crate) uids: Vec<(String, String)>,
    /// How many, and in how many clusters each.
    pub(crate) size: Size,
}

impl World {
    pub(crate) async fn start() -> Result<Self, Error> {
        let (hub, server) =
            try_join(Box::pin(ControlPlane::start(plane())), Postgres::start("bench", Transport::Plain)).await?;
        let database = server.database("bench").await?;
        let sql = database.client(postgres::ADMIN).await?;
        let client = hub.client(users::HUB_USER).await?;
        grant_status_sync(&client).await?;
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
        made.map_err(Error::kubernetes("make a namespace"))?;
        Ok(Self { hub, server, database, sql, client })
    }

    /// Starts the daemon; with `notify` it listens.
    pub(crate) async fn towline(&self, options: &StatusOptions, notify: bool) -> Result<Towline, Error> {
        let account = if notify { postgres::NOTIFIER } else { postgres::READER };
        let config = format!(
            "[clusters.hub]\nkubeconfig = \"{}\"\n[status_sync]\ncluster = \"hub\"\ndatabase_url = \"{}\"\n\
             interval = \"{}ms\"\n{}",
            self.hub.kubeconfig(users::TOWLINE)?.display(),
            self.database.url(account),
            options.interval.as_millis(),
            if notify { "notify = true\n" } else { "" },
        );
        Towline::start(&config, &[]).await
    }

    /// Takes everything away that was there, and makes it anew: objects without a status, and their rows.
    pub(crate) async fn fill(&self, size: Size, others: usize) -> Result<Policies, Error> {
        self.execute("empty the tables", &format!("TRUNCATE {}", tables().join(", ")), &[]).await?;
        for kind in OTHERS.into_iter().chain(["policies", "subscriptions"]) {
            self.delete_all(kind).await?;
        }
        let mut uids = Vec::new();
        for kind in WANTED {
            let count = if kind == "policies" { size.policies } else { others };
            let made = self.make(kind, count).await?;
            let (names, ids): (Vec<&str>, Vec<&str>) = made.iter().map(|(name, id)| (&**name, &**id)).unzip();
            let rows = format!(
                "INSERT INTO spec.{kind} (id, payload) SELECT id::uuid, jsonb_build_object('metadata', \
                 jsonb_build_object('namespace', '{NAMESPACE}', 'name', name)) \
                 FROM unnest(string_to_array($1, ','), string_to_array($2, ',')) AS made (id, name)"
            );
            self.execute("fill spec", &rows, &[&ids.join(","), &names.join(",")]).await?;
            if kind == "policies" {
                uids = made;
            }
        }
        let compliance = format!(
            "INSERT INTO status.compliance SELECT id, 'cluster-' || lpad(c::text, 4, '0'), 'hub-' || c % 3, 'none', \
             'compliant' FROM spec.policies, generate_series(1, {}) c",
            size.clusters
        );
        self.execute("fill status.compliance", &compliance, &[]).await?;
        for (spec, table, content) in reports() {
            let rows = format!(
                "INSERT INTO status.{table} SELECT gen_random_uuid(), 'hub-' || h, jsonb_build_object('metadata', \
                 (payload -> 'metadata') || jsonb_build_object('labels', jsonb_build_object( \
                 'cluster.open-cluster-management.io/placement', payload -> 'metadata' ->> 'name'))) || $1::text::jsonb \
                 FROM spec.{spec}, generate_series(1, 3) h"
            );
            self.execute("fill schema status", &rows, &[&content.to_string()]).await?;
        }
        self.vacuum().await?;
        Ok(Policies { uids, size })
    }

    /// What a server's own autovacuum does; that of the fixture is off.
    pub(crate) async fn vacuum(&self) -> Result<(), Error> {
        for table in tables() {
            self.execute("vacuum", &format!("VACUUM (ANALYZE) {table}"), &[]).await?;
        }
        Ok(())
    }

    /// Runs a statement whose parameters are all texts.
    pub(crate) async fn execute(&self, what: &'static str, sql: &str, params: &[&str]) -> Result<u64, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            params.iter().map(|param| (param as &(dyn ToSql + Sync), Type::TEXT)).collect();
        self.sql.execute_typed(sql, &typed).await.map_err(Error::database(what))
    }

    async fn make(&self, plural: &str, count: usize) -> Result<Vec<(String, String)>, Error> {
        let kind = hub_kind(plural)?;
        let writes = (0..count).map(|number| {
            let name = format!("object-{number:05}");
            let body = json!({
                "apiVersion": kind.api_version, "kind": kind.kind,
                "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"number": number},
            });
            Write::create(&kind, Some(NAMESPACE), &name, &body)
        });
        burst(&self.client, writes.collect(), AT_ONCE).await?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &kind);
        let made = api.list_metadata(&ListParams::default()).await.map_err(Error::kubernetes("list what was made"))?;
        Ok(made.items.iter().map(|object| (object.name_any(), object.uid().unwrap_or_default())).collect())
    }

    async fn delete_all(&self, plural: &str) -> Result<(), Error> {
        let kind = hub_kind(plural)?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &kind);
        let gone = api.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        gone.map_err(Error::kubernetes(format!("delete all {plural}")))?;
        eventually(format!("all {plural} to be gone"), LONGEST_STEP, async || {
            let params = ListParams::default().limit(1);
            let left = api.list_metadata(&params).await.map_err(|error| error.to_string())?.items.len();
            if left == 0 { Ok(()) } else { Err("some are there".to_owned()) }
        })
        .await
    }
}

impl Policies {
    /// The statuses that the daemon would write where every row has this word: the same patches, in the same order.
    pub(crate) fn patches(&self, word: Word) -> Result<Vec<Write>, Error> {
        let kind = hub_kind("policies")?;
        let word = match word {
            Word::Compliant => "Compliant",
            Word::NonCompliant => "NonCompliant",
            Word::Pending => "Pending",
        };
        let mut clusters: Vec<(usize, String)> =
            (1..=self.size.clusters).map(|number| (number % 3, format!("cluster-{number:04}"))).collect();
        clusters.sort();
        let entries: Vec<Value> = clusters
            .iter()
            .map(|(_, name)| json!({"clustername": name, "clusternamespace": name, "compliant": word}))
            .collect();
        let patch = json!({"status": {"compliant": word, "status": entries}});
        let writes = self.uids.iter().map(|(name, _)| Write::merge_status(&kind, Some(NAMESPACE), name, &patch));
        Ok(writes.collect())
    }
}

/// What a daemon's families say of themselves, by family.
pub(crate) async fn families(towline: &Towline) -> Result<HashMap<&'static str, Value>, Error> {
    let report = towline.admin().section("status-sync").await?;
    let of =
        |family: &'static str| (family, report.pointer(&format!("/families/{family}")).cloned().unwrap_or_default());
    Ok(FAMILIES.into_iter().map(of).collect())
}

/// Waits until every family has done further passes, and nothing is left to write.
pub(crate) async fn wait_at_rest(towline: &Towline, further: u64) -> Result<(), Error> {
    let passes = |report: &Value| report.get("passes").and_then(Value::as_u64).unwrap_or_default();
    let before = if further == 0 { HashMap::new() } else { families(towline).await? };
    eventually(format!("{further} further passes, and nothing left to write"), LONGEST_STEP, async || {
        let now = families(towline).await.map_err(|error| error.chain())?;
        for (family, report) in now {
            let least = before.get(family).map_or(1, |report| passes(report) + further);
            if passes(&report) < least || !report.get("oldest_unwritten_seconds").is_some_and(Value::is_null) {
                return Err(format!("{family}: {report}"));
            }
        }
        Ok(())
    })
    .await
}

fn tables() -> Vec<String> {
    let spec = WANTED.map(|table| format!("spec.{table}"));
    let status = reports().map(|(_, table, _)| format!("status.{table}"));
    spec.into_iter().chain(status).chain(["status.compliance".to_owned()]).collect()
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

fn plane() -> PlaneOptions {
    PlaneOptions::measured("hub").with_crds(&crds::HUB_KINDS)
}
