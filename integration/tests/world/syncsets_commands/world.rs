//! A hub on a database of the server, and its commands.

use std::time::Duration;

use integration::Towline;
use integration::hub::{Client, Replica, Request};
use integration::postgres::{ADMIN, Database};
use serde_json::{Value, json};
use tokio::process::Command;

pub(crate) use crate::run;
use crate::syncsets::world::server;

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
