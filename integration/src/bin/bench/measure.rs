//! What one phase has cost: at the kernel's counters and at the API servers' audit logs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use integration::audit::Mark;
use integration::control_plane::ControlPlaneUsage;
use integration::{ControlPlane, Error, Filter, Switches, Usage};
use serde::Serialize;

use crate::daemon::Daemon;
use crate::world::Clusters;

/// What a phase has cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    pub(crate) daemon: Share,
    /// How often the daemon's threads were put on a core.
    pub(crate) daemon_switches: u64,
    /// The hub's API server.
    pub(crate) remote: Share,
    /// The hub's etcd.
    pub(crate) remote_etcd: Share,
    /// The edge's API server.
    pub(crate) local: Share,
    /// The edge's etcd.
    pub(crate) local_etcd: Share,
    /// The controller managers, where there are any.
    pub(crate) controller_managers: Share,
    /// The load generator, which also watches.
    pub(crate) load: Share,
    /// The daemon's requests by cluster, verb and resource, watches included.
    pub(crate) requests: BTreeMap<String, usize>,
    /// The daemon's requests but for watches.
    pub(crate) request_count: usize,
}

/// What a process has used in a phase.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Share {
    pub(crate) cpu_seconds: f64,
    /// The most memory in the phase, in MiB.
    pub(crate) peak_mib: f64,
}

impl Share {
    fn between(before: &Usage, after: &Usage) -> Self {
        Self { cpu_seconds: after.cpu.saturating_sub(before.cpu).as_secs_f64(), peak_mib: mebibytes(after.rss_peak) }
    }

    fn and(self, other: Self) -> Self {
        Self { cpu_seconds: self.cpu_seconds + other.cpu_seconds, peak_mib: self.peak_mib + other.peak_mib }
    }
}

/// A measurement that has begun.
pub(crate) struct Meter {
    daemon: Usage,
    hub: ControlPlaneUsage,
    edge: ControlPlaneUsage,
    own: Usage,
    marks: (Mark, Mark),
}

impl Meter {
    /// Begins. The daemon is at rest.
    pub(crate) async fn begin(clusters: &Clusters, daemon: &Daemon) -> Result<Self, Error> {
        daemon.wait_at_rest().await?;
        let marks = (clusters.hub.audit()?.mark().await?, clusters.edge.audit()?.mark().await?);
        clusters.hub.reset_rss_peaks()?;
        clusters.edge.reset_rss_peaks()?;
        daemon.reset_rss_peak()?;
        Ok(Self {
            daemon: daemon.usage()?,
            hub: clusters.hub.usage()?,
            edge: clusters.edge.usage()?,
            own: Usage::own()?,
            marks,
        })
    }

    /// The daemon is another process from now on, which has used nothing yet.
    pub(crate) fn daemon_starts_anew(&mut self) {
        self.daemon = Usage { cpu: Duration::ZERO, rss_peak: 0, anonymous: 0, switches: Switches::default() };
    }

    /// Ends, when the daemon is at rest.
    pub(crate) async fn end(self, clusters: &Clusters, daemon: &Daemon) -> Result<Cost, Error> {
        daemon.wait_at_rest().await?;
        let (used, own) = (daemon.usage()?, Usage::own()?);
        let (hub, edge) = (clusters.hub.usage()?, clusters.edge.usage()?);
        let mut cost = Cost {
            daemon: Share::between(&self.daemon, &used),
            daemon_switches: used.switches.since(&self.daemon.switches),
            remote: Share::between(&self.hub.api_server, &hub.api_server),
            remote_etcd: Share::between(&self.hub.etcd, &hub.etcd),
            local: Share::between(&self.edge.api_server, &edge.api_server),
            local_etcd: Share::between(&self.edge.etcd, &edge.etcd),
            controller_managers: managers(&self.hub, &hub).and(managers(&self.edge, &edge)),
            load: Share::between(&self.own, &own),
            ..Cost::default()
        };
        for (plane, mark) in [(&clusters.hub, self.marks.0), (&clusters.edge, self.marks.1)] {
            cost.count(plane, mark, daemon.program().user()).await?;
        }
        Ok(cost)
    }
}

fn managers(before: &ControlPlaneUsage, after: &ControlPlaneUsage) -> Share {
    match (&before.controller_manager, &after.controller_manager) {
        (Some(before), Some(after)) => Share::between(before, after),
        _ => Share::default(),
    }
}

impl Cost {
    async fn count(&mut self, plane: &ControlPlane, since: Mark, user: &str) -> Result<(), Error> {
        let of_daemon = Filter::since(since).user(user);
        self.request_count += plane.audit()?.count(&of_daemon).await?;
        for (what, count) in plane.audit()?.summary(&of_daemon.with_watches()).await? {
            let what = what.strip_prefix(user).map_or(what.as_str(), str::trim_start);
            self.requests.insert(format!("{} {what}", plane.name()), count);
        }
        Ok(())
    }
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    /// Half took no longer.
    pub(crate) p50: f64,
    /// All but one in a hundred took no longer.
    pub(crate) p99: f64,
    /// None took longer.
    pub(crate) max: f64,
}

impl Latency {
    /// Of pairs of moments. An arrival that was seen before its write's acknowledgement took no time.
    pub(crate) fn of(pairs: &[(Instant, Instant)]) -> Option<Self> {
        Self::taken(pairs.iter().map(|(written, arrived)| arrived.saturating_duration_since(*written)).collect())
    }

    /// Of what each took.
    pub(crate) fn taken(mut taken: Vec<Duration>) -> Option<Self> {
        taken.sort_unstable();
        let at = |share: usize| {
            // The smallest one that this share of all does not exceed.
            let rank = (taken.len() * share).div_ceil(100).saturating_sub(1);
            taken.get(rank).map(|duration| duration.as_secs_f64() * 1_000.0)
        };
        Some(Self { p50: at(50)?, p99: at(99)?, max: at(100)? })
    }
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are below 2^52 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Latency;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let start = Instant::now();
        let pairs: Vec<_> = (1..=200).rev().map(|ms| (start, start + Duration::from_millis(ms))).collect();
        let latency = Latency::of(&pairs).unwrap();
        assert_eq!((latency.p50, latency.p99, latency.max), (100.0, 198.0, 200.0));
        assert!(Latency::of(&[]).is_none());
        let early = Latency::of(&[(start + Duration::from_secs(1), start)]).unwrap();
        assert!(early.max.abs() < f64::EPSILON);
    }
}
