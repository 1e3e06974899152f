//! Many leases in one daemon, and the side-car's one: requests, CPU time, memory.

use std::time::Duration;

use integration::audit::Mark;
use integration::{Error, Filter, Towline, users};
use serde::Serialize;

use super::world::{LEASE_NAMESPACE, SECRET, SECRET_NAMESPACE, World, lease_name};
use crate::options::LeaseOptions;

/// Leases of one daemon, renewed at an even rate.
pub(crate) struct Fleet {
    leases: usize,
    duration: Duration,
    window: Duration,
}

/// What they cost in the steady state.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FleetCost {
    pub(crate) leases: usize,
    pub(crate) duration_seconds: u64,
    /// How long was looked on.
    pub(crate) seconds: f64,
    /// Patches of leases, by the hub's audit log.
    pub(crate) renewals: usize,
    /// All other requests to the hub.
    pub(crate) other_hub_requests: usize,
    /// Requests to the managed cluster, new watches included.
    pub(crate) managed_requests: usize,
    /// Requests to paths that are no resource, but for probes, at both clusters, since the start of the process.
    pub(crate) discovery_requests: usize,
    /// Looks whether the managed cluster answers (`/version`), since the start of the process. There is one before the
    /// first watch.
    pub(crate) probes: usize,
    pub(crate) cpu_seconds: f64,
    pub(crate) hub_cpu_seconds: f64,
    /// Since the start of the process.
    pub(crate) peak_mib: f64,
    /// At the end: without the pages of the program file.
    pub(crate) anonymous_mib: f64,
}

impl FleetCost {
    /// CPU ms of the daemon for a renewal.
    pub(crate) fn cpu_ms_per_renewal(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of a few thousands")]
        let renewals = self.renewals.max(1) as f64;
        self.cpu_seconds * 1_000.0 / renewals
    }

    /// Share of one core.
    pub(crate) fn cores(&self) -> f64 {
        self.cpu_seconds / self.seconds
    }
}

impl Fleet {
    /// 100 renewals a second, and a fleet of `LEASES` at the default duration.
    pub(crate) fn all(options: &LeaseOptions) -> Vec<Self> {
        let window = options.window;
        vec![
            Self { leases: 1_000, duration: Duration::from_secs(30), window },
            Self { leases: options.leases, duration: Duration::from_mins(1), window },
        ]
    }

    pub(crate) async fn measure(&self, world: &World) -> Result<FleetCost, Error> {
        world.delete_leases().await?;
        world.give_credentials(users::TOWLINE).await?;
        let begun = Begun::now(world).await?;
        let towline = Towline::start(&world.config(self.leases, self.duration)?, &[]).await?;
        world.wait_for_leases(self.leases).await?;
        begun.watch(world, &towline, self.leases, self.duration, self.window).await
    }
}

/// The side-car alone, at a period of 5 s, which is what the controller to compare with was measured at.
pub(crate) async fn side_car(world: &World, options: &LeaseOptions) -> Result<FleetCost, Error> {
    const DURATION: Duration = Duration::from_secs(15);
    world.delete_leases().await?;
    world.give_credentials(users::TOWLINE).await?;
    let begun = Begun::now(world).await?;
    let kubeconfig = world.managed.kubeconfig(users::HUB_USER)?.display().to_string();
    let (name, seconds) = (lease_name(0), DURATION.as_secs().to_string());
    let flags = ["--lease-name", &name, "--lease-namespace", LEASE_NAMESPACE, "--hub-kubeconfig-secret", SECRET];
    let times = ["--lease-duration", &seconds, "--startup-delay", "0"];
    let flags: Vec<&str> = flags.into_iter().chain(times).collect();
    let env = [("WATCH_NAMESPACE", SECRET_NAMESPACE), ("KUBECONFIG", kubeconfig.as_str())];
    let towline = Towline::start_lease(&flags, &env, "--").await?;
    world.wait_for_leases(1).await?;
    begun.watch(world, &towline, 1, DURATION, options.window * 2).await
}

/// Before the process starts.
struct Begun {
    hub: Mark,
    managed: Mark,
}

impl Begun {
    async fn now(world: &World) -> Result<Self, Error> {
        Ok(Self { hub: world.hub.audit()?.mark().await?, managed: world.managed.audit()?.mark().await? })
    }

    async fn watch(
        self,
        world: &World,
        towline: &Towline,
        leases: usize,
        duration: Duration,
        window: Duration,
    ) -> Result<FleetCost, Error> {
        // All have been renewed once: what follows is the steady state.
        tokio::time::sleep(duration / 2).await;
        let (hub, managed) = (world.hub.audit()?, world.managed.audit()?);
        let (hub_mark, managed_mark) = (hub.mark().await?, managed.mark().await?);
        let (before, hub_before) = (towline.usage()?, world.hub.usage()?.api_server);
        let watch = tokio::time::Instant::now();
        tokio::time::sleep(window).await;
        let (after, hub_after) = (towline.usage()?, world.hub.usage()?.api_server);
        let seconds = watch.elapsed().as_secs_f64();

        let of_towline = |mark| Filter::since(mark).user(users::TOWLINE);
        let renewals = hub.count(&of_towline(hub_mark).verb("patch").resource("leases")).await?;
        let all = hub.count(&of_towline(hub_mark).with_watches()).await?;
        let managed_requests = managed.count(&Filter::since(managed_mark).user(users::HUB_USER).with_watches()).await?;
        let (mut discovery_requests, mut probes) = (0, 0);
        for (audit, filter) in
            [(hub, of_towline(self.hub)), (managed, Filter::since(self.managed).user(users::HUB_USER))]
        {
            let pathless = audit.records(&filter.resource("")).await?;
            let probing = pathless.iter().filter(|record| record.uri.starts_with("/version")).count();
            probes += probing;
            discovery_requests += pathless.len() - probing;
        }
        Ok(FleetCost {
            leases,
            duration_seconds: duration.as_secs(),
            seconds,
            renewals,
            other_hub_requests: all - renewals,
            managed_requests,
            discovery_requests,
            probes,
            cpu_seconds: after.cpu.saturating_sub(before.cpu).as_secs_f64(),
            hub_cpu_seconds: hub_after.cpu.saturating_sub(hub_before.cpu).as_secs_f64(),
            peak_mib: crate::measure::mebibytes(after.rss_peak),
            anonymous_mib: crate::measure::mebibytes(after.anonymous),
        })
    }
}
