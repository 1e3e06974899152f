//! Status sync: what it costs to keep the hub's statuses as the database says, and how fresh they are, by passes alone and with `notify`.
//!
//! One control plane is the hub, one PostgreSQL server has what three leaf hubs report. Writes are seen in a watch.

use std::time::{Duration, Instant};

use futures::future::try_join;
use integration::arrivals::{Arrivals, Change};
use integration::crds::{self, hub_kind};
use integration::leaf_hubs::{self, Counts, tables};
use integration::postgres::{self, Database, Transport};
use integration::rbac::{grant_state, grant_status_sync};
use integration::{ControlPlane, Error, Options as PlaneOptions, Postgres, Towline, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "one API server and one PostgreSQL server (no fsync), on this machine over loopback; 5 s between passes; 200 objects of \
                       each other kind; delays from the commit to the arrival at a watch of the load generator; towline's release build";
const NAMESPACE: &str = "bench-statuses";
/// Clusters of each policy.
const CLUSTERS: usize = 200;
/// Objects of each other kind.
const OTHERS: usize = 200;
/// Between two passes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Between two changes of a single row.
const PACE: Duration = Duration::from_millis(500);
/// No step takes that long, even on a machine that does other things too.
const LONGEST_STEP: Duration = Duration::from_mins(10);
const KINDS: [&str; 7] = [
    "policies",
    "placementrules",
    "placements",
    "placementdecisions",
    "subscriptions",
    "subscriptionstatuses",
    "subscriptionreports",
];

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("status", SETTING);
    let servers = Box::pin(Servers::start()).await?;
    let clusters = options.clusters.unwrap_or(CLUSTERS);
    for policies in options.objects(500) {
        for _ in 0..options.runs {
            for (who, notify) in [("by passes", false), ("notified", true)] {
                let ids = servers.fill(policies, clusters).await?;
                let mut world = Statuses { options, servers: &servers, clusters, ids, notify, towline: None };
                runner::run(&mut world, &format!("{policies} x {clusters}"), who, &mut table).await?;
            }
        }
    }
    Ok(table)
}

struct Servers {
    hub: ControlPlane,
    postgres: Postgres,
    database: Database,
    /// The leaf hubs' connection.
    sql: tokio_postgres::Client,
    /// For objects; its requests are not the daemon's.
    client: Client,
}

struct Statuses<'s> {
    options: &'s Options,
    servers: &'s Servers,
    clusters: usize,
    /// Of the policies.
    ids: Vec<String>,
    notify: bool,
    towline: Option<Towline>,
}

#[derive(Clone, Copy)]
enum Step {
    /// From the start of the process, with empty statuses, until everything is on the hub.
    Start,
    Idle,
    /// All rows get another value in one transaction.
    ChangeAll,
    /// Two rows change a second, each of another policy.
    ChangeOne,
    /// The daemon is ended and started with everything in step.
    Restart,
}

/// What a row says, in the words of the database and of the kind.
const COMPLIANT: (&str, &str) = ("compliant", "Compliant");
const NON_COMPLIANT: (&str, &str) = ("non_compliant", "NonCompliant");

impl World for Statuses<'_> {
    type Step = Step;
    type Ready = Option<Arrivals>;

    fn phases(&self) -> Vec<Phase<Step>> {
        vec![
            Phase::new("start, statuses empty", Step::Start, ""),
            Phase::new(format!("idle, {} s", self.options.idle.as_secs()), Step::Idle, ""),
            Phase::new("all rows changed", Step::ChangeAll, "policies"),
            Phase::new("one row changed", Step::ChangeOne, "rows"),
            Phase::new("restart in step", Step::Restart, ""),
        ]
    }

    fn probes(&self) -> Probes<'_> {
        Probes {
            programs: self.towline.iter().map(|towline| towline as _).collect(),
            planes: vec![(&self.servers.hub, users::TOWLINE)],
            database: Some((&self.servers.postgres, &self.servers.sql)),
            ..Probes::default()
        }
    }

    async fn settled(&self) -> Result<(), Error> {
        match &self.towline {
            Some(towline) => wait_at_rest(towline, 0).await,
            None => Ok(()),
        }
    }

    async fn prepare(&mut self, step: Step) -> Result<Option<Arrivals>, Error> {
        if let Some(towline) = &self.towline {
            wait_at_rest(towline, 1).await?;
            // What comes next, comes in the middle between two passes.
            tokio::time::sleep(INTERVAL / 2).await;
        }
        match step {
            Step::Start => Ok(Some(self.watch(Seen::All(COMPLIANT.1)).await?)),
            Step::ChangeAll => Ok(Some(self.watch(Seen::All(NON_COMPLIANT.1)).await?)),
            Step::ChangeOne => Ok(Some(self.watch(Seen::One).await?)),
            Step::Idle | Step::Restart => Ok(None),
        }
    }

    async fn perform(&mut self, step: Step, seen: Option<Arrivals>) -> Result<Done, Error> {
        let began = Instant::now();
        match (step, seen) {
            (Step::Start, Some(seen)) => {
                self.towline = Some(self.servers.towline(self.notify).await?);
                self.all_written(&seen).await?;
                self.settled().await?;
                Ok(Done { time: Some(began.elapsed()), ..Done::default() })
            }
            (Step::ChangeAll, Some(seen)) => {
                let flip = "UPDATE status.compliance SET compliance = $1::text::status.compliance_type";
                self.servers.execute(flip, &[NON_COMPLIANT.0]).await?;
                let committed = Instant::now();
                self.all_written(&seen).await?;
                let last = seen.all().into_values().max().unwrap_or(committed);
                let time = last.saturating_duration_since(committed);
                Ok(Done { changes: Some(self.ids.len()), time: Some(time), ..Done::default() })
            }
            (Step::ChangeOne, Some(seen)) => self.change_one(&seen).await,
            (Step::Restart, _) => {
                if let Some(towline) = self.towline.take() {
                    towline.terminate(LONGEST_STEP).await?;
                }
                let began = Instant::now();
                let towline = self.towline.insert(self.servers.towline(self.notify).await?);
                wait_at_rest(towline, 0).await?;
                Ok(Done { time: Some(began.elapsed()), ..Done::default() })
            }
            _ => {
                tokio::time::sleep(self.options.idle).await;
                Ok(Done::default())
            }
        }
    }
}

impl Statuses<'_> {
    async fn all_written(&self, seen: &Arrivals) -> Result<(), Error> {
        seen.wait_for(self.ids.len(), LONGEST_STEP).await
    }

    async fn change_one(&self, seen: &Arrivals) -> Result<Done, Error> {
        let change = "UPDATE status.compliance SET compliance = $1::text::status.compliance_type \
                      WHERE leaf_hub_name = 'hub-1' AND id = $2::text::uuid AND cluster_name = 'cluster-0001'";
        let mut ticks = interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut committed = Vec::new();
        for id in self.ids.iter().take(self.options.changes.unwrap_or(60)) {
            ticks.tick().await;
            self.servers.execute(change, &[COMPLIANT.0, id]).await?;
            committed.push((id, Instant::now()));
        }
        seen.wait_for(committed.len(), LONGEST_STEP).await?;
        let delays = committed.iter().filter_map(|(id, at)| Some(seen.first(id)?.saturating_duration_since(*at)));
        Ok(Done { changes: Some(committed.len()), time: None, delays: delays.collect() })
    }

    /// Begins to watch the policies; each one's UID is noted when it shows what is looked for.
    async fn watch(&self, wanted: Seen) -> Result<Arrivals, Error> {
        let (client, clusters) = (self.servers.hub.client(users::ADMIN).await?, self.clusters);
        Arrivals::watch_as(&client, &hub_kind("policies")?, move |_: &Change, policy: &Policy| {
            policy
                .status
                .as_ref()
                .is_some_and(|status| status.is(wanted, clusters))
                .then(|| policy.metadata.uid.clone())
        })
        .await
    }
}

/// What is looked for in policies.
#[derive(Clone, Copy)]
enum Seen {
    /// This word everywhere.
    All(&'static str),
    /// One cluster differs from the others.
    One,
}

/// What is read of a policy: the least, since policies are large.
#[derive(Deserialize)]
struct Policy {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
}

#[derive(Deserialize)]
struct Status {
    compliant: Option<String>,
    #[serde(default, rename = "status")]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    compliant: Option<String>,
}

impl Status {
    fn is(&self, wanted: Seen, clusters: usize) -> bool {
        let first = self.entries.first().and_then(|entry| entry.compliant.as_deref());
        let is_same = self.entries.iter().all(|entry| entry.compliant.as_deref() == first);
        self.entries.len() == clusters
            && match wanted {
                Seen::All(word) => is_same && first == Some(word) && self.compliant.as_deref() == Some(word),
                Seen::One => !is_same,
            }
    }
}

impl Servers {
    async fn start() -> Result<Self, Error> {
        let plane = PlaneOptions::measured("hub").with_crds(&crds::HUB_KINDS);
        let (hub, postgres) =
            try_join(Box::pin(ControlPlane::start(plane)), Postgres::start("bench", Transport::Plain)).await?;
        let database = postgres.database("bench").await?;
        let sql = database.client(postgres::ADMIN).await?;
        let client = hub.client(users::HUB_USER).await?;
        grant_status_sync(&client).await?;
        // The kubeconfig's context names no namespace.
        grant_state(&client, "default", None).await?;
        let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
        made.map_err(Error::kubernetes("make a namespace"))?;
        Ok(Self { hub, postgres, database, sql, client })
    }

    async fn towline(&self, notify: bool) -> Result<Towline, Error> {
        let account = if notify { postgres::NOTIFIER } else { postgres::READER };
        let config = format!(
            "[clusters.hub]\nkubeconfig = \"{}\"\n[status_sync]\ncluster = \"hub\"\ndatabase_url = \"{}\"\n\
             interval = \"{}s\"\nnotify = {notify}\n",
            self.hub.kubeconfig(users::TOWLINE)?.display(),
            self.database.url(account),
            INTERVAL.as_secs(),
        );
        Towline::start(&config, &[]).await
    }

    /// Takes everything away that was there, and makes it anew: objects without a status, and their rows. Gives the policies' UIDs.
    async fn fill(&self, policies: usize, clusters: usize) -> Result<Vec<String>, Error> {
        self.execute(&format!("TRUNCATE {}", tables().join(", ")), &[]).await?;
        for plural in KINDS {
            let kind = hub_kind(plural)?;
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &kind);
            let gone = api.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
            gone.map_err(Error::kubernetes(format!("delete all {plural}")))?;
            eventually(format!("all {plural} to be gone"), LONGEST_STEP, async || {
                let left =
                    api.list_metadata(&ListParams::default().limit(1)).await.map_err(|error| error.to_string())?;
                if left.items.is_empty() { Ok(()) } else { Err("some are there".to_owned()) }
            })
            .await?;
        }
        let counts = Counts { policies, clusters, others: OTHERS };
        let made = leaf_hubs::fill(&self.client, &self.sql, NAMESPACE, counts).await?;
        // What a server's own autovacuum does; that of the fixture is off.
        for table in tables() {
            self.execute(&format!("VACUUM (ANALYZE) {table}"), &[]).await?;
        }
        Ok(made.into_iter().map(|(_, id)| id).collect())
    }

    async fn execute(&self, sql: &str, params: &[&str]) -> Result<(), Error> {
        leaf_hubs::execute(&self.sql, "change what leaf hubs report", sql, params).await.map(drop)
    }
}

/// Waits until every family has done further passes, and nothing is left to write.
async fn wait_at_rest(towline: &Towline, further: u64) -> Result<(), Error> {
    let families = async || -> Result<Vec<(String, Value)>, Error> {
        let report = towline.admin().section("status-sync").await?;
        let families = report.get("families").and_then(Value::as_object);
        Ok(families.map_or_else(Vec::new, |all| all.iter().map(|(name, told)| (name.clone(), told.clone())).collect()))
    };
    let passes = |family: &Value| family.get("passes").and_then(Value::as_u64).unwrap_or_default();
    let before = if further == 0 { Vec::new() } else { families().await? };
    eventually(format!("{further} further passes, and nothing left to write"), LONGEST_STEP, async || {
        let now = families().await.map_err(|error| error.chain())?;
        if now.is_empty() {
            return Err("no families yet".to_owned());
        }
        for (name, family) in now {
            let earlier = before.iter().find(|(known, _)| *known == name);
            let least = earlier.map_or(1, |(_, earlier)| passes(earlier) + further);
            if passes(&family) < least || !family.get("oldest_unwritten_seconds").is_some_and(Value::is_null) {
                return Err(format!("{name}: {family}"));
            }
        }
        Ok(())
    })
    .await
}
