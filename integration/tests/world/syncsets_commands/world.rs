//! A hub on a database of the server, and its commands.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use integration::commands::{KubectlTowline, pod_of_release};
use integration::hub::{Client, Replica, Request};
use integration::postgres::{ADMIN, Database};
use integration::{Kubelet, Towline, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::process::Command;

pub(crate) use crate::run;
use crate::syncsets::world::{edge, server};

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A hub on a database of its own.
pub(crate) struct Stage {
    pub(crate) replica: Replica,
    /// A connection that is not the hub's.
    pub(crate) sql: tokio_postgres::Client,
    url: String,
}

#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) error: String,
}

impl Stage {
    /// A hub with `[syncsets]`, on a database of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(name, "[syncsets]\n", &[]).await
    }

    /// A hub with these sections beside `[hub]`, and this environment.
    pub(crate) async fn with(name: &str, sections: &str, env: &[(&str, &str)]) -> Self {
        let database = database(name).await;
        let replica = Replica::run(&database, sections, env).await.expect("it starts");
        replica.wait_ready(LIMIT).await.expect("it is ready");
        let url = format!("http://{}", replica.api());
        Self { replica, sql: database.client(ADMIN).await.expect("a connection"), url }
    }

    /// Runs a command of `towline` against the hub.
    pub(crate) async fn command(&self, args: &[&str]) -> Said {
        let output = Towline::command([args, &["--hub", &self.url]].concat()).await.expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), output: text(&output.stdout), error: text(&output.stderr) }
    }

    /// The same, which must succeed: what it has printed.
    pub(crate) async fn expect(&self, args: &[&str]) -> String {
        let said = self.command(args).await;
        assert_eq!((said.code, said.error.as_str()), (Some(0), ""), "{args:?}: {said:?}");
        said.output
    }

    /// The same, which must fail and say this.
    pub(crate) async fn refused(&self, args: &[&str], error: &str) {
        let said = self.command(args).await;
        assert_eq!((said.code, said.output.as_str()), (Some(1), ""), "{args:?}: {said:?}");
        assert!(said.error.contains(error), "{args:?}: {said:?}");
    }

    /// A number that a statement returns.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        self.sql.query_one(statement, &[]).await.expect("a row").get(0)
    }
}

/// The hub as a pod, of which somebody knows the release alone.
pub(crate) struct HubPod {
    node: Kubelet,
    pub(crate) kubectl: KubectlTowline,
    namespace: &'static str,
    ports: [(&'static str, SocketAddr); 2],
}

impl HubPod {
    /// The pod of a release in a namespace of its own.
    pub(crate) async fn new(stage: &Stage, name: &'static str) -> Self {
        let edge = edge(1).await;
        let client = edge.client(users::ADMIN).await.expect("a client");
        let namespace = json!({"metadata": {"name": name}});
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.expect("it is created");
        // An empty directory that lasts as long as the tests.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&directory));
        std::fs::create_dir_all(&directory).expect("a directory");
        let kubeconfig = edge.kubeconfig(users::ADMIN).expect("a kubeconfig");
        let admin = stage.replica.towline().admin_url();
        let admin = admin.strip_prefix("http://").expect("a URL").parse().expect("an address");
        let pod = Self {
            node: Kubelet::start(&client, name).await.expect("a node"),
            kubectl: KubectlTowline::new(&directory, &kubeconfig, name).await.expect("the plugin"),
            namespace: name,
            ports: [("admin", admin), ("api", stage.replica.api())],
        };
        pod.run().await;
        pod
    }

    pub(crate) async fn run(&self) {
        let pod = pod_of_release(self.namespace, "hub-0", "hub");
        self.node.run(&pod, &self.ports).await.expect("a pod");
    }

    pub(crate) async fn remove(&self) {
        self.node.remove(self.namespace, "hub-0").await.expect("it is gone");
    }
}

/// A database of this name; letters only.
pub(crate) async fn database(name: &str) -> Database {
    server().await.hub_database(&format!("commands_{name}")).await.expect("a database")
}

/// Creates a cluster with a label, which is paused or leads nowhere.
pub(crate) async fn make(client: &mut Client, namespace: &str, name: &str, env: &str, is_paused: bool) {
    let cluster =
        json!({"namespace": namespace, "name": name, "kubeconfig": "k", "labels": {"env": env}, "paused": is_paused});
    client.send(&Request::post("/v1/clusters", &cluster)).await.expect("an answer").success().expect("it is created");
}

/// A document.
pub(crate) async fn shown(client: &mut Client, path: &str) -> Value {
    let reply = client.send(&Request::get(path)).await.expect("an answer").success().expect("it is there");
    reply.json().expect("JSON")
}

/// The line of `tokens_file` for a token.
pub(crate) async fn grant(role: &str, namespaces: &str, token: &str) -> String {
    // The digest is the one that `sha256sum` prints.
    let script = format!("printf %s {token} | sha256sum | cut -d' ' -f1");
    let output = Command::new("sh").args(["-c", &script]).output().await.expect("a shell");
    format!("somebody {role} {namespaces} {}", String::from_utf8(output.stdout).expect("a digest"))
}
