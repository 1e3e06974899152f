//! The server, and what a test has of it.

use std::time::Duration;

use integration::eventually;
use integration::postgres::{self, ADMIN};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::types::Json;
use towline::test_api::actor::Scope;
use towline::test_api::db::{Database, DatabaseSource};
use towline::test_api::documents::{self, Kind, Tail};

pub(crate) use crate::run;
use crate::servers::of_library;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A database with the schema.
pub(crate) struct World {
    pub(crate) place: postgres::Database,
    /// A connection that is not of the layer under test.
    pub(crate) sql: Client,
    pub(crate) database: Database,
}

impl World {
    /// A new database of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        let place = of_library().await.empty_database(&format!("read_{name}")).await.expect("a database");
        let sql = place.client(ADMIN).await.expect("a connection");
        let url = place.url(ADMIN).parse().unwrap_or_else(|error| panic!("{error}"));
        let database = documents::open(DatabaseSource::Url(Box::new(url)));
        Self { place, sql, database }
    }

    /// The first column of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Begins to count statements anew, in this database alone: the server's others are other tests'.
    pub(crate) async fn forget_statements(&self) {
        self.run("select pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()")
            .await;
    }

    /// Writes one document, and returns its version.
    pub(crate) async fn put(&self, number: u64, kind: Kind, key: (&str, &str), labels: &Value, data: &Value) -> i64 {
        let change = put(number, kind, key, labels, data);
        write(&self.sql, number, &[change]).await[0].expect("it is written")
    }

    /// Removes one document, and returns the version of the removal.
    pub(crate) async fn delete(&self, number: u64, kind: Kind, key: (&str, &str)) -> i64 {
        write(&self.sql, number, &[delete(kind, key)]).await[0].expect("it is removed")
    }

    /// Waits until a query gives a number.
    pub(crate) async fn becomes(&self, what: &str, sql: &str, expected: i64) {
        eventually(what, LIMIT, async || match self.number(sql).await {
            found if found == expected => Ok(()),
            found => Err(found.to_string()),
        })
        .await
        .unwrap();
    }

    /// A tail that reads the log until it is dropped.
    pub(crate) fn tail(&self, ring: usize) -> Running {
        let tail = Tail::with_ring(self.database.clone(), ring);
        let (scope, _drain) = Scope::standalone("tail");
        let body = tail.clone();
        let task = tokio::spawn(async move { body.run(scope).await.expect("it only ends when it is drained") });
        Running { tail, task }
    }
}

/// A tail as a replica has it.
pub(crate) struct Running {
    pub(crate) tail: Tail,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A change that writes a document, whatever its version is now. `number` becomes part of its id if it is new.
pub(crate) fn put(number: u64, kind: Kind, key: (&str, &str), labels: &Value, data: &Value) -> Value {
    json!({"kind": kind.plural(), "namespace": key.0, "name": key.1, "expected": "any", "row": {
        "id": format!("{number:08x}-0000-4000-8000-{number:012x}"), "labels": labels, "annotations": {}, "finalizers": [],
        "generation": 1, "data": data, "status": {"seen": number}, "sealed": "\\x0123"}})
}

/// A change that removes a document, if it exists.
pub(crate) fn delete(kind: Kind, key: (&str, &str)) -> Value {
    json!({"kind": kind.plural(), "namespace": key.0, "name": key.1, "expected": "any"})
}

/// Writes changes in one call, each as an item of its own, and returns their versions; `None` where there was nothing to do.
pub(crate) async fn write(sql: &Client, number: u64, changes: &[Value]) -> Vec<Option<i64>> {
    let request = format!("00000000-0000-4000-9000-{number:012x}");
    let items: Vec<Value> = changes.iter().map(|change| json!({"request": request, "changes": [change]})).collect();
    let row = sql.query_one("call towline_write($1, null)", &[&Json(items)]).await.expect("it is written");
    let Json(outcomes) = row.get::<_, Json<Vec<Value>>>(0);
    assert_eq!(outcomes.len(), changes.len());
    let version = |outcome: &Value| {
        assert_eq!(outcome["outcome"], "written", "{outcome}");
        outcome["version"].as_str().map(|version| version.parse().expect("a version"))
    };
    outcomes.iter().map(version).collect()
}
