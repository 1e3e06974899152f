//! A phase: what it waits for, and what it has shown.

use std::time::Instant;

use integration::Error;
use serde::Serialize;

use super::meter::{Cost, Meter};
use super::world::World;
use crate::measure::Latency;

/// What a phase has shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) what: &'static str,
    /// Until the last object had arrived.
    pub(crate) seconds: Option<f64>,
    /// Of single changes, one after the other.
    pub(crate) latency_ms: Option<Latency>,
    /// Objects that arrived.
    pub(crate) objects: usize,
    /// The most requests a cluster that this may take.
    pub(crate) most_requests: Option<f64>,
    /// The longest time that a worker had one dead cluster, in seconds.
    pub(crate) longest_claim: Option<f64>,
    pub(crate) cost: Cost,
}

/// What a phase waits for.
pub(super) struct Phase<'w> {
    pub(super) world: &'w World,
    pub(super) meter: Meter,
    pub(super) began: Instant,
    pub(super) what: &'static str,
}

impl<'w> Phase<'w> {
    pub(super) async fn begin(world: &'w World, what: &'static str) -> Result<Self, Error> {
        world.at_rest().await?;
        Ok(Self { world, meter: Meter::begin(world).await?, began: Instant::now(), what })
    }

    /// What it came to, with the last object at this moment, once nothing is left to be done.
    pub(super) async fn ended(self, last: Option<Instant>, objects: usize) -> Result<Measured, Error> {
        let seconds = last.map(|last| last.saturating_duration_since(self.began).as_secs_f64());
        let cost = self.meter.end(self.world).await?;
        let what = self.what;
        Ok(Measured { what, seconds, latency_ms: None, objects, most_requests: None, longest_claim: None, cost })
    }

    /// The same of single changes.
    pub(super) async fn of_singles(self, latency_ms: Option<Latency>, objects: usize) -> Result<Measured, Error> {
        Ok(Measured { latency_ms, ..self.ended(None, objects).await? })
    }
}

impl Measured {
    /// The same with a limit.
    pub(super) fn most(self, requests_a_cluster: f64) -> Self {
        Self { most_requests: Some(requests_a_cluster), ..self }
    }

    /// The same after it was printed.
    pub(super) fn told(self) -> Self {
        eprintln!("{}", self.line());
        self
    }

    /// Requests a cluster.
    pub(super) fn requests_each(&self, clusters: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
        let each = self.cost.requests as f64 / clusters as f64;
        each
    }

    /// Says so where it took more requests than it may.
    pub(crate) fn excess(&self, clusters: usize) -> Option<String> {
        let each = self.requests_each(clusters);
        let most = self.most_requests.filter(|most| each > *most)?;
        Some(format!("{}: {each:.2} requests a cluster instead of at most {most}", self.what))
    }

    pub(crate) fn line(&self) -> String {
        let time = match (self.seconds, self.latency_ms) {
            (Some(seconds), _) => format!("{seconds:>7.2} s"),
            (None, Some(ms)) => format!("p50 {:.0} p99 {:.0} ms", ms.p50, ms.p99),
            (None, None) => String::new(),
        };
        let cost = &self.cost;
        format!(
            "  {:<34} {time}, {} objects, {} requests, {} statements; CPU s: towline {:.2}, database {:.2}, API servers {:.2}, load \
             {:.2}; {:.1} MiB",
            self.what,
            self.objects,
            cost.requests,
            cost.statements,
            cost.towline_cpu_seconds,
            cost.database_cpu_seconds,
            cost.api_servers_cpu_seconds,
            cost.load_cpu_seconds,
            cost.towline_peak_mib
        ) + &self.longest_claim.map_or_else(String::new, |longest| format!(", longest claim {longest:.1} s"))
    }
}
