//! The server, and what a test has of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use integration::postgres::{self, ADMIN};
use integration::{Postgres, eventually};
use serde_json::{Map, json};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use towline::test_api::actor::Scope;
use towline::test_api::db::{Database, DatabaseSource};
use towline::test_api::documents::{self, Change, Expected, Item, Key, Kind, Outcome, Row, Tail, Writer, WriterHandle};

pub(crate) use crate::run;
use crate::servers::of_library;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

static IDS: AtomicU64 = AtomicU64::new(1);

/// A test's database, with the schema of the documents.
pub(crate) struct Stage {
    pub(crate) place: postgres::Database,
    /// A connection that is not of the layer under test.
    pub(crate) sql: Client,
}

impl Stage {
    /// A database of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        Self::of(of_library().await.empty_database(name).await.expect("a database")).await
    }

    /// The same on another server.
    pub(crate) async fn on(server: &Postgres, name: &str) -> Self {
        let stage = Self::of(server.empty_database(name).await.expect("a database")).await;
        documents::migrate(&stage.database(), LIMIT).await.expect("the schema");
        stage
    }

    /// A database with nothing in it.
    pub(crate) async fn empty(name: &str) -> Self {
        Self::of(crate::db::world::Stage::new(name).await.place).await
    }

    /// A database that exists.
    pub(crate) async fn of(place: postgres::Database) -> Self {
        let sql = place.client(ADMIN).await.expect("a connection");
        Self { place, sql }
    }

    /// The database as the hub opens it.
    pub(crate) fn database(&self) -> Database {
        documents::open(source(&self.place.url(ADMIN)))
    }

    /// A writer of its own.
    pub(crate) fn writer(&self) -> Written {
        Written::to(self.database())
    }

    /// The first column of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// The first column of all rows.
    pub(crate) async fn numbers(&self, sql: &str) -> Vec<i64> {
        let rows = self.sql.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// How many versions each transaction has written so far.
    pub(crate) async fn sizes(&self) -> Vec<i64> {
        self.numbers("select count(*) from towline_log group by xmin order by min(version)").await
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
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

    /// Keeps all writers waiting until [`Stage::let_write`].
    pub(crate) async fn block_writers(&self) {
        self.run("select pg_advisory_lock('towline_log'::regclass::bigint)").await;
    }

    /// Ends [`Stage::block_writers`].
    pub(crate) async fn let_write(&self) {
        self.run("select pg_advisory_unlock('towline_log'::regclass::bigint)").await;
    }

    /// Waits until so many calls wait for the lock of the log.
    pub(crate) async fn calls_wait(&self, calls: i64) {
        let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
             where d.datname = current_database() and l.locktype = 'advisory' and not granted";
        self.becomes("a call to wait for the lock of the log", waiting, calls).await;
    }
}

/// Where a connection string leads.
pub(crate) fn source(text: &str) -> DatabaseSource {
    DatabaseSource::Url(Box::new(text.parse().unwrap_or_else(|error| panic!("{error}"))))
}

/// A running writer. Aborted when dropped.
pub(crate) struct Written {
    pub(crate) handle: WriterHandle,
    /// Asks it to drain.
    pub(crate) drain: Box<dyn Fn() + Send + Sync>,
    pub(crate) body: JoinHandle<()>,
}

impl Written {
    pub(crate) fn to(database: Database) -> Self {
        Self::run(database, |writer| writer)
    }

    /// The same for one that knows what this tail has read.
    pub(crate) fn above(database: Database, tail: Tail) -> Self {
        Self::run(database, |writer| writer.above(tail))
    }

    fn run(database: Database, with: impl FnOnce(Writer) -> Writer) -> Self {
        let (writer, handle) = Writer::new(database);
        let writer = with(writer);
        let (scope, drain) = Scope::standalone("writer");
        let body = tokio::spawn(async move { writer.run(scope).await.expect("the writer does not fail") });
        Self { handle, drain: Box::new(move || drain.cancel()), body }
    }

    /// Writes an item, which must succeed, and returns its version.
    pub(crate) async fn version(&self, item: Item) -> i64 {
        match self.handle.write(item).await.expect("it is written") {
            Outcome::Written { version, .. } => version,
            other => panic!("{other:?}"),
        }
    }

    /// Sends an item in the background.
    pub(crate) fn send(&self, item: Item) -> JoinHandle<Result<Outcome, documents::WriteError>> {
        let handle = self.handle.clone();
        tokio::spawn(async move { handle.write(item).await })
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.body.abort();
    }
}

/// A UUID that no other call gives, as text.
pub(crate) fn fresh_id() -> String {
    let number = IDS.fetch_add(1, Ordering::Relaxed);
    format!("00000000-0000-4000-8000-{number:012x}")
}

pub(crate) fn cluster(name: &str) -> Key {
    Key::new(Kind::Cluster, "foo", name)
}

pub(crate) fn row() -> Row {
    Row {
        id: fresh_id().parse().expect("a UUID"),
        labels: BTreeMap::from([("env".to_owned(), "prod".to_owned())]),
        annotations: BTreeMap::new(),
        finalizers: Vec::new(),
        generation: 1,
        deleted_at: None,
        data: Map::from_iter([("paused".to_owned(), json!(false))]),
        status: Map::new(),
        sealed: None,
    }
}

pub(crate) fn item(changes: Vec<Change>) -> Item {
    Item::of(fresh_id().parse().expect("a UUID"), changes)
}

/// An item that creates a cluster.
pub(crate) fn create(name: &str) -> Item {
    item(vec![Change::put(&cluster(name), Expected::Absent, row())])
}

/// An item that writes a cluster, whatever is there.
pub(crate) fn put(name: &str) -> Item {
    item(vec![Change::put(&cluster(name), Expected::Any, row())])
}
