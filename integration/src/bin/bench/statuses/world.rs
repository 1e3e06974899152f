//! A hub, a database server, and what leaf hubs have reported to it.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::try_join;
use integration::crds::{self, hub_kind};
use integration::leaf_hubs::{self, Counts, tables};
use integration::load::Write;
use integration::postgres::{self, Database, Transport};
use integration::rbac::{grant_state, grant_status_sync};
use integration::{ControlPlane, Error, Options as PlaneOptions, Postgres, Towline, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::seen::Word;
use crate::options::{Size, StatusOptions};

/// Where all objects are.
const NAMESPACE: &str = "bench-statuses";
/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);
/// The daemon's families, as it calls them.
pub(crate) const FAMILIES: [&str; 6] =
    ["policies", "placementrules", "placements", "placementdecisions", "subscription_statuses", "subscription_reports"];
/// The kinds that are written beside the policies.
pub(crate) const OTHERS: [&str; 5] =
    ["placementrules", "placements", "placementdecisions", "subscriptionstatuses", "subscriptionreports"];

/// One control plane with an etcd of its own, and one database server.
pub(crate) struct World {
    /// Where the statuses go.
    pub(crate) hub: ControlPlane,
    /// Where they come from.
    pub(crate) server: Postgres,
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
        // The kubeconfig's context names no namespace.
        grant_state(&client, "default", None).await?;
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
        let counts = Counts { policies: size.policies, clusters: size.clusters, others };
        let uids = leaf_hubs::fill(&self.client, &self.sql, NAMESPACE, counts).await?;
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
        leaf_hubs::execute(&self.sql, what, sql, params).await
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

fn plane() -> PlaneOptions {
    PlaneOptions::measured("hub").with_crds(&crds::HUB_KINDS)
}
