//! A hub and an edge that all tests of one binary share, and a daemon for those that need no settings and no restart.
//!
//! A test has namespaces of its own, all with one prefix, and counts the requests there; so tests run at the same time.
//! The clusters belong to one runtime that outlives the tests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

mod kinds;
mod secrets;
mod section;

use std::path::PathBuf;
use std::time::Duration;

use integration::audit::POLICY;
use integration::rbac::{Grant, Side};
use integration::{ControlPlane, Options, crds, users};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::OnceCell;

pub(crate) use crate::run;

pub(crate) use self::kinds::*;
pub(crate) use self::secrets::*;
pub(crate) use self::section::*;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// Secrets that sections may take to the hub, without seeing them there.
pub(crate) const SECRETS: [&str; 3] = ["database-credentials", "database-replica", "database-backup"];
/// A secret that a section may also see on the hub.
pub(crate) const WATCHED_SECRET: &str = "database-watched";

static WORLD: OnceCell<World> = OnceCell::const_new();

#[derive(Debug)]
pub(crate) struct World {
    /// The remote of every section.
    pub(crate) hub: ControlPlane,
    /// The local cluster of every section; for leaflets also the remote one.
    pub(crate) edge: ControlPlane,
    /// What the daemon reads.
    pub(crate) hub_kubeconfig: PathBuf,
    /// What the daemon reads.
    pub(crate) edge_kubeconfig: PathBuf,
}

/// The clusters, started for the first who asks.
pub(crate) async fn world() -> &'static World {
    // On the heap: the futures of tests hold it, and are large enough as they are.
    WORLD.get_or_init(|| Box::pin(start())).await
}

async fn start() -> World {
    let kinds = [crds::DATABASES, crds::REGIONS, crds::QUEUES, crds::DOCUMENTS];
    // As long as the clusters, which end with the process.
    let [leaflets, loose, strict]: [&'static str; 3] =
        [leaflets_manifest(), widgets_of_the_hub(), widgets_of_the_edge()].map(|manifest| &*manifest.leak());
    // Built-in kinds have their controllers on both sides. The two give Services different addresses, since those at the beginning
    // of a range are kept for whoever asks for a certain one.
    let hub = Options::named("hub").with_workloads("10.0.0.0/24").with_crds(&kinds).with_crds(&[loose]);
    let mut edge =
        Options::named("edge").with_workloads("10.0.0.0/16").with_crds(&kinds).with_crds(&[strict, leaflets]);
    let policy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("edge-audit-policy.yaml");
    std::fs::write(&policy, deletes_with_their_bodies()).expect("the audit policy is written");
    // The last of two equal flags counts.
    edge.extra_flags.push(format!("--audit-policy-file={}", policy.display()));
    // On the heap: every test waits for this, and would hold it in its own future.
    let (hub, edge) = Box::pin(async { tokio::join!(ControlPlane::start(hub), ControlPlane::start(edge)) }).await;
    let (hub, edge) = (hub.expect("the hub starts"), edge.expect("the edge starts"));
    let admins = (admin(&hub).await, admin(&edge).await);
    tokio::join!(grant(&admins.0, Side::Remote), grant(&admins.1, Side::Local));
    grant_leaflets_up(&admins.1).await;
    grant_watched_secret(&admins.0).await;
    let hub_kubeconfig = hub.kubeconfig(users::TOWLINE).expect("a kubeconfig");
    let edge_kubeconfig = edge.kubeconfig(users::TOWLINE).expect("a kubeconfig");
    World { hub, edge, hub_kubeconfig, edge_kubeconfig }
}

/// The policy of the fixtures, but that deletes are logged with what they ask for.
fn deletes_with_their_bodies() -> String {
    let first = "- level: Metadata\n";
    assert!(POLICY.contains(first), "a rule that the deletes come before");
    let deletes = "- level: Request\n  verbs: [delete]\n  omitStages: [RequestReceived, ResponseStarted]\n";
    POLICY.replacen(first, &format!("{deletes}{first}"), 1)
}

pub(crate) async fn admin(plane: &ControlPlane) -> Client {
    plane.client(users::ADMIN).await.expect("a client")
}

/// The roles of `deploy/`, once for each kind.
async fn grant(client: &Client, side: Side) {
    let secrets: Vec<&str> = SECRETS.into_iter().chain([WATCHED_SECRET]).collect();
    for (plural, group) in [
        ("databases", "demo.towline.dev"),
        ("regions", "demo.towline.dev"),
        ("queues", "demo.towline.dev"),
        ("documents", "demo.towline.dev"),
        ("widgets", "demo.towline.dev"),
        ("leaflets", "demo.towline.dev"),
        ("deployments", "apps"),
        ("configmaps", ""),
    ] {
        if side == Side::Remote && plural == "leaflets" {
            continue;
        }
        Grant::kind(side, plural, group).secrets(&secrets).apply(client).await.expect("a role is granted");
    }
}

/// Leaflets are the kind whose remote and local objects are both on the edge.
async fn grant_leaflets_up(client: &Client) {
    let grant = Grant::kind(Side::Remote, "leaflets", "demo.towline.dev").secrets(&SECRETS);
    grant.apply(client).await.expect("a role is granted");
}

/// What the comment in the remote role offers: drift of a secret on the remote is seen.
async fn grant_watched_secret(client: &Client) {
    let group = "rbac.authorization.k8s.io";
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "watched-secret"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [WATCHED_SECRET],
            "verbs": ["get", "list", "watch"]}],
    }))
    .expect("a role");
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "watched-secret"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "watched-secret"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": users::TOWLINE}],
    }))
    .expect("a binding");
    Api::all(client.clone()).create(&PostParams::default(), &role).await.expect("a role is made");
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.expect("a binding is made");
}

/// Lets the daemon see one more secret on the edge, as the local role does with those of its section.
pub(crate) async fn grant_local_secret(world: &World, name: &str) {
    let client = admin(&world.edge).await;
    let grant = Grant::kind(Side::Local, "extras", "demo.towline.dev").secrets(&[name]);
    grant.apply(&client).await.expect("a role is granted");
}
