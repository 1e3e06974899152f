//! The server, and what a test has of it.

use std::time::Duration;

use integration::postgres::{self, ADMIN, Transport};
use integration::{Postgres, eventually};
use tokio::sync::OnceCell;
use tokio_postgres::Client;
use towline::test_api::db::{Database, DatabaseSource};

pub(crate) use crate::run;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

static SERVER: OnceCell<Postgres> = OnceCell::const_new();

/// A test's database.
pub(crate) struct Stage {
    pub(crate) place: postgres::Database,
    /// A connection that is not of the layer under test.
    pub(crate) sql: Client,
}

impl Stage {
    /// An empty database of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        let start = async || Postgres::start("db", Transport::Both).await.expect("a server");
        Self::on(SERVER.get_or_init(start).await, name).await
    }

    /// The same on another server.
    pub(crate) async fn on(server: &Postgres, name: &str) -> Self {
        let place = server.empty_database(name).await.expect("a database");
        let sql = place.client(ADMIN).await.expect("a connection");
        Self { place, sql }
    }

    /// The layer under test, with further parameters of the connection string.
    pub(crate) fn database(&self, parameters: &str) -> Database {
        Database::new(source(&format!("{}?{parameters}", self.place.url(ADMIN))))
    }

    /// The first column of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
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
}

/// Where a connection string leads.
pub(crate) fn source(text: &str) -> DatabaseSource {
    DatabaseSource::Url(Box::new(text.parse().unwrap_or_else(|error| panic!("{error}"))))
}

/// The server process behind a connection of the pool.
pub(crate) async fn pid(database: &Database) -> i32 {
    database.all("pid", "SELECT pg_backend_pid()", &[]).await.expect("a row")[0].get(0)
}
