//! Resource sync: objects between two clusters, by Towline and, in turns, by the Go controller.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::try_join;
use integration::arrivals::{Arrivals, Change};
use integration::compare::{Mapping, differences};
use integration::load::{Write, burst, paced};
use integration::rbac::{Grant, Side, grant_reference};
use integration::{
    ControlPlane, Error, Options as PlaneOptions, Reference, Towline, crds, eventually, programs, users,
};
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::measure::{Done, Probes, Program};
use crate::options::{Against, Kind, Options};
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "two API servers with an etcd of their own each (no fsync), all on this machine; audit log at level Metadata, written \
                       in batches; each program a release build and a process of its own; delays from the acknowledged write to the \
                       arrival at a watch of the load generator";
const SECTION: &str = "bench";
/// Objects of the run before the measured ones: fresh API servers are slower, and who is measured first would pay.
const WARM_UP: usize = 200;
/// Requests that the load generator has in flight in a burst.
const AT_ONCE: usize = 32;
/// No phase of 10,000 objects takes that long, even on a machine that does other things too.
const LONGEST_PHASE: Duration = Duration::from_mins(20);
/// The remote generation that the local object reflects.
const REMOTE_GENERATION: &str = "/metadata/annotations/cloud.teleport.dev~1sync-remote-generation";

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("sync", SETTING);
    let mut all = vec![Who::Towline];
    programs::towline().await?;
    if let Some(Against::Go) = options.against {
        // Nothing is built while somebody is measured.
        programs::reference().await?;
        all.push(Who::Go);
        table = table.compared(Who::Towline.as_str());
    }
    let clusters = Box::pin(Clusters::start(options)).await?;
    let once = async |who: Who, objects: usize, table: &mut Table| {
        clusters.set_up_edge(who, options).await?;
        // A process of its own for each run, so that its memory is that of this many objects.
        let daemon = Daemon::start(who, &clusters, options).await?;
        let mut run = Run { options, clusters: &clusters, daemon, objects };
        runner::run(&mut run, &objects.to_string(), who.as_str(), table).await
    };
    for who in &all {
        once(*who, WARM_UP, &mut Table::new("sync, to warm up", SETTING)).await?;
    }
    for objects in options.objects(1_000) {
        for _ in 0..options.runs {
            // In turns, so that whatever else the machine does meets both.
            for who in &all {
                once(*who, objects, &mut table).await?;
            }
        }
    }
    Ok(table)
}

/// A program that does the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Towline,
    Go,
}

impl Who {
    fn as_str(self) -> &'static str {
        match self {
            Self::Towline => "towline",
            Self::Go => "go",
        }
    }
}

enum Daemon {
    Towline(Box<Towline>),
    Go(Box<Reference>),
}

impl Daemon {
    async fn start(who: Who, clusters: &Clusters, options: &Options) -> Result<Self, Error> {
        let resource = format!("{}.v1.{}", plural(options.kind), group(options.kind));
        let daemon = match who {
            Who::Towline => {
                let config = format!(
                    "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n[[sync]]\nname = \"{SECTION}\"\n\
                     remote = \"hub\"\nlocal = \"edge\"\nresource = \"{resource}\"\npropagation_policy = \"Background\"\n",
                    clusters.hub.kubeconfig(users::TOWLINE)?.display(),
                    clusters.edge.kubeconfig(users::TOWLINE)?.display(),
                );
                Self::Towline(Box::new(Towline::start(&config, &[]).await?))
            }
            Who::Go => Self::Go(Box::new(Reference::start(&clusters.hub, &clusters.edge, &resource).await?)),
        };
        daemon.wait_ready().await?;
        Ok(daemon)
    }

    fn program(&self) -> &dyn Program {
        match self {
            Self::Towline(towline) => &**towline,
            Self::Go(reference) => &**reference,
        }
    }

    /// As whom its requests are counted.
    fn user(&self) -> &'static str {
        match self {
            Self::Towline(_) => users::TOWLINE,
            Self::Go(_) => users::REFERENCE,
        }
    }

    /// Waits until its first lists have ended.
    async fn wait_ready(&self) -> Result<(), Error> {
        match self {
            Self::Towline(towline) => towline.wait_ready(LONGEST_PHASE).await,
            Self::Go(reference) => reference.wait_ready(LONGEST_PHASE).await,
        }
    }

    /// Ends it in order, and starts it again. Returns how long it took to be ready.
    async fn restart(&mut self) -> Result<Duration, Error> {
        match self {
            Self::Towline(towline) => towline.terminate(LONGEST_PHASE).await?,
            Self::Go(reference) => reference.terminate(LONGEST_PHASE).await?,
        };
        let started = Instant::now();
        match self {
            Self::Towline(towline) => towline.start_again().await?,
            Self::Go(reference) => reference.start_again().await?,
        }
        self.wait_ready().await?;
        Ok(started.elapsed())
    }

    /// Waits until it says itself that all pairs are in step. The Go controller has no such report: it is in step when it is at rest.
    async fn wait_in_step(&self, objects: usize) -> Result<(), Error> {
        let Self::Towline(towline) = self else { return Ok(()) };
        eventually(format!("{objects} objects to be in step"), LONGEST_PHASE, async || {
            let report = towline.admin().section(SECTION).await.map_err(|error| error.to_string())?;
            let in_step = report.pointer("/objects/in_step").and_then(Value::as_u64);
            if in_step == u64::try_from(objects).ok() { Ok(()) } else { Err(report.to_string()) }
        })
        .await
    }
}

/// Two control planes, each with an etcd of its own.
struct Clusters {
    /// The source of the spec.
    hub: ControlPlane,
    /// The source of the status.
    edge: ControlPlane,
    /// For the load.
    hub_client: Client,
    edge_client: Client,
}

impl Clusters {
    /// Starts both, with the kind, the namespaces and the programs' rights.
    async fn start(options: &Options) -> Result<Self, Error> {
        let crds: &[&str] = if options.kind == Kind::Databases { &[crds::DATABASES] } else { &[] };
        let start = |name: &str, controller_manager: bool| {
            ControlPlane::start(PlaneOptions { controller_manager, ..PlaneOptions::measured(name).with_crds(crds) })
        };
        // Namespaces end with the help of a controller.
        let (hub, edge) = try_join(start("hub", false), start("edge", options.owned)).await?;
        for (plane, side) in [(&hub, Side::Remote), (&edge, Side::Local)] {
            let admin = plane.client(users::ADMIN).await?;
            Grant::kind(side, plural(options.kind), group(options.kind)).apply(&admin).await?;
            if options.against.is_some() {
                grant_reference(&admin, plural(options.kind), group(options.kind)).await?;
            }
        }
        burst(&hub.client(users::ADMIN).await?, namespaces(options).map(|name| creation(&name)).collect(), 4).await?;
        let (hub_client, edge_client) =
            (hub.client(users::HUB_USER).await?, edge.client(users::EDGE_CONTROLLER).await?);
        Ok(Self { hub, edge, hub_client, edge_client })
    }

    /// Makes the namespaces at the edge that are missing, or deletes all of them if this program makes its own.
    async fn set_up_edge(&self, who: Who, options: &Options) -> Result<(), Error> {
        let admin = self.edge.client(users::ADMIN).await?;
        let kind = namespace_kind();
        let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(admin.clone(), &kind);
        let there = async || {
            let listed =
                api.list_metadata(&ListParams::default()).await.map_err(Error::kubernetes("list namespaces"))?;
            let names: BTreeSet<String> = listed.items.into_iter().filter_map(|item| item.metadata.name).collect();
            Ok::<_, Error>(namespaces(options).partition::<Vec<_>, _>(|name| names.contains(name)))
        };
        let (present, missing) = there().await?;
        if !options.owned || who == Who::Go {
            burst(&admin, missing.iter().map(|name| creation(name)).collect(), 4).await?;
            return Ok(());
        }
        burst(&admin, present.iter().map(|name| Write::delete(&kind, None, name)).collect(), 4).await?;
        eventually("the namespaces to be gone", LONGEST_PHASE, async || match there().await {
            Ok((present, _)) if present.is_empty() => Ok(()),
            Ok((present, _)) => Err(present.join(", ")),
            Err(error) => Err(error.to_string()),
        })
        .await
    }
}

/// One run over one daemon: the objects are there from its first phase to its last.
struct Run<'a> {
    options: &'a Options,
    clusters: &'a Clusters,
    daemon: Daemon,
    objects: usize,
}

#[derive(Clone, Copy)]
enum Step {
    /// Objects change, all at once or at a steady rate. Their specs or statuses get this mark, so that each change is seen as itself.
    Change {
        what: What,
        mark: u64,
        rate: Option<u32>,
    },
    Idle,
    /// The daemon is ended and started with everything in step.
    Restart,
}

/// Where a change is made: of a status at the edge, of anything else at the hub.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Create,
    Spec,
    Status,
    Delete,
}

/// Writes, and the watches that see what comes of them.
struct Load {
    writes: Vec<Write>,
    hub: Arrivals,
    edge: Arrivals,
}

impl World for Run<'_> {
    type Step = Step;
    type Ready = Option<Load>;

    fn phases(&self) -> Vec<Phase<Step>> {
        let rate = self.options.rate;
        let change = |what, mark, rate| Step::Change { what, mark, rate };
        vec![
            Phase::new("created, all at once", change(What::Create, 1, None), "objects"),
            Phase::new(format!("spec, {rate} a second"), change(What::Spec, 2, Some(rate)), "objects"),
            Phase::new("spec, all at once", change(What::Spec, 3, None), "objects"),
            Phase::new(format!("status, {rate} a second"), change(What::Status, 4, Some(rate)), "objects"),
            Phase::new("status, all at once", change(What::Status, 5, None), "objects"),
            Phase::new(format!("idle, {} s", self.options.idle.as_secs()), Step::Idle, ""),
            Phase::new("restart in step", Step::Restart, ""),
            Phase::new("deleted, all at once", change(What::Delete, 6, None), "objects"),
        ]
    }

    fn probes(&self) -> Probes<'_> {
        let user = self.daemon.user();
        let planes = vec![(&self.clusters.hub, user), (&self.clusters.edge, user)];
        Probes { programs: vec![self.daemon.program()], planes, ..Probes::default() }
    }

    /// Whoever has taken no CPU time for 0.2 s, but for what a runtime takes to look around, has nothing under way.
    async fn settled(&self) -> Result<(), Error> {
        const QUIET_LOOKS: u32 = 10;
        const RUNTIME: Duration = Duration::from_millis(1);
        let program = self.daemon.program();
        let (mut last, mut quiet) = (program.usage()?.cpu, 0);
        eventually("the program to be at rest", LONGEST_PHASE, async || {
            let now = program.usage().map_err(|error| error.to_string())?.cpu;
            quiet = if now.saturating_sub(last) <= RUNTIME { quiet + 1 } else { 0 };
            last = now;
            if quiet >= QUIET_LOOKS { Ok(()) } else { Err(format!("{now:?} of CPU time")) }
        })
        .await
    }

    async fn prepare(&mut self, step: Step) -> Result<Option<Load>, Error> {
        let Step::Change { what, mark, .. } = step else { return Ok(None) };
        let (kind, clusters) = (self.options.kind, self.clusters);
        let hub = Arrivals::watch(&clusters.hub_client, &resource(kind), on_hub(what, kind, mark)).await?;
        let edge = Arrivals::watch(&clusters.edge_client, &resource(kind), on_edge(what, kind, mark)).await?;
        Ok(Some(Load { writes: self.writes(what, mark), hub, edge }))
    }

    async fn perform(&mut self, step: Step, ready: Option<Load>) -> Result<Done, Error> {
        match (step, ready) {
            (Step::Change { what, rate, .. }, Some(load)) => self.change(what, rate, load).await,
            (Step::Restart, _) => {
                let time = self.daemon.restart().await?;
                self.daemon.wait_in_step(self.objects).await?;
                Ok(Done { time: Some(time), ..Done::default() })
            }
            _ => {
                tokio::time::sleep(self.options.idle).await;
                Ok(Done::default())
            }
        }
    }

    /// The clusters are in step, and there are as many objects as there should be.
    async fn verify(&self, step: Step) -> Result<(), Error> {
        let objects = if matches!(step, Step::Change { what: What::Delete, .. }) { 0 } else { self.objects };
        let (clusters, kind) = (self.clusters, resource(self.options.kind));
        let found = differences(&clusters.hub_client, &clusters.edge_client, &kind, &Mapping::default()).await?;
        let all = Api::<PartialObjectMeta<DynamicObject>>::all_with(clusters.hub_client.clone(), &kind);
        let listed = all.list_metadata(&ListParams::default()).await.map_err(Error::kubernetes("count the objects"))?;
        let there = listed.items.len();
        if found.is_empty() && there == objects {
            return Ok(());
        }
        let first: Vec<_> = found.iter().take(3).map(String::as_str).collect();
        Err(Error::Unreadable {
            what: format!("what {} has done", self.daemon.user()),
            detail: format!(
                "{there} objects instead of {objects}, and {} differences, such as: {}",
                found.len(),
                first.join("; ")
            ),
        })
    }
}

impl Run<'_> {
    fn writes(&self, what: What, mark: u64) -> Vec<Write> {
        let kind = self.options.kind;
        let resource = resource(kind);
        let count = match what {
            What::Create | What::Delete => self.objects,
            _ => self.options.changes.unwrap_or(1_000).min(self.objects),
        };
        let one = |number: usize| {
            let (namespace, name) = (namespace(number, self.options.namespaces), format!("object-{number:05}"));
            let scope = Some(namespace.as_str());
            match what {
                What::Create => Write::create(&resource, scope, &name, &object(kind, &namespace, &name, mark)),
                What::Spec => Write::merge(&resource, scope, &name, &json!({"spec": spec(kind, &name, mark)})),
                What::Status => Write::merge_status(&resource, scope, &name, &json!({"status": status(kind, mark)})),
                What::Delete => Write::delete(&resource, scope, &name),
            }
        };
        (0..count).map(one).collect()
    }

    async fn change(&self, what: What, rate: Option<u32>, load: Load) -> Result<Done, Error> {
        let Load { writes, hub, edge } = load;
        let changes = writes.len();
        let client = if what == What::Status { &self.clusters.edge_client } else { &self.clusters.hub_client };
        let written = match rate {
            Some(rate) => paced(client, writes, rate).await?,
            None => burst(client, writes, AT_ONCE).await?,
        };
        let is_of_edge = matches!(what, What::Create | What::Spec);
        if is_of_edge {
            edge.wait_for(changes, LONGEST_PHASE).await?;
        }
        // The requests that tell the hub about it belong to the phase.
        hub.wait_for(changes, LONGEST_PHASE).await?;
        let arrivals = if is_of_edge { edge.all() } else { hub.all() };
        let first = written.iter().map(|write| write.sent).min();
        let time = first.zip(arrivals.values().max()).map(|(first, last)| last.saturating_duration_since(first));
        // An arrival that was seen before its write's acknowledgement took no time.
        let delays =
            written.iter().filter_map(|write| Some(arrivals.get(&write.key)?.saturating_duration_since(write.at)));
        // Of a steady rate, the load decides how long it takes.
        Ok(Done { changes: Some(changes), time: time.filter(|_| rate.is_none()), delays: delays.collect() })
    }
}

/// What is looked for on the hub: the new status, the end, or that the hub was told of what is on the edge.
fn on_hub(what: What, kind: Kind, mark: u64) -> impl Fn(&Change, &Value) -> Option<String> {
    move |change, object| {
        let is_told = || {
            let noted: Option<u64> = object.pointer(REMOTE_GENERATION)?.as_str()?.parse().ok();
            Some(noted? == object.pointer("/metadata/generation")?.as_u64()?)
        };
        let found = match what {
            What::Delete => *change == Change::Deleted,
            What::Status => status_mark(kind, object) == Some(mark),
            What::Create | What::Spec => spec_mark(kind, object) == Some(mark) && is_told() == Some(true),
        };
        found.then(|| key(object)).flatten()
    }
}

/// What is looked for on the edge: the object with the new spec.
fn on_edge(what: What, kind: Kind, mark: u64) -> impl Fn(&Change, &Value) -> Option<String> {
    move |change, object| {
        let found = match what {
            What::Delete => *change == Change::Deleted,
            _ => spec_mark(kind, object) == Some(mark),
        };
        found.then(|| key(object)).flatten()
    }
}

fn key(object: &Value) -> Option<String> {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    Some(format!("{}/{}", text("/metadata/namespace")?, text("/metadata/name")?))
}

fn namespace(number: usize, namespaces: usize) -> String {
    format!("bench-{:02}", number % namespaces)
}

fn namespaces(options: &Options) -> impl Iterator<Item = String> + use<> {
    let count = options.namespaces;
    (0..count).map(move |number| namespace(number, count))
}

fn namespace_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"))
}

fn creation(namespace: &str) -> Write {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    Write::create(&namespace_kind(), None, namespace, &object)
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::PodDisruptionBudgets => "poddisruptionbudgets",
        Kind::Databases => "databases",
    }
}

fn group(kind: Kind) -> &'static str {
    match kind {
        Kind::PodDisruptionBudgets => "policy",
        Kind::Databases => "demo.towline.dev",
    }
}

fn resource(kind: Kind) -> ApiResource {
    let name = match kind {
        Kind::PodDisruptionBudgets => "PodDisruptionBudget",
        Kind::Databases => "Database",
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group(kind), "v1", name))
}

fn object(kind: Kind, namespace: &str, name: &str, mark: u64) -> Value {
    let ApiResource { api_version, kind: kind_name, .. } = resource(kind);
    let metadata = json!({"name": name, "namespace": namespace, "labels": {"app": name}});
    json!({"apiVersion": api_version, "kind": kind_name, "metadata": metadata, "spec": spec(kind, name, mark)})
}

fn spec(kind: Kind, name: &str, mark: u64) -> Value {
    match kind {
        Kind::PodDisruptionBudgets => json!({"minAvailable": mark, "selector": {"matchLabels": {"app": name}}}),
        Kind::Databases => json!({"engine": "postgres-16", "storage": format!("{mark}Gi"), "replicas": 2}),
    }
}

fn status(kind: Kind, mark: u64) -> Value {
    match kind {
        Kind::PodDisruptionBudgets => {
            json!({"currentHealthy": mark, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 3})
        }
        Kind::Databases => json!({"phase": "Ready", "observedGeneration": mark}),
    }
}

fn spec_mark(kind: Kind, object: &Value) -> Option<u64> {
    match kind {
        Kind::PodDisruptionBudgets => object.pointer("/spec/minAvailable")?.as_u64(),
        Kind::Databases => object.pointer("/spec/storage")?.as_str()?.strip_suffix("Gi")?.parse().ok(),
    }
}

fn status_mark(kind: Kind, object: &Value) -> Option<u64> {
    match kind {
        Kind::PodDisruptionBudgets => object.pointer("/status/currentHealthy")?.as_u64(),
        Kind::Databases => object.pointer("/status/observedGeneration")?.as_u64(),
    }
}
