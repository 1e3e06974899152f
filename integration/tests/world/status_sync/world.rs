//! The hub, the database server, and what a test does with its part of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use integration::postgres::{self, Database, Transport};
use integration::rbac::{grant_state, grant_status_sync};
use integration::{ControlPlane, Filter, Options, Postgres, Towline, crds, eventually, leaf_hubs, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) use crate::run;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);
/// Between the passes of a test's daemon.
pub(crate) const INTERVAL: &str = "200ms";
/// Passes that only a notification can ask for.
pub(crate) const LISTENING: &str = "interval = \"1h\"\nnotify = true";
/// Marks a placement decision with its placement.
pub(crate) const PLACEMENT_LABEL: &str = "cluster.open-cluster-management.io/placement";

static WORLD: OnceCell<World> = OnceCell::const_new();

/// What all tests share.
pub(crate) struct World {
    pub(crate) hub: ControlPlane,
    pub(crate) server: Postgres,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
}

/// The hub and the server, started for the first who asks.
pub(crate) async fn world() -> &'static World {
    WORLD
        .get_or_init(async || {
            let options = Options::named("status-hub").with_crds(&crds::HUB_KINDS);
            let (hub, server) = tokio::join!(ControlPlane::start(options), Postgres::start("status", Transport::Plain));
            let (hub, server) = (hub.expect("the hub starts"), server.expect("the server starts"));
            let client = hub.client(users::HUB_USER).await.expect("a client");
            grant_status_sync(&client).await.expect("the role of `deploy/` is granted");
            let kubeconfig = hub.kubeconfig(users::TOWLINE).expect("a kubeconfig");
            World { hub, server, kubeconfig, client }
        })
        .await
}

pub(crate) fn kind(plural: &str) -> ApiResource {
    let (kind, group, version) = match plural {
        "policies" => ("Policy", "policy.open-cluster-management.io", "v1"),
        "placementrules" => ("PlacementRule", "apps.open-cluster-management.io", "v1"),
        "placements" => ("Placement", "cluster.open-cluster-management.io", "v1beta1"),
        "placementdecisions" => ("PlacementDecision", "cluster.open-cluster-management.io", "v1beta1"),
        "subscriptions" => ("Subscription", "apps.open-cluster-management.io", "v1"),
        "subscriptionstatuses" => ("SubscriptionStatus", "apps.open-cluster-management.io", "v1alpha1"),
        "subscriptionreports" => ("SubscriptionReport", "apps.open-cluster-management.io", "v1alpha1"),
        other => panic!("no kind {other}"),
    };
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// A test's part of the world.
pub(crate) struct Stage {
    pub(crate) world: &'static World,
    pub(crate) name: String,
    pub(crate) database: Database,
    pub(crate) sql: tokio_postgres::Client,
}

impl Stage {
    /// A database and a namespace of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        let world = world().await;
        let database = world.server.database(name).await.expect("a database");
        let sql = database.client(postgres::ADMIN).await.expect("a connection");
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
        Api::all(world.client.clone()).create(&PostParams::default(), &namespace).await.expect("it is made");
        // The sections of all tests have one name: what each remembers is in its own namespace.
        grant_state(&world.client, name, None).await.expect("the role of `deploy/` is granted");
        Self { world, name: name.to_owned(), database, sql }
    }

    /// The configuration with further keys of `[status_sync]`.
    pub(crate) fn config(&self, settings: &str) -> String {
        self.config_by(&self.database.url(postgres::READER), &self.world.kubeconfig, settings)
    }

    /// The same by other ways to the database and the hub.
    pub(crate) fn config_by(&self, url: &str, kubeconfig: &std::path::Path, settings: &str) -> String {
        format!(
            "[daemon]\nstate_namespace = \"{name}\"\n[clusters.hub]\nkubeconfig = \"{}\"\n[status_sync]\ncluster = \"hub\"\n\
             database_url = \"{url}\"\nwatch_namespace = \"{name}\"\n{settings}\n",
            kubeconfig.display(),
            name = self.name,
        )
    }

    /// The same, with one request to the hub at a time.
    pub(crate) fn one_at_a_time(&self, settings: &str) -> String {
        self.config(settings).replace("[clusters.hub]\n", "[clusters.hub]\nmax_in_flight = 1\n")
    }

    /// The daemon, with a short interval, when it is ready.
    pub(crate) async fn start(&self) -> Towline {
        self.start_with(&format!("interval = \"{INTERVAL}\"")).await
    }

    /// The daemon with these keys, when it is ready.
    pub(crate) async fn start_with(&self, settings: &str) -> Towline {
        self.start_by(&self.config(settings)).await
    }

    /// The daemon with this configuration, when it is ready.
    pub(crate) async fn start_by(&self, config: &str) -> Towline {
        let towline = Towline::start(config, &[]).await.expect("the daemon starts");
        towline.wait_ready(LIMIT).await.expect("the daemon is ready");
        eventually("the hub's identity to be stored", LIMIT, async || {
            let report = towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
            let state = &report["stored_state"]["state"];
            if state == "stored" { Ok(()) } else { Err(state.to_string()) }
        })
        .await
        .unwrap();
        towline
    }

    /// The daemon with `notify = true` and the next pass an hour away, when it listens and has made its first pass.
    pub(crate) async fn start_listening(&self) -> Towline {
        let config = self.config_by(&self.database.url(postgres::NOTIFIER), &self.world.kubeconfig, LISTENING);
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        towline.wait_ready(LIMIT).await.expect("the daemon is ready");
        self.notify(&towline, "that all tables tell", |report| {
            report["listening"] == true && report["without_trigger"] == json!({})
        })
        .await;
        towline
    }

    /// Waits for something in the listener's report.
    pub(crate) async fn notify(&self, towline: &Towline, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(format!("the listener to report {what}"), LIMIT, async || {
            let report = towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
            let report = report["notify"].clone();
            if holds(&report) { Ok(report) } else { Err(report.to_string()) }
        })
        .await
        .unwrap()
    }

    pub(crate) fn api(&self, plural: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.world.client.clone(), &self.name, &kind(plural))
    }

    /// Makes an object on the hub.
    pub(crate) async fn make(&self, plural: &str, name: &str, content: &Value) -> DynamicObject {
        let kind = kind(plural);
        let mut object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}});
        for (key, value) in content.as_object().expect("an object") {
            if let ("metadata", Some(metadata)) = (key.as_str(), value.as_object()) {
                for (key, value) in metadata {
                    object["metadata"][key] = value.clone();
                }
            } else {
                object[key] = value.clone();
            }
        }
        let object = serde_json::from_value(object).expect("an object");
        self.api(plural).create(&PostParams::default(), &object).await.expect("it is made")
    }

    /// A hub object with its row of `spec`; returns its UID.
    pub(crate) async fn wanted(&self, plural: &str, name: &str) -> String {
        let uid = self.make(plural, name, &json!({"spec": {"of": name}})).await.uid().expect("a UID");
        self.spec(plural, &uid, name).await;
        uid
    }

    /// A row of `spec`.
    pub(crate) async fn spec(&self, table: &str, id: &str, name: &str) {
        let payload = json!({"metadata": {"name": name, "namespace": self.name, "uid": id}, "spec": {}});
        self.execute(
            &format!("INSERT INTO spec.{table} (id, payload) VALUES ($1::text::uuid, $2::text::jsonb)"),
            &[id, &payload.to_string()],
        )
        .await;
    }

    /// A row of compliance, new or in the place of an older one.
    pub(crate) async fn comply(&self, id: &str, leaf_hub: &str, cluster: &str, word: &str) {
        self.execute(
            "INSERT INTO status.compliance VALUES ($1::text::uuid, $2, $3, 'none', $4::text::status.compliance_type) \
             ON CONFLICT (leaf_hub_name, id, cluster_name) DO UPDATE SET compliance = excluded.compliance",
            &[id, cluster, leaf_hub, word],
        )
        .await;
    }

    /// What a leaf hub reports of an object; takes the place of what it reported before.
    pub(crate) async fn report(&self, table: &str, leaf_hub: &str, name: &str, content: &Value) {
        let mut payload = json!({"metadata": {"name": name, "namespace": self.name}});
        for (key, value) in content.as_object().expect("an object") {
            if key == "labels" {
                payload["metadata"]["labels"] = value.clone();
            } else {
                payload[key] = value.clone();
            }
        }
        self.execute(
            &format!(
                "INSERT INTO status.{table} VALUES (gen_random_uuid(), $1, $2::text::jsonb) ON CONFLICT \
                 (leaf_hub_name, (payload -> 'metadata' ->> 'name'), (payload -> 'metadata' ->> 'namespace')) \
                 DO UPDATE SET payload = excluded.payload"
            ),
            &[leaf_hub, &payload.to_string()],
        )
        .await;
    }

    /// Runs a statement whose parameters are all texts.
    pub(crate) async fn execute(&self, sql: &str, params: &[&str]) -> u64 {
        let done = leaf_hubs::execute(&self.sql, "run a statement", sql, params).await;
        done.unwrap_or_else(|error| panic!("{sql}: {}", error.chain()))
    }

    /// Begins to count statements anew, in this database alone: the server's others are other tests'.
    pub(crate) async fn forget_statements(&self) {
        let reset = "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = current_database()";
        self.sql.execute(reset, &[]).await.expect("a reset");
    }

    /// Waits until an object is there and so.
    pub(crate) async fn has(&self, plural: &str, name: &str, holds: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        let api = self.api(plural);
        eventually(format!("{plural} {name} to be so"), LIMIT, async || match api.get_opt(name).await {
            Ok(Some(object)) if holds(&object) => Ok(object),
            Ok(Some(object)) => Err(serde_json::to_string(&object).unwrap_or_default()),
            Ok(None) => Err("it is not there".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .await
        .unwrap()
    }

    /// Waits until fields below a pointer equal a value.
    pub(crate) async fn shows(&self, plural: &str, name: &str, pointer: &str, value: &Value) -> DynamicObject {
        let found = |object: &DynamicObject| object.data.pointer(pointer).cloned().unwrap_or(Value::Null);
        self.has(plural, name, |object| found(object) == *value).await
    }

    /// Waits until an object is gone.
    pub(crate) async fn gone(&self, plural: &str, name: &str) {
        let api = self.api(plural);
        eventually(format!("{plural} {name} to be gone"), LIMIT, async || match api.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(object)) => Err(serde_json::to_string(&object).unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        })
        .await
        .unwrap();
    }

    /// Waits for something in a family's report.
    pub(crate) async fn family(
        &self,
        towline: &Towline,
        family: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually(format!("{family} to report {what}"), LIMIT, async || {
            let report = towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
            let report = report["families"][family].clone();
            if holds(&report) { Ok(report) } else { Err(report.to_string()) }
        })
        .await
        .unwrap()
    }

    /// Waits until as many further whole passes have ended.
    pub(crate) async fn passes(&self, towline: &Towline, family: &str, further: u64) {
        let before = self.family(towline, family, "anything", |_| true).await["passes"].as_u64().unwrap_or_default();
        self.family(towline, family, "further passes", |report| report["passes"].as_u64() >= Some(before + further))
            .await;
    }

    /// The daemon's requests since then in this namespace, as `verb resource/subresource`. Watches aside.
    pub(crate) async fn requests(&self, since: integration::audit::Mark) -> BTreeMap<String, usize> {
        let audit = self.world.hub.audit().expect("an audit log");
        let records = audit.records(&Filter::since(since).user(users::TOWLINE)).await.expect("records");
        let mut counts = BTreeMap::new();
        for record in records.iter().filter(|record| record.namespace == self.name) {
            let key = format!("{} {}/{}", record.verb, record.resource, record.subresource);
            *counts.entry(key.trim_end_matches('/').to_owned()).or_default() += 1;
        }
        counts
    }

    /// Marks the present moment in the audit log.
    pub(crate) async fn mark(&self) -> integration::audit::Mark {
        self.world.hub.audit().expect("an audit log").mark().await.expect("a mark")
    }

    /// Merges into an object's status, as somebody else.
    pub(crate) async fn edit_status(&self, plural: &str, name: &str, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.api(plural).patch_status(name, &PatchParams::default(), &patch).await.expect("it is edited");
    }
}
