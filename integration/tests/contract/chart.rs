//! The Helm chart: what its presets make is a configuration that `towline check` takes, with the permissions that its sections ask for, and what
//! people get wrong is refused with the path of it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "the allowance for tests does not reach their helper functions"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use integration::programs;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use towline::test_api::config::ClusterAccess;
use towline::test_api::hub;
use towline::test_api::job::Config;
use towline::test_api::jobs::JOBS;
use towline::test_api::telemetry;

use super::run;

/// Where the releases are, of which each is named like the chart.
const NAMESPACE: &str = "chart";
pub(crate) const PRESETS: [&str; 9] =
    ["edge", "edge-replicated", "hub", "hub-syncsets", "inventory", "lease", "rabbitmq", "status-sync", "trial"];

pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap()
}

/// What Helm makes of a preset with further flags, or what it says.
async fn helm(command: &[&str], preset: &str, flags: &[&str]) -> Result<String, String> {
    let output = Command::new(programs::helm().await.unwrap())
        .args(command)
        .arg(repository("deploy/chart"))
        .args(["--namespace", NAMESPACE, "--kube-version", "1.30.0", "--values"])
        .arg(repository("deploy/chart/presets").join(preset).with_extension("yaml"))
        .args(flags)
        .current_dir(repository("."))
        .output()
        .await
        .unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(told(&output.stdout)) } else { Err(told(&output.stdout) + &told(&output.stderr)) }
}

async fn template(preset: &str, flags: &[&str]) -> Result<String, String> {
    let flags = [&["--set", "image.repository=registry.example/towline"], flags].concat();
    helm(&["template", "towline"], preset, &flags).await
}

/// The objects of a release.
struct Release(Vec<Value>);

impl Release {
    async fn of(preset: &str, flags: &[&str]) -> Self {
        let rendered = template(preset, flags).await.unwrap_or_else(|told| panic!("{preset} {flags:?}: {told}"));
        Self(serde_saphyr::from_multiple(&rendered).unwrap())
    }

    fn all<'r>(&'r self, kind: &str) -> impl Iterator<Item = &'r Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn one(&self, kind: &str) -> &Value {
        let all: Vec<&Value> = self.all(kind).collect();
        assert_eq!(all.len(), 1, "{kind}: {all:?}");
        all[0]
    }

    fn has(&self, kind: &str) -> bool {
        self.all(kind).next().is_some()
    }

    fn pod(&self) -> &Value {
        &self.one("Deployment")["spec"]["template"]["spec"]
    }

    fn toml(&self) -> &str {
        let configured = self.all("ConfigMap").find_map(|object| object["data"]["towline.toml"].as_str());
        configured.unwrap()
    }

    fn table(&self) -> Value {
        toml::from_str(self.toml()).unwrap()
    }

    fn config(&self) -> Config {
        JOBS.parse(self.toml(), []).unwrap_or_else(|error| panic!("{error}:\n{}", self.toml()))
    }
}

/// Verb, group, resource with its subresource, namespace (empty: all), and name (empty: any).
pub(crate) type Permission = [String; 5];

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().map(|list| list.iter().map(|text| text.as_str().unwrap()).collect()).unwrap_or_default()
}

/// What roles grant, rule by rule taken apart. Those without a namespace of their own are for this one.
pub(crate) fn permissions<'r>(roles: impl IntoIterator<Item = &'r Value>, own_namespace: &str) -> BTreeSet<Permission> {
    let mut granted = BTreeSet::new();
    for role in roles {
        let namespace = match (role["kind"].as_str().unwrap(), role["metadata"]["namespace"].as_str()) {
            ("ClusterRole", _) => "",
            (_, namespace) => namespace.unwrap_or(own_namespace),
        };
        for rule in role["rules"].as_array().unwrap() {
            let names = if rule["resourceNames"].is_null() { vec![""] } else { texts(&rule["resourceNames"]) };
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        let permissions = names.iter().map(|name| [verb, group, resource, namespace, name]);
                        granted.extend(permissions.map(|permission| permission.map(str::to_owned)));
                    }
                }
            }
        }
    }
    granted
}

/// What the roles of a release grant. Each is bound, in its namespace, to the account of the pod.
fn granted(release: &Release) -> BTreeSet<Permission> {
    for (kind, binding) in [("Role", "RoleBinding"), ("ClusterRole", "ClusterRoleBinding")] {
        assert_eq!(release.all(kind).count(), release.all(binding).count());
        for role in release.all(kind) {
            let bound = release.all(binding).find(|binding| binding["metadata"] == role["metadata"]).unwrap();
            let account = json!([{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": release.pod()["serviceAccountName"]}]);
            assert_eq!(bound["subjects"], account);
            assert_eq!(
                (&bound["roleRef"]["kind"], &bound["roleRef"]["name"]),
                (&kind.into(), &role["metadata"]["name"])
            );
        }
    }
    permissions(release.all("Role").chain(release.all("ClusterRole")), NAMESPACE)
}

/// What `towline rbac` prints for the cluster that the pod runs in.
async fn needed(release: &Release) -> BTreeSet<Permission> {
    let config = release.config();
    let is_own =
        |name: &&_| config.clusters.get(*name).is_none_or(|cluster| cluster.access == ClusterAccess::InCluster);
    let own: BTreeSet<_> = config.jobs.iter().flat_map(|job| job.clusters()).filter(is_own).collect();
    let room = tempdir("rbac");
    let file = room.join("towline.toml");
    fs::write(&file, release.toml()).unwrap();
    let mut needed = BTreeSet::new();
    for name in own {
        let mut command = Command::new(programs::towline().await.unwrap());
        command.args(["rbac", "--cluster", name.as_str(), "--config"]).arg(&file);
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let roles: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
        needed.extend(permissions(&roles, NAMESPACE));
    }
    fs::remove_dir_all(room).unwrap();
    needed
}

#[test]
fn every_preset_is_a_configuration_with_what_its_sections_need_and_no_more() {
    let found: BTreeSet<String> = fs::read_dir(repository("deploy/chart/presets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, PRESETS.map(str::to_owned).into());
    run(async {
        for preset in PRESETS {
            if let Err(told) = helm(&["lint", "--strict"], preset, &[]).await {
                panic!("{preset}: {told}");
            }
            let release = Release::of(preset, &[]).await;
            checked(preset, release.toml()).await;
            assert_eq!(granted(&release), needed(&release).await, "{preset}");
            mounted(preset, &release);
        }
        // Settings that change what is needed.
        let of_the_state = "config.daemon.state_namespace=elsewhere";
        for (preset, flags) in [
            ("inventory", &["--set", "config.inventory.helm_driver=configmap"][..]),
            ("status-sync", &["--set-json", "config.status_sync.families=[\"placementdecisions\"]"]),
            ("status-sync", &["--set-json", "config.status_sync.families=[\"policies\",\"subscription_reports\"]"]),
            ("edge", &["--set", of_the_state]),
            ("edge-replicated", &["--set", of_the_state, "--set", "config.election.namespace=leases"]),
            ("edge", &["--values", "integration/tests/contract/fixtures/chart/hub-beside-it.yaml"]),
        ] {
            let release = Release::of(preset, flags).await;
            assert_eq!(granted(&release), needed(&release).await, "{preset} {flags:?}");
        }
    });
}

/// `towline check` takes it, and says that it reads no file which only the pod has.
async fn checked(preset: &str, toml: &str) {
    let room = tempdir(preset);
    let file = room.join("towline.toml");
    fs::write(&file, toml).unwrap();
    let towline = programs::towline().await.unwrap();
    let output = Command::new(towline).args(["check", "--config"]).arg(&file).output().await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{preset}: {told}\n{toml}");
    assert!(told.contains("the configuration is valid") && told.contains("were not read"), "{preset}: {told}");
    fs::remove_dir_all(room).unwrap();
}

fn tempdir(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("towline-chart-{}-{name}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Every file that the configuration names is in a Secret that is mounted.
fn mounted(preset: &str, release: &Release) {
    let container = &release.pod()["containers"][0];
    let mounts: BTreeSet<&str> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    let mut left = vec![release.table()];
    let mut files = 0;
    while let Some(value) = left.pop() {
        match value {
            Value::String(path) if path.starts_with("/etc/towline/") => {
                let directory = path.rsplit_once('/').unwrap().0;
                assert!(mounts.contains(directory), "{preset}: {path} is not in {mounts:?}");
                files += 1;
            }
            Value::Array(list) => left.extend(list),
            Value::Object(table) => left.extend(table.into_iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    assert_eq!(files == 0, preset == "lease", "{preset}: a lease reads its Secret with the API");
    assert!(release.all("Secret").next().is_none(), "{preset}: Secrets are only named");
}

#[test]
fn what_people_get_wrong_is_derived() {
    run(async {
        // Preset, flags, replicas, strategy, seconds of grace, and whether the pod has a token and the hub a Service.
        for (preset, flags, replicas, strategy, grace, token, service) in [
            ("edge", &[][..], 1, "Recreate", 45, true, false),
            ("edge", &["--set", "replicas=0"], 0, "Recreate", 45, true, false),
            ("edge-replicated", &[], 2, "RollingUpdate", 45, true, false),
            ("edge-replicated", &["--set", "replicas=1"], 1, "RollingUpdate", 45, true, false),
            ("edge", &["--set", "config.daemon.shutdown_grace=1m 30s"], 1, "Recreate", 105, true, false),
            ("edge", &["--set", "config.daemon.shutdown_grace=1500ms"], 1, "Recreate", 17, true, false),
            ("status-sync", &[], 2, "RollingUpdate", 45, true, false),
            ("inventory", &[], 1, "Recreate", 45, true, false),
            ("lease", &[], 1, "Recreate", 45, true, false),
            ("hub", &[], 3, "RollingUpdate", 45, false, true),
            ("hub-syncsets", &["--set", "config.hub.listen="], 3, "RollingUpdate", 45, false, false),
            ("rabbitmq", &[], 3, "RollingUpdate", 45, false, true),
            ("trial", &[], 1, "RollingUpdate", 45, false, false),
            ("trial", &["--set", "replicas=2"], 2, "RollingUpdate", 45, false, false),
        ] {
            let release = Release::of(preset, flags).await;
            let (spec, pod) = (&release.one("Deployment")["spec"], release.pod());
            let derived = (
                spec["replicas"].as_u64().unwrap(),
                spec["strategy"]["type"].as_str().unwrap(),
                pod["terminationGracePeriodSeconds"].as_u64().unwrap(),
                pod["automountServiceAccountToken"].as_bool().unwrap(),
                release.has("Service"),
            );
            assert_eq!(derived, (replicas, strategy, grace, token, service), "{preset} {flags:?}");
            assert_eq!(release.has("PodDisruptionBudget"), replicas > 1, "{preset}");
            assert_eq!(pod["topologySpreadConstraints"].is_array(), replicas > 1, "{preset}");
            let labels = &spec["selector"]["matchLabels"];
            assert_eq!(release.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"], *labels);
            for kind in ["PodDisruptionBudget", "Service"] {
                for object in release.all(kind) {
                    let selector = &object["spec"]["selector"];
                    assert_eq!(selector.get("matchLabels").unwrap_or(selector), labels, "{kind}");
                }
            }
            let config = release.config();
            let mut ports = vec![json!({"name": "admin", "containerPort": config.daemon.listen.port()})];
            let api = hub::section(&config).and_then(|hub| hub.listen);
            ports.extend(api.map(|api| json!({"name": "api", "containerPort": api.port()})));
            assert_eq!(pod["containers"][0]["ports"], Value::Array(ports), "{preset}: `kubectl towline` finds them");
        }
        let guarded = Release::of("edge", &["--set", "existingSecrets.adminToken.name=towline-admin"]).await;
        let file = guarded.table()["daemon"]["admin_token_file"].clone();
        assert!(file.is_string(), "{file}");
        let environment = json!([{"name": "TOWLINE_ADMIN_TOKEN_FILE", "value": file}]);
        assert_eq!(guarded.pod()["containers"][0]["env"], environment, "`kubectl exec … towline approve` finds it");
        let checksum = |release: &Release| {
            release.one("Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
        };
        let before = checksum(&Release::of("edge", &[]).await);
        assert_eq!(checksum(&Release::of("edge", &["--set", "podLabels.a=b"]).await), before);
        assert_ne!(checksum(&Release::of("edge", &["--set", "config.daemon.log.filter=debug"]).await), before);
        let digest = format!("sha256:{}", "0a".repeat(32));
        let image = |release: &Release| release.pod()["containers"][0]["image"].clone();
        let version = telemetry::VERSION;
        assert_eq!(image(&Release::of("edge", &[]).await), format!("registry.example/towline:{version}"));
        let pinned = Release::of("edge", &["--set", &format!("image.digest={digest}")]).await;
        assert_eq!(image(&pinned), format!("registry.example/towline@{digest}"));
    });
}

#[test]
fn the_state_is_where_the_daemon_keeps_it() {
    let role = async |preset: &str, set: &str| {
        let release = Release::of(preset, &["--set", set]).await;
        let keeps_state = |role: &&Value| role["rules"][0]["resources"][0] == "configmaps";
        release.all("Role").find(keeps_state).unwrap()["metadata"]["namespace"].clone()
    };
    run(async {
        for (preset, set, expected) in [
            ("edge", "replicas=1", NAMESPACE),
            ("edge", "config.daemon.state_namespace=kept", "kept"),
            ("status-sync", "config.election.namespace=elected", "elected"),
            (
                "edge",
                "config.status_sync.cluster=edge,config.status_sync.election_namespace=elected,existingSecrets.database.name=x",
                "elected",
            ),
        ] {
            assert_eq!(role(preset, set).await, expected, "{preset}: {set}");
        }
    });
}

/// Preset, `--set`, how the sentence begins.
const MISTYPED: &[(&str, &str, &str)] = &[
    ("edge", "replica=2", "at '': additional properties 'replica'"),
    ("edge", "replicas=two", "at '/replicas'"),
    ("edge", "replicas=2", "replicas: more than one"),
    ("status-sync", "existingSecret.database.name=x", "at '': additional properties 'existingSecret'"),
    ("edge", "image.repository=", "image.repository: missing"),
    ("edge", "image.repository=registry.example/towline:0.1.0", "at '/image/repository'"),
    ("edge", "image.digest=latest", "at '/image/digest'"),
    ("edge", "resources.limit.memory=1Gi", "at '/resources': additional properties 'limit'"),
    ("edge", "networkPolicy.apiServers.port=443", "at '/networkPolicy/apiServers'"),
    ("edge", "monitoring.enable=true", "at '/monitoring'"),
    ("edge", "labels.app\\.kubernetes\\.io/name=x", "labels.app.kubernetes.io/name: is the chart's own"),
    ("edge", "config.syncs=x", "at '/config': additional properties 'syncs'"),
    ("edge", "config.daemon.shutdown_grace=30", "at '/config/daemon/shutdown_grace'"),
    ("edge", "config.daemon.listen=0.0.0.0:9", "config.daemon.listen: leave it out"),
    ("edge", "config.clusters.hub.kubecofnig=/x", "at '/config/clusters/hub'"),
    (
        "edge",
        "config.clusters.hub.kubeconfig=/x",
        "config.clusters.hub: has kubeconfig and existingSecrets.clusters.hub",
    ),
    ("edge", "config.clusters.west.max_in_flight=9", "config.clusters.west: has no access"),
    ("edge", "config.clusters.hub.max_in_flight=many", "at '/config/clusters/hub/max_in_flight'"),
    ("edge", "config.daemon.state_namespace=", "at '/config/daemon/state_namespace'"),
    ("edge", "config.sync[0].name=Data", "at '/config/sync/0/name'"),
    ("edge", "config.sync[0].adopt=maybe", "at '/config/sync/0/adopt'"),
    ("edge", "config.daemon.shutdown_grace=30 parsecs", "at '/config/daemon/shutdown_grace'"),
    ("edge", "labels=null", "at '': missing property 'labels'"),
    ("edge", "existingSecrets.database=null", "at '/existingSecrets': missing property 'database'"),
    ("edge", "config.sync[0].selector=null", "at '/config/sync/0/selector'"),
    ("edge", "config.clusters.hub.kubeconfig=apiVersion: v1", "at '/config/clusters/hub/kubeconfig'"),
    ("inventory", "config.inventory.token_file=eyJhbGciOi", "at '/config/inventory/token_file'"),
    ("edge", "existingSecrets.clusters.hub=towline-hub", "at '/existingSecrets/clusters/hub'"),
    ("edge", "existingSecrets.clusters.hbu.name=x", "existingSecrets.clusters.hbu: there is no such cluster"),
    ("edge", "existingSecrets.database.name=x", "existingSecrets.database.name: nobody reads it"),
    ("edge", "existingSecrets.inventoryToken.name=x", "existingSecrets.inventoryToken.name: nobody reads it"),
    ("edge", "config.sync[0].remote=hbu", "config.sync[0].remote: there is no cluster \"hbu\""),
    ("edge-replicated", "config.election.cluster=edeg", "config.election.cluster: there is no cluster \"edeg\""),
    ("status-sync", "existingSecrets.database.name=", "existingSecrets.database.name: missing"),
    ("hub", "existingSecrets.hubTls.name=", "existingSecrets.hubTls.name: missing"),
    ("hub", "existingSecrets.hubAccess.name=", "existingSecrets.hubAccess.name: missing"),
    ("hub", "config.hub.listen=7070", "at '/config/hub/listen'"),
    ("hub", "config.hub.listen=0.0.0.0:70700", "at '/config/hub/listen'"),
    ("hub", "config.hub.bus=kafka", "at '/config/hub/bus'"),
    ("hub", "config.hub.listn=x", "at '/config/hub': additional properties 'listn'"),
    ("hub", "extraEnv[0].name=POSTGRES_PARAMS", "extraEnv[0].name: `towline run` does not read POSTGRES_PARAMS"),
    (
        "edge",
        "extraEnv[0].name=TOWLINE__DAEMON__SHUTDOWN_GRACE,extraEnv[0].value=5m",
        "extraEnv[0].name: TOWLINE__DAEMON__SHUTDOWN_GRACE would go before what the chart derives",
    ),
    (
        "edge",
        "existingSecrets.adminToken.name=x,extraEnv[0].name=TOWLINE_ADMIN_TOKEN_FILE,extraEnv[0].value=/x",
        "extraEnv[0].name: TOWLINE_ADMIN_TOKEN_FILE is set by the chart, from existingSecrets.adminToken",
    ),
    (
        "edge",
        "extraEnv[0].name=X,extraEnv[0].value=a,extraEnv[1].name=X,extraEnv[1].value=b",
        "extraEnv[1].name: X is set by extraEnv[0]; of two values one would be ignored",
    ),
    ("inventory", "serviceAccount.create=false", "serviceAccount.name: missing; without it, the roles"),
    ("rabbitmq", "existingSecrets.broker.name=", "existingSecrets.broker.name: missing"),
    ("rabbitmq", "config.hub.bus=postgres", "config.hub.bus: has to be amqp"),
    ("inventory", "existingSecrets.inventoryToken.name=", "existingSecrets.inventoryToken.name: missing"),
    ("inventory", "config.inventory.cluster=west", "config.inventory.cluster: there is no cluster \"west\""),
    // Passwords.
    (
        "status-sync",
        "config.status_sync.database_url=postgres://me:hunter2@db/hoh",
        "config.status_sync.database_url: contains",
    ),
    ("hub", "config.hub.database_url=host=db password = hunter2", "config.hub.database_url: contains a password"),
    ("rabbitmq", "config.hub.amqp_url=amqps://me:hunter2@broker/x", "config.hub.amqp_url: contains a password"),
    ("inventory", "config.inventory.api_url=https://me:hunter2@api.example", "config.inventory.api_url: contains"),
    ("edge", "extraEnv[0].name=X,extraEnv[0].value=postgres://me:hunter2@db", "extraEnv[0].value: contains a password"),
];

#[test]
fn what_is_mistyped_is_refused_with_its_path() {
    run(async {
        for (preset, set, expected) in MISTYPED {
            let told =
                template(preset, &["--set", set]).await.err().unwrap_or_else(|| panic!("{preset}: {set} is taken"));
            let sentences: Vec<&str> = told
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with("Use --debug") && *line != "towline:")
                .filter(|line| !line.starts_with("Error: values don't meet"))
                .map(|line| line.trim_start_matches("- "))
                .map(|line| {
                    line.split_once("): ").filter(|(at, _)| at.starts_with("Error: ")).map_or(line, |(_, rest)| rest)
                })
                .collect();
            let [sentence] = sentences[..] else { panic!("{preset}: {set}: {told}") };
            assert!(sentence.starts_with(expected), "{preset}: {set}: {sentence}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        // Several at once.
        let told = template("hub", &["--set", "existingSecrets.hubTls.name=,existingSecrets.database.name="]).await;
        let told = told.unwrap_err();
        assert!(
            told.contains("existingSecrets.hubTls.name: ") && told.contains("existingSecrets.database.name: "),
            "{told}"
        );
    });
}

#[test]
fn values_become_toml_as_they_are() {
    const FILE: &str = "integration/tests/contract/fixtures/chart/odd.yaml";
    run(async {
        let release = Release::of("edge", &["--values", repository(FILE).to_str().unwrap()]).await;
        let (odd, table): (Value, Value) = (serde_saphyr::from_str(&text(FILE)).unwrap(), release.table());
        assert_eq!(table["sync"], odd["config"]["sync"]);
        assert_eq!(table["daemon"]["log"]["filter"], odd["config"]["daemon"]["log"]["filter"]);
        assert_eq!(table["clusters"]["1"], odd["config"]["clusters"]["1"]);
        assert!(table["clusters"]["1"]["max_in_flight"].is_i64(), "64 and not 64.0");
    });
}

/// The keys of the schema's `config`, by their paths: `sync.name`, `clusters.*.context`.
fn keys_of_schema(schema: &Value, path: &str, keys: &mut BTreeSet<String>) {
    let inner = schema.get("items").filter(|items| items.get("properties").is_some()).unwrap_or(schema);
    if let Some(properties) = inner["properties"].as_object() {
        assert_eq!(inner["additionalProperties"], false, "{path}");
        for (key, value) in properties {
            keys_of_schema(value, &format!("{path}.{key}"), keys);
        }
    } else if inner["additionalProperties"].is_object() {
        keys_of_schema(&inner["additionalProperties"], &format!("{path}.*"), keys);
    } else {
        keys.insert(path.trim_start_matches('.').to_owned());
    }
}

#[test]
fn the_schema_has_the_keys_of_the_configuration() {
    let schema: Value = serde_json::from_str(&text("deploy/chart/values.schema.json")).unwrap();
    let mut of_schema = BTreeSet::new();
    keys_of_schema(&schema["properties"]["config"], "", &mut of_schema);
    let (mut table, mut of_file) = (String::new(), BTreeSet::new());
    for line in text("config/towline.toml").lines() {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
            if table.starts_with("clusters.") {
                "clusters.*".clone_into(&mut table);
            }
        }
        // Optional keys are commented out.
        let line = line.strip_prefix("# ").filter(|key| toml::from_str::<Value>(key).is_ok()).unwrap_or(line);
        if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with(['#', ' '])) {
            of_file.insert(format!("{table}.{key}"));
        }
    }
    assert_eq!(of_schema, of_file);
}

#[test]
fn the_chart_has_the_version_and_the_files_of_the_repository() {
    let chart: Value = serde_saphyr::from_str(&text("deploy/chart/Chart.yaml")).unwrap();
    assert_eq!((&chart["version"], &chart["appVersion"]), (&telemetry::VERSION.into(), &telemetry::VERSION.into()));
    run(async {
        let release = Release::of("edge", &["--set", "monitoring.enabled=true"]).await;
        let rules: Value = serde_saphyr::from_str(&text("deploy/chart/files/prometheus-rule.yaml")).unwrap();
        assert_eq!(release.one("PrometheusRule")["spec"], rules["spec"]);
        let dashboard = release.all("ConfigMap").find_map(|object| object["data"]["towline.json"].as_str()).unwrap();
        assert_eq!(dashboard, text("deploy/chart/files/dashboard.json"));
        let monitor = release.one("PodMonitor");
        assert_eq!(monitor["spec"]["selector"], release.one("Deployment")["spec"]["selector"]);
    });
}

#[test]
fn objects_of_two_releases_have_different_names_but_those_of_one_section() {
    let names = async |namespace: &str, release: &str| {
        let mut command = Command::new(programs::helm().await.unwrap());
        command.args(["template", release]).arg(repository("deploy/chart"));
        command.args([
            "--namespace",
            namespace,
            "--kube-version",
            "1.30.0",
            "--set",
            "image.repository=towline,monitoring.enabled=true",
        ]);
        command.arg("--values").arg(repository("deploy/chart/presets/edge-replicated.yaml"));
        let output = command.arg("--values").arg(repository("deploy/chart/presets/lease.yaml")).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let name = |object: &Value| {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            [text("/kind"), text("/metadata/namespace"), text("/metadata/name")].join(" ")
        };
        let names: BTreeSet<String> = objects.iter().map(name).collect();
        assert_eq!(names.len(), objects.len());
        names
    };
    let long = "a".repeat(52);
    let (longer, other_longer) = (format!("{long}b"), format!("{long}c"));
    run(async {
        for [(one_namespace, one), (other_namespace, other)] in [
            [("a", "b-c"), ("a-b", "c")],
            [("a", "towline"), ("b", "towline")],
            [("a", "edge"), ("a", "edge-towline")],
            [("a", longer.as_str()), ("a", other_longer.as_str())],
        ] {
            let (one, other) = (names(one_namespace, one).await, names(other_namespace, other).await);
            let both: Vec<&String> = one.intersection(&other).collect();
            // Helm refuses what another release has. In one namespace, two sections of one name would share their state.
            let expected: &[&str] = if one_namespace == other_namespace {
                &[
                    "Role a towline:databases",
                    "Role a towline:heartbeat",
                    "RoleBinding a towline:databases",
                    "RoleBinding a towline:heartbeat",
                ]
            } else {
                &[]
            };
            assert_eq!(both, expected);
        }
        let told = helm(&["template", "1st.edge"], "edge", &["--set", "image.repository=towline"]).await.unwrap_err();
        assert!(told.contains("release 1st.edge: its name has to begin with a letter"), "{told}");
    });
}

#[test]
fn labels_and_annotations_of_others_join_the_chart_s() {
    run(async {
        let set = "labels.team=a,labels.app\\.kubernetes\\.io/version=mine,podLabels.team=b,podAnnotations.checksum/config=x,podAnnotations.note=y";
        let release = Release::of("edge", &["--set", set]).await;
        let deployment = release.one("Deployment");
        let (labels, of_pod) = (&deployment["metadata"]["labels"], &deployment["spec"]["template"]["metadata"]);
        assert_eq!((&labels["team"], &of_pod["labels"]["team"]), (&json!("a"), &json!("b")));
        assert_eq!(labels["app.kubernetes.io/version"], "mine");
        assert_eq!(
            (of_pod["annotations"]["note"].as_str(), of_pod["annotations"]["checksum/config"] == "x"),
            (Some("y"), false)
        );
        let ipv6 = Release::of("edge", &["--set", "config.daemon.listen=[::]:8384"]).await;
        assert!(ipv6.config().daemon.listen.is_ipv6());
    });
}

#[test]
fn the_first_command_of_the_readme_is_taken() {
    let readme = text("README.md");
    let command = readme.lines().find(|line| line.starts_with("helm install ")).unwrap();
    let rendering =
        command.replace("helm install", "template --kube-version 1.30.0").replace("REGISTRY", "registry.example");
    run(async {
        let mut helm = Command::new(programs::helm().await.unwrap());
        let output = helm.args(rendering.split(' ')).current_dir(repository(".")).output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("kind: Deployment"), "{command}: {told}");
    });
}

/// The files that `make manifests` writes.
#[test]
fn the_manifests_are_what_the_chart_makes() {
    run(async {
        let room = tempdir("manifests");
        let output = Command::new(repository("hack/manifests.sh")).arg(&room).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut left = vec![room.clone()];
        let mut compared = 0;
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let of_tree = repository("deploy").join(path.strip_prefix(&room).unwrap());
            let same = fs::read_to_string(&path).unwrap() == fs::read_to_string(&of_tree).unwrap_or_default();
            assert!(same, "{} is outdated: run `make manifests`", of_tree.display());
            compared += 1;
        }
        assert_eq!(compared, 22);
        fs::remove_dir_all(room).unwrap();
    });
}

/// Each release would be taken by this API server, and its pods admitted where only restricted ones are.
pub(crate) async fn is_taken(kubeconfig: &Path, client: &Client) {
    let namespace =
        json!({"metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    for preset in PRESETS {
        let rendered = template(preset, &["--set", "monitoring.enabled=true"]).await.unwrap();
        apply(kubeconfig, preset, &rendered).await;
        let release = Release(serde_saphyr::from_multiple(&rendered).unwrap());
        let mut pod = release.one("Deployment")["spec"]["template"].clone();
        pod["metadata"]["name"] = preset.into();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let admitted = pods.create(&dry_run, &serde_json::from_value(pod).unwrap()).await;
        assert!(admitted.is_ok(), "{preset}: {admitted:?}");
    }
}

/// Helm lets no second release have a section of the first one's name, and no replica begin beside a pod that does not wait for it.
pub(crate) async fn is_installed_and_upgraded(kubeconfig: &Path, client: &Client) {
    let helm = async |command: &[&str], preset: &str| {
        let output = Command::new(programs::helm().await.unwrap())
            .args(command)
            .arg(repository("deploy/chart"))
            .args(["--namespace", NAMESPACE, "--set", "image.repository=registry.example/towline", "--values"])
            .arg(repository("deploy/chart/presets").join(preset).with_extension("yaml"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .output()
            .await
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(told.into_owned()) } else { Err(told.into_owned()) }
    };
    helm(&["install", "one"], "edge").await.unwrap();
    let refused = helm(&["install", "two"], "edge").await.unwrap_err();
    assert!(refused.contains("Role \"towline:databases\"") && refused.contains("cannot be imported"), "{refused}");

    // What the controller of Deployments would say.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let runs = async |replicas: i32| {
        let status = json!({"status": {"replicas": replicas}});
        deployments.patch_status("one", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    };
    runs(1).await;
    let refused = helm(&["upgrade", "one"], "edge-replicated").await.unwrap_err();
    assert!(refused.contains("config.election: the pod that runs has no election"), "{refused}");
    runs(0).await;
    helm(&["upgrade", "one"], "edge-replicated").await.unwrap();
    runs(2).await;
    helm(&["upgrade", "one"], "edge-replicated").await.unwrap();
    helm(&["upgrade", "one"], "edge").await.unwrap();
    let spec = deployments.get("one").await.unwrap().spec;
    assert_eq!((spec.replicas, spec.strategy.unwrap().type_.as_deref()), (Some(1), Some("Recreate")));
}

async fn apply(kubeconfig: &Path, preset: &str, rendered: &str) {
    let mut kubectl = Command::new(programs::control_plane("kubectl").await.unwrap())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        // `inventory` has installed the definition before.
        .args([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "--filename",
            "-",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    kubectl.stdin.take().unwrap().write_all(rendered.as_bytes()).await.unwrap();
    let output = kubectl.wait_with_output().await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("deployment.apps/towline"), "{preset}: {told}");
}
