//! A hub that is suddenly another cluster: nothing is written there until somebody says so.

use std::path::{Path, PathBuf};

use integration::audit::Mark;
use integration::postgres::READER;
use integration::rbac::{grant_changed_status_sync, grant_election, grant_state, grant_status_sync};
use integration::{ControlPlane, Filter, Link, Options, Towline, crds, eventually, users};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::status_sync::world::{LIMIT, Stage, kind, run};

const SETTINGS: &str = "interval = \"200ms\"\nfamilies = [\"policies\", \"placements\", \"subscription_statuses\"]";
const POLICIES: [&str; 3] = ["p0", "p1", "p2"];
const STATE: &str = "towline-status-sync";
const LABEL: &str = "apps.open-cluster-management.io/hosting-subscription";

static OTHER: OnceCell<ControlPlane> = OnceCell::const_new();

/// The other hub, whose roles are granted, and which all tests share.
async fn other() -> &'static ControlPlane {
    let named = Options::named("other-status-hub").with_crds(&crds::HUB_KINDS);
    let options = Options { controller_manager: false, ..named };
    let start = async || {
        let hub = ControlPlane::start(options.clone()).await.expect("the hub starts");
        grant_status_sync(&client(&hub).await).await.expect("the role of `deploy/` is granted");
        hub
    };
    OTHER.get_or_init(start).await
}

async fn client(hub: &ControlPlane) -> Client {
    hub.client(users::HUB_USER).await.expect("a client")
}

/// A stage's objects on some hub.
struct There {
    client: Client,
    namespace: String,
}

impl There {
    /// The stage's namespace, policies, placement and subscription are made on a hub.
    async fn make(hub: &ControlPlane, namespace: &str) -> Self {
        let there = Self { client: client(hub).await, namespace: namespace.to_owned() };
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
        Api::all(there.client.clone()).create(&PostParams::default(), &object).await.expect("it is made");
        grant_state(&there.client, namespace, None).await.expect("the role of `deploy/` is granted");
        for (plural, names) in [("policies", POLICIES.as_slice()), ("placements", &["d"]), ("subscriptions", &["s"])] {
            for name in names {
                let kind = kind(plural);
                let object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}});
                let object = serde_json::from_value(object).expect("an object");
                there.api(plural).create(&PostParams::default(), &object).await.expect("it is made");
            }
        }
        there
    }

    fn api(&self, plural: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind(plural))
    }

    /// The state object's text, where there is one.
    async fn state(&self) -> Option<String> {
        let states: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = states.get_opt(STATE).await.expect("an answer")?;
        found.data?.remove("state")
    }

    async fn put_state(&self, state: &str) {
        let object = json!({
            "metadata": {"name": STATE, "annotations": {"towline.dev/section-state": "status-sync"}},
            "data": {"state": state},
        });
        let states: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let object = serde_json::from_value(object).expect("an object");
        states.create(&PostParams::default(), &object).await.expect("it is made");
    }

    /// Waits until the state says that the hub is the cluster that it is.
    async fn remembers_itself(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let uid = namespaces.get("kube-system").await.expect("an answer").uid().expect("a UID");
        eventually("the hub's identity to be remembered", LIMIT, async || {
            let state = self.state().await.unwrap_or_default();
            if state.contains(&uid) { Ok(()) } else { Err(format!("no {uid} in {state:?}")) }
        })
        .await
        .unwrap();
    }

    async fn shows(&self, name: &str, word: &str) {
        eventually(format!("policy {name} to be {word}"), LIMIT, async || {
            let policy = self.api("policies").get(name).await.map_err(|error| error.to_string())?;
            let found = policy.data.pointer("/status/compliant").cloned().unwrap_or_default();
            if found == word { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
    }

    /// Versions of all objects.
    async fn versions(&self) -> Vec<String> {
        let mut versions = Vec::new();
        for plural in ["policies", "placements", "subscriptions", "subscriptionstatuses"] {
            let listed = self.api(plural).list(&ListParams::default()).await.expect("a list");
            versions.extend(listed.items.iter().map(|object| {
                format!("{plural} {} {}", object.name_any(), object.resource_version().unwrap_or_default())
            }));
        }
        versions
    }
}

async fn mark(hub: &ControlPlane) -> Mark {
    hub.audit().expect("an audit log").mark().await.expect("a mark")
}

/// The daemon's writes in a namespace of a hub, refused ones included.
async fn writes(hub: &ControlPlane, namespace: &str, since: Mark) -> Vec<String> {
    let records = hub.audit().expect("an audit log").records(&Filter::since(since).user(users::TOWLINE)).await;
    records
        .expect("records")
        .iter()
        .filter(|record| record.namespace == namespace && !["get", "list"].contains(&record.verb.as_str()))
        .map(|record| format!("{} {} {}", record.verb, record.resource, record.name))
        .collect()
}

/// A kubeconfig file whose content is replaced.
fn put(path: &Path, source: &Path) {
    let next = path.with_extension("next");
    std::fs::copy(source, &next).expect("a copy");
    std::fs::rename(next, path).expect("it takes the other's place");
}

/// A kubeconfig file of a stage's own, which leads to the shared hub.
fn switchable(stage: &Stage) -> PathBuf {
    let path = stage.world.hub.directory().join(format!("{}-switched", stage.name));
    put(&path, &stage.world.kubeconfig);
    path
}

fn kubeconfig(hub: &ControlPlane) -> PathBuf {
    hub.kubeconfig(users::TOWLINE).expect("a kubeconfig")
}

/// Three policies with compliance, a placement and a subscription with reports, and their rows.
async fn fill(stage: &Stage) -> Vec<String> {
    let mut uids = Vec::new();
    for name in POLICIES {
        uids.push(stage.wanted("policies", name).await);
    }
    for uid in &uids {
        stage.comply(uid, "hub", "c", "compliant").await;
    }
    stage.wanted("placements", "d").await;
    stage.report("placements", "hub", "d", &json!({"status": {"numberOfSelectedClusters": 7}})).await;
    stage.wanted("subscriptions", "s").await;
    let label = format!("{}.s", stage.name);
    let statuses = json!({"labels": {LABEL: label}, "statuses": {"packages": [{"name": "x"}]}});
    stage.report("subscription_statuses", "hub", "s", &statuses).await;
    uids
}

async fn start(stage: &Stage, kubeconfig: &Path) -> Towline {
    let config = stage.config_by(&stage.database.url(READER), kubeconfig, SETTINGS);
    Towline::start(&config, &[]).await.expect("the daemon starts")
}

/// Everything is on the shared hub, and its identity is remembered.
async fn rests(stage: &Stage) {
    for name in POLICIES {
        stage.shows("policies", name, "/status/compliant", &json!("Compliant")).await;
    }
    stage.shows("placements", "d", "/status/numberOfSelectedClusters", &json!(7)).await;
    stage.has("subscriptionstatuses", "s", |_| true).await;
    here(stage).remembers_itself().await;
}

/// The stage on the shared hub.
fn here(stage: &Stage) -> There {
    There { client: stage.world.client.clone(), namespace: stage.name.clone() }
}

async fn section(towline: &Towline, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(format!("the section to report {what}"), LIMIT, async || {
        let report = towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
        if holds(&report) { Ok(report) } else { Err(report.to_string()) }
    })
    .await
    .unwrap()
}

/// Waits until the whole section is held, for a reason that has these words.
async fn held(towline: &Towline, words: &str) {
    section(towline, &format!("that it is held: {words}"), |report| {
        let message = report["message"].as_str().unwrap_or_default();
        report["state"] == "held" && message.contains(words) && message.contains("`towline approve status-sync`")
    })
    .await;
}

/// Waits until every family has made so many whole passes since the process started, and nothing is held.
async fn goes_on(towline: &Towline) {
    section(towline, "that it goes on", |report| {
        let families = report["families"].as_object();
        let passes =
            |family: &Value| family["passes"].as_u64() >= Some(2) && family["oldest_unwritten_seconds"].is_null();
        report["state"] == "ready" && families.is_some_and(|families| families.values().all(passes))
    })
    .await;
}

async fn command(towline: &Towline, args: &[&str]) -> String {
    let url = towline.admin_url();
    let output = Towline::command(args.iter().copied().chain(["--admin", &url])).await.expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {told}");
    told
}

/// While it is held the database is read, and what changes there changes nothing on the hub.
async fn reads_on(stage: &Stage, towline: &Towline, uids: &[String]) {
    stage.comply(&uids[0], "hub", "c", "pending").await;
    stage.comply(&uids[0], "hub", "d", "pending").await;
    stage.execute("DELETE FROM status.compliance WHERE id = $1::text::uuid", &[&uids[1]]).await;
    stage.execute("DELETE FROM status.subscription_statuses", &[]).await;
    stage.family(towline, "policies", "the rows of now", |report| report["rows"] == 3).await;
    stage.family(towline, "subscription_statuses", "the rows of now", |report| report["rows"] == 0).await;
}

#[test]
fn a_kubeconfig_of_another_hub_gets_no_write_until_it_is_approved_and_the_right_one_lifts_the_hold() {
    run(async {
        let stage = Stage::new("swappedhub").await;
        let other = other().await;
        let there = There::make(other, &stage.name).await;
        let uids = fill(&stage).await;
        let path = switchable(&stage);
        let towline = start(&stage, &path).await;
        rests(&stage).await;
        let (before, since) = (there.versions().await, mark(other).await);

        put(&path, &kubeconfig(other));
        held(&towline, "another cluster answers as hub: its kube-system has UID").await;
        reads_on(&stage, &towline, &uids).await;
        // Somebody's edit is not taken back, either.
        let edit = Patch::Merge(json!({"status": {"numberOfSelectedClusters": 3}}));
        let edited = there.api("placements").patch_status("d", &PatchParams::default(), &edit).await.expect("an edit");
        let ready = towline.admin().readyz().await.expect("an answer");
        assert_eq!(ready.status, 200, "{}", ready.body);
        let unready = towline.admin().section_readyz("status-sync").await.expect("an answer");
        assert!(unready.status == 503 && unready.body.contains("another cluster"), "{}", unready.body);
        assert!(command(&towline, &["status"]).await.contains("held"));
        let listed = command(&towline, &["approve", "status_sync", "--list"]).await;
        assert!(listed.contains("another cluster answers as hub"), "{listed}");
        let told = towline.log().expect("a log").matches("the section is held").count();
        assert_eq!(told, 1, "it is told once");
        let version = edited.resource_version();

        put(&path, &stage.world.kubeconfig);
        stage.shows("policies", "p0", "/status/compliant", &json!("Pending")).await;
        stage.shows("policies", "p1", "/status/compliant", &Value::Null).await;
        stage.gone("subscriptionstatuses", "s").await;
        goes_on(&towline).await;
        assert_eq!(writes(other, &stage.name, since).await, Vec::<String>::new());
        let after = there.versions().await;
        let changed: Vec<&String> = after.iter().filter(|version| !before.contains(version)).collect();
        assert_eq!(changed, [&format!("placements d {}", version.unwrap_or_default())], "but for the edit");

        put(&path, &kubeconfig(other));
        held(&towline, "another cluster answers as hub").await;
        command(&towline, &["approve", "--yes", "status_sync"]).await;
        there.shows("p0", "Pending").await;
        there.shows("p2", "Compliant").await;
        there.remembers_itself().await;
        goes_on(&towline).await;
    });
}

#[test]
fn a_start_against_another_hub_is_held_by_the_rows_and_an_approval_outlives_the_process() {
    run(async {
        let stage = Stage::new("movedhub").await;
        let other = other().await;
        let there = There::make(other, &stage.name).await;
        let uids = fill(&stage).await;
        let path = switchable(&stage);
        let mut towline = start(&stage, &path).await;
        rests(&stage).await;
        towline.kill9().await.expect("it is killed");
        let (before, since) = (there.versions().await, mark(other).await);

        put(&path, &kubeconfig(other));
        towline.start_again().await.expect("it starts");
        held(&towline, "5 of 5 objects in cluster hub have another UID than their rows").await;
        reads_on(&stage, &towline, &uids).await;
        let listed = command(&towline, &["approve", "status_sync", "--list"]).await;
        assert!(listed.contains("5 of 5 objects"), "{listed}");
        assert_eq!(writes(other, &stage.name, since).await, Vec::<String>::new());
        assert_eq!(there.versions().await, before);

        command(&towline, &["approve", "--yes", "status_sync"]).await;
        there.shows("p0", "Pending").await;
        there.remembers_itself().await;
        goes_on(&towline).await;
        towline.start_again().await.expect("it starts");
        goes_on(&towline).await;
        stage.comply(&uids[2], "hub", "c", "non_compliant").await;
        there.shows("p2", "NonCompliant").await;
        let told = towline.log().expect("a log").matches("the section is held").count();
        assert_eq!(told, 1, "the second start on it is clear");
    });
}

#[test]
fn renewed_credentials_of_the_same_hub_hold_nothing() {
    run(async {
        let stage = Stage::new("renewedhub").await;
        let uids = fill(&stage).await;
        grant_changed_status_sync(&stage.world.client, users::REPLICA[3], |_| ()).await.expect("it is granted");
        let path = switchable(&stage);
        let towline = start(&stage, &path).await;
        rests(&stage).await;
        // Another account by the same address, and then the first one by another address: a connection of its own.
        put(&path, &stage.world.hub.kubeconfig(users::REPLICA[3]).expect("a kubeconfig"));
        stage.comply(&uids[0], "hub", "c", "pending").await;
        stage.shows("policies", "p0", "/status/compliant", &json!("Pending")).await;
        let link = Link::to(stage.world.hub.address()).await.expect("a link");
        put(&path, &stage.world.hub.kubeconfig_by(users::TOWLINE, link.address()).expect("a kubeconfig"));
        stage.comply(&uids[0], "hub", "c", "non_compliant").await;
        stage.shows("policies", "p0", "/status/compliant", &json!("NonCompliant")).await;
        goes_on(&towline).await;
        assert!(!towline.log().expect("a log").contains("the section is held"));
    });
}

#[test]
fn the_roles_of_before_are_enough_to_go_on_and_what_is_missing_is_told() {
    run(async {
        let stage = Stage::new("olderroles").await;
        let uids = fill(&stage).await;
        let (client, user) = (&stage.world.client, users::REPLICA[2]);
        let older = grant_changed_status_sync(client, user, |rules| {
            rules.retain(|rule| rule.resources.iter().flatten().all(|resource| resource != "namespaces"));
        });
        older.await.expect("less is granted");
        let kubeconfig = stage.world.hub.kubeconfig(user).expect("a kubeconfig");
        let text = kubeconfig.display().to_string();
        let url = stage.database.url(READER);
        let variables = [
            ("KUBECONFIG", text.as_str()),
            ("DATABASE_URL", &url),
            ("HOH_STATUS_SYNC_INTERVAL", "200ms"),
            ("WATCH_NAMESPACE", &stage.name),
        ];
        let towline = Towline::start_status_sync(&variables).await.expect("it starts");
        towline.wait_ready(LIMIT).await.expect("it is ready");
        stage.shows("policies", "p0", "/status/compliant", &json!("Compliant")).await;
        section(&towline, "what is missing", |report| {
            let unknown = report["hub_identity_unknown"].as_str().unwrap_or_default();
            unknown.contains("not allowed to get namespaces") && report["stored_state"]["state"] == "unavailable"
        })
        .await;
        stage.comply(&uids[0], "hub", "c", "pending").await;
        stage.shows("policies", "p0", "/status/compliant", &json!("Pending")).await;

        let path = stage.world.hub.directory().join("olderroles.toml");
        std::fs::write(&path, stage.config_by(&url, &kubeconfig, "")).expect("a file");
        let check = Towline::command(["check", "--connect", path.to_str().expect("a path")]).await.expect("it runs");
        let told = String::from_utf8_lossy(&check.stdout);
        assert_eq!(check.status.code(), Some(1), "{told}");
        for line in [
            "status-sync: cluster hub: its identity is unknown: not allowed to get namespaces",
            "status-sync: state: cluster hub: not allowed to create configmaps",
            "3 fault(s)",
        ] {
            assert!(told.contains(line), "nothing of {line:?} in {told}");
        }
    });
}

#[test]
fn without_an_identity_another_hub_is_held_by_the_rows_until_it_is_approved() {
    run(async {
        let stage = Stage::new("unknownhub").await;
        let other = other().await;
        let there = There::make(other, &stage.name).await;
        fill(&stage).await;
        let user = users::REPLICA[0];
        let older = grant_changed_status_sync(&there.client, user, |rules| {
            rules.retain(|rule| rule.resources.iter().flatten().all(|resource| resource != "namespaces"));
        });
        older.await.expect("less is granted");
        let since = mark(other).await;
        let towline = start(&stage, &other.kubeconfig(user).expect("a kubeconfig")).await;
        held(&towline, "5 of 5 objects in cluster hub have another UID").await;
        let written = Filter::since(since).user(user).verb("patch");
        assert_eq!(other.audit().expect("an audit log").count(&written).await.expect("a count"), 0);
        command(&towline, &["approve", "--yes", "status_sync"]).await;
        there.shows("p0", "Compliant").await;
        // A lost connection is a doubt; it is the approved cluster as far as anybody can tell.
        goes_on(&towline).await;
    });
}

#[test]
fn a_replica_that_takes_over_is_held_by_the_same_memory() {
    run(async {
        let stage = Stage::new("heldreplicas").await;
        grant_election(&stage.world.client, &stage.name, None).await.expect("the election is granted");
        let here = here(&stage);
        let url = stage.database.url(READER);
        let (_, database) = url.rsplit_once('@').unwrap();
        let identities = json!({"local": "another-cluster", "remote": database});
        here.put_state(&json!({"version": 1, "identities": identities}).to_string()).await;
        fill(&stage).await;
        let election = format!(
            "[election]\ncluster = \"hub\"\nnamespace = \"{}\"\nlease_duration = \"4s\"\nrenew_interval = \"1s\"\n",
            stage.name
        );
        let config = format!("{election}{}", stage.config(SETTINGS));
        let one = Towline::start(&config, &[]).await.expect("a replica starts");
        held(&one, "and had another-cluster").await;
        let two = Towline::start(&config, &[]).await.expect("a replica starts");
        two.wait_ready(LIMIT).await.expect("it stands by");
        one.kill9().await.expect("it is killed");
        held(&two, "and had another-cluster").await;
        command(&two, &["approve", "--yes", "status_sync"]).await;
        rests(&stage).await;
        // What was approved in one replica counts in the next.
        let three = Towline::start(&config, &[]).await.expect("a replica starts");
        three.wait_ready(LIMIT).await.expect("it stands by");
        two.kill9().await.expect("it is killed");
        goes_on(&three).await;
        assert!(!three.log().expect("a log").contains("the section is held"));
    });
}
