//! API servers, a database, and the workers.

use std::time::Duration;

use futures::future::try_join_all;
use integration::arrivals::{Arrivals, Change};
use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, Database, Postgres, Transport};
use integration::simulated::ApiServers;
use integration::{ControlPlane, Error, Link, Options as PlaneOptions, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::discovery::ApiResource;
use serde_json::Value;

use super::documents;
use crate::options::{Death, Scenario, SyncsetOptions};

/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);
/// What a server has as it is installed, and the statistics of statements.
const SETTINGS: [&str; 3] = ["autovacuum=on", "full_page_writes=on", "shared_preload_libraries=pg_stat_statements"];
/// The API servers are on loopback, and each stands for many clusters.
const SECTION: &str = "[syncsets]\ndeny_networks = []\nallow = [\"duplicates\"]";

/// What all phases use.
pub(crate) struct World {
    /// Real API servers.
    pub(crate) edges: Vec<ControlPlane>,
    /// One for each cluster, in their place.
    simulated: Option<Simulated>,
    pub(crate) server: Postgres,
    database: Database,
    /// An administrator's connection. What it does is counted as the database's CPU time, and never as a statement.
    pub(crate) sql: tokio_postgres::Client,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) clusters: usize,
}

/// Simulated API servers, and the ways to those that are going to die.
struct Simulated {
    servers: ApiServers,
    /// Dropped to refuse connections.
    refuses: Option<Link>,
    swallows: Link,
    deaths: Vec<Death>,
}

/// Whether a simulated cluster is one of those that die: one in ten.
pub(super) fn is_mortal(number: usize) -> bool {
    number.is_multiple_of(10)
}

impl World {
    /// Starts everything. There are no documents yet.
    pub(crate) async fn start(options: &SyncsetOptions, scenario: Scenario) -> Result<Self, Error> {
        let simulated = match scenario {
            Scenario::Real => None,
            Scenario::Simulated => Some(Simulated::start(options).await?),
        };
        let edges = if simulated.is_some() { 0 } else { options.edges };
        let start = |number: usize| Box::pin(ControlPlane::start(PlaneOptions::measured(&format!("edge-{number}"))));
        let edges = try_join_all((1..=edges).map(start)).await?;
        let server = Postgres::start_with("bench-syncsets", Transport::Plain, &SETTINGS).await?;
        let database = server.hub_database("bench_syncsets").await?;
        let sql = database.client(postgres::ADMIN).await?;
        let mut world =
            Self { edges, simulated, server, database, sql, replicas: Vec::new(), clusters: options.clusters };
        world.workers(1).await?;
        world.namespaces().await?;
        Ok(world)
    }

    /// Starts or ends replicas until there are so many.
    pub(crate) async fn workers(&mut self, count: usize) -> Result<(), Error> {
        while self.replicas.len() < count {
            let replica = Replica::run(&self.database, SECTION, &[]).await?;
            replica.wait_ready(LONGEST_STEP).await?;
            self.replicas.push(replica);
        }
        while self.replicas.len() > count {
            let Some(replica) = self.replicas.pop() else { break };
            replica.towline().terminate(LONGEST_STEP).await?;
        }
        Ok(())
    }

    /// Ends what was started, in order.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.workers(0).await
    }

    /// The API server of a cluster.
    pub(crate) fn edge(&self, number: usize) -> Result<&ControlPlane, Error> {
        let missing = || Error::Unreadable { what: "the API servers".to_owned(), detail: "there are none".to_owned() };
        self.edges.get(number % self.edges.len().max(1)).ok_or_else(missing)
    }

    /// A kubeconfig for a cluster.
    pub(crate) fn kubeconfig(&self, number: usize) -> Result<String, Error> {
        if let Some(simulated) = &self.simulated {
            return simulated.servers.kubeconfig(number, simulated.address(number));
        }
        let path = self.edge(number)?.kubeconfig(users::EDGE_CONTROLLER)?;
        std::fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    async fn namespaces(&self) -> Result<(), Error> {
        for (position, edge) in self.edges.iter().enumerate() {
            let api: Api<Namespace> = Api::all(edge.client(users::ADMIN).await?);
            for number in (0..self.clusters).filter(|number| number % self.edges.len() == position) {
                let metadata = ObjectMeta { name: Some(documents::name(number)), ..ObjectMeta::default() };
                let namespace = Namespace { metadata, ..Namespace::default() };
                api.create(&PostParams::default(), &namespace).await.map_err(Error::kubernetes("make a namespace"))?;
            }
        }
        Ok(())
    }

    /// A client of the hub.
    pub(crate) fn client(&self) -> Result<Client, Error> {
        let missing = || Error::Unreadable { what: "the hub".to_owned(), detail: "it does not run".to_owned() };
        self.replicas.first().map(Replica::client).ok_or_else(missing)
    }

    /// Sends a request that has to succeed.
    pub(crate) async fn send(&self, request: &Request) -> Result<(), Error> {
        self.client()?.send(request).await?.success().map(drop)
    }

    /// Registers all clusters, by several clients.
    pub(crate) async fn register(&self) -> Result<(), Error> {
        const CLIENTS: usize = 16;
        let one = async |share: usize| {
            let mut client = self.client()?;
            for number in (share..self.clusters).step_by(CLIENTS) {
                let document = documents::cluster(number, &self.kubeconfig(number)?);
                client.send(&Request::post("/v1/clusters", &document)).await?.success()?;
            }
            Ok::<_, Error>(())
        };
        try_join_all((0..CLIENTS).map(one)).await.map(drop)
    }

    /// Begins to watch a kind on all API servers; `mark` says what is noted of a change.
    pub(crate) async fn watch(
        &self,
        kind: &ApiResource,
        mark: impl Fn(&Change, &Value) -> Option<String> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<Arrivals>, Error> {
        let mut all = Vec::new();
        for edge in &self.edges {
            all.push(Arrivals::watch(&edge.client(users::ADMIN).await?, kind, mark.clone()).await?);
        }
        Ok(all)
    }

    /// The simulated API servers.
    pub(crate) fn simulated(&self) -> Result<&ApiServers, Error> {
        let missing =
            || Error::Unreadable { what: "the simulated API servers".to_owned(), detail: "there are none".to_owned() };
        self.simulated.as_ref().map(|simulated| &simulated.servers).ok_or_else(missing)
    }

    /// How a simulated cluster dies; none if it does not.
    pub(crate) fn death(&self, number: usize) -> Option<Death> {
        self.simulated.as_ref().and_then(|simulated| simulated.death(number))
    }

    /// From now on clusters behind links are dead.
    pub(crate) async fn cut_links(&mut self) -> Result<(), Error> {
        let Some(simulated) = &mut self.simulated else { return Ok(()) };
        drop(simulated.refuses.take());
        simulated.swallows.cut().await
    }

    /// Another connection of the administrator.
    pub(crate) async fn another_connection(&self) -> Result<tokio_postgres::Client, Error> {
        self.database.client(postgres::ADMIN).await
    }

    /// Waits until no work is left but full passes, and everything has a result. Clusters that do not answer are asked again and
    /// again, and don't count.
    pub(crate) async fn at_rest(&self) -> Result<(), Error> {
        const BUSY: &str = "SELECT count(*) FROM towline_work w LEFT JOIN towline_pace p USING (cluster) \
                            WHERE (w.holder IS NOT NULL OR w.ready_at <= now()) AND p.reachable IS DISTINCT FROM false";
        eventually("no work to be left", LONGEST_STEP, async || {
            let row = self.sql.query_one(BUSY, &[]).await.map_err(|error| error.to_string())?;
            let busy: i64 = row.get(0);
            if busy == 0 { Ok(()) } else { Err(format!("{busy} clusters")) }
        })
        .await
    }

    /// Waits until at least so many clusters are known to be silent.
    pub(crate) async fn silent(&self, clusters: usize) -> Result<(), Error> {
        eventually(format!("{clusters} clusters to be silent"), LONGEST_STEP, async || {
            let known = self.number("SELECT count(*) FROM towline_pace WHERE NOT reachable").await;
            match known {
                Ok(known) if usize::try_from(known).is_ok_and(|known| known >= clusters) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until all changes have been dispatched.
    pub(crate) async fn dispatched(&self) -> Result<(), Error> {
        const BEHIND: &str = "SELECT count(*) FROM towline_log WHERE version > (SELECT cursor FROM towline_claim WHERE name = 'dispatcher')";
        eventually("all changes to be dispatched", LONGEST_STEP, async || match self.number(BEHIND).await {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
    }

    /// A number from the database.
    pub(crate) async fn number(&self, query: &str) -> Result<i64, Error> {
        let row = self.sql.query_one(query, &[]).await.map_err(Error::database("read a number"))?;
        Ok(row.get(0))
    }

    /// Runs statements as the administrator.
    pub(crate) async fn execute(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.sql.batch_execute(sql).await.map_err(Error::database(what))
    }
}

impl Simulated {
    async fn start(options: &SyncsetOptions) -> Result<Self, Error> {
        let servers = ApiServers::start(options.clusters).await?;
        let (refuses, swallows) = (Link::to(servers.address()).await?, Link::to(servers.address()).await?);
        Ok(Self { servers, refuses: Some(refuses), swallows, deaths: options.dead.clone() })
    }

    fn death(&self, number: usize) -> Option<Death> {
        self.deaths.get(number / 10 % self.deaths.len().max(1)).copied().filter(|_| is_mortal(number))
    }

    /// Where a cluster is reached.
    fn address(&self, number: usize) -> std::net::SocketAddr {
        match self.death(number) {
            Some(Death::Refuses) => self.refuses.as_ref().map_or(self.servers.address(), Link::address),
            Some(Death::Swallows) => self.swallows.address(),
            _ => self.servers.address(),
        }
    }
}
