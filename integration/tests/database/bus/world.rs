//! The servers, and what a test has of them.

use std::sync::Arc;
use std::time::Duration;

use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, ADMIN, HUB, Transport};
use integration::{Postgres, RabbitMq, eventually};
use serde_json::{Value, json};
use towline::test_api::db::DatabaseSource;
use towline::test_api::documents;

pub(crate) use crate::run;
use crate::servers;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A database with the schema in it, and a virtual host of a broker. Servers are shared, but for tests that hurt them.
pub(crate) struct World {
    pub(crate) place: postgres::Database,
    pub(crate) broker: Arc<RabbitMq>,
    pub(crate) vhost: String,
    server: Option<Postgres>,
}

impl World {
    /// On the servers that tests share.
    pub(crate) async fn new(name: &str) -> Self {
        let place = servers::of_hubs().await.hub_database(&format!("bus_{name}")).await.expect("a database");
        Self { place, broker: servers::broker().await, vhost: servers::vhost().await, server: None }
    }

    /// On servers of its own, with further lines of the broker's configuration.
    pub(crate) async fn alone(name: &str, settings: &str) -> Self {
        let (server, broker) =
            tokio::join!(Postgres::start(name, Transport::Plain), RabbitMq::start_with(name, settings));
        let (server, broker) = (server.expect("a server"), Arc::new(broker.expect("a broker")));
        let place = server.hub_database(name).await.expect("a database");
        let source = DatabaseSource::Url(Box::new(place.url(HUB).parse().unwrap_or_else(|error| panic!("{error}"))));
        documents::migrate(&documents::open(source), LIMIT).await.expect("the schema");
        Self { place, broker, vhost: "%2F".to_owned(), server: Some(server) }
    }

    /// The database server that it has to itself.
    pub(crate) fn server(&self) -> &Postgres {
        self.server.as_ref().expect("it is alone")
    }

    /// The URL of the virtual host.
    pub(crate) fn url(&self) -> String {
        self.broker.url_of(&self.vhost)
    }

    /// A replica that uses the broker and is ready.
    pub(crate) async fn replica(&self) -> Replica {
        self.replica_at(&self.url()).await
    }

    /// One whose relay has published, so that further events are the only ones.
    pub(crate) async fn relaying(&self) -> Replica {
        let replica = self.replica().await;
        create(&mut replica.client(), "first").await;
        self.relayed().await;
        replica
    }

    /// The same with another URL of the broker.
    pub(crate) async fn replica_at(&self, url: &str) -> Replica {
        let replica = Replica::start(&self.place, &[("AMQP_URL", url)]).await.expect("it starts");
        ready(&replica).await;
        replica
    }

    /// The first column of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let client = self.place.client(ADMIN).await.expect("a connection");
        client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        let client = self.place.client(ADMIN).await.expect("a connection");
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Waits until so many clusters that can't be reached have been reconciled.
    pub(crate) async fn reconciled(&self, count: i64) {
        eventually(format!("{count} clusters to be reconciled"), LIMIT, async || {
            match self.number("select count(*) from towline_cluster where not reachable").await {
                found if found == count => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await
        .unwrap();
    }

    /// The versions of the log's changes of clusters above one and up to another.
    pub(crate) async fn changes(&self, above: i64, to: i64) -> Vec<i64> {
        let client = self.place.client(ADMIN).await.expect("a connection");
        let text = "select version from towline_log where kind = 'clusters' and version > $1 and version <= $2 order by version";
        let rows = client.query(text, &[&above, &to]).await.expect("the log");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until the relay has published everything.
    pub(crate) async fn relayed(&self) {
        const BEHIND: &str =
            "select count(*) from towline_log where version > (select cursor from towline_claim where name = 'relay')";
        eventually("the relay to publish everything", LIMIT, async || match self.number(BEHIND).await {
            0 if self.number("select cursor from towline_claim where name = 'relay'").await > 0 => Ok(()),
            behind => Err(format!("{behind} rows behind")),
        })
        .await
        .unwrap();
    }
}

/// Waits until the hub of a replica is ready.
pub(crate) async fn ready(replica: &Replica) {
    replica.wait_ready(LIMIT).await.expect("it is ready");
    let admin = replica.towline().admin();
    eventually("the hub to be ready", LIMIT, async || {
        let answer = admin.section_readyz("hub").await.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await
    .unwrap();
}

/// Waits until a replica has no use for a connection any more.
pub(crate) async fn leaves(replica: &Replica, connection: &str) {
    eventually(format!("{connection} to be unused"), LIMIT, async || {
        let section = replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
        let connections = find(&section, "connections").unwrap_or_default();
        if connections.get(connection).is_none() { Ok(()) } else { Err(section.to_string()) }
    })
    .await
    .unwrap();
}

/// Waits until a connection of a replica stands so, and the detail contains a text.
pub(crate) async fn stands(replica: &Replica, connection: &str, state: &str, detail: &str) {
    eventually(format!("{connection} to be {state}"), LIMIT, async || {
        let section = replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
        let found =
            find(&section, "connections").map(|connections| connections[connection].clone()).unwrap_or_default();
        let holds = found["state"] == state && found["detail"].as_str().is_some_and(|text| text.contains(detail));
        if holds { Ok(()) } else { Err(section.to_string()) }
    })
    .await
    .unwrap();
}

/// A field anywhere in a document.
pub(crate) fn find(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            fields.get(name).cloned().or_else(|| fields.values().find_map(|inner| find(inner, name)))
        }
        Value::Array(elements) => elements.iter().find_map(|inner| find(inner, name)),
        _ => None,
    }
}

/// The value of a series, by the beginning of its line; 0 if there is none.
pub(crate) async fn metric(replica: &Replica, series: &str) -> f64 {
    let text = replica.towline().admin().metrics().await.expect("metrics");
    let line = text.lines().find(|line| line.starts_with(series));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

/// The section of syncsets, so that a replica has workers.
pub(crate) const SYNCSETS: &str = "[syncsets]\nallow = [\"local-networks\"]\nrequest_timeout = \"5s\"";

/// Creates a cluster that can't be reached, which only a reconcile finds out.
pub(crate) async fn create_unreachable(client: &mut Client, name: &str) {
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"token": "t"}}], "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    let cluster = json!({"namespace": "foo", "name": name, "kubeconfig": kubeconfig.to_string()});
    client.send(&Request::post("/v1/clusters", &cluster)).await.expect("an answer").success().expect("created");
}

/// Creates a cluster and returns its version.
pub(crate) async fn create(client: &mut Client, name: &str) -> i64 {
    let cluster = json!({"namespace": "foo", "name": name, "kubeconfig": "hunter2"});
    let reply = client.send(&Request::post("/v1/clusters", &cluster)).await.expect("an answer");
    reply.success().expect("created").version().expect("a version").cast_signed()
}

/// Changes a label of a cluster and returns its version.
pub(crate) async fn label(client: &mut Client, name: &str, value: &str) -> i64 {
    let changes = json!({"labels": {"a": value}});
    let reply =
        client.send(&Request::merge_patch(&format!("/v1/clusters/foo/{name}"), &changes)).await.expect("an answer");
    reply.success().expect("changed").version().expect("a version").cast_signed()
}
