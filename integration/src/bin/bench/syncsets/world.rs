//! API servers, a database, and the workers.

use std::time::Duration;

use futures::future::try_join_all;
use integration::arrivals::{Arrivals, Change};
use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, Database, Postgres, Transport};
use integration::{ControlPlane, Error, Options as PlaneOptions, eventually, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::discovery::ApiResource;
use serde_json::Value;

use super::documents;
use crate::options::SyncsetOptions;

/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);
/// What a server has as it is installed, and the statistics of statements.
const SETTINGS: [&str; 3] = ["autovacuum=on", "full_page_writes=on", "shared_preload_libraries=pg_stat_statements"];
/// The API servers are on loopback.
const SECTION: &str = "[syncsets]\ndeny_networks = []";

/// What all phases use.
pub(crate) struct World {
    pub(crate) edges: Vec<ControlPlane>,
    pub(crate) server: Postgres,
    database: Database,
    /// An administrator's connection. What it does is counted as the database's CPU time, and never as a statement.
    pub(crate) sql: tokio_postgres::Client,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) clusters: usize,
}

impl World {
    /// Starts everything. There are no documents yet.
    pub(crate) async fn start(options: &SyncsetOptions) -> Result<Self, Error> {
        let start = |number: usize| Box::pin(ControlPlane::start(PlaneOptions::measured(&format!("edge-{number}"))));
        let edges = try_join_all((1..=options.edges).map(start)).await?;
        let server = Postgres::start_with("bench-syncsets", Transport::Plain, &SETTINGS).await?;
        let database = server.hub_database("bench_syncsets").await?;
        let sql = database.client(postgres::ADMIN).await?;
        let mut world = Self { edges, server, database, sql, replicas: Vec::new(), clusters: options.clusters };
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

    /// Waits until no work is left but full passes, and everything has a result.
    pub(crate) async fn at_rest(&self) -> Result<(), Error> {
        const BUSY: &str = "SELECT count(*) FROM towline_work WHERE holder IS NOT NULL OR ready_at <= now()";
        eventually("no work to be left", LONGEST_STEP, async || {
            let row = self.sql.query_one(BUSY, &[]).await.map_err(|error| error.to_string())?;
            let busy: i64 = row.get(0);
            if busy == 0 { Ok(()) } else { Err(format!("{busy} clusters")) }
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
