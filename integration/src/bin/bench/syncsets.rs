//! Syncsets: how fast changes of documents are on clusters, and what that costs the worker, PostgreSQL and the API servers.
//!
//! A few real API servers stand for many clusters: each document leads to one of them, and templates keep the documents' objects apart in
//! namespaces of their own. A `SelectorSyncSet` has ten config maps and a mapped secret. Times are from before the request to the hub to
//! the arrival of the last object at a watch.
//!
//! A rollout changes a config map and a Deployment without replicas, which has to become available, in waves of 20, 30 and 50 percent of the
//! clusters, of each of which half change at a time. Beside it an object of one cluster changes again and again.
//! Readings of the health of three Deployments or more list those of all clusters that share an API server. So with more than two rollouts to a
//! cluster, which is 20 to a tenth of the clusters each, this measures that, too.

use std::cell::Cell;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::{try_join, try_join_all};
use integration::arrivals::{Arrivals, Change};
use integration::hub::Request;
use integration::load::{Write, burst};
use integration::{ControlPlane, Error, Options as PlaneOptions, eventually, users};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::sync::mpsc::channel;

use crate::hub_world::{HubWorld, LONGEST_STEP, start_server};
use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "one PostgreSQL server with the settings that it is installed with but for fsync, which is off; API servers and the \
                       workers on this machine over loopback; a SelectorSyncSet of ten config maps and a mapped secret; towline's release \
                       build";
/// The API servers are on loopback, and each stands for many clusters.
const SECTION: &str = "[syncsets]\nallow = [\"local-networks\", \"duplicates\"]";
/// The namespace of all documents.
const FLEET: &str = "fleet";
/// Config maps of the `SelectorSyncSet`.
const MAPS: usize = 10;
/// Clients that register clusters at once.
const CLIENTS: usize = 16;
/// Between two changes of one object beside rollouts.
const BETWEEN_CHANGES: Duration = Duration::from_millis(200);

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("syncsets", SETTING);
    let server = start_server("bench-syncsets", false).await?;
    let clusters = options.clusters.unwrap_or(100);
    for number in 1..=options.runs {
        let hub = HubWorld::begin(&server, &format!("bench_{number}"), SECTION, options.replicas).await?;
        let start = |number: usize| Box::pin(ControlPlane::start(PlaneOptions::measured(&format!("edge-{number}"))));
        let edges = try_join_all((1..=options.edges).map(start)).await?;
        let mut world = Syncsets { options, hub, edges, clusters };
        world.make_namespaces().await?;
        runner::run(&mut world, &format!("{clusters} on {}", options.edges), "", &mut table).await?;
        world.hub.end().await?;
    }
    Ok(table)
}

struct Syncsets<'s> {
    options: &'s Options,
    hub: HubWorld<'s>,
    edges: Vec<ControlPlane>,
    clusters: usize,
}

#[derive(Clone, Copy)]
enum Step {
    /// Clusters are registered and found to answer.
    Register,
    FirstApply,
    /// One object of the `SelectorSyncSet` changes on all clusters.
    ChangeAll,
    FullPass,
    /// The secret has one object on each API server, which the clusters there share.
    ChangeSecret,
    /// A `SyncSet` for one cluster changes again and again.
    ChangeObject,
    /// A label of one cluster, on which an object depends, changes again and again.
    ChangeLabel,
    Idle,
    /// The last object leaves the `SelectorSyncSet`.
    Remove,
    /// The replicas are ended and started with everything in step.
    Restart,
    /// So many rollouts at once, each of which is for one of so many shares of the clusters.
    RollOut {
        rollouts: usize,
        shares: usize,
    },
}

impl World for Syncsets<'_> {
    type Step = Step;
    type Ready = Vec<Arrivals>;

    fn phases(&self) -> Vec<Phase<Step>> {
        let mut phases = vec![
            Phase::new("clusters registered", Step::Register, "clusters"),
            Phase::new("first apply", Step::FirstApply, "clusters"),
            Phase::new("one of eleven objects changed", Step::ChangeAll, "clusters"),
            Phase::new("full pass of all", Step::FullPass, "clusters"),
            Phase::new("mapped secret changed", Step::ChangeSecret, "clusters"),
            Phase::new("one object on one cluster", Step::ChangeObject, "changes"),
            Phase::new("one label of one cluster", Step::ChangeLabel, "changes"),
            Phase::new(format!("idle, {} s", self.options.idle.as_secs()), Step::Idle, ""),
            Phase::new("one object removed", Step::Remove, "clusters"),
            Phase::new("start in step", Step::Restart, ""),
        ];
        if let Some(rollouts) = self.options.rollouts {
            phases.push(Phase::new("rollout", Step::RollOut { rollouts: 1, shares: 1 }, "clusters"));
            if rollouts > 1 {
                let name = format!("{rollouts} rollouts at once, a tenth each");
                phases.push(Phase::new(name, Step::RollOut { rollouts, shares: 10 }, "turns"));
            }
        }
        phases
    }

    fn probes(&self) -> Probes<'_> {
        let planes = self.edges.iter().map(|edge| (edge, users::EDGE_CONTROLLER)).collect();
        Probes { planes, ..self.hub.probes() }
    }

    /// No work is left but full passes, and all changes have been dispatched.
    async fn settled(&self) -> Result<(), Error> {
        const BUSY: &str = "SELECT (SELECT count(*) FROM towline_work WHERE holder IS NOT NULL OR ready_at <= now()) + \
                            (SELECT count(*) FROM towline_log WHERE version > \
                             (SELECT coalesce(max(cursor), 0) FROM towline_claim WHERE name = 'dispatcher'))";
        self.hub.wait_for("no work to be left", BUSY, |busy| busy == 0).await
    }

    async fn prepare(&mut self, step: Step) -> Result<Vec<Arrivals>, Error> {
        let single = format!("/v1/syncsets/{FLEET}/single");
        match step {
            Step::Register => {
                self.hub.send(&Request::post("/v1/secrets", &secret("0"))).await?;
                Ok(Vec::new())
            }
            Step::FirstApply => {
                self.hub.execute("vacuum", "VACUUM (ANALYZE)").await?;
                self.watch(&config_maps(), with_value("1".to_owned())).await
            }
            Step::ChangeAll => self.watch(&config_maps(), with_value("2".to_owned())).await,
            Step::ChangeSecret => {
                self.watch(&ApiResource::erase::<Secret>(&()), with_value(STANDARD.encode("1"))).await
            }
            Step::ChangeObject => {
                let maps = self.watch(&config_maps(), single_value).await?;
                self.hub.send(&Request::post("/v1/syncsets", &syncset("s0"))).await?;
                last_of(&maps, 1).await?;
                Ok(maps)
            }
            Step::ChangeLabel => {
                let maps = self.watch(&config_maps(), single_value).await?;
                let spec = resources(&syncset("{{ fromCDLabel \"round\" }}"));
                self.hub.send(&Request::merge_patch(&single, &spec)).await?;
                last_of(&maps, 1).await?;
                Ok(maps)
            }
            Step::Remove => self.watch(&config_maps(), deleted).await,
            Step::RollOut { rollouts, shares } => {
                // Rollouts before have their health read for a while.
                let unsettled = "SELECT count(*) FROM towline_result WHERE health->>'next' IS NOT NULL";
                self.hub.wait_for("all health to be settled", unsettled, |left| left == 0).await?;
                // Without a rollout, all clusters have the first content at once.
                let create = |number| Ok(Request::post("/v1/selectorsyncsets", &rolled(number, shares, "1")));
                self.hub.by_clients(CLIENTS, 0..rollouts, create, |_, _| Ok(())).await?;
                let add = |number| Ok(Request::merge_patch(&rolled_path(number, shares), &waves()));
                self.hub.by_clients(CLIENTS, 0..rollouts, add, |_, _| Ok(())).await?;
                self.watch(&config_maps(), single_value).await
            }
            Step::FullPass | Step::Idle | Step::Restart => Ok(Vec::new()),
        }
    }

    async fn perform(&mut self, step: Step, seen: Vec<Arrivals>) -> Result<Done, Error> {
        let (began, all) = (Instant::now(), self.clusters);
        let base = "/v1/selectorsyncsets/base";
        match step {
            Step::Register => self.register().await?,
            Step::FirstApply => {
                self.hub.send(&Request::post("/v1/selectorsyncsets", &selector_syncset("1", MAPS))).await?;
                last_of(&seen, MAPS * all).await?;
            }
            Step::ChangeAll => {
                self.hub.send(&Request::merge_patch(base, &resources(&selector_syncset("2", MAPS)))).await?;
                last_of(&seen, all).await?;
            }
            Step::FullPass => self.full_pass().await?,
            Step::ChangeSecret => {
                let data = json!({"data": secret("1").get("data")});
                self.hub.send(&Request::merge_patch(&format!("/v1/secrets/{FLEET}/pull"), &data)).await?;
                last_of(&seen, self.edges.len()).await?;
            }
            Step::ChangeObject => {
                let change = |round: usize| resources(&syncset(&format!("s{round}")));
                return self.one_by_one(&seen, &format!("/v1/syncsets/{FLEET}/single"), change).await;
            }
            Step::ChangeLabel => {
                let change = |round: usize| json!({"labels": {"round": format!("l{round}")}});
                return self.one_by_one(&seen, &format!("/v1/clusters/{FLEET}/{}", name(0)), change).await;
            }
            Step::Idle => {
                tokio::time::sleep(self.options.idle).await;
                return Ok(Done::default());
            }
            Step::Remove => {
                self.hub.send(&Request::merge_patch(base, &resources(&selector_syncset("2", MAPS - 1)))).await?;
                last_of(&seen, all).await?;
            }
            Step::Restart => {
                let time = self.hub.restart().await?;
                return Ok(Done { time: Some(time), ..Done::default() });
            }
            Step::RollOut { rollouts, shares } => {
                let turns = (0..rollouts).map(|number| (number % shares..all).step_by(shares).count()).sum();
                let (time, delays) = self.with_controllers(turns, self.roll_out(rollouts, shares, &seen)).await?;
                return Ok(Done { changes: Some(turns), time: Some(time), delays });
            }
        }
        let last = seen.iter().flat_map(|seen| seen.all().into_values()).max().unwrap_or_else(Instant::now);
        Ok(Done { changes: Some(all), time: Some(last.saturating_duration_since(began)), ..Done::default() })
    }
}

impl Syncsets<'_> {
    async fn make_namespaces(&self) -> Result<(), Error> {
        let kind = ApiResource::erase::<Namespace>(&());
        for (position, edge) in self.edges.iter().enumerate() {
            let numbers = (position..self.clusters).step_by(self.edges.len());
            let writes = numbers.map(|number| {
                let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name(number)}});
                Write::create(&kind, None, &name(number), &body)
            });
            burst(&edge.client(users::ADMIN).await?, writes.collect(), CLIENTS).await?;
        }
        Ok(())
    }

    async fn register(&self) -> Result<(), Error> {
        let mut kubeconfigs = Vec::new();
        for edge in &self.edges {
            let path = edge.kubeconfig(users::EDGE_CONTROLLER)?;
            kubeconfigs.push(std::fs::read_to_string(&path).map_err(Error::file("read", &path))?);
        }
        let request = |number: usize| {
            let kubeconfig = kubeconfigs.get(number % kubeconfigs.len().max(1));
            let labels = json!({"ns": name(number), "round": "0", "of-10": (number % 10).to_string()});
            let cluster = json!({"namespace": FLEET, "name": name(number), "labels": labels, "kubeconfig": kubeconfig});
            Ok(Request::post("/v1/clusters", &cluster))
        };
        self.hub.by_clients(CLIENTS, 0..self.clusters, request, |_, _| Ok(())).await?;
        let unknown = format!("SELECT {} - count(*) FROM towline_cluster WHERE reachable", self.clusters);
        self.hub.wait_for("all clusters to be found out", &unknown, |left| left == 0).await
    }

    async fn full_pass(&self) -> Result<(), Error> {
        let demand = "CREATE TEMP TABLE IF NOT EXISTS demanded (at timestamptz); INSERT INTO demanded VALUES (now()); \
                      UPDATE towline_cluster SET next_full = NULL, resyncs = resyncs + 1; \
                      UPDATE towline_work SET wanted = wanted + 1, ready_at = now(), urgent = true, attempts = 0; NOTIFY towline_work";
        self.hub.execute("demand full passes", demand).await?;
        let left = "SELECT count(*) FROM towline_cluster WHERE last_full IS NULL OR last_full <= (SELECT max(at) FROM demanded)";
        self.hub.wait_for("full passes of all clusters", left, |left| left == 0).await
    }

    /// Changes a document, and waits until the change has arrived, so many times.
    async fn one_by_one(&self, seen: &[Arrivals], path: &str, change: impl Fn(usize) -> Value) -> Result<Done, Error> {
        let changes = self.options.changes.unwrap_or(50);
        let mut delays: Vec<Duration> = Vec::new();
        for round in 1..=changes {
            delays.push(self.change_one(seen, path, &change(round)).await?);
        }
        Ok(Done { changes: Some(changes), time: None, delays })
    }

    /// Changes a document once, and returns how long that took to arrive.
    async fn change_one(&self, seen: &[Arrivals], path: &str, change: &Value) -> Result<Duration, Error> {
        let before: usize = seen.iter().map(Arrivals::seen).sum();
        let began = Instant::now();
        self.hub.send(&Request::merge_patch(path, change)).await?;
        Ok(last_of(seen, before + 1).await?.saturating_duration_since(began))
    }

    /// Edits syncsets at once, and until their rollouts are complete an object of one cluster again and again. Returns how long the rollouts took, and
    /// each of the other changes.
    async fn roll_out(
        &self,
        rollouts: usize,
        shares: usize,
        seen: &[Arrivals],
    ) -> Result<(Duration, Vec<Duration>), Error> {
        let (began, are_complete) = (Instant::now(), Cell::new(false));
        let complete = async {
            let edit = |number| {
                let changed = rolled(number, shares, "2");
                let content = json!({"spec": {"resources": changed.pointer("/spec/resources"), "health": {}}});
                Ok(Request::merge_patch(&rolled_path(number, shares), &content))
            };
            self.hub.by_clients(CLIENTS, 0..rollouts, edit, |_, _| Ok(())).await?;
            let left = "SELECT count(*) FROM towline_rollout WHERE state <> 'Complete' OR started < edited";
            self.hub.wait_for("all rollouts to be complete", left, |left| left == 0).await?;
            are_complete.set(true);
            Ok(began.elapsed())
        };
        let changes = async {
            let mut delays = Vec::new();
            while !are_complete.get() {
                let change = resources(&syncset(&format!("{shares}-{}", delays.len())));
                delays.push(self.change_one(seen, &format!("/v1/syncsets/{FLEET}/single"), &change).await?);
                tokio::time::sleep(BETWEEN_CHANGES).await;
            }
            Ok(delays)
        };
        try_join(complete, changes).await
    }

    /// Does some work beside which each Deployment that changes becomes available, as controllers see to it elsewhere. In the end, so many must have.
    async fn with_controllers<T>(
        &self,
        deployments: usize,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let kind = ApiResource::erase::<Deployment>(&());
        let (mut watches, mut controllers) = (Vec::new(), Vec::new());
        for edge in &self.edges {
            let client = edge.client(users::ADMIN).await?;
            // More than change at once.
            let (due, mut inbox) = channel(deployments.saturating_mul(4).max(1));
            let mark = {
                let kind = kind.clone();
                move |_: &Change, deployment: &Value| match to_be_available(&kind, deployment) {
                    // Nobody receives what changes when the work is done.
                    Some(write) => due.try_send(write).err().and(None),
                    None => Some(place(deployment)),
                }
            };
            watches.push(Arrivals::watch(&client, &kind, mark).await?);
            controllers.push(async move {
                loop {
                    let mut writes = Vec::new();
                    if inbox.recv_many(&mut writes, 100).await == 0 {
                        return Err::<(), _>(Error::Unreadable {
                            what: "a watch".to_owned(),
                            detail: "it has ended".to_owned(),
                        });
                    }
                    burst(&client, writes, CLIENTS).await?;
                }
            });
        }
        let done = tokio::select! {
            Err(error) = try_join_all(controllers) => return Err(error),
            done = work => done?,
        };
        last_of(&watches, deployments).await?;
        Ok(done)
    }

    /// Begins to watch a kind on all API servers; `mark` says what is noted of a change.
    async fn watch(
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
}

/// When the last of so many marks was seen.
async fn last_of(arrivals: &[Arrivals], objects: usize) -> Result<Instant, Error> {
    eventually(format!("{objects} objects to arrive"), LONGEST_STEP, async || {
        let seen: usize = arrivals.iter().map(Arrivals::seen).sum();
        // Marks are copied only once they are all there: of thousands that costs more than it takes for them to arrive.
        let last = arrivals.iter().flat_map(|arrivals| arrivals.all().into_values());
        let last = if seen >= objects { last.max() } else { None };
        last.ok_or_else(|| format!("{seen} objects"))
    })
    .await
}

fn config_maps() -> ApiResource {
    ApiResource::erase::<ConfigMap>(&())
}

/// Notes the place of each object that has this value.
fn with_value(value: String) -> impl Fn(&Change, &Value) -> Option<String> + Clone + Send + Sync + 'static {
    move |change, object| (*change != Change::Deleted && text(object, "/data/value") == value).then(|| place(object))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as a watch calls it")]
fn deleted(change: &Change, object: &Value) -> Option<String> {
    (*change == Change::Deleted).then(|| place(object))
}

/// Notes each value of the object of the `SyncSet`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as a watch calls it")]
fn single_value(change: &Change, object: &Value) -> Option<String> {
    let is_single = *change != Change::Deleted && text(object, "/metadata/name") == "single";
    is_single.then(|| text(object, "/data/value").to_owned())
}

/// A text of an object; empty if there is none.
fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn place(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

/// The name of a cluster, and of its namespace on its API server.
fn name(number: usize) -> String {
    format!("c{number:05}")
}

/// A config map with this value, in the namespace of the cluster that it is for.
fn map(name: &str, value: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value, "text": "x".repeat(200)}})
}

/// The `SelectorSyncSet` for all clusters with so many config maps, of which the first one has this value.
fn selector_syncset(value: &str, maps: usize) -> Value {
    let maps: Vec<Value> =
        (0..maps).map(|number| map(&format!("m{number}"), if number == 0 { value } else { "1" })).collect();
    let secret = json!({"sourceRef": {"name": "pull", "namespace": FLEET}, "targetRef": {"name": "pull", "namespace": "default"}});
    json!({"name": "base", "spec": {"clusterDeploymentSelector": {}, "clusterNamespaces": [FLEET], "resourceApplyMode": "Sync", "enableResourceTemplates": true,
        "resources": maps, "secretMappings": [secret]}})
}

/// A `SyncSet` for the first cluster. Its map has this value, which may be a template.
fn syncset(value: &str) -> Value {
    json!({"namespace": FLEET, "name": "single", "spec": {"clusterDeploymentRefs": [{"name": name(0)}],
        "resourceApplyMode": "Sync", "enableResourceTemplates": true, "resources": [map("single", value)]}})
}

/// A `SelectorSyncSet` for one of so many shares of the clusters, with a config map and a Deployment that have this value.
fn rolled(number: usize, shares: usize, value: &str) -> Value {
    let name = format!("rolled-{shares}-{number}");
    let labels = json!({ "app": name });
    let container = json!({"name": "pause", "image": format!("registry.k8s.io/pause:{value}")});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}});
    let share = if shares == 1 { json!({}) } else { json!({format!("of-{shares}"): (number % shares).to_string()}) };
    json!({"name": name, "spec": {"clusterDeploymentSelector": {"matchLabels": share}, "clusterNamespaces": [FLEET], "resourceApplyMode": "Sync",
        "enableResourceTemplates": true, "resources": [map(&name, value), deployment]}})
}

fn rolled_path(number: usize, shares: usize) -> String {
    format!("/v1/selectorsyncsets/rolled-{shares}-{number}")
}

/// The stages of a rollout, as a change of a syncset that has none.
fn waves() -> Value {
    let waves = json!([{"name": "first", "percent": 20}, {"name": "second", "percent": 50}]);
    json!({"spec": {"rollout": {"waves": waves, "maxConcurrent": "50%"}}})
}

/// What makes a Deployment without replicas available; none if it is.
fn to_be_available(kind: &ApiResource, deployment: &Value) -> Option<Write> {
    let generation = deployment.pointer("/metadata/generation");
    if generation == deployment.pointer("/status/observedGeneration") {
        return None;
    }
    let conditions = json!([{"type": "Available", "status": "True"},
        {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]);
    let status = json!({"status": {"observedGeneration": generation, "conditions": conditions}});
    let (namespace, name) = (text(deployment, "/metadata/namespace"), text(deployment, "/metadata/name"));
    Some(Write::merge_status(kind, Some(namespace), name, &status))
}

/// The resources of a syncset, as a change of its document.
fn resources(document: &Value) -> Value {
    json!({"spec": {"resources": document.pointer("/spec/resources")}})
}

/// The secret that is mapped, with this value.
fn secret(value: &str) -> Value {
    json!({"namespace": FLEET, "name": "pull", "type": "Opaque", "data": {"value": STANDARD.encode(value)}})
}
