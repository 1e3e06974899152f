//! The phases of one run, in the order in which they happen to the same objects.

use std::str::FromStr;
use std::time::Duration;

use integration::Error;
use integration::arrivals::{Arrivals, Change};
use integration::load::{Acknowledged, Write, burst, paced};
use serde::Serialize;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::load_kind::LoadKind;
use crate::measure::{Cost, Latency, Meter};
use crate::options::Options;
use crate::world::{Clusters, LONGEST_PHASE, place};

/// The remote generation that the local object reflects.
const REMOTE_GENERATION: &str = "/metadata/annotations/cloud.teleport.dev~1sync-remote-generation";
/// The mark of a new object; changes count on from it, so that each is seen as itself.
const FIRST_MARK: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// All objects are made on the hub.
    Create,
    /// The hub's specs change at a steady rate.
    SpecPaced,
    /// The hub's specs change all at once.
    SpecBurst,
    /// The edge's statuses change at a steady rate.
    StatusPaced,
    /// The edge's statuses change all at once.
    StatusBurst,
    /// Nothing happens.
    Idle,
    /// The daemon is ended and started.
    Restart,
    /// All objects are deleted on the hub.
    Delete,
}

impl Phase {
    /// All of them, in the order in which they happen.
    pub(crate) const ALL: [Self; 8] = [
        Self::Create,
        Self::SpecPaced,
        Self::SpecBurst,
        Self::StatusPaced,
        Self::StatusBurst,
        Self::Idle,
        Self::Restart,
        Self::Delete,
    ];

    /// As it is called in `PHASES` and in the report.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::SpecPaced => "spec-paced",
            Self::SpecBurst => "spec-burst",
            Self::StatusPaced => "status-paced",
            Self::StatusBurst => "status-burst",
            Self::Idle => "idle",
            Self::Restart => "restart",
            Self::Delete => "delete",
        }
    }
}

impl FromStr for Phase {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text).ok_or(())
    }
}

/// A measured phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// Which.
    pub(crate) phase: Phase,
    /// Objects that were made, changed or deleted; all objects where none was.
    pub(crate) changes: usize,
    /// From the first request to the last arrival; until ready; or how long was looked on.
    pub(crate) seconds: f64,
    /// From the first request to the last acknowledgement, where there were any.
    pub(crate) written_seconds: Option<f64>,
    /// Changes a second over that time.
    pub(crate) per_second: Option<f64>,
    /// From the acknowledged write to its arrival on the other side; of a deletion, to the remote object's end.
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) cost: Cost,
}

/// One run over one daemon: the objects are there from its first phase to its last.
pub(crate) struct Run<'a> {
    /// What is asked for.
    pub(crate) options: &'a Options,
    /// Between what the daemon stands.
    pub(crate) clusters: &'a Clusters,
    /// The daemon, Towline or another.
    pub(crate) daemon: Daemon,
    pub(crate) objects: usize,
}

/// The moments of a phase with changes.
struct Course {
    changes: usize,
    written: Vec<Acknowledged>,
    arrived: Arrivals,
}

impl Run<'_> {
    /// Does the phases, and tells each one that is asked for when it has ended.
    pub(crate) async fn phases(mut self, mut told: impl FnMut(&Measured)) -> Result<Vec<Measured>, Error> {
        let mut all = Vec::new();
        let mut mark = FIRST_MARK;
        for phase in Phase::ALL {
            // Objects have to be there for the others, and gone for the next run.
            if !self.options.has(phase) && !matches!(phase, Phase::Create | Phase::Delete) {
                continue;
            }
            mark += 1;
            let measured = match phase {
                Phase::Idle => self.idle().await?,
                Phase::Restart => self.restart().await?,
                _ => self.changes(phase, mark).await?,
            };
            let left = if phase == Phase::Delete { 0 } else { self.objects };
            self.clusters.check_in_step(self.options, self.daemon.program(), left).await?;
            if self.options.has(phase) {
                told(&measured);
                all.push(measured);
            }
        }
        Ok(all)
    }

    async fn changes(&self, phase: Phase, mark: u64) -> Result<Measured, Error> {
        let writes = self.writes(phase, mark);
        let changes = writes.len();
        let kind = self.options.kind;
        let hub = Arrivals::watch(&self.clusters.hub_client, &kind.resource(), on_hub(phase, kind, mark)).await?;
        let edge = Arrivals::watch(&self.clusters.edge_client, &kind.resource(), on_edge(phase, kind, mark)).await?;
        let client = match phase {
            Phase::StatusPaced | Phase::StatusBurst => &self.clusters.edge_client,
            _ => &self.clusters.hub_client,
        };
        let meter = Meter::begin(self.clusters, &self.daemon).await?;
        let written = match phase {
            Phase::SpecPaced | Phase::StatusPaced => paced(client, writes, self.options.rate).await?,
            _ => burst(client, writes, self.options.at_once).await?,
        };
        let arrived = match phase {
            Phase::Create | Phase::SpecPaced | Phase::SpecBurst => {
                edge.wait_for(changes, LONGEST_PHASE).await?;
                // What the hub is told of it belongs to the phase.
                hub.wait_for(changes, LONGEST_PHASE).await?;
                edge
            }
            _ => {
                hub.wait_for(changes, LONGEST_PHASE).await?;
                hub
            }
        };
        let cost = meter.end(self.clusters, &self.daemon).await?;
        Ok(Course { changes, written, arrived }.measured(phase, cost))
    }

    fn writes(&self, phase: Phase, mark: u64) -> Vec<Write> {
        let kind = self.options.kind;
        let resource = kind.resource();
        let count = match phase {
            Phase::Create | Phase::Delete => self.objects,
            _ => self.options.changes,
        };
        let one = |number: usize| {
            let (namespace, name) = place(number, self.options.namespaces);
            let scope = Some(namespace.as_str());
            match phase {
                Phase::Create => Write::create(&resource, scope, &name, &kind.object(&namespace, &name, FIRST_MARK)),
                Phase::Delete => Write::delete(&resource, scope, &name),
                Phase::StatusPaced | Phase::StatusBurst => {
                    Write::merge_status(&resource, scope, &name, &kind.status_patch(mark))
                }
                _ => Write::merge(&resource, scope, &name, &kind.spec_patch(mark)),
            }
        };
        (0..count.min(self.objects)).map(one).collect()
    }

    async fn idle(&self) -> Result<Measured, Error> {
        let meter = Meter::begin(self.clusters, &self.daemon).await?;
        tokio::time::sleep(self.options.idle).await;
        let cost = meter.end(self.clusters, &self.daemon).await?;
        Ok(quiet(Phase::Idle, self.objects, self.options.idle, cost))
    }

    async fn restart(&mut self) -> Result<Measured, Error> {
        let mut meter = Meter::begin(self.clusters, &self.daemon).await?;
        self.daemon.terminate().await?;
        meter.daemon_starts_anew();
        let ready = self.daemon.start_again().await?;
        self.daemon.wait_in_step(self.objects).await?;
        let cost = meter.end(self.clusters, &self.daemon).await?;
        Ok(quiet(Phase::Restart, self.objects, ready, cost))
    }
}

/// A phase without changes.
fn quiet(phase: Phase, objects: usize, time: Duration, cost: Cost) -> Measured {
    Measured {
        phase,
        changes: objects,
        seconds: time.as_secs_f64(),
        written_seconds: None,
        per_second: None,
        latency_ms: None,
        cost,
    }
}

impl Course {
    fn measured(self, phase: Phase, cost: Cost) -> Measured {
        let arrivals = self.arrived.all();
        let first = self.written.iter().map(|write| write.sent).min();
        let last = arrivals.values().max().copied();
        let acknowledged = self.written.iter().map(|write| write.at).max();
        let written = first.zip(acknowledged).map(|(first, last)| last.saturating_duration_since(first));
        let time = match (first, last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        };
        let pairs: Vec<_> =
            self.written.iter().filter_map(|write| Some((write.at, *arrivals.get(&write.key)?))).collect();
        // Of a steady rate, the load decides.
        let is_paced = matches!(phase, Phase::SpecPaced | Phase::StatusPaced);
        let per_second = (!is_paced && !time.is_zero()).then(|| to_float(self.changes) / time.as_secs_f64());
        Measured {
            phase,
            changes: self.changes,
            seconds: time.as_secs_f64(),
            written_seconds: written.map(|time| time.as_secs_f64()),
            per_second,
            latency_ms: Latency::of(&pairs),
            cost,
        }
    }
}

/// Counts of objects and requests as numbers to divide by.
pub(crate) fn to_float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

fn key(object: &Value) -> Option<String> {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    Some(format!("{}/{}", text("/metadata/namespace")?, text("/metadata/name")?))
}

/// What is looked for on the hub: the new status, the end, or that the hub was told of what is on the edge.
fn on_hub(phase: Phase, kind: LoadKind, mark: u64) -> impl Fn(&Change, &Value) -> Option<String> {
    move |change, object| {
        let told = || {
            let noted: Option<u64> = object.pointer(REMOTE_GENERATION)?.as_str()?.parse().ok();
            Some(noted? == object.pointer("/metadata/generation")?.as_u64()?)
        };
        let found = match phase {
            Phase::Delete => *change == Change::Deleted,
            Phase::StatusPaced | Phase::StatusBurst => kind.status_mark(object) == Some(mark),
            Phase::Create => told() == Some(true),
            _ => kind.spec_mark(object) == Some(mark) && told() == Some(true),
        };
        found.then(|| key(object)).flatten()
    }
}

/// What is looked for on the edge: the new object, or the new spec.
fn on_edge(phase: Phase, kind: LoadKind, mark: u64) -> impl Fn(&Change, &Value) -> Option<String> {
    move |change, object| {
        let found = match phase {
            Phase::Create => *change == Change::Added,
            Phase::Delete => *change == Change::Deleted,
            _ => kind.spec_mark(object) == Some(mark),
        };
        found.then(|| key(object)).flatten()
    }
}
