//! What an edge can and can't do on the hub with the account, the roles and the policies of `deploy/`, applied as people apply them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration::{ControlPlane, Options, Towline, crds, eventually, programs, users};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::run;

const LIMIT: Duration = Duration::from_secs(90);
/// By which namespaces and objects belong to an edge.
const LABEL: &str = "placement.towline.dev/edge";
const SECRET: &str = "database-credentials";
/// The namespace of the edges' accounts.
const ACCOUNTS: &str = "towline-edges";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn temporary(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("edges").join(name);
    drop(fs::remove_dir_all(&path));
    fs::create_dir_all(&path).unwrap();
    path
}

fn databases() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", "v1", "Database"))
}

/// Runs kubectl as the administrator of a cluster, and gives what it printed.
async fn kubectl(plane: &ControlPlane, args: &[&str]) -> String {
    let output = plane.kubectl(users::ADMIN).await.unwrap().args(args).output().await.unwrap();
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "kubectl {args:?}: {told}{failed}");
    told.into_owned()
}

async fn apply(plane: &ControlPlane, directory: &Path) {
    kubectl(plane, &["apply", "-k", directory.to_str().unwrap()]).await;
}

/// The directory of an edge's account, copied for another edge as its comment says.
fn account_directory(edge: &str, directory: &str) -> PathBuf {
    let copies = temporary(&format!("account-{edge}"));
    for original in ["edge-west", "edge-west-namespaces"] {
        let copy = copies.join(original.replace("west", edge));
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(repository("deploy/hub").join(original)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap().replace("west", edge);
            fs::write(copy.join(path.file_name().unwrap()), text).unwrap();
        }
    }
    copies.join(directory.replace("west", edge))
}

/// A kubeconfig for an account, with its token in the file beside it, as deploy/README.md makes it.
async fn kubeconfig(plane: &ControlPlane, directory: &Path, namespace: &str, account: &str) -> PathBuf {
    let token = kubectl(plane, &["--namespace", namespace, "create", "token", account, "--duration", "168h"]).await;
    fs::write(directory.join("token"), token.trim()).unwrap();
    let admins = fs::read_to_string(plane.kubeconfig(users::ADMIN).unwrap()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&admins).unwrap();
    kubeconfig["users"][0]["user"] = json!({"tokenFile": "token"});
    kubeconfig["contexts"][0]["context"]["namespace"] = namespace.into();
    let path = directory.join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// The hub of all tests, with what people apply there once.
async fn hub() -> &'static ControlPlane {
    static HUB: OnceCell<ControlPlane> = OnceCell::const_new();
    HUB.get_or_init(async || {
        let options = Options::named("hub-of-edges").with_crds(&[crds::DATABASES]);
        let hub = Box::pin(ControlPlane::start(options)).await.unwrap();
        apply(&hub, &repository("deploy/hub")).await;
        hub
    })
    .await
}

async fn make_namespace(client: &Client, name: &str, edge: Option<&str>) {
    let labels = edge.map_or_else(|| json!({}), |edge| json!({LABEL: edge}));
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
}

async fn make_database(client: &Client, namespace: &str, name: &str, metadata: Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": metadata,
        "spec": {"engine": "postgres-17", "storage": "10Gi"},
    });
    object["metadata"]["name"] = name.into();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &databases());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn make_secret(client: &Client, namespace: &str, metadata: Value, data: Value) {
    let mut secret = json!({"metadata": metadata, "stringData": data});
    secret["metadata"]["name"] = SECRET.into();
    let secret: Secret = serde_json::from_value(secret).unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &secret).await.unwrap();
}

/// An Event of a database that this controller has reported.
async fn make_event(client: &Client, namespace: &str, controller: &str) {
    let event: Event = serde_json::from_value(json!({"metadata": {"name": "theirs"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": controller, "reportingInstance": "theirs", "action": "Sync", "reason": "Synced", "type": "Normal",
        "regarding": {"kind": "Database", "namespace": namespace, "name": "orders"}}))
    .unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &event).await.unwrap();
}

/// A request of the attacker's.
struct Attack {
    what: &'static str,
    method: &'static str,
    path: String,
    body: Value,
    /// A part of the policy's refusal.
    refusal: &'static str,
}

impl Attack {
    /// Sends it, and gives the code and the message with which it is refused.
    async fn refused(&self, client: &Client, query: &str) -> Result<(u16, String), String> {
        let (method, kind, own) = match self.method {
            "PATCH" => ("PATCH", "application/merge-patch+json", ""),
            APPLY => ("PATCH", "application/apply-patch+yaml", "fieldManager=towline&force=true"),
            other => (other, "application/json", ""),
        };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}?{own}&{query}", self.path))
            .header("content-type", kind)
            .body(self.body.to_string().into_bytes())
            .unwrap();
        match client.request::<Value>(request).await {
            Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
            other => Err(format!("{}: {other:?}", self.what)),
        }
    }
}

/// Server-side apply, by force.
const APPLY: &str = "APPLY";
const FOREIGN: &str = "has the label placement.towline.dev/edge=mallory";

/// What the compromised edge `mallory` tries: in its own namespace `mallory-shop`, in that of `east`, and in `shared`, where objects
/// have the label.
#[rustfmt::skip]
fn attacks() -> Vec<Attack> {
    let database =
        |namespace: &str, name: &str| format!("/apis/demo.towline.dev/v1/namespaces/{namespace}/databases/{name}");
    let secret = |namespace: &str, name: &str| format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let event = |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let own = || database("mallory-shop", "orders");
    let status = json!({"status": {"phase": "Failed"}});
    let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    let annotation = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    // What is forged while the finalizer goes.
    let leaving = |key: &str| {
        let mut patch = annotation(&format!("cloud.teleport.dev/{key}"), "7".into());
        patch["metadata"]["finalizers"] = json!(["example.com/keep"]);
        patch
    };
    let new = |kind: &str, api: &str, name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    let new_database = {
        let mut object = new("Database", "demo.towline.dev/v1", "planted");
        object["spec"] = json!({"engine": "postgres-17"});
        object
    };
    let put_secret = |metadata: Value| {
        let mut object = new("Secret", "v1", SECRET);
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        object["stringData"] = json!({"password": "mallory's"});
        object
    };
    let new_event = |namespace: &str, controller: &str| {
        let mut object = new("Event", "events.k8s.io/v1", "planted");
        object["eventTime"] = "2026-01-01T00:00:00.000000Z".into();
        object["reportingController"] = controller.into();
        object["reportingInstance"] = "planted".into();
        object["action"] = "Sync".into();
        object["reason"] = "Planted".into();
        object["type"] = "Warning".into();
        object["regarding"] = json!({"kind": "Database", "namespace": namespace, "name": "orders"});
        object
    };
    let applied = |name: &str, spec: Value| {
        let mut object = new("Database", "demo.towline.dev/v1", name);
        object["spec"] = spec;
        object
    };
    let no_owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"});
    let row = |what, method, path, body, refusal| Attack { what, method, path, body, refusal };
    let sync = "cloud.teleport.dev/sync-mallory";
    vec![
        row("own spec", "PATCH", own(), json!({"spec": {"storage": "1Gi"}}), "changes no spec"),
        row("a new field of the own spec", "PATCH", own(), json!({"spec": {"replicas": 3}}), "changes no spec"),
        row("labels of an own object", "PATCH", own(), json!({"metadata": {"labels": {"team": "mallory"}}}), "changes no labels"),
        row("to whom an own object belongs", "PATCH", own(), json!({"metadata": {"labels": {LABEL: "east"}}}), "changes no labels"),
        row("owner of an own object", "PATCH", own(), json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}), "changes no labels"),
        row("a foreign annotation", "PATCH", own(), annotation("note", "mallory's".into()), "changes no annotation"),
        row("a foreign annotation away", "PATCH", own(), annotation("note", Value::Null), "changes no annotation"),
        row("a new annotation", "PATCH", own(), annotation("argocd.argoproj.io/sync-wave", "1".into()), "changes no annotation"),
        row("a pause", "PATCH", own(), annotation("cloud.teleport.dev/paused", "true".into()), "changes no annotation"),
        row("foreign finalizers away", "PATCH", own(), finalizers(&[]), "changes no finalizer"),
        row("the finalizer of another edge", "PATCH", own(), finalizers(&["example.com/keep", "cloud.teleport.dev/sync-east"]), "changes no finalizer"),
        row("a foreign finalizer", "PATCH", own(), finalizers(&["example.com/keep", "example.com/lock"]), "changes no finalizer"),
        row("deletion of an own object", "DELETE", own(), Value::Null, "neither creates nor deletes"),
        row("deletion of all own objects", "DELETE", database("mallory-shop", ""), Value::Null, "neither creates nor deletes"),
        row("creation of an object", "POST", database("mallory-shop", ""), new_database, "neither creates nor deletes"),
        row("east's spec", "PATCH", database("east-shop", "orders"), json!({"spec": {"storage": "1Gi"}}), FOREIGN),
        row("east's status", "PATCH", database("east-shop", "orders/status"), status.clone(), FOREIGN),
        row("own finalizer on east's object", "PATCH", database("east-shop", "orders"), finalizers(&["cloud.teleport.dev/sync-east", sync]), FOREIGN),
        row("east's finalizer away", "PATCH", database("east-shop", "orders"), finalizers(&[]), FOREIGN),
        row("an error on east's object", "PATCH", database("east-shop", "orders"), annotation("cloud.teleport.dev/sync-error", "no".into()), FOREIGN),
        row("deletion of east's object", "DELETE", database("east-shop", "orders"), Value::Null, "neither creates nor deletes"),
        row("status of another's object in a shared namespace", "PATCH", database("shared", "easts/status"), status.clone(), FOREIGN),
        row("status of nobody's object", "PATCH", database("shared", "nobodys/status"), status.clone(), FOREIGN),
        row("status of an object that was given to east", "PATCH", database("shared", "moved/status"), status, FOREIGN),
        row("generations of an object that was given to east, with the finalizer", "PATCH", database("shared", "moved"), leaving("sync-local-generation"), "changes no annotation"),
        row("an error on an object that was given to east, with the finalizer", "PATCH", database("shared", "moved"), leaving("sync-error"), "changes no annotation"),
        row("another holder of an object that was given to east, with the finalizer", "PATCH", database("shared", "moved"), leaving("sync-local-cluster"), "changes no annotation"),
        row("finalizers of an object that was given to east", "PATCH", database("shared", "moved"), finalizers(&[]), "changes no finalizer"),
        row("east's Secret", "PUT", secret("east-shop", SECRET), put_secret(json!({})), "nor its namespace has the label"),
        row("nobody's Secret", "PUT", secret("shared", SECRET), put_secret(json!({})), "nor its namespace has the label"),
        row("nobody's Secret, claimed", "PUT", secret("shared", SECRET), put_secret(json!({"labels": {LABEL: "mallory"}})), "nor its namespace has the label"),
        row("an order to Argo CD", "PUT", secret("mallory-shop", SECRET), put_secret(json!({"labels": {"argocd.argoproj.io/secret-type": "cluster"}})), "adds no labels and annotations"),
        row("an order to a reflector", "PUT", secret("mallory-shop", SECRET), put_secret(json!({"annotations": {"reflector.v1.k8s.emberstack.com/reflection-allowed": "true"}})), "adds no labels and annotations"),
        row("a finalizer on a Secret", "PUT", secret("mallory-shop", SECRET), put_secret(json!({"finalizers": ["example.com/lock"]})), "adds no finalizers"),
        row("an owner of a Secret that does not exist", "PUT", secret("mallory-shop", SECRET), put_secret(json!({"ownerReferences": [no_owner]})), "adds no owners"),
        row("deletion of a Secret", "DELETE", secret("mallory-shop", SECRET), Value::Null, "neither creates nor deletes Secrets"),
        row("a new Secret", "POST", secret("mallory-shop", ""), new("Secret", "v1", "planted"), "neither creates nor deletes Secrets"),
        row("an Event in east's namespace", "POST", event("east-shop"), new_event("east-shop", "towline"), "the namespace does not have the label"),
        row("a token for ten years", "POST", "/api/v1/namespaces/towline-edges/serviceaccounts/mallory/token".to_owned(), json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 315_360_000}}), "no token that is valid for longer than a week"),
        row("own spec by force", APPLY, own(), applied("orders", json!({"storage": "1Gi"})), "changes no spec"),
        row("east's spec by force", APPLY, database("east-shop", "orders"), applied("orders", json!({"storage": "1Gi"})), FOREIGN),
        row("creation by force", APPLY, database("mallory-shop", "planted"), applied("planted", json!({"engine": "postgres-17"})), "neither creates nor deletes"),
        row("an Event of another edge", "PATCH", event("east-shop") + "/theirs", json!({"metadata": {"labels": {"team": "mallory"}}}), "the namespace does not have the label"),
        row("an Event of another controller", "PATCH", event("mallory-shop") + "/theirs", json!({"metadata": {"labels": {"team": "mallory"}}}), "reporting controller"),
        row("an Event in another's name", "POST", event("mallory-shop"), new_event("mallory-shop", "kubelet"), "reporting controller"),
    ]
    .into_iter()
    .map(|mut attack| {
        attack.path = attack.path.trim_end_matches('/').to_owned();
        attack
    })
    .collect()
}

/// Every object that the attacks are for, with its version: whoever changes anything changes that.
async fn versions(client: &Client) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for (group, version, kind) in
        [("demo.towline.dev", "v1", "Database"), ("", "v1", "Secret"), ("events.k8s.io", "v1", "Event")]
    {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        for namespace in ["mallory-shop", "east-shop", "shared"] {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
            for object in api.list(&ListParams::default()).await.unwrap() {
                let key = format!("{} {namespace}/{}", kind.plural, object.name_any());
                versions.insert(key, object.resource_version().unwrap_or_default());
            }
        }
    }
    versions
}

#[test]
fn a_compromised_edge_changes_nothing_that_is_not_its_own_and_itself_no_spec() {
    run(async {
        let hub = hub().await;
        let admin = hub.client(users::ADMIN).await.unwrap();
        for (namespace, edge) in [("mallory-shop", Some("mallory")), ("east-shop", Some("east")), ("shared", None)] {
            make_namespace(&admin, namespace, edge).await;
            make_secret(&admin, namespace, json!({}), json!({})).await;
            make_event(&admin, namespace, if namespace == "mallory-shop" { "kubelet" } else { "towline" }).await;
        }
        // The account with a role in its own namespaces alone, first.
        apply(hub, &account_directory("mallory", "edge-west-namespaces")).await;
        let with = |finalizer: &str, edge: Option<&str>| {
            let labels = edge.map_or_else(|| json!({"team": "shop"}), |edge| json!({"team": "shop", LABEL: edge}));
            json!({"labels": labels, "annotations": {"note": "kept"}, "finalizers": [finalizer]})
        };
        make_database(&admin, "mallory-shop", "orders", with("example.com/keep", None)).await;
        make_database(&admin, "east-shop", "orders", with("cloud.teleport.dev/sync-east", None)).await;
        make_database(&admin, "shared", "easts", with("cloud.teleport.dev/sync-east", Some("east"))).await;
        make_database(&admin, "shared", "nobodys", with("example.com/keep", None)).await;
        let mut moved = with("example.com/keep", Some("east"));
        moved["finalizers"] = json!(["example.com/keep", "cloud.teleport.dev/sync-mallory"]);
        make_database(&admin, "shared", "moved", moved).await;

        let mallory = client(&kubeconfig(hub, &temporary("mallory"), ACCOUNTS, "mallory").await).await;
        let attacks = attacks();
        let by_policy = |attack: &Attack, message: &str| {
            message.contains("ValidatingAdmissionPolicy") && message.contains(attack.refusal)
        };
        let refuses = async |what: &str| {
            let attack = attacks.iter().find(|attack| attack.what == what).unwrap();
            eventually(format!("the policy that refuses {what}"), LIMIT, async || {
                match attack.refused(&mallory, "dryRun=All").await? {
                    (_, message) if by_policy(attack, &message) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
        };
        let all_are_refused = async || {
            for attack in &attacks {
                let (code, message) = attack.refused(&mallory, "").await.unwrap();
                let by_role = code == 403 && message.contains("cannot ");
                assert!(by_role || by_policy(attack, &message), "{}: {code} {message}", attack.what);
            }
        };
        let before = versions(&admin).await;
        // The API server learns of roles and policies by watches of its own: one attack for each of the policies.
        for what in ["own spec", "an order to Argo CD", "an Event in another's name", "a token for ten years"] {
            refuses(what).await;
        }
        all_are_refused().await;
        assert_eq!(versions(&admin).await, before);
        // The one with the role in all namespaces.
        apply(hub, &account_directory("mallory", "edge-west")).await;
        refuses("east's Secret").await;
        all_are_refused().await;
        assert_eq!(versions(&admin).await, before);

        // The policies alone refuse all of it, too, if somebody gives the account more than the role.
        let binding = ["create", "clusterrolebinding", "mallory", "--clusterrole", "cluster-admin", "--serviceaccount"];
        kubectl(hub, &[&binding[..], &["towline-edges:mallory"]].concat()).await;
        refuses("deletion of a Secret").await;
        for attack in &attacks {
            let (_, message) = attack.refused(&mallory, "").await.unwrap();
            assert!(by_policy(attack, &message), "{}: {message}", attack.what);
        }
        assert_eq!(versions(&admin).await, before);
    });
}

/// One edge with its daemon.
struct Edge {
    name: &'static str,
    /// Of the account, in `deploy/hub`.
    account: &'static str,
    /// Of the configuration, in `deploy/overlays`.
    overlay: &'static str,
    /// Whether the namespace on the hub has the label, or the objects in it.
    namespace_is_own: bool,
}

const EDGES: [Edge; 3] = [
    Edge { name: "west", account: "edge-west", overlay: "replicated", namespace_is_own: true },
    Edge { name: "south", account: "edge-west-namespaces", overlay: "replicated", namespace_is_own: true },
    Edge { name: "north", account: "edge-west", overlay: "edge-west", namespace_is_own: false },
];

async fn database_that(api: &Api<DynamicObject>, what: &str, holds: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
    eventually(what, LIMIT, async || match api.get_opt("orders").await {
        Ok(Some(object)) if holds(&object) => Ok(object),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap()
}

impl Edge {
    /// Whether the role is bound in all namespaces, and the policies alone keep the edges apart.
    fn writes_everywhere(&self) -> bool {
        self.account == "edge-west"
    }

    fn finalizer(&self) -> String {
        format!("cloud.teleport.dev/sync-{}", self.name)
    }

    /// Starts the edge's cluster, which is stricter about storage, with what people apply there.
    async fn start(&self) -> ControlPlane {
        let lax = "                storage:\n";
        let strict = crds::DATABASES.replace(lax, &format!("{lax}                  pattern: ^[0-9]+Gi$\n"));
        let options = Options::named(&format!("edge-{}", self.name)).with_crds(&[strict.leak()]);
        let edge = Box::pin(ControlPlane::start(options)).await.unwrap();
        apply(&edge, &repository("deploy/overlays/without-monitoring")).await;
        // With the role for the Leases.
        let replicated = repository("deploy/overlays/replicated/towline.yaml");
        kubectl(&edge, &["apply", "-f", replicated.to_str().unwrap()]).await;
        edge
    }

    /// The configuration of `deploy/`, with this edge's name and these kubeconfigs.
    fn config(&self, hub: &Path, edge: &Path) -> String {
        let file = repository(&format!("deploy/overlays/{}/towline.toml", self.overlay));
        fs::read_to_string(file)
            .unwrap()
            .replace("west", self.name)
            .replace("/etc/towline/clusters/hub/kubeconfig", hub.to_str().unwrap())
            .replace("in_cluster = true", &format!("kubeconfig = \"{}\"", edge.display()))
    }

    async fn works(&self) {
        let hub = hub().await;
        let users_hub = hub.client(users::HUB_USER).await.unwrap();
        let namespace = format!("{}-shop", self.name);
        let labels = if self.namespace_is_own { json!({"team": "shop"}) } else { json!({LABEL: self.name}) };
        make_namespace(&users_hub, &namespace, self.namespace_is_own.then_some(self.name)).await;
        apply(hub, &account_directory(self.name, self.account)).await;
        let edge = self.start().await;
        let controllers_edge = edge.client(users::EDGE_CONTROLLER).await.unwrap();
        let (for_hub, for_edge) = (temporary(&format!("{}-hub", self.name)), temporary(&format!("{}-edge", self.name)));
        let config = self.config(
            &kubeconfig(hub, &for_hub, ACCOUNTS, self.name).await,
            &kubeconfig(&edge, &for_edge, "towline", "towline").await,
        );
        let towline = Towline::start(&config, &[("RUST_BACKTRACE", "0")]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        let check = ["check", "--connect", "--config", towline.config_path().to_str().unwrap()].map(str::to_owned);
        let env = [("TOWLINE__DAEMON__STATE_NAMESPACE", "towline")];
        let checked = Towline::command_with(check.clone(), &env).await.unwrap();
        let told = String::from_utf8_lossy(&checked.stdout);
        let is_unknown = told.contains(
            "not in all namespaces, and no object of the section shows in which it is needed: \
             not allowed to patch databases.demo.towline.dev",
        );
        assert_eq!((checked.status.success(), is_unknown), (true, !self.writes_everywhere()), "{told}");

        // The spec goes down, under the edge's finalizer; status and Secret come up.
        let on_hub: Api<DynamicObject> = Api::namespaced_with(users_hub.clone(), &namespace, &databases());
        let on_edge: Api<DynamicObject> = Api::namespaced_with(controllers_edge.clone(), &namespace, &databases());
        let others: &[&str] = if self.namespace_is_own { &[] } else { &["example.com/keep"] };
        let metadata = json!({"labels": labels, "annotations": {"note": "kept"}, "finalizers": others});
        make_secret(&users_hub, &namespace, json!({"labels": labels}), json!({})).await;
        make_database(&users_hub, &namespace, "orders", metadata).await;
        let local = database_that(&on_edge, "the object on the edge", |_| true).await;
        assert_eq!(local.data["spec"]["storage"], "10Gi");
        // In the namespace of the object, nothing is missing.
        let checked = Towline::command_with(check, &env).await.unwrap();
        let told = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && !told.contains("not allowed"), "{told}");
        let status = Patch::Merge(json!({"status": {"phase": "Ready", "endpoint": self.name}}));
        on_edge.patch_status("orders", &PatchParams::default(), &status).await.unwrap();
        let controller = json!({
            "apiVersion": "demo.towline.dev/v1", "kind": "Database", "name": "orders", "uid": local.uid(), "controller": true,
        });
        let of_secret = json!({"labels": labels, "ownerReferences": [controller]});
        make_secret(&controllers_edge, &namespace, of_secret, json!({"password": self.name})).await;
        let note = |object: &DynamicObject, name: &str| {
            object.annotations().get(&format!("cloud.teleport.dev/{name}")).cloned()
        };
        database_that(&on_hub, "finalizer, status and generations on the hub", |object| {
            object.finalizers().contains(&self.finalizer())
                && object.data["status"]["endpoint"] == self.name
                && note(object, "sync-remote-generation").is_some()
                && note(object, "sync-local-generation").is_some()
        })
        .await;
        self.password(&users_hub, &namespace, self.name).await;

        // A second upload and a second spec.
        let secret = Patch::Merge(json!({"stringData": {"password": "second"}}));
        let secrets: Api<Secret> = Api::namespaced(controllers_edge.clone(), &namespace);
        secrets.patch(SECRET, &PatchParams::default(), &secret).await.unwrap();
        self.password(&users_hub, &namespace, "second").await;
        let storage = async |size: &str| {
            let patch = Patch::Merge(json!({"spec": {"storage": size}}));
            on_hub.patch("orders", &PatchParams::default(), &patch).await.unwrap();
        };
        storage("20Gi").await;
        database_that(&on_edge, "the second spec on the edge", |object| object.data["spec"]["storage"] == "20Gi").await;

        // What the edge rejects is told on the hub, and withdrawn.
        storage("lots").await;
        database_that(&on_hub, "the rejection on the hub", |object| note(object, "sync-error").is_some()).await;
        if self.namespace_is_own {
            let events: Api<Event> = Api::namespaced(users_hub.clone(), &namespace);
            eventually("an Event on the hub", LIMIT, async || {
                let found = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let told = found.items.iter().any(|event| event.reason.as_deref() == Some("SyncFailed"));
                if told { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await
            .unwrap();
        }
        storage("30Gi").await;
        database_that(&on_hub, "the end of the rejection", |object| note(object, "sync-error").is_none()).await;

        // It ends as objects end: deleted, or given to another edge, where nothing but the finalizer goes.
        if self.namespace_is_own {
            on_hub.delete("orders", &DeleteParams::default()).await.unwrap();
            eventually("the object to be gone from the hub", LIMIT, async || {
                let left = on_hub.get_opt("orders").await.map_err(|error| error.to_string())?;
                left.map_or(Ok(()), |left| Err(format!("{left:?}")))
            })
            .await
            .unwrap();
            assert!(on_edge.get_opt("orders").await.unwrap().is_none());
        } else {
            let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: "elsewhere"}}}));
            on_hub.patch("orders", &PatchParams::default(), &patch).await.unwrap();
            let is_let_go = |object: &DynamicObject| object.finalizers() == ["example.com/keep"];
            database_that(&on_hub, "the finalizer to go from the hub", is_let_go).await;
            assert!(on_edge.get_opt("orders").await.unwrap().is_some());
        }
        towline.terminate(LIMIT).await.unwrap();
        edge.stop().await.unwrap();
    }

    async fn password(&self, hub: &Client, namespace: &str, expected: &str) {
        let secrets: Api<Secret> = Api::namespaced(hub.clone(), namespace);
        eventually(format!("the password {expected:?} on the hub"), LIMIT, async || {
            let secret = secrets.get(SECRET).await.map_err(|error| error.to_string())?;
            let password = secret.data.as_ref().and_then(|data| data.get("password"));
            let is_there = password.is_some_and(|password| password.0 == expected.as_bytes());
            if is_there { Ok(()) } else { Err(format!("{secret:?}")) }
        })
        .await
        .unwrap();
    }
}

#[test]
fn an_edge_does_its_whole_job_with_the_account_and_the_policies_that_we_ship() {
    run(async {
        let [first, second, third] = &EDGES;
        tokio::join!(Box::pin(first.works()), Box::pin(second.works()), Box::pin(third.works()));
    });
}

/// When a token was issued, and when it ends, in seconds.
fn times(token: &str) -> (i64, i64) {
    let claims = token.split('.').nth(1).unwrap().replace('-', "+").replace('_', "/");
    let padded = format!("{claims}{}", "=".repeat((4 - claims.len() % 4) % 4));
    let bytes: k8s_openapi::ByteString = serde_json::from_value(padded.into()).unwrap();
    let claims: Value = serde_json::from_slice(&bytes.0).unwrap();
    (claims["iat"].as_i64().unwrap(), claims["exp"].as_i64().unwrap())
}

#[test]
fn the_job_that_we_ship_renews_the_token_of_its_account_and_reaches_nothing_else() {
    run(async {
        let hub = hub().await;
        apply(hub, &account_directory("renewed", "edge-west")).await;
        // The edge's cluster is the same one: nothing but these accounts matters.
        let admin = hub.client(users::ADMIN).await.unwrap();
        make_namespace(&admin, "towline", None).await;
        apply(hub, &repository("deploy/token-renewal")).await;
        let (mounted, of_job) = (temporary("renewed-hub"), temporary("renewed-job"));
        let for_hub = kubeconfig(hub, &mounted, ACCOUNTS, "renewed").await;
        let for_edge = kubeconfig(hub, &of_job, "towline", "towline-token-renewal").await;
        let first = fs::read_to_string(mounted.join("token")).unwrap();
        let content = json!({
            "metadata": {"name": "towline-hub"},
            "stringData": {"kubeconfig": fs::read_to_string(&for_hub).unwrap(), "token": first},
        });
        let secrets: Api<Secret> = Api::namespaced(admin.clone(), "towline");
        secrets.create(&PostParams::default(), &serde_json::from_value(content).unwrap()).await.unwrap();

        // The container's command, with the mounts of this pod.
        let job = fs::read_to_string(repository("deploy/token-renewal/cron-job.yaml")).unwrap();
        let job: Value = serde_saphyr::from_str(&job).unwrap();
        let container = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
        let command: Vec<String> = serde_json::from_value(container["command"].clone()).unwrap();
        let [shell, flags, script] = &command[..] else { panic!("{command:?}") };
        let (etc, tmp) = (mounted.to_str().unwrap(), of_job.join("patch"));
        let script = script.replace("/etc/hub", etc).replace("/tmp/patch", tmp.to_str().unwrap());
        let kubectl_of = programs::control_plane("kubectl").await.unwrap();
        let path = format!("{}:{}", kubectl_of.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let run_job = async || {
            let mut command = tokio::process::Command::new(shell);
            command.args([flags, &script]).env("PATH", &path).env("KUBECONFIG", &for_edge).env("HOME", &of_job);
            for variable in container["env"].as_array().unwrap() {
                let (name, value) = (variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
                if name != "HOME" {
                    command.env(name, value.replace("west", "renewed"));
                }
            }
            let output = command.output().await.unwrap();
            let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if output.status.success() { Ok(told) } else { Err(told) }
        };
        // Roles take a moment.
        let told = eventually("the job to end well", LIMIT, run_job).await.unwrap();
        let secret = secrets.get("towline-hub").await.unwrap();
        let second = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();
        assert_ne!(second, first);
        assert!(!told.contains(&second), "the token is not in the job's log");
        let (issued, ends) = times(&second);
        assert_eq!(ends - issued, 7 * 24 * 60 * 60);
        fs::write(mounted.join("token"), &second).unwrap();
        let renewed = client(&for_hub).await;
        let databases: Api<DynamicObject> = Api::all_with(renewed.clone(), &databases());
        databases.list(&ListParams::default()).await.unwrap();

        // Neither of the two accounts reaches anything else.
        let token =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
        let on_edge = client(&for_edge).await;
        for (client, method, path, body) in [
            (&renewed, "POST", "/api/v1/namespaces/towline-edges/serviceaccounts/default/token", token.clone()),
            (&on_edge, "POST", "/api/v1/namespaces/towline/serviceaccounts/towline-token-renewal/token", token),
            (&on_edge, "GET", "/api/v1/namespaces/towline/secrets", Value::Null),
            (&on_edge, "GET", "/api/v1/namespaces/towline/secrets/another", Value::Null),
        ] {
            let attack = Attack { what: "a reach further", method, path: path.to_owned(), body, refusal: "" };
            let (code, message) = attack.refused(client, "").await.unwrap();
            assert_eq!(code, 403, "{method} {path}: {message}");
        }
    });
}
