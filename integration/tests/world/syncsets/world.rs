//! The database server, the edges, and a hub with its clusters.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use integration::hub::{Client, Replica, Reply, Request};
use integration::postgres::{self, Transport};
use integration::users::{self, EDGE_CONTROLLER};
use integration::{ControlPlane, Options, Postgres, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) use crate::run;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// The edges are on loopback.
pub(crate) const SYNCSETS: &str = "[syncsets]\nallow = [\"local-networks\"]\nrequest_timeout = \"5s\"";

/// The same without the guard, for tests that delete namespaces and definitions.
pub(crate) const UNGUARDED: &str =
    "[syncsets]\nallow = [\"local-networks\"]\nrequest_timeout = \"5s\"\nmass_delete_guard = false";

/// The same for tests in which several documents of a namespace lead to one edge.
pub(crate) const WITH_DUPLICATES: &str =
    "[syncsets]\nrequest_timeout = \"5s\"\nallow = [\"local-networks\", \"duplicates\"]";

/// Whatever waits for its time no longer does.
pub(crate) const TIME_PASSES: &str = "update towline_work set ready_at = now(); select pg_notify('towline_work', '')";

static SERVER: OnceCell<Postgres> = OnceCell::const_new();
/// The third one is for a test that stops it.
static EDGES: [OnceCell<ControlPlane>; 3] = [const { OnceCell::const_new() }; 3];

/// The database server, which the other tests of syncsets have as well.
pub(crate) async fn server() -> &'static Postgres {
    SERVER.get_or_init(async || Postgres::start("syncsets", Transport::Plain).await.unwrap()).await
}

pub(crate) async fn edge(number: usize) -> &'static ControlPlane {
    let options = Options::named(&format!("syncsets-{number}")).with_workloads("10.3.0.0/24");
    let start = async || ControlPlane::start(options.clone()).await.unwrap();
    EDGES[number].get_or_init(start).await
}

/// Hubs with one replica that a test has left, by their section. A hub that is started anew for each test costs a database and a process.
static LEFT: Mutex<Vec<(&str, Hub)>> = Mutex::new(Vec::new());

/// Replicas on a database.
pub(crate) struct Hub {
    pub(crate) database: postgres::Database,
    /// The tests' own look into it.
    pub(crate) sql: tokio_postgres::Client,
    pub(crate) replicas: Vec<Replica>,
}

/// A hub, and the namespaces of a test.
pub(crate) struct Stage {
    hub: Option<Hub>,
    /// The section of a hub that the next test may have.
    shared: Option<&'static str>,
    /// What the hub had logged before the test.
    logged: usize,
    /// The namespace on the edges, and the one of the documents.
    pub(crate) namespace: &'static str,
}

impl Hub {
    async fn start(name: &str, section: &str, replicas: usize) -> Self {
        let database = server().await.hub_database(&name.replace('-', "_")).await.unwrap();
        let sql = database.client(postgres::ADMIN).await.unwrap();
        let mut hub = Self { database, sql, replicas: Vec::new() };
        for _ in 0..replicas {
            hub.replicas.push(Replica::run(&hub.database, section, &[]).await.unwrap());
        }
        for replica in &hub.replicas {
            replica.wait_ready(LIMIT).await.unwrap();
        }
        hub
    }

    /// Deletes all documents, and waits until nothing is left of any cluster. Clusters go first, so that nothing is deleted on them.
    async fn is_emptied(&self) {
        let mut client = self.replicas[0].client();
        let plurals = ["clusters", "selectorsyncsets", "syncsets", "secrets"];
        for plural in plurals {
            let text = format!("select namespace, name from {plural}");
            for row in self.sql.query(&text, &[]).await.unwrap() {
                let (namespace, name): (String, String) = (row.get(0), row.get(1));
                let path = [plural, &namespace, &name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
                let request = Request::delete(&format!("/v1/{}", path.join("/")));
                client.send(&request).await.unwrap().success().unwrap();
            }
        }
        let left = "select (select count(*) from towline_documents) + (select count(*) from towline_applied) \
             + (select count(*) from towline_result) + (select count(*) from towline_cluster) + (select count(*) from towline_work) \
             + (select count(*) from towline_identity)";
        eventually("nothing to be left of the clusters of another test", LIMIT, async || {
            let left: i64 = self.sql.query_one(left, &[]).await.map_err(|error| error.to_string())?.get(0);
            if left == 0 { Ok(()) } else { Err(format!("{left} rows")) }
        })
        .await
        .unwrap();
    }

    fn log(&self) -> String {
        self.replicas.iter().map(|replica| replica.towline().log().unwrap()).collect()
    }
}

impl Deref for Stage {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        self.hub.as_ref().unwrap()
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Hub {
        self.hub.as_mut().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let (Some(section), false) = (self.shared, std::thread::panicking()) {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).extend(self.hub.take().map(|hub| (section, hub)));
        }
    }
}

impl Stage {
    /// The name is that of the test's namespace on each edge, and of the namespace of its documents.
    pub(crate) async fn new(name: &'static str) -> Self {
        Self::shared(name, SYNCSETS).await
    }

    /// With this section, and with one replica, which other tests have had before. For tests that neither stop it nor change its database.
    pub(crate) async fn shared(name: &'static str, section: &'static str) -> Self {
        let left = {
            let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            let at = left.iter().position(|(of, _)| *of == section);
            at.map(|at| left.swap_remove(at).1)
        };
        let hub = match left {
            Some(hub) => {
                hub.is_emptied().await;
                hub
            }
            None => Hub::start(name, section, 1).await,
        };
        Self { logged: hub.log().len(), hub: Some(hub), shared: Some(section), namespace: name }
    }

    /// With this section and so many replicas, which no other test has.
    pub(crate) async fn with(name: &'static str, section: &str, replicas: usize) -> Self {
        Self { hub: Some(Hub::start(name, section, replicas).await), shared: None, logged: 0, namespace: name }
    }

    pub(crate) fn client(&self) -> Client {
        self.replicas[0].client()
    }

    pub(crate) async fn send(&self, request: &Request) -> Reply {
        self.client().send(request).await.unwrap()
    }

    pub(crate) async fn create(&self, plural: &str, document: &Value) -> Value {
        let reply = self.send(&Request::post(&format!("/v1/{plural}"), document)).await;
        reply.success().unwrap().json().unwrap()
    }

    /// Changes fields of a document.
    pub(crate) async fn change(&self, path: &str, fields: &Value) -> Value {
        let reply = self.send(&Request::merge_patch(&format!("/v1/{path}"), fields)).await;
        reply.success().unwrap().json().unwrap()
    }

    pub(crate) async fn remove(&self, path: &str) {
        self.send(&Request::delete(&format!("/v1/{path}"))).await.success().unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(&Request::get(&format!("/v1/{path}"))).await.success().unwrap().json().unwrap()
    }

    /// The path of one of the test's own documents below `/v1`.
    pub(crate) fn path(&self, plural: &str, name: &str) -> String {
        format!("{plural}/{}/{name}", self.namespace)
    }

    /// Waits until all changes are dispatched and nobody works or is to work now. What failed is retried later.
    pub(crate) async fn at_rest(&self) {
        const TEXT: &str = "select c.cursor < (select max(version) from towline_log) as behind, \
             (select count(*) from towline_work where ready_at <= now() or until >= now() \
               or attempts = 0 and ready_at <= now() + interval '1.5 s') as open \
             from towline_claim c where c.name = 'dispatcher'";
        let outcome = eventually("the clusters to be at rest", LIMIT, async || {
            let row = self.sql.query_one(TEXT, &[]).await.map_err(|error| error.to_string())?;
            let (behind, open): (Option<bool>, i64) = (row.get(0), row.get(1));
            if behind == Some(false) && open == 0 { Ok(()) } else { Err(format!("behind: {behind:?}, open: {open}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.log());
        }
    }

    /// How often clusters were claimed so far, all together.
    pub(crate) async fn reconciles(&self) -> i64 {
        let text = "select coalesce(sum(token), 0)::int8 from towline_work";
        self.sql.query_one(text, &[]).await.unwrap().get(0)
    }

    /// Registers a cluster without labels by this kubeconfig.
    pub(crate) async fn registers(&self, name: &str, kubeconfig: &Value) {
        let cluster = json!({"namespace": self.namespace, "name": name, "kubeconfig": kubeconfig.to_string()});
        self.create("clusters", &cluster).await;
    }

    /// Registers an edge as a cluster of this name, after the namespace was made on it.
    pub(crate) async fn register(&self, name: &str, labels: &Value, number: usize) -> &'static ControlPlane {
        let plane = edge(number).await;
        let namespaces: Api<Namespace> = Api::all(plane.client(users::ADMIN).await.unwrap());
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}})).unwrap();
        drop(namespaces.create(&PostParams::default(), &namespace).await);
        let kubeconfig = self.kubeconfig(plane, plane.address());
        let cluster =
            json!({"namespace": self.namespace, "name": name, "labels": labels, "kubeconfig": kubeconfig.to_string()});
        self.create("clusters", &cluster).await;
        plane
    }

    /// A kubeconfig that leads to an edge by this address. It impersonates a user with all rights whose name is that of the test's
    /// namespace, so that the audit log tells tests apart.
    pub(crate) fn kubeconfig(&self, plane: &ControlPlane, address: SocketAddr) -> Value {
        // It is a file, which each test writes anew.
        static FILE: Mutex<()> = Mutex::new(());
        let _written = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let file = plane.kubeconfig_by(EDGE_CONTROLLER, address).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let user = &mut kubeconfig["users"][0]["user"];
        (user["as"], user["as-groups"]) = (json!(self.namespace), json!(["system:masters"]));
        kubeconfig
    }

    /// A config map as a resource of a syncset.
    pub(crate) fn config_map(&self, name: &str, data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": self.namespace}, "data": data})
    }

    /// The config maps in the namespace of an edge, but the one that every namespace has.
    pub(crate) async fn config_maps(&self, plane: &ControlPlane) -> Vec<ConfigMap> {
        config_maps(&self.maps(plane).await).await
    }

    /// Waits until an edge has exactly config maps with these names and data.
    pub(crate) async fn has(&self, plane: &ControlPlane, expected: &[(&str, Value)]) {
        let expected: Vec<(String, Value)> =
            expected.iter().map(|(name, data)| ((*name).to_owned(), data.clone())).collect();
        let maps = self.maps(plane).await;
        let outcome = eventually("the config maps", LIMIT, async || {
            let found: Vec<(String, Value)> =
                config_maps(&maps).await.into_iter().map(|map| (map.metadata.name.unwrap(), json!(map.data))).collect();
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.log());
        }
    }

    /// The status of a cluster's `ClusterSync`, once it holds.
    pub(crate) async fn status(&self, cluster: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let request = Request::get(&format!("/v1/clustersyncs/{}/{cluster}", self.namespace));
        let mut client = self.client();
        let outcome = eventually(what.to_owned(), LIMIT, async || {
            let reply = client.send(&request).await.map_err(|error| error.to_string())?;
            let found = reply.json().map_err(|error| error.to_string())?;
            if holds(&found["status"]) { Ok(found["status"].clone()) } else { Err(found["status"].to_string()) }
        });
        match outcome.await {
            Ok(status) => status,
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    /// Waits until a syncset of the test has succeeded on a cluster in this generation, and everything is at rest.
    pub(crate) async fn succeeds(&self, cluster: &str, syncset: &str, generation: u64) -> Value {
        let entry = |status: &Value| {
            let lists = [&status["syncSets"], &status["selectorSyncSets"]];
            lists.into_iter().filter_map(Value::as_array).flatten().find(|entry| entry["name"] == syncset).cloned()
        };
        let wanted = |status: &Value| {
            entry(status).is_some_and(|entry| entry["result"] == "Success" && entry["observedGeneration"] == generation)
        };
        let status = self.status(cluster, &format!("success of {syncset}"), wanted).await;
        self.at_rest().await;
        entry(&status).unwrap()
    }

    /// Creates a `SyncSet` for cluster `west-1` with these resources.
    pub(crate) async fn syncset(&self, name: &str, mode: &str, resources: &[Value]) -> Value {
        let spec =
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": mode, "resources": resources});
        self.create("syncsets", &json!({"namespace": self.namespace, "name": name, "spec": spec})).await
    }

    /// Gives a `SyncSet` of the test other resources.
    pub(crate) async fn wants(&self, name: &str, resources: &[Value]) {
        self.change(&self.path("syncsets", name), &json!({"spec": {"resources": resources}})).await;
    }

    /// Pauses cluster `west-1`, or lets it go on.
    pub(crate) async fn pause(&self, paused: bool) {
        self.change(&self.path("clusters", "west-1"), &json!({"paused": paused})).await;
        self.at_rest().await;
    }

    /// Makes a full pass of all clusters due, and waits for its end.
    pub(crate) async fn full_pass(&self) {
        let text = "update towline_cluster set next_full = null, resyncs = resyncs + 1; \
             update towline_work set ready_at = now(), wanted = wanted + 1; select pg_notify('towline_work', '')";
        self.sql.batch_execute(text).await.unwrap();
        self.at_rest().await;
    }

    /// The config maps of the test on an edge.
    pub(crate) async fn maps(&self, plane: &ControlPlane) -> Api<ConfigMap> {
        Api::namespaced(plane.client(users::ADMIN).await.unwrap(), self.namespace)
    }

    /// Replaces the spec of one of the test's syncsets.
    pub(crate) async fn replace_spec(&self, plural: &str, name: &str, spec: &Value) {
        let path = if plural == "syncsets" { self.path(plural, name) } else { format!("{plural}/{name}") };
        let operations = json!([{"op": "replace", "path": "/spec", "value": spec}]);
        self.send(&Request::json_patch(&format!("/v1/{path}"), &operations)).await.success().unwrap();
    }

    /// What the hub has logged since the test began.
    pub(crate) fn log(&self) -> String {
        self.deref().log().split_off(self.logged)
    }
}

/// All but the one that every namespace has.
async fn config_maps(maps: &Api<ConfigMap>) -> Vec<ConfigMap> {
    let found = maps.list(&ListParams::default()).await.unwrap().items;
    found.into_iter().filter(|map| map.metadata.name.as_deref() != Some("kube-root-ca.crt")).collect()
}

pub(crate) fn condition<'s>(status: &'s Value, kind: &str) -> Option<&'s Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
