//! What the tests share: clusters, lanes through them, and the daemon on a lane.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use integration::compare::{self, Mapping, differences};
use integration::load::{Write, burst};
use integration::rbac::{Grant, Side, grant_state};
use integration::{ControlPlane, Options, Towline, crds, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub(crate) use crate::run;

/// On two busy cores, with six API servers on them.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// The finalizer and the domain of the marks, as configured by default.
pub(crate) const FINALIZER: &str = "cloud.teleport.dev/sync-local";
/// Kinds of the shape of databases, so that a test may break one without breaking others. The remote
/// schema of sluices takes any further field.
const OTHERS: [(&str, &str); 5] = [
    ("gadgets", "Gadget"),
    ("widgets", "Widget"),
    ("gizmos", "Gizmo"),
    ("sprockets", "Sprocket"),
    ("sluices", "Sluice"),
];

/// The manifest of databases or of one of [`OTHERS`].
pub(crate) fn manifest(plural: &str) -> String {
    let Some((_, kind)) = OTHERS.iter().find(|(known, _)| *known == plural) else {
        return crds::DATABASES.to_owned();
    };
    crds::DATABASES
        .replace("shortNames: [db]", "shortNames: []")
        .replace("databases", plural)
        .replace("Database", kind)
        .replace("database", &kind.to_lowercase())
}

/// The same, where `spec` may hold anything else, too.
fn looser(plural: &str) -> String {
    let strict = "            spec:\n              type: object\n";
    let manifest = manifest(plural);
    assert!(manifest.contains(strict));
    manifest.replace(strict, &format!("{strict}              x-kubernetes-preserve-unknown-fields: true\n"))
}

pub(crate) fn resource(plural: &str) -> ApiResource {
    let known = [("databases", "Database"), ("documents", "Document")].into_iter().chain(OTHERS);
    let (_, kind) = known.into_iter().find(|(known, _)| *known == plural).unwrap();
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", "v1", kind));
    plural.clone_into(&mut resource.plural);
    resource
}

/// Starts a control plane that serves databases, and grants the daemon what `deploy/` grants on that side.
pub(crate) async fn plane(name: &str, side: Side, change: impl FnOnce(&mut Options)) -> Arc<ControlPlane> {
    let mut options = Options::named(name).with_crds(&[crds::DATABASES]);
    change(&mut options);
    let plane = ControlPlane::start(options).await.unwrap();
    grant(&plane, side, &["databases"]).await;
    Arc::new(plane)
}

async fn grant(plane: &ControlPlane, side: Side, kinds: &[&str]) {
    let admin = plane.client(users::ADMIN).await.unwrap();
    for plural in kinds {
        Grant::kind(side, plural, "demo.towline.dev").apply(&admin).await.unwrap();
    }
}

/// The same with every kind.
async fn plane_of_all_kinds(name: &str, side: Side) -> Arc<ControlPlane> {
    let with_all = |options: &mut Options| {
        options.crds.push(crds::DOCUMENTS);
        for plural in OTHERS.map(|(plural, _)| plural) {
            let manifest = match (plural, side) {
                ("sluices", Side::Remote) => looser(plural),
                _ => manifest(plural),
            };
            options.crds.push(manifest.leak());
        }
    };
    let plane = plane(name, side, with_all).await;
    grant(&plane, side, &OTHERS.map(|(plural, _)| plural)).await;
    grant(&plane, side, &["documents"]).await;
    plane
}

/// The clusters of tests that leave API servers alone.
pub(crate) async fn shared() -> &'static (Arc<ControlPlane>, Arc<ControlPlane>) {
    static PAIR: OnceCell<(Arc<ControlPlane>, Arc<ControlPlane>)> = OnceCell::const_new();
    let start = async || tokio::join!(plane_of_all_kinds("hub", Side::Remote), plane_of_all_kinds("edge", Side::Local));
    PAIR.get_or_init(start).await
}

/// A second hub, for tests of which cluster it is.
pub(crate) async fn another_hub() -> Arc<ControlPlane> {
    static HUB: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    Arc::clone(HUB.get_or_init(|| plane("another-hub", Side::Remote, |_| ())).await)
}

/// A second edge, likewise.
pub(crate) async fn another_edge() -> Arc<ControlPlane> {
    static EDGE: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    Arc::clone(EDGE.get_or_init(|| plane("another-edge", Side::Local, |_| ())).await)
}

/// Clusters whose API servers die and whose rights are taken away, of one test at a time.
pub(crate) async fn mortals() -> (MutexGuard<'static, ()>, Arc<ControlPlane>, Arc<ControlPlane>) {
    static TURN: Mutex<()> = Mutex::const_new(());
    static PAIR: OnceCell<(Arc<ControlPlane>, Arc<ControlPlane>)> = OnceCell::const_new();
    let turn = TURN.lock().await;
    let start =
        async || tokio::join!(plane("mortal-hub", Side::Remote, |_| ()), plane("mortal-edge", Side::Local, |_| ()));
    let (hub, edge) = PAIR.get_or_init(start).await;
    for (plane, side) in [(hub, Side::Remote), (edge, Side::Local)] {
        if plane.usage().is_err() {
            // A test that failed has left it dead.
            plane.start_api_server().await.unwrap();
        }
        grant(plane, side, &["databases"]).await;
    }
    (turn, Arc::clone(hub), Arc::clone(edge))
}

/// One test's part of two clusters: one kind, in namespaces with a prefix of its own.
pub(crate) struct Lane {
    pub(crate) hub: Arc<ControlPlane>,
    pub(crate) edge: Arc<ControlPlane>,
    pub(crate) prefix: String,
    pub(crate) plural: String,
    pub(crate) kind: ApiResource,
    /// The client of the users, who order objects.
    pub(crate) hub_client: Client,
    /// The client of the controllers, which run them.
    pub(crate) edge_client: Client,
}

impl Lane {
    /// On the shared clusters.
    pub(crate) async fn shared(prefix: &str, plural: &str) -> Self {
        let (hub, edge) = shared().await;
        Self::between(Arc::clone(hub), Arc::clone(edge), prefix, plural).await
    }

    pub(crate) async fn between(hub: Arc<ControlPlane>, edge: Arc<ControlPlane>, prefix: &str, plural: &str) -> Self {
        let hub_client = hub.client(users::HUB_USER).await.unwrap();
        let edge_client = edge.client(users::EDGE_CONTROLLER).await.unwrap();
        // What a section remembers is under its name, and lanes share clusters and names.
        let admin = edge.client(users::ADMIN).await.unwrap();
        let states = state_namespace(prefix);
        if Api::<Namespace>::all(admin.clone()).get_opt(&states).await.unwrap().is_none() {
            make_namespace(&admin, &states).await;
            grant_state(&admin, &states, None).await.unwrap();
        }
        let (kind, prefix, plural) = (resource(plural), format!("{prefix}-"), plural.to_owned());
        Self { hub, edge, prefix, plural, kind, hub_client, edge_client }
    }

    /// Another kind or other namespaces between the same clusters.
    pub(crate) async fn beside(&self, prefix: &str, plural: &str) -> Self {
        Self::between(Arc::clone(&self.hub), Arc::clone(&self.edge), prefix, plural).await
    }

    pub(crate) fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// `[clusters.…]` for a kubeconfig.
    pub(crate) fn cluster(name: &str, kubeconfig: &Path) -> String {
        format!("[clusters.{name}]\nkubeconfig = \"{}\"\n", kubeconfig.display())
    }

    /// Both clusters, as `hub` and `edge`.
    pub(crate) fn clusters(&self) -> String {
        let hub = self.hub.kubeconfig(users::TOWLINE).unwrap();
        let edge = self.edge.kubeconfig(users::TOWLINE).unwrap();
        Self::cluster("hub", &hub) + &Self::cluster("edge", &edge)
    }

    /// A section for this lane from `hub` to `edge`; `more` has further keys.
    pub(crate) fn section(&self, name: &str, more: &str) -> String {
        self.section_between(name, "hub", "edge", more)
    }

    pub(crate) fn section_between(&self, name: &str, remote: &str, local: &str, more: &str) -> String {
        let (plural, prefix) = (&self.plural, &self.prefix);
        format!(
            "[[sync]]\nname = \"{name}\"\nremote = \"{remote}\"\nlocal = \"{local}\"\n\
             resource = \"{plural}.v1.demo.towline.dev\"\nnamespace_prefix = \"{prefix}\"\n{more}\n"
        )
    }

    /// The daemon with the one section `lane`, ready.
    pub(crate) async fn towline(&self) -> Towline {
        start(&(self.clusters() + &self.section("lane", ""))).await
    }

    pub(crate) fn on_hub(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.hub_client.clone(), &self.namespace(namespace), &self.kind)
    }

    pub(crate) fn on_edge(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.edge_client.clone(), &self.namespace(namespace), &self.kind)
    }

    /// Makes a namespace on the hub.
    pub(crate) async fn make_namespace(&self, name: &str) {
        make_namespace(&self.hub_client, &self.namespace(name)).await;
    }

    pub(crate) fn object(&self, name: &str, storage: &str) -> Value {
        json!({
            "apiVersion": "demo.towline.dev/v1",
            "kind": self.kind.kind,
            "metadata": {"name": name, "labels": {"made-for": name}},
            "spec": {"engine": "postgres-17", "storage": storage},
        })
    }

    /// Makes an object on the hub.
    pub(crate) async fn order(&self, namespace: &str, name: &str, storage: &str) {
        let object = serde_json::from_value(self.object(name, storage)).unwrap();
        self.on_hub(namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Makes objects `o0`, `o1`, … on the hub.
    pub(crate) async fn order_many(&self, namespace: &str, count: usize) {
        let space = self.namespace(namespace);
        let writes = (0..count).map(|number| {
            let name = format!("o{number}");
            Write::create(&self.kind, Some(&space), &name, &self.object(&name, "1Gi"))
        });
        burst(&self.hub_client, writes.collect(), 8).await.unwrap();
    }

    /// Changes the storage of objects `o0`, `o1`, … on the hub.
    pub(crate) async fn resize_many(&self, namespace: &str, count: usize, storage: &str) {
        let space = self.namespace(namespace);
        let patch = json!({"spec": {"storage": storage}});
        let writes = (0..count).map(|number| Write::merge(&self.kind, Some(&space), &format!("o{number}"), &patch));
        burst(&self.hub_client, writes.collect(), 8).await.unwrap();
    }

    /// Sets the status of objects `o0`, `o1`, … on the edge.
    pub(crate) async fn report_many(&self, namespace: &str, count: usize, endpoint: &str) {
        let space = self.namespace(namespace);
        let patch = json!({"status": {"phase": "Ready", "endpoint": endpoint}});
        let writes =
            (0..count).map(|number| Write::merge_status(&self.kind, Some(&space), &format!("o{number}"), &patch));
        burst(&self.edge_client, writes.collect(), 8).await.unwrap();
    }

    pub(crate) fn mapping(&self) -> Mapping {
        Mapping { namespace_prefix: self.prefix.clone(), namespaced: true, ..Mapping::default() }
    }

    /// Waits until both clusters agree, object by object, and gives the local objects' UIDs by key.
    pub(crate) async fn in_step(&self, when: &str) -> BTreeMap<String, String> {
        self.in_step_by(&self.mapping(), when).await
    }

    pub(crate) async fn in_step_by(&self, mapping: &Mapping, when: &str) -> BTreeMap<String, String> {
        eventually(format!("both clusters to be in step {when}"), LIMIT, async || {
            let found = differences(&self.hub_client, &self.edge_client, &self.kind, mapping).await;
            let found = found.map_err(|error| error.to_string())?;
            if found.is_empty() { Ok(()) } else { Err(format!("{} differences: {found:#?}", found.len())) }
        })
        .await
        .unwrap();
        self.local_uids().await
    }

    /// Waits until a section's state says with which settings it runs: until then each start looks for what others left.
    pub(crate) async fn settings_noted(&self, section: &str) {
        let admin = self.edge.client(users::ADMIN).await.unwrap();
        let namespace = state_namespace(self.prefix.trim_end_matches('-'));
        integration::settings_noted(&admin, &namespace, section, LIMIT).await.unwrap();
    }

    /// The local objects' UIDs by `namespace/name`: one that was deleted and made anew has another.
    pub(crate) async fn local_uids(&self) -> BTreeMap<String, String> {
        self.uids(&self.edge_client).await
    }

    /// The names of the lane's namespaces on the edge.
    pub(crate) async fn local_namespaces(&self) -> Vec<String> {
        let namespaces: Api<Namespace> = Api::all(self.edge.client(users::ADMIN).await.unwrap());
        let listed = namespaces.list(&ListParams::default()).await.unwrap();
        let names = listed.items.iter().map(ResourceExt::name_any);
        names.filter(|name| name.starts_with(&self.prefix)).collect()
    }

    pub(crate) async fn remote_uids(&self) -> BTreeMap<String, String> {
        self.uids(&self.hub_client).await
    }

    async fn uids(&self, client: &Client) -> BTreeMap<String, String> {
        let ours = compare::objects(client, &self.kind, Some(&self.prefix), &ListParams::default()).await.unwrap();
        ours.iter()
            .map(|object| (format!("{}/{}", object.namespace().unwrap(), object.name_any()), object.uid().unwrap()))
            .collect()
    }
}

/// Where the sections of a lane remember things.
fn state_namespace(prefix: &str) -> String {
    format!("state-of-{prefix}")
}

/// The daemon with this configuration, ready. It remembers things where the lane of its first section does.
pub(crate) async fn start(config: &str) -> Towline {
    let prefix = config.split_once("namespace_prefix = \"").and_then(|(_, rest)| rest.split_once("-\"")).unwrap().0;
    let env = [("TOWLINE__DAEMON__STATE_NAMESPACE", state_namespace(prefix))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let towline = Towline::start(config, &env).await.unwrap();
    towline.wait_ready(LIMIT).await.unwrap();
    towline
}

/// A merge patch of an object.
pub(crate) async fn edit(api: &Api<DynamicObject>, name: &str, patch: Value) -> DynamicObject {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
}

pub(crate) async fn delete(api: &Api<DynamicObject>, name: &str) {
    api.delete(name, &DeleteParams::background()).await.unwrap();
}

pub(crate) async fn make_namespace(client: &Client, name: &str) {
    let metadata = kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
}

/// Waits until the section's report satisfies the condition, and gives it.
pub(crate) async fn report(
    towline: &Towline,
    section: &str,
    what: &str,
    mut condition: impl FnMut(&Value) -> bool,
) -> Value {
    eventually(format!("section {section} to report {what}"), LIMIT, async || {
        let report = towline.admin().section(section).await.map_err(|error| error.to_string())?;
        if condition(&report) { Ok(report) } else { Err(report.to_string()) }
    })
    .await
    .unwrap()
}

/// How many objects of a section are in a state.
pub(crate) fn objects(report: &Value, state: &str) -> u64 {
    report["objects"][state].as_u64().unwrap()
}
