//! The servers, and a database with a replica for each engine.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, Database, Transport};
use integration::{Error, Postgres, RabbitMq, eventually};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

pub(super) use crate::hub::world::LONGEST_STEP;

/// Between two looks at the database.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Clients that write at the same time.
const WRITERS: usize = 64;
/// Paused, so that workers have nothing to send.
const PAUSED: &str = "hive.openshift.io/syncset-pause";
/// What workers need.
const SYNCSETS: &str = "[syncsets]\ndeny_networks = []";

/// What carries events and work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    Postgres,
    Amqp,
}

impl Engine {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Amqp => "amqp",
        }
    }
}

/// What all runs share.
pub(super) struct Servers {
    database: Postgres,
    pub(super) broker: RabbitMq,
}

impl Servers {
    pub(super) async fn start() -> Result<Self, Error> {
        let settings = ["autovacuum=on", "full_page_writes=on"];
        let database = Postgres::start_with("bench-bus", Transport::Plain, &settings).await?;
        Ok(Self { database, broker: RabbitMq::start("bench-bus").await? })
    }
}

/// A database, and the replica that runs on it.
pub(super) struct World<'s> {
    pub(super) servers: &'s Servers,
    pub(super) engine: Engine,
    database: Database,
    name: String,
    /// An administrator's connection.
    pub(super) sql: tokio_postgres::Client,
    pub(super) replica: Replica,
}

/// CPU times.
pub(super) struct Meter {
    towline: Duration,
    database: Duration,
    broker: Duration,
}

/// CPU seconds, of the load generator aside.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cost {
    pub(super) towline: f64,
    pub(super) database: f64,
    pub(super) broker: f64,
}

impl<'s> World<'s> {
    /// Makes a database and starts a replica without workers, which makes the schema.
    pub(super) async fn begin(servers: &'s Servers, name: &str, engine: Engine) -> Result<Self, Error> {
        let database = servers.database.hub_database(name).await?;
        let sql = database.client(postgres::ADMIN).await?;
        let replica = start(servers, &database, engine, "").await?;
        Ok(Self { servers, engine, database, name: name.to_owned(), sql, replica })
    }

    /// Another replica takes the place of the first one, with workers.
    pub(super) async fn start_workers(&mut self) -> Result<(), Error> {
        self.replica.towline().terminate(LONGEST_STEP).await?;
        self.replica = start(self.servers, &self.database, self.engine, SYNCSETS).await?;
        Ok(())
    }

    /// Ends the replica and removes the database.
    pub(super) async fn end(self) -> Result<(), Error> {
        self.replica.towline().terminate(LONGEST_STEP).await?;
        drop(self.sql);
        let admin = self.servers.database.maintenance().await?;
        let drop_database = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        admin.batch_execute(&drop_database).await.map_err(Error::database("remove a database"))
    }

    /// Creates clusters.
    pub(super) async fn create(&self, clusters: usize) -> Result<(), Error> {
        self.by_writers(clusters, |number| {
            let cluster = json!({
                "namespace": "fleet", "name": name(number), "kubeconfig": "none",
                "annotations": {PAUSED: "true"}, "labels": {"group": format!("g{}", number % 100)},
            });
            Request::post("/v1/clusters", &cluster)
        })
        .await
    }

    /// Changes each of so many clusters once.
    pub(super) async fn change(&self, clusters: usize, round: &str) -> Result<(), Error> {
        self.by_writers(clusters, |number| change(number, round)).await
    }

    async fn by_writers(&self, clusters: usize, request: impl Fn(usize) -> Request) -> Result<(), Error> {
        let request = &request;
        let writer = |writer: usize| async move {
            let mut client: Client = self.replica.client();
            for number in (writer..clusters).step_by(WRITERS) {
                client.send(&request(number)).await?.success()?;
            }
            Ok::<(), Error>(())
        };
        try_join_all((0..WRITERS).map(writer)).await.map(drop)
    }

    /// The first column of the only row.
    pub(super) async fn number(&self, sql: &str) -> Result<i64, Error> {
        Ok(self.sql.query_one(sql, &[]).await.map_err(Error::database("read a number"))?.get(0))
    }

    /// Waits until the replica has all its connections to the broker, if it uses one.
    pub(super) async fn connected(&self) -> Result<(), Error> {
        if self.engine == Engine::Postgres {
            return Ok(());
        }
        eventually("the replica to be connected to the broker", LONGEST_STEP, async || {
            let hub = self.replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
            let text = hub.to_string();
            let is_ready = |connection: &str| text.contains(&format!("\"{connection}\":{{\"detail\":\"connected\""));
            if ["relay", "worker"].into_iter().all(is_ready) { Ok(()) } else { Err(text) }
        })
        .await
    }

    /// Waits until a query gives 0.
    pub(super) async fn becomes_none(&self, what: &str, sql: &str) -> Result<(), Error> {
        let deadline = Instant::now() + LONGEST_STEP;
        loop {
            let left = self.number(sql).await?;
            if left == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                let detail = format!("{left} are left");
                return Err(Error::Unreadable { what: what.to_owned(), detail });
            }
            sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn meter(&self) -> Result<Meter, Error> {
        Ok(Meter {
            towline: self.replica.towline().usage()?.cpu,
            database: self.servers.database.cpu()?,
            broker: self.servers.broker.cpu()?,
        })
    }
}

impl Meter {
    pub(super) fn end(self, world: &World<'_>) -> Result<Cost, Error> {
        let now = world.meter()?;
        let since = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
        Ok(Cost {
            towline: since(self.towline, now.towline),
            database: since(self.database, now.database),
            broker: since(self.broker, now.broker),
        })
    }
}

impl Cost {
    /// For a line of progress.
    pub(super) fn line(&self) -> String {
        format!("CPU s: towline {:.2}, database {:.2}, broker {:.2}", self.towline, self.database, self.broker)
    }
}

/// A change of a cluster that no other round makes.
pub(super) fn change(number: usize, round: &str) -> Request {
    let change = json!({"annotations": {"example.org/change": round}});
    Request::merge_patch(&format!("/v1/clusters/fleet/{}", name(number)), &change)
}

fn name(number: usize) -> String {
    format!("cluster-{number:06}")
}

async fn start(servers: &Servers, database: &Database, engine: Engine, sections: &str) -> Result<Replica, Error> {
    let sections = match engine {
        Engine::Postgres => sections.to_owned(),
        Engine::Amqp => format!("bus = \"amqp\"\namqp_url = {:?}\n{sections}", servers.broker.url()),
    };
    let replica = Replica::run(database, &sections, &[]).await?;
    replica.wait_ready(LONGEST_STEP).await?;
    Ok(replica)
}
