//! The servers that tests share, each started by the first test that needs it.
//!
//! A database of them begins with the schema of the documents: it is in `template1`, of which each is a copy. A test that needs an empty
//! database has one of [`crate::db`]'s server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use integration::postgres::{ADMIN, HUB, Transport};
use integration::{Postgres, RabbitMq, eventually};
use tokio::sync::OnceCell;
use towline::test_api::db::DatabaseSource;
use towline::test_api::documents;

const LIMIT: Duration = Duration::from_mins(2);

/// For tests of the library. It counts statements, and keeps no more of them than these tests send.
pub(crate) async fn of_library() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER.get_or_init(async || with_schema("library").await).await
}

/// For tests of whole processes.
pub(crate) async fn of_hubs() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER.get_or_init(async || with_schema("hubs").await).await
}

async fn with_schema(name: &str) -> Postgres {
    let server = Postgres::start(name, Transport::Plain).await.expect("a server");
    let first = server.empty_database("beside_template").await.expect("a database");
    let admin = first.client(ADMIN).await.expect("a connection");
    admin.batch_execute(&format!("alter database template1 owner to {HUB}")).await.expect("it is given away");
    let url =
        first.url(HUB).replace("/beside_template", "/template1").parse().unwrap_or_else(|error| panic!("{error}"));
    let template = documents::open(DatabaseSource::Url(Box::new(url)));
    documents::migrate(&template, LIMIT).await.expect("the schema");
    drop(template);
    // Nobody may be connected to it while copies are made.
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = 'template1'";
    eventually("the template to be left", LIMIT, async || {
        match admin.query_one(end, &[]).await.map_err(|error| error.to_string())?.get::<_, i64>(0) {
            0 => Ok(()),
            connected => Err(connected.to_string()),
        }
    })
    .await
    .expect("nobody");
    server
}

/// A message broker. Tests have virtual hosts of it to themselves.
pub(crate) async fn broker() -> Arc<RabbitMq> {
    static BROKER: OnceCell<Arc<RabbitMq>> = OnceCell::const_new();
    BROKER.get_or_init(async || Arc::new(RabbitMq::start("shared").await.expect("a broker"))).await.clone()
}

/// A virtual host that no other test has.
pub(crate) async fn vhost() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    broker().await.add_vhost(&name).await.expect("a virtual host");
    name
}
