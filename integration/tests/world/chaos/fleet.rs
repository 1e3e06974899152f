//! The database, the edges, a hub with an API, workers, and clusters with their endpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, HUB, Transport};
use integration::soak::Random;
use integration::users::{ADMIN, EDGE_CONTROLLER};
use integration::{ControlPlane, Gateway, Postgres, Towline, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::chaos::claims::Claims;
use crate::chaos::endpoint::{Endpoint, Moment, Traffic, now};
use crate::chaos::oracle::{Data, Kind, Object};

pub(crate) use crate::run;

/// Longer than anything takes while two cores are busy with something else, and some claims have to run out.
pub(crate) const LIMIT: Duration = Duration::from_mins(4);

/// Clusters are spread over them. They are those of the other tests of syncsets, which stop the third one alone.
pub(crate) const EDGES: usize = 2;

/// The edge of a cluster.
pub(crate) async fn edge(number: usize) -> &'static ControlPlane {
    crate::syncsets::world::edge(number % EDGES).await
}

/// A cluster: a document, a namespace on an edge, and an endpoint.
#[derive(Debug)]
pub(crate) struct Place {
    /// Of the document.
    pub(crate) id: String,
    /// On the edge.
    pub(crate) namespace: String,
    pub(crate) endpoint: Endpoint,
}

/// Everything that a test has.
pub(crate) struct Fleet {
    /// Of its own, and the way by which all processes of the hub reach it.
    server: Postgres,
    gateway: Gateway,
    pub(crate) database: postgres::Database,
    /// A connection that is no worker's.
    pub(crate) sql: tokio_postgres::Client,
    /// It has the API and works on nothing, and nothing happens to it: so the outcome of every write is known.
    front: Replica,
    pub(crate) workers: Vec<Towline>,
    pub(crate) places: Vec<Place>,
    pub(crate) traffic: Traffic,
    /// The holder that each process was.
    pub(crate) holders: BTreeMap<i32, String>,
    /// Which process was thawed when.
    pub(crate) thawed: Vec<(i32, Moment)>,
    /// When a dump replaced everything: meanwhile no claim is noted.
    pub(crate) restored: Vec<(Moment, Moment)>,
}

impl Fleet {
    /// Without workers and clusters. The name is that of its database.
    pub(crate) async fn new(name: &str) -> Self {
        let server = Postgres::start(&format!("chaos-{name}"), Transport::Plain).await.unwrap();
        let database = server.hub_database(&format!("chaos_{name}")).await.unwrap();
        let gateway = Gateway::to(database.address()).await.unwrap();
        let url = database.url_by(HUB, &gateway.address().to_string());
        let front = Replica::run(&database, "", &[("TOWLINE__HUB__DATABASE_URL", &url)]).await.unwrap();
        front.wait_ready(LIMIT).await.unwrap();
        Claims::note(&database).await;
        let sql = database.client(postgres::ADMIN).await.unwrap();
        let (workers, places, traffic) = (Vec::new(), Vec::new(), Traffic::default());
        let (holders, thawed, restored) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { server, gateway, database, sql, front, workers, places, traffic, holders, thawed, restored }
    }

    pub(crate) fn client(&self) -> Client {
        self.front.client()
    }

    /// Sends a request that must succeed.
    pub(crate) async fn send(&self, request: &Request) -> Value {
        self.client().send(request).await.unwrap().success().unwrap().json().unwrap_or_default()
    }

    /// Adds a cluster with these labels, and `ns`, the namespace on its edge.
    pub(crate) async fn register(&mut self, namespace: &str, name: &str, labels: &BTreeMap<String, String>) {
        let number = self.places.len();
        let plane = edge(number).await;
        let on_edge = labels["ns"].clone();
        let namespaces: Api<Namespace> = Api::all(plane.client(ADMIN).await.unwrap());
        let made = serde_json::from_value(json!({"metadata": {"name": on_edge}})).unwrap();
        namespaces.create(&PostParams::default(), &made).await.unwrap();
        let client = plane.client(EDGE_CONTROLLER).await.unwrap();
        let random = Random::new(number as u64);
        let endpoint = Endpoint::start(&format!("identity-of-{on_edge}"), client, &self.traffic, random).await;
        let document =
            json!({"namespace": namespace, "name": name, "labels": labels, "kubeconfig": endpoint.kubeconfig("first")});
        let created = self.send(&Request::post("/v1/clusters", &document)).await;
        self.places.push(Place { id: created["id"].as_str().unwrap().to_owned(), namespace: on_edge, endpoint });
    }

    /// Adds a worker with these further keys of `[syncsets]`.
    pub(crate) async fn start_worker(&mut self, keys: &str) {
        let url = self.database.url_by(HUB, &self.gateway.address().to_string());
        let config = format!(
            "[hub]\ndatabase_url = \"{url}\"\nlisten = \"\"\n\n[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\n{keys}\n"
        );
        let towline = Towline::start(&config, &[]).await.unwrap();
        self.workers.push(towline);
        self.meet(self.workers.len() - 1).await;
    }

    /// Kills a worker and starts it again.
    pub(crate) async fn restart(&mut self, worker: usize) {
        let dead = self.holders[&self.workers[worker].process_id()].clone();
        self.workers[worker].kill9().await.unwrap();
        // Otherwise half a minute passes until another one is the dispatcher. One that starts asks at once, the others every ten seconds.
        let text = "update towline_claim set until = now() where name = 'dispatcher' and holder = $1 and until > now()";
        self.sql.execute(text, &[&dead]).await.unwrap();
        self.workers[worker].start_again().await.unwrap();
        self.meet(worker).await;
    }

    /// The worker that is the dispatcher, once there is one.
    pub(crate) async fn dispatcher(&self) -> usize {
        let text =
            "select holder from towline_claim where name = 'dispatcher' and holder is not null and until > now()";
        let leader = eventually("a dispatcher", LIMIT, async || {
            let row = self.sql.query_opt(text, &[]).await.map_err(|error| error.to_string())?;
            let holder = row.map(|row| row.get::<_, String>(0));
            let is_it = |worker: &Towline| self.holders.get(&worker.process_id()) == holder.as_ref();
            let found = self.workers.iter().position(is_it).filter(|_| holder.is_some());
            found.ok_or_else(|| format!("{holder:?} of {:?}", self.holders))
        });
        leader.await.unwrap()
    }

    pub(crate) fn thaw(&mut self, worker: usize) {
        let towline = &self.workers[worker];
        // Before it is: its first request may come at once.
        self.thawed.push((towline.process_id(), now()));
        towline.thaw().unwrap();
    }

    /// A standby that hears of each commit before anybody else does.
    pub(crate) async fn standby(&self) -> Postgres {
        let standby = self.server.standby("chaos-standby").await.unwrap();
        for statement in ["alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"] {
            self.sql.batch_execute(statement).await.unwrap();
        }
        let text =
            "select count(*) from pg_stat_replication where sync_state = 'sync' and flush_lsn >= pg_current_wal_lsn()";
        let follows = eventually("the standby to have everything", LIMIT, async || {
            let followers: i64 = self.sql.query_one(text, &[]).await.map_err(|error| error.to_string())?.get(0);
            if followers == 1 { Ok(()) } else { Err(format!("{followers} have")) }
        });
        follows.await.unwrap();
        standby
    }

    /// The database's server is killed, and its standby takes its place.
    pub(crate) async fn fail_over(&mut self, standby: Postgres) {
        self.server.kill().await.unwrap();
        standby.promote().await.unwrap();
        self.database = standby.copied_database(&self.database);
        self.gateway.lead_to(self.database.address());
        self.server = standby;
        self.is_renumbered().await;
    }

    /// The dump takes the place of all that there is, but for what was noted.
    pub(crate) async fn restore(&mut self, dump: &postgres::Dump) {
        let began = now();
        // Who drops an index while others read its table may be the victim of a deadlock, and goes on: then it is done again.
        let mut tries = 1;
        while let Err(error) = dump.replace(&self.database).await {
            assert!(tries < 5 && error.chain().contains("deadlock detected"), "{tries}: {}", error.chain());
            tries += 1;
        }
        self.restored.push((began, now()));
        self.is_renumbered().await;
    }

    /// Waits until the hub has seen that its database is another one, and answers again.
    async fn is_renumbered(&mut self) {
        self.sql = self.database.client(postgres::ADMIN).await.unwrap();
        let text = "select origin = towline_origin() from towline_meta";
        let renumbered = eventually("the database to be renumbered", LIMIT, async || {
            let row = self.sql.query_one(text, &[]).await.map_err(|error| error.to_string())?;
            if row.get(0) { Ok(()) } else { Err("it has another origin".to_owned()) }
        });
        renumbered.await.unwrap();
        let probe = json!({"namespace": "probes", "name": format!("of-{}", now()), "data": {}});
        let written = eventually("the hub to write again", LIMIT, async || {
            let reply =
                self.client().send(&Request::post("/v1/secrets", &probe)).await.map_err(|error| error.to_string())?;
            // Of one whose answer was lost.
            if [201, 409].contains(&reply.status) { Ok(()) } else { Err(format!("{reply:?}")) }
        });
        written.await.unwrap();
    }

    /// After it was renumbered, the database grants nothing for half a minute, since somebody may work under a claim from before. Ends that
    /// wait once nobody does, and nothing is on its way. Frozen workers have to be thawed before.
    pub(crate) async fn end_claims(&self) {
        // Twice: one that has just been thawed may read what it was granted after the first look.
        for _ in 0..2 {
            let given_up = eventually("all claims from before to be given up", LIMIT, async || {
                for worker in &self.workers {
                    let hub = worker.admin().section("hub").await.map_err(|error| error.to_string())?;
                    if [&hub["claims"], &hub["work_claims"]] != [&json!([]); 2] {
                        return Err(hub.to_string());
                    }
                }
                Ok(())
            });
            given_up.await.unwrap();
        }
        let _nothing_is_under_way = self.traffic.under_way.write().await;
        for table in ["towline_claim", "towline_work"] {
            let text = format!("update {table} set until = now() where holder is null and until > now()");
            self.sql.execute(&text, &[]).await.unwrap();
        }
    }

    /// Gets to know a process that has just been started.
    async fn meet(&mut self, worker: usize) {
        let towline = &self.workers[worker];
        let process = towline.process_id();
        self.traffic.processes.lock().push(process);
        towline.wait_ready(LIMIT).await.unwrap();
        let hub = towline.admin().section("hub").await.unwrap();
        self.holders.insert(process, hub["holder"].as_str().unwrap().to_owned());
    }

    /// The config maps, deployments and secrets in the namespace of a cluster.
    pub(crate) async fn held(&self, cluster: usize) -> BTreeMap<Object, Data> {
        let client = edge(cluster).await.client(ADMIN).await.unwrap();
        let namespace = &self.places[cluster].namespace;
        let (maps, secrets): (Api<ConfigMap>, Api<Secret>) =
            (Api::namespaced(client.clone(), namespace), Api::namespaced(client.clone(), namespace));
        let deployments: Api<Deployment> = Api::namespaced(client, namespace);
        let mut held = BTreeMap::new();
        for map in maps.list(&ListParams::default()).await.unwrap() {
            held.insert((Kind::ConfigMap, map.metadata.name.unwrap()), map.data.unwrap_or_default());
        }
        held.remove(&(Kind::ConfigMap, "kube-root-ca.crt".to_owned()));
        // Of a resource of another kind it is in annotations. Those of others have domains.
        let is_given = |(key, _): &(String, String)| !key.contains('/');
        for deployment in deployments.list(&ListParams::default()).await.unwrap() {
            let annotations = deployment.metadata.annotations.unwrap_or_default();
            held.insert(
                (Kind::Deployment, deployment.metadata.name.unwrap()),
                annotations.into_iter().filter(is_given).collect(),
            );
        }
        for secret in secrets.list(&ListParams::default()).await.unwrap() {
            let text = |(key, value): (String, k8s_openapi::ByteString)| (key, String::from_utf8(value.0).unwrap());
            let mut data: Data = secret.data.unwrap_or_default().into_iter().map(text).collect();
            data.extend(secret.metadata.annotations.unwrap_or_default().into_iter().filter(is_given));
            held.insert((Kind::Secret, secret.metadata.name.unwrap()), data);
        }
        held
    }

    pub(crate) fn log(&self) -> String {
        self.workers.iter().map(|worker| worker.log().unwrap()).collect()
    }
}
