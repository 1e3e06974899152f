//! The database server, the edges, and a hub with its clusters.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use integration::hub::{Client, Replica, Reply, Request};
use integration::postgres::{self, Transport};
use integration::users::{self, EDGE_CONTROLLER};
use integration::{ControlPlane, Options, Postgres, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// The edges are on loopback.
pub(crate) const SYNCSETS: &str = "[syncsets]\ndeny_networks = []\nrequest_timeout = \"5s\"";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static SERVER: OnceCell<Postgres> = OnceCell::const_new();
static EDGES: [OnceCell<ControlPlane>; 2] = [const { OnceCell::const_new() }; 2];

/// Runs a test on the runtime that outlives all tests.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

/// The first or second edge.
pub(crate) async fn edge(number: usize) -> &'static ControlPlane {
    let start = async || ControlPlane::start(Options::named(&format!("syncsets-{number}"))).await.unwrap();
    EDGES[number].get_or_init(start).await
}

/// A hub with a replica.
pub(crate) struct Stage {
    pub(crate) database: postgres::Database,
    pub(crate) replicas: Vec<Replica>,
    /// The namespace on the edges, and the one of the documents.
    pub(crate) namespace: &'static str,
}

impl Stage {
    /// With one replica. The name is that of its database, of its namespace on each edge, and of the namespace of its documents.
    pub(crate) async fn new(name: &'static str) -> Self {
        Self::with(name, SYNCSETS, 1).await
    }

    /// With this section and so many replicas.
    pub(crate) async fn with(name: &'static str, section: &str, replicas: usize) -> Self {
        let server = SERVER.get_or_init(async || Postgres::start("syncsets", Transport::Plain).await.unwrap()).await;
        let database = server.hub_database(&name.replace('-', "_")).await.unwrap();
        let mut stage = Self { database, replicas: Vec::new(), namespace: name };
        for _ in 0..replicas {
            stage.replicas.push(Replica::run(&stage.database, section, &[]).await.unwrap());
        }
        for replica in &stage.replicas {
            replica.wait_ready(LIMIT).await.unwrap();
        }
        stage
    }

    pub(crate) fn client(&self) -> Client {
        self.replicas[0].client()
    }

    pub(crate) async fn send(&self, request: &Request) -> Reply {
        self.client().send(request).await.unwrap()
    }

    /// Creates a document.
    pub(crate) async fn create(&self, plural: &str, document: &Value) -> Value {
        let reply = self.send(&Request::post(&format!("/v1/{plural}"), document)).await;
        reply.success().unwrap().json().unwrap()
    }

    /// Changes fields of a document.
    pub(crate) async fn change(&self, path: &str, fields: &Value) -> Value {
        let reply = self.send(&Request::merge_patch(&format!("/v1/{path}"), fields)).await;
        reply.success().unwrap().json().unwrap()
    }

    /// Registers an edge as a cluster of this name, after the namespace was made on it.
    pub(crate) async fn register(&self, name: &str, labels: &Value, number: usize) -> &'static ControlPlane {
        let plane = edge(number).await;
        let namespaces: Api<Namespace> = Api::all(plane.client(users::ADMIN).await.unwrap());
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}})).unwrap();
        drop(namespaces.create(&PostParams::default(), &namespace).await);
        let kubeconfig = std::fs::read_to_string(plane.kubeconfig(EDGE_CONTROLLER).unwrap()).unwrap();
        let cluster = json!({"namespace": self.namespace, "name": name, "labels": labels, "kubeconfig": kubeconfig});
        self.create("clusters", &cluster).await;
        plane
    }

    /// A config map as a resource of a syncset.
    pub(crate) fn config_map(&self, name: &str, data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": self.namespace}, "data": data})
    }

    /// The config maps in the namespace of an edge, but the one that every namespace has.
    pub(crate) async fn config_maps(&self, plane: &ControlPlane) -> Vec<ConfigMap> {
        let maps: Api<ConfigMap> = Api::namespaced(plane.client(users::ADMIN).await.unwrap(), self.namespace);
        let found = maps.list(&ListParams::default()).await.unwrap().items;
        found.into_iter().filter(|map| map.metadata.name.as_deref() != Some("kube-root-ca.crt")).collect()
    }

    /// Waits until an edge has exactly config maps with these names and data.
    pub(crate) async fn has(&self, plane: &ControlPlane, expected: &[(&str, Value)]) {
        let expected: Vec<(String, Value)> =
            expected.iter().map(|(name, data)| ((*name).to_owned(), data.clone())).collect();
        let outcome = eventually("the config maps", LIMIT, async || {
            let found: Vec<(String, Value)> = self
                .config_maps(plane)
                .await
                .into_iter()
                .map(|map| (map.metadata.name.unwrap(), json!(map.data)))
                .collect();
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.log());
        }
    }

    /// The status of a cluster's `ClusterSync`, once it holds.
    pub(crate) async fn status(&self, cluster: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/clustersyncs/{}/{cluster}", self.namespace);
        let outcome = eventually(what.to_owned(), LIMIT, async || {
            let found = self.send(&Request::get(&path)).await.json().map_err(|error| error.to_string())?;
            if holds(&found["status"]) { Ok(found["status"].clone()) } else { Err(found["status"].to_string()) }
        });
        match outcome.await {
            Ok(status) => status,
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    /// The logs of all replicas.
    pub(crate) fn log(&self) -> String {
        self.replicas.iter().map(|replica| replica.towline().log().unwrap()).collect()
    }
}

/// A condition of a status.
pub(crate) fn condition<'s>(status: &'s Value, kind: &str) -> Option<&'s Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
